"""The wall that turns whatever goes wrong into an answer, or into an end that nobody takes for a whole one."""

from typing import NoReturn

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from pytest_aiohttp import AiohttpClient

from gateway.errors import InternalError, ProviderBadResponse
from gateway.server.client_ip import find_origin
from gateway.server.context import SERVICES
from gateway.server.middlewares import error_responses, request_context
from tests.support.part_services import HTTP, build_services
from tests.support.table_rows import table_rows


def fail(error: Exception) -> NoReturn:
    raise error


@pytest.mark.parametrize(
    "error", [ProviderBadResponse("it broke"), InternalError("a bug"), KeyError("a bug"), web.HTTPNotFound()]
)
async def test_an_answer_that_has_begun_is_broken_and_not_followed_by_another(
    aiohttp_client: AiohttpClient, error: Exception
) -> None:
    async def begin(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half of it")
        fail(error)

    app = web.Application(middlewares=[request_context, error_responses])
    app.router.add_get("/begun", begin)
    client = await aiohttp_client(app)
    async with client.get("/begun") as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await response.read()


async def test_what_has_not_begun_is_answered(aiohttp_client: AiohttpClient) -> None:
    async def refuse(_request: web.Request) -> NoReturn:
        fail(ProviderBadResponse("it broke"))

    app = web.Application(middlewares=[request_context, error_responses])
    app[SERVICES] = build_services(http=HTTP)
    app.router.add_get("/", refuse)
    client = await aiohttp_client(app)
    async with client.get("/") as response:
        assert response.status == 502
        assert (await response.json())["error"]["message"]


@table_rows(
    ("host", "origin"),
    [
        ("gw.example", "http://gw.example"),
        ("GW.example:8080", "http://gw.example:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("h#f", ""),
        ("h?q", ""),
        ("x y", ""),
        ("evil.example/..", ""),
        ("user@evil.example", ""),
        ("%0d%0ax", ""),
        ("h:123456", ""),
        ("", ""),
    ],
)
def test_a_link_is_made_of_no_host_that_is_none(host: str, origin: str) -> None:
    assert find_origin(make_mocked_request("GET", "/", headers={"Host": host})) == origin
