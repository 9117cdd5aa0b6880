"""The gateway's own connection class is in use: a private method of aiohttp returns it."""

import asyncio
import contextlib
import inspect
import socket
from collections.abc import Callable
from unittest import mock

import pytest
import uvloop
from aiohttp import http_parser, web
from aiohttp.helpers import DEFAULT_CHUNK_SIZE
from aiohttp.test_utils import make_mocked_request
from aiohttp.web_protocol import MAX_MSG_QUEUE_SIZE, RequestHandler

from gateway.server.protocol import GatewayProtocol, GatewayRunner, GatewayServer
from tests.support.raw_client import connect, post, read_answer
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows


async def test_the_runner_makes_gateway_protocols() -> None:
    runner = GatewayRunner(web.Application(), handler_cancellation=True, keepalive_timeout=7, access_log=None)
    await runner.setup()
    try:
        assert isinstance(runner.server, GatewayServer)
        made = runner.server()
        assert isinstance(made, GatewayProtocol)
        assert runner.server.handler_cancellation is True
        assert made.keepalive_timeout == 7
    finally:
        await runner.cleanup()


async def test_a_running_gateway_talks_over_gateway_protocols(standing_with: StartGateway) -> None:
    gateway = await standing_with({})
    reader, writer = await connect(gateway.url)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await read_answer(reader)).status == 200
    assert gateway.runner.server is not None
    assert {type(connection) for connection in gateway.runner.server.connections} == {GatewayProtocol}
    writer.close()


def test_aiohttp_still_has_the_private_method_that_the_runner_overrides() -> None:
    assert inspect.iscoroutinefunction(web.AppRunner._make_server)
    assert GatewayRunner._make_server is not web.AppRunner._make_server
    assert list(inspect.signature(web.AppRunner._make_server).parameters) == ["self"]


def test_aiohttp_still_asks_handle_error_for_what_it_cannot_parse() -> None:
    ours = inspect.signature(GatewayProtocol.handle_error).parameters
    theirs = inspect.signature(RequestHandler.handle_error).parameters
    assert list(ours) == list(theirs)


def test_aiohttp_parses_in_c() -> None:
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        pytest.fail("aiohttp was installed without its C parser: every request would cost several times as much")


async def test_a_connection_that_waits_for_a_request_ends_when_the_gateway_stops(gateway_with: StartGateway) -> None:
    """Not when everything else has ended: what is asked on it meanwhile would hang until then."""
    gateway = await gateway_with({})
    reader, writer = await connect(gateway.url)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await read_answer(reader)).status == 200
    assert gateway.runner.server is not None
    (connection,) = gateway.runner.server.connections
    connection.close()
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


@table_rows("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@table_rows("turns", range(5))
def test_a_connection_of_the_last_moment_is_answered_or_left(
    turns: int, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """When the gateway begins to stop, the kernel has accepted it; the loop may have no protocol for it, nor a byte."""
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(_stop_beside_new_connections(turns))


async def _stop_beside_new_connections(turns: int) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="answered")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = GatewayRunner(app, access_log=None)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await web.SockSite(runner, listener.dup()).start()  # the listener outlives the gateway, as systemd's does
        callers = [socket.create_connection(listener.getsockname()) for _ in range(20)]
        for _ in range(turns):
            await asyncio.sleep(0)
        stopping = asyncio.create_task(runner.cleanup())
        await asyncio.sleep(0.05)
        for caller in callers:
            caller.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await stopping
        left = _close_all(listener, {caller.getsockname() for caller in callers})
        answered = sum(_is_answered(caller) for caller in callers)
        await asyncio.sleep(0.01)  # the transports close
    assert answered + left == len(callers), "dropped, and neither answered nor left to the gateway that starts next"
    assert answered or not turns


def _close_all(listener: socket.socket, callers: set[object]) -> int:
    """Close what waits to be accepted, and return how many of ``callers`` did: other tests may try this port."""
    listener.setblocking(False)
    closed = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, peer = listener.accept()
            connection.close()
            closed += peer in callers
    return closed


def _is_answered(caller: socket.socket) -> bool:
    with caller, contextlib.suppress(ConnectionError):
        caller.settimeout(5)
        return caller.recv(100).startswith(b"HTTP/1.1 200 ")
    return False


def test_aiohttp_still_keeps_where_a_request_leads_in_the_attribute_that_the_shortcut_sets() -> None:
    assert "_match_info" in web.Request.ATTRS
    source = inspect.getsource(web.Application._handle)
    assert "request._match_info = match_info" in source
    assert "match_info.add_app(self)" in source


@pytest.mark.parametrize(
    ("target", "method", "status"),
    [
        ("/v1/chat/completions", "GET", 405),
        ("/v1/chat/completions", "PUT", 405),
        ("/v1/chat/completions/", "POST", 404),
        ("//v1/chat/completions", "POST", 404),
        ("/v1/chat/Completions", "POST", 404),
        ("/v1/chat/completions?x=1", "POST", 400),
        ("/v1/chat/%63ompletions", "POST", 400),
        ("/v1/chat/completions", "POST", 400),
    ],
)
async def test_the_shortcut_takes_what_the_long_way_would(
    standing_with: StartGateway, target: str, method: str, status: int
) -> None:
    gateway = await standing_with({})
    reader, writer = await connect(gateway.url)
    key = gateway.client.headers["Authorization"]
    head = f"{method} {target} HTTP/1.1\r\nHost: a\r\nAuthorization: {key}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
    assert (await read_answer(reader)).status == status
    writer.close()


async def test_requests_that_come_all_at_once_after_a_body_in_two_pieces_are_all_answered(
    standing_with: StartGateway,
) -> None:
    """The parser's count of those that wait is one too high then: it is full before the connection is."""
    gateway = await standing_with({})
    reader, writer = await connect(gateway.url)
    head, _, body = post(b"{}").partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    await asyncio.sleep(0.05)
    writer.write(body)
    assert (await read_answer(reader)).status == 400
    for raw in (post(b"{}"), b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"):
        many = 2 * MAX_MSG_QUEUE_SIZE
        writer.write(raw * many)
        assert len({(await read_answer(reader)).status for _ in range(many)}) == 1
    writer.close()


@pytest.mark.parametrize("more", [-1, 0, 1, 2])
async def test_a_pause_that_a_parser_has_kept_does_not_hold_up_the_next_body(more: int) -> None:
    """A body in so many chunks that its last one pauses the connection, which its end lets go on at once."""
    heard: asyncio.Queue[int] = asyncio.Queue()

    async def hear(request: web.BaseRequest) -> web.StreamResponse:
        heard.put_nowait(len(b"".join([piece async for piece in request.content.iter_any()])))
        return web.Response()

    made = GatewayServer(hear)()
    transport = mock.create_autospec(asyncio.Transport, instance=True)
    transport.is_closing.return_value = False
    transport.get_extra_info.return_value = None
    made.connection_made(transport)
    await asyncio.sleep(0)
    chunks = DEFAULT_CHUNK_SIZE // 16 + more
    made.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    made.data_received(b"1\r\nx\r\n" * chunks + b"0\r\n\r\n")
    async with asyncio.timeout(2):
        assert await heard.get() == chunks
    made.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
    async with asyncio.timeout(2):
        assert await heard.get() == 3
    made.force_close()


async def test_a_caller_who_left_before_the_first_byte_is_no_bug() -> None:
    made = GatewayServer(_never)()
    request = make_mocked_request("POST", "/")
    request.writer.output_size = 0
    with pytest.raises(ConnectionError):
        made.handle_error(request, 500, ConnectionResetError("the caller left"))


async def _never(_request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError
