"""Our own driver from within: its connections."""

from typing import Any

from gateway.upstream.connection import Connection
from gateway.upstream.fast_client import WireReply, WireUpstream
from tests.support.scripted_upstream import ScriptedUpstream
from tests.support.upstream_requests import plan

BIG = bytes(20_000_000)
"""A body that no system's buffers hold."""


async def open_reply(wire: WireUpstream, up: ScriptedUpstream, **more: Any) -> tuple[WireReply, Connection]:
    reply = await wire.send(plan(up, **more))
    assert isinstance(reply, WireReply)
    line = reply._line
    assert line is not None
    return reply, line


def list_lines(wire: WireUpstream) -> list[Connection]:
    return list(wire._pool._all)
