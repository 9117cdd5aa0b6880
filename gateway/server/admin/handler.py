"""Handlers of the admin API: they return data, which becomes JSON here; a page of the console gets it as it is."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import attrs
import orjson
from aiohttp import web

from gateway.domain.audit_log import Actor
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.server.admin.answer import InForce, build_answer, write_answer
from gateway.server.context import ACTOR, SERVICES, Services
from gateway.server.openapi import schema as s
from gateway.server.sessions import get_signed
from gateway.storage.nodes import await_in_force

if TYPE_CHECKING:  # a request with the admin token needs none
    from gateway.auth.sessions import CurrentUser

Fields = dict[str, Any]


@frozen
class Query:
    """A query parameter."""

    name: str
    about: str
    shape: s.Shape = s.TEXT


@frozen(eq=False)
class AdminRequest:
    """A request to an operation: one of the API, or what a page of the console asks in its place.

    Attributes:
        http: the request that has arrived; for a page, the page's own.
        query: the parameters of the operation.
        finish: called with the response before it is sent, for a cookie. A page has no such response.
    """

    http: web.Request
    query: Mapping[str, str]
    finish: list[Callable[[web.Response], None]] = attrs.Factory(list)

    @property
    def services(self) -> Services:
        return self.http.app[SERVICES]

    @property
    def actor(self) -> Actor:
        return self.http[ACTOR]

    @property
    def signed(self) -> "CurrentUser":
        """The member who is signed in. Raises ``Forbidden`` if the actor is the bearer of the admin token."""
        return get_signed(self.http)

    @property
    def match_info(self) -> Mapping[str, str]:
        return self.http.match_info


Function = Callable[[AdminRequest], Awaitable[Any]]


@frozen(kw_only=True)
class AdminHandler:
    """The handler of an operation. The document takes its summary and description from the function's docstring.

    Attributes:
        function: returns an object or a list of them; or a response, if that is a stream.
        takes: the attrs class that its JSON body is parsed into; None without a body.
        partly: whether any field of the body may be missing, which leaves its value unchanged.
        answer: the schema of its JSON response; without one it is that of what the function returns.
        media_type: the media type of its response.
        change: whether it changes what every node of a cluster holds in memory. In a cluster the answer says where
            the change is in force.
    """

    function: Function
    takes: type | None = None
    partly: bool = False
    query: tuple[Query, ...] = ()
    _answer: s.Shape | None = None
    status: int = 200
    media_type: str = "application/json"
    change: bool = False

    async def respond(self, http: web.Request) -> web.StreamResponse:
        """Handle a request of the API."""
        request = AdminRequest(http, http.query)
        found = await self.function(request)
        if isinstance(found, web.StreamResponse):
            return found
        if self.change and (in_force := await _find_in_force(request.services)) is not None:
            is_object = attrs.has(type(found))
            found = attrs.evolve(found, in_force=in_force) if is_object else {**found, "in_force": in_force}
        body = orjson.dumps(build_list(found) if isinstance(found, list) else found, default=write_answer)
        response = web.Response(body=body, status=self.status, content_type="application/json")
        for finish in request.finish:
            finish(response)
        return response

    @property
    def answer(self) -> s.Shape:
        if self._answer is not None:
            return self._answer
        returned = signature(self.function).return_annotation
        return s.ANYTHING if returned is web.StreamResponse else build_answer(returned)

    @property
    def name(self) -> str:
        return self.function.__name__


def admin_operation(**facts: Any) -> Callable[[Function], AdminHandler]:
    """Declare a function as the handler of an operation, with ``facts`` for the attributes of ``AdminHandler``."""
    return partial(_declare, facts)


def _declare(facts: dict[str, Any], function: Function) -> AdminHandler:
    return AdminHandler(function=function, **facts)


def build_list(items: list[Any]) -> Fields:
    """Return a list in the form of the OpenAI API."""
    return {"object": "list", "data": items}


async def _find_in_force(services: Services) -> InForce | None:
    """Wait up to 500 ms for the nodes of a cluster; return at how many of them a change is in force."""
    storage = services.storage
    if storage.node is not None:
        with suppress(StoreUnavailable):  # the change is stored
            found = await await_in_force(storage.database)
            return InForce(found.nodes, found.total, found.ms)
    return None
