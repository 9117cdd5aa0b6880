"""What the admin API is made of: one table of doors, from which routes, rights and the OpenAPI document are read."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.server.openapi import schema as s

PREFIX = "/admin/v1"

Access = Literal["anyone", "viewer", "member", "administrator"]
"""Who is let in: anyone, signed in or not; else the least role. The bearer of the admin token is an administrator."""


@attrs.frozen
class Query:
    """A parameter of a query."""

    name: str
    about: str
    shape: s.Shape = s.TEXT


@attrs.frozen
class AdminOperation:
    """One operation. Its handler's docstring is what the document says of it.

    Attributes:
        path: without the prefix.
        access: who is let in. What is another account's than a member's own is not there for it (404).
        takes: the noun that its JSON body is read into (``domain/account_spec.py``); None where it has no body.
        partly: any fields of that may be left out: what is not named stays.
        answer: what its JSON answer looks like.
        media_type: of its answer.
    """

    method: str
    path: str
    handler: Handler
    access: Access = "administrator"
    takes: type | None = attrs.field(default=None, kw_only=True)
    partly: bool = attrs.field(default=False, kw_only=True)
    query: tuple[Query, ...] = attrs.field(default=(), kw_only=True)
    answer: s.Shape = attrs.field(default=s.ANYTHING, kw_only=True)
    status: int = attrs.field(default=200, kw_only=True)
    media_type: str = attrs.field(default="application/json", kw_only=True)

    @property
    def full_path(self) -> str:
        """With the prefix."""
        return PREFIX + self.path


Doors = Mapping[tuple[str, str], AdminOperation]
DOORS: web.AppKey[Doors] = web.AppKey("doors")
"""By method and full path."""


def hang(app: web.Application, doors: Iterable[AdminOperation]) -> None:
    """Put every door in its place. Raises ``ValueError`` where there is one already."""
    placed: dict[tuple[str, str], Any] = {}
    for door in doors:
        app.router.add_route(door.method, door.full_path, door.handler)
        if door.method == "GET":
            placed["HEAD", door.full_path] = door
        if placed.setdefault((door.method, door.full_path), door) is not door:
            raise ValueError(f"two doors at {door.method} {door.full_path}")
    app[DOORS] = MappingProxyType(placed)
