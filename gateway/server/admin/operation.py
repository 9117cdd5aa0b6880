"""The admin API's operations: routes, access rights and the OpenAPI document are generated from one table."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import attrs
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.server.openapi import schema as s

PREFIX = "/admin/v1"

Access = Literal["anyone", "viewer", "member", "administrator"]
"""The least role that may call an operation, or anyone. A bearer of the admin token is an administrator."""


@attrs.frozen
class Query:
    """A query parameter."""

    name: str
    about: str
    shape: s.Shape = s.TEXT


@attrs.frozen
class AdminOperation:
    """One operation. The OpenAPI document takes its summary and description from the handler's docstring.

    Attributes:
        path: without the prefix.
        access: who may call it. For a member, what belongs to another account does not exist (404).
        takes: the attrs class that its JSON body is parsed into; None without a body.
        partly: whether any field of the body may be missing, which leaves its value unchanged.
        answer: the schema of its JSON response.
        media_type: the media type of its response.
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
        return PREFIX + self.path


Operations = Mapping[tuple[str, str], AdminOperation]
OPERATIONS: web.AppKey[Operations] = web.AppKey("operations")
"""Operations by method and full path."""


def register_operations(admin: web.Application, operations: Iterable[AdminOperation]) -> Operations:
    """Add a route for every admin operation, and return the operations by method and full path.

    Raises ``ValueError`` for two operations on one method and path.
    """
    placed: dict[tuple[str, str], AdminOperation] = {}
    for operation in operations:
        admin.router.add_route(operation.method, operation.path, operation.handler)
        if operation.method == "GET":
            placed["HEAD", operation.full_path] = operation
        if placed.setdefault((operation.method, operation.full_path), operation) is not operation:
            raise ValueError(f"two operations at {operation.method} {operation.full_path}")
    return MappingProxyType(placed)
