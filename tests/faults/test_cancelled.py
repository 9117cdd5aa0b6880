"""A call that another than its caller ends: its caller is told, its provider left at once, and it is settled once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import attrs
import orjson
import pytest

from gateway.domain.audit_log import OPERATOR, Actor
from gateway.domain.request_log import RequestRecord
from gateway.domain.token_estimate import estimate_text
from gateway.errors import Conflict, NotFound
from gateway.server.admin.activity_feed import list_running
from gateway.server.context import SERVICES
from tests.support import video_scene as film_set
from tests.support.fault_scene import UNHURRIED, Heard, call, cost_of, good_script, healthy, hear, site, until
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.leaving_clients import PHASES, Phase, connect, reset
from tests.support.openai_videos import SILENCE, OpenAiVideos, Play
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    STALL,
    Received,
    Script,
    ScriptedUpstream,
    answer,
    chunk,
)
from tests.support.slow_readers import STORY, settle, unread
from tests.support.started_gateways import StartGateway
from tests.support.upstream_scripts import ONE, STARTED, TEXT, TWO

CODE = "request_cancelled"
TURNS = 6
"""Of the loop, within which one of two comes first."""


def running(gateway: RunningGateway) -> list[str]:
    return list(gateway.app[SERVICES].active_requests.calls)


def cancel(gateway: RunningGateway) -> bool:
    """The one call under way."""
    (request_id,) = running(gateway)
    return bool(gateway.app[SERVICES].active_requests.get(request_id, OPERATOR).cancel())


async def call_and(gateway: RunningGateway, then: Callable[[], Awaitable[None]], *, stream: bool, begun: bool) -> Heard:
    """A call; ``then`` is done while it is under way, of one that has ``begun`` when the caller has heard of it."""
    if not begun:
        calling = asyncio.create_task(call(gateway, stream=stream))
        await then()
        return await calling
    async with gateway.post({**HELLO, "stream": True}) as response:
        first = await response.content.readuntil(TWO)
        await then()
        heard = await hear(response)
        return attrs.evolve(heard, body=first + heard.body)


async def turn(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def check(gateway: RunningGateway, rows: Sequence[RequestRecord]) -> None:
    """Every row is charged for what it says, and nothing is under way or held any more."""
    assert all(row.cost_nanos == cost_of(row) for row in rows)
    books = await gateway.check_books()
    assert (books["charged_nanos"], books["open_holds"]) == (sum(row.cost_nanos for row in rows), 0)
    assert (running(gateway), gateway.running) == ([], 0)


def check_refused(heard: Heard) -> None:
    """Nothing had been sent: the one error object, and no library that obeys us asks again."""
    assert (heard.status, heard.whole, heard.headers["x-should-retry"]) == (409, True, "false")
    error = orjson.loads(heard.body)["error"]
    assert (error["code"], error["type"], error["param"]) == (CODE, "new_api_error", None)


def check_ended(heard: Heard, before: list[bytes]) -> None:
    """It had begun: the error is its last event, and it has no end mark."""
    assert (heard.status, heard.whole, heard.events[:-1]) == (200, True, before)
    assert orjson.loads(heard.events[-1].removeprefix(b"data: "))["error"]["code"] == CODE
    assert DONE not in heard.body


async def test_a_call_is_cancelled_in_whatever_phase_it_is(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(*(phase.script for phase in PHASES)) as up, ScriptedUpstream([STALL]) as good:
        gateway = await gateway_with(site(channel(up.base_url, "left", **UNHURRIED), healthy(good)))
        for number, phase in enumerate(PHASES, 1):
            up.hung_up.clear()

            async def then(number: int = number) -> None:
                await until(lambda: len(up.received) == number)
                await asyncio.sleep(0.02)
                assert cancel(gateway)

            heard = await call_and(gateway, then, stream=phase.stream, begun=bool(phase.heard))
            await asyncio.wait_for(up.hung_up.wait(), 5)
            row = (await gateway.rows(number))[-1]
            check_phase(phase, heard, row)
        assert not good.received
        await check(gateway, await gateway.rows(len(PHASES)))


def check_phase(phase: Phase, heard: Heard, row: RequestRecord) -> None:
    assert (row.outcome, row.error_code, row.channel, row.attempts) == ("cancelled", CODE, "left", 1), phase.name
    if phase.heard:
        check_ended(heard, [ONE, TWO])
        assert (row.status, row.usage_source) == (200, "estimate")
        assert row.completion_tokens == estimate_text(TEXT)
    else:
        check_refused(heard)
        bought = ("none", 0) if phase.refused else ("estimate", 1_000)
        assert (row.status, row.usage_source, row.cost_nanos) == (409, *bought), phase.name


async def test_a_call_whose_body_is_still_arriving_is_answered_at_once(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await gateway_with(site(channel(up.base_url)))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        await until(lambda: running(gateway))
        assert cancel(gateway)
        assert not cancel(gateway), "it was cancelled before"
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 409 ")
        writer.close()
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.error_code, row.status, row.attempts, row.model) == ("cancelled", CODE, 409, 0, "")
        await check(gateway, [row])
        assert not up.received


async def test_a_call_that_waits_for_its_turn_to_be_tried_again_is_not(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({}, 500)]) as bad, ScriptedUpstream([STALL]) as good:
        gateway = await gateway_with(site(channel(bad.base_url, "bad"), healthy(good)))
        board = gateway.app[SERVICES].routing.load_balancer
        board.settings = attrs.evolve(board.settings, retry_ratio=0.0, least_retries=0)
        calling = asyncio.create_task(call(gateway, stream=True))
        await until(lambda: gateway.app[SERVICES].proxy.waiting)
        assert cancel(gateway)
        check_refused(await calling)
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.error_code, row.attempts) == ("cancelled", CODE, 1)
        await check(gateway, [row])
        assert not good.received


@pytest.mark.parametrize("stream", [True, False])
async def test_whoever_comes_first_the_answer_or_its_end_the_caller_and_the_row_agree(
    gateway_with: StartGateway, stream: bool
) -> None:
    """The provider ends its answer at the moment at which the call is cancelled, or a few turns of the loop later."""
    go = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go.wait()
        go.clear()

    script: Script = [*STARTED, wait, chunk(DONE), LAST_CHUNK] if stream else [wait, answer(COMPLETION)]
    async with ScriptedUpstream(script) as up:
        gateway = await gateway_with(site(channel(up.base_url, **UNHURRIED)))
        ends = []
        for number in range(1, TURNS + 1):

            async def then(number: int = number) -> None:
                await until(lambda: len(up.received) == number)
                await asyncio.sleep(0.01)
                go.set()
                await (turn(number - 1) if number < TURNS else until(lambda: not running(gateway)))
                if running(gateway):
                    cancel(gateway)

            heard = await call_and(gateway, then, stream=stream, begun=stream)
            ends.append((await gateway.rows(number))[-1].outcome)
            if ends[-1] == "completed":
                assert (heard.status, heard.body.endswith(DONE) or not stream) == (200, True)
            else:
                assert ends[-1] == "cancelled"
                check_ended(heard, [ONE, TWO]) if stream else check_refused(heard)
        assert ends[0] == "cancelled"
        assert ends[-1] == "completed"
        await check(gateway, await gateway.rows(TURNS))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_caller_who_leaves_at_the_same_moment_is_settled_once(gateway_with: StartGateway, stream: bool) -> None:
    async with ScriptedUpstream([*STARTED, STALL] if stream else [STALL]) as up:
        gateway = await gateway_with(site(channel(up.base_url, **UNHURRIED)))
        for number in range(1, TURNS + 1):
            reader, writer = await connect(gateway, stream=stream)
            await until(lambda number=number: len(up.received) == number)  # type: ignore[misc]
            if stream:
                await reader.readuntil(TWO)
            reset(writer)
            await turn(number // 2)
            if running(gateway):
                cancel(gateway)
            assert (await gateway.rows(number))[-1].outcome in {"cancelled", "client_closed"}
            await until(lambda: not up.open_connections)
        rows = await gateway.rows(TURNS)
        assert {row.status for row in rows} <= ({200} if stream else {409, 499, 500})
        await check(gateway, rows)


async def test_what_has_ended_or_is_another_accounts_cannot_be_cancelled(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(good_script(stream=True), [*STARTED, STALL]) as up:
        gateway = await gateway_with(site(channel(up.base_url, **UNHURRIED)))
        heard = await call(gateway, stream=True)
        under_way = gateway.app[SERVICES].active_requests
        with pytest.raises(NotFound):
            under_way.get(heard.request_id, OPERATOR)
        reader, writer = await connect(gateway, stream=True)
        await reader.readuntil(TWO)
        (request_id,) = running(gateway)
        with pytest.raises(NotFound):
            under_way.get(request_id, Actor("member", "eve", 9, 2, 2))
        assert under_way.get(request_id, Actor("member", "ann", 8, 1, 1)).cancel()
        assert b'"code":"request_cancelled"' in await reader.readuntil(LAST_CHUNK)
        writer.close()
        assert [row.outcome for row in await gateway.rows(2)] == ["completed", "cancelled"]


async def test_a_stream_in_another_language_ends_in_its_own_error_event(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([*STARTED, STALL]) as up:
        gateway = await gateway_with(site(channel(up.base_url, **UNHURRIED)))
        body = {**HELLO, "max_tokens": 9, "stream": True}
        async with gateway.post(body, "/v1/messages") as response:
            await response.content.readuntil(b"king")
            assert cancel(gateway)
            rest = await response.content.read()
        *_, last = rest.removesuffix(b"\n\n").split(b"\n\n")
        name, _, data = last.partition(b"\n")
        assert name == b"event: error"
        error = orjson.loads(data.removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("conflict_error", CODE)
        assert b"message_stop" not in rest


async def test_a_name_is_free_again_when_its_call_was_cancelled(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL], [answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url, **UNHURRIED)))
        headers = {"Idempotency-Key": "mine"}

        async def ask() -> Heard:
            async with gateway.post(headers=headers) as response:
                return await hear(response)

        calling = asyncio.create_task(ask())
        await until(lambda: up.received)
        cancel(gateway)
        check_refused(await calling)
        await gateway.rows(1)
        async with asyncio.timeout(5):
            while (heard := await ask()).status == 409:  # noqa: ASYNC110 - what is forgotten behind an answer has no bell
                await asyncio.sleep(0.01)
        assert (heard.status, "Idempotent-Replayed" in heard.headers) == (200, False)


@pytest.mark.slow
async def test_a_caller_who_does_not_read_is_settled_at_once_and_told_when_it_reads(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(STORY) as up:
        gateway = await gateway_with(site(channel(up.base_url, **UNHURRIED)))
        async with unread(gateway) as response:
            await settle(up)
            assert cancel(gateway)
            await until(lambda: not up.open_connections)
            assert not running(gateway)
            await gateway.check_books()
            body = await response.read()
        assert b'"code":"request_cancelled"' in body[-300:]
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.error_code, row.status) == ("cancelled", CODE, 200)
        await check(gateway, [row])


async def test_a_call_for_a_video_is_cancelled_while_it_is_a_call_and_no_longer(gateway_with: StartGateway) -> None:
    async with OpenAiVideos(slow=Play(submit=(SILENCE,))) as up:
        gateway = await gateway_with(film_set.site(up.channel()))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        head = f"POST {film_set.VIDEOS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        await until(lambda: running(gateway))
        assert cancel(gateway)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 409 ")
        writer.close()
        asking = asyncio.create_task(film_set.submit(gateway, "slow"))
        await until(lambda: up.count("slow"))
        with pytest.raises(Conflict, match="has become a video job"):
            cancel(gateway)
        asking.cancel()
        await asyncio.sleep(0.03)
        active = gateway.app[SERVICES].active_requests
        (under_way,) = list_running(active, None, asyncio.get_running_loop().time())
        assert (under_way.operation, under_way.phase, under_way.attempts) == ("videos", "waiting", 1)
        assert under_way.address is None, "the client has left, and the request goes on"
        gateway.app[SERVICES].proxy.abort()
        await film_set.await_job(gateway, "slow")
        await until(lambda: not running(gateway))
