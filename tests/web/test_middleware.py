"""The wall that turns whatever goes wrong into an answer, or into an end that nobody takes for a whole one."""

from typing import NoReturn

import aiohttp
import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpClient

from gateway.domain.fault import InternalError, UpstreamError
from gateway.web.middleware import access_log, error_shape


def fail(error: Exception) -> NoReturn:
    raise error


@pytest.mark.parametrize(
    "error", [UpstreamError("it broke"), InternalError("a bug"), KeyError("a bug"), web.HTTPNotFound()]
)
async def test_an_answer_that_has_begun_is_broken_and_not_followed_by_another(
    aiohttp_client: AiohttpClient,
    error: Exception,
) -> None:
    async def begin(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half of it")
        fail(error)

    app = web.Application(middlewares=[access_log, error_shape])
    app.router.add_get("/begun", begin)
    client = await aiohttp_client(app)
    async with client.get("/begun") as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await response.read()


async def test_what_has_not_begun_is_answered(aiohttp_client: AiohttpClient) -> None:
    async def refuse(_request: web.Request) -> NoReturn:
        fail(UpstreamError("it broke"))

    app = web.Application(middlewares=[access_log, error_shape])
    app.router.add_get("/", refuse)
    client = await aiohttp_client(app)
    async with client.get("/") as response:
        assert response.status == 502
        assert (await response.json())["error"]["message"]
