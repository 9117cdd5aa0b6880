"""Our own driver from within: its connections."""

from typing import Any

from gateway.upstream.client import PooledHttpClient, PooledHttpResponse
from gateway.upstream.connection import Connection
from tests.support.scripted_upstream import ScriptedUpstream
from tests.support.upstream_requests import build_request

BIG = bytes(20_000_000)
"""A body that no system's buffers hold."""


async def open_reply(
    upstream: PooledHttpClient, up: ScriptedUpstream, **more: Any
) -> tuple[PooledHttpResponse, Connection]:
    response = await upstream.send(build_request(up, **more))
    assert isinstance(response, PooledHttpResponse)
    line = response._line
    assert line is not None
    return response, line


def list_lines(upstream: PooledHttpClient) -> list[Connection]:
    return list(upstream._pool._connections)
