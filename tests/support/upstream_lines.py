"""Our own driver from within: its connections."""

from typing import Any

from gateway.upstream.connection import Connection
from gateway.upstream.fast_client import FastHttpClient, FastHttpResponse
from tests.support.scripted_upstream import ScriptedUpstream
from tests.support.upstream_requests import build_request

BIG = bytes(20_000_000)
"""A body that no system's buffers hold."""


async def open_reply(wire: FastHttpClient, up: ScriptedUpstream, **more: Any) -> tuple[FastHttpResponse, Connection]:
    response = await wire.send(build_request(up, **more))
    assert isinstance(response, FastHttpResponse)
    line = response._line
    assert line is not None
    return response, line


def list_lines(wire: FastHttpClient) -> list[Connection]:
    return list(wire._pool._all)
