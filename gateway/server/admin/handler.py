"""The framework of admin API handlers. They return data, which becomes JSON here; console pages use it directly."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import attrs
import orjson
from aiohttp import web

from gateway.domain.audit_log import Actor
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.server.admin.answer import InForceView, build_answer, write_answer
from gateway.server.context import ACTOR, SERVICES, Services
from gateway.server.openapi import schema as s
from gateway.server.sessions import get_signed_in_user
from gateway.storage.nodes import await_in_force

if TYPE_CHECKING:  # not needed for requests with the admin token
    from gateway.auth.sessions import CurrentUser

Fields = dict[str, Any]
T = TypeVar("T")


@frozen
class Query:
    """A query parameter of an operation."""

    name: str
    about: str
    schema: s.Schema = s.TEXT


@frozen(eq=False)
class AdminRequest:
    """A request to an operation, from a client of the API or from a console page in the same process.

    ``http`` is the client's request, or the one for the console page. The functions in ``finish`` are called with the
    response before it is sent, to set cookies; they are not called for console pages.
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
    def user(self) -> "CurrentUser":
        return get_signed_in_user(self.http)

    @property
    def match_info(self) -> Mapping[str, str]:
        return self.http.match_info


class ListPage(list[T]):
    """One page of a list.

    Attributes:
        total: the number of objects on all pages.
        start: the number of objects on the pages before this one.
        next_after: the ``after`` of the next page; None after the last one.
        previous_after: the ``after`` of the page before; empty if that is the first page, None if there is none.
    """

    def __init__(
        self, objects: Iterable[T], *, total: int, start: int, next_after: str | None, previous_after: str | None
    ) -> None:
        super().__init__(objects)
        self.total = total
        self.start = start
        self.next_after = next_after
        self.previous_after = previous_after


Function = Callable[[AdminRequest], Awaitable[Any]]


@frozen(kw_only=True)
class AdminHandler:
    """The handler of an operation. The function's docstring is its summary and description in the OpenAPI document.

    Attributes:
        function: returns an object or a list of objects; for a stream, a response.
        takes: the attrs class of the JSON body; None if there is no body.
        partly: every field of the body is optional. A missing field leaves its value unchanged.
        answer: the schema of the JSON response; by default derived from the function's return type.
        change: whether the operation changes data that all cluster nodes hold in memory. If it does, the answer
            reports how many nodes have applied the change.
    """

    function: Function
    takes: type | None = None
    partly: bool = False
    query: tuple[Query, ...] = ()
    _answer: s.Schema | None = None
    status: int = 200
    media_type: str = "application/json"
    change: bool = False

    async def respond(self, http: web.Request) -> web.StreamResponse:
        request = AdminRequest(http, http.query)
        answer = await self.function(request)
        if isinstance(answer, web.StreamResponse):
            return answer
        if self.change and (in_force := await _find_in_force(request.services)) is not None:
            answer = attrs.evolve(answer, in_force=in_force)
        body = orjson.dumps(build_list(answer) if isinstance(answer, list) else answer, default=write_answer)
        response = web.Response(body=body, status=self.status, content_type="application/json")
        for finish in request.finish:
            finish(response)
        return response

    @property
    def answer(self) -> s.Schema:
        if self._answer is not None:
            return self._answer
        return_type = signature(self.function).return_annotation
        if get_origin(return_type) is ListPage:
            return s.page(build_answer(get_args(return_type)[0]))
        return s.ANYTHING if return_type is web.StreamResponse else build_answer(return_type)

    @property
    def name(self) -> str:
        return self.function.__name__


def admin_operation(**facts: Any) -> Callable[[Function], AdminHandler]:
    """Decorate a function as the handler of an operation. ``facts`` are the attributes of ``AdminHandler``."""
    return partial(_declare, facts)


def _declare(facts: dict[str, Any], function: Function) -> AdminHandler:
    return AdminHandler(function=function, **facts)


def build_list(items: list[Any]) -> Fields:
    """Return a list in the form of the OpenAI API; a page also has the number of objects, and the next page."""
    fields = {"object": "list", "data": items}
    return {**fields, "total": items.total, "next": items.next_after} if isinstance(items, ListPage) else fields


async def _find_in_force(services: Services) -> InForceView | None:
    """Wait up to 500 ms for the nodes of the cluster. Return the number of nodes at which a change is in force.

    None without a cluster, or if the store does not answer.
    """
    storage = services.storage
    if storage.node is not None:
        with suppress(StoreUnavailable):  # the change itself is already stored
            in_force = await await_in_force(storage.database)
            return InForceView(in_force.nodes, in_force.total, in_force.ms)
    return None
