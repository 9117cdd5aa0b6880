"""What handlers of the admin API declare: the request bodies, queries and answers in the OpenAPI document."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
from aiohttp import web

from gateway.server.openapi import schema as s

Function = Callable[[web.Request], Awaitable[web.StreamResponse]]


@attrs.frozen
class Query:
    """A query parameter."""

    name: str
    about: str
    shape: s.Shape = s.TEXT


@attrs.frozen(kw_only=True)
class AdminHandler:
    """The handler of an operation. The document takes its summary and description from the function's docstring.

    Attributes:
        takes: the attrs class that its JSON body is parsed into; None without a body.
        partly: whether any field of the body may be missing, which leaves its value unchanged.
        answer: the schema of its JSON response.
        media_type: the media type of its response.
    """

    function: Function
    takes: type | None = None
    partly: bool = False
    query: tuple[Query, ...] = ()
    answer: s.Shape = s.ANYTHING
    status: int = 200
    media_type: str = "application/json"

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        return await self.function(request)

    @property
    def name(self) -> str:
        return self.function.__name__


def admin_operation(**facts: Any) -> Callable[[Function], AdminHandler]:
    """Declare a function as the handler of an operation, with ``facts`` for the attributes of ``AdminHandler``."""
    return partial(_declare, facts)


def _declare(facts: dict[str, Any], function: Function) -> AdminHandler:
    return AdminHandler(function=function, **facts)
