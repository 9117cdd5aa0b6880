"""U10 and U11: an event, a line, a row of comments or a body without an end is given up in bounded memory."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.formats.wire.sse import MAX_NOISE_BYTES
from tests.support.compressed_runs import compress_run
from tests.support.fault_scene import (
    WORDS,
    audit,
    call,
    check_broken_stream,
    check_error,
    check_row_of_failure,
    check_row_of_success,
    good_script,
    healthy,
    site,
)
from tests.support.gateway import channel
from tests.support.scripted_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    STALL,
    Flood,
    Script,
    ScriptedUpstream,
    answer,
    chat_events,
    chunk,
)
from tests.support.started_gateways import StartGateway
from tests.support.upstream_scripts import ONE, STARTED, TWO

MB = 1024 * 1024
PIECE_BYTES = b"x" * 65_536
LINE = [chunk(b"data: "), Flood(chunk(PIECE_BYTES), 64 * MB // len(PIECE_BYTES)), chunk(b"\n\n")]
LINES = [chunk(b"data: x\n"), Flood(chunk(b"data: y\n" * 8192), 64 * MB // 65_536), chunk(b"\n")]
COMMENTS = Flood(chunk(b": " + PIECE_BYTES + b"\n\n"), 64 * MB // len(PIECE_BYTES))
PATIENT: dict[str, Any] = {"first_byte_timeout_s": 30, "idle_timeout_s": 30, "total_timeout_s": 30}
"""Measuring memory makes everything slow; no timer is to be what ends a scene here."""

pytestmark = pytest.mark.slow


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Fail where Python holds more than ``limit`` bytes at any moment."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit


@pytest.mark.parametrize("endless", [LINE, LINES], ids=["line", "event"])
async def test_an_endless_first_event_is_given_up_for_the_next_channel(
    standing_with: StartGateway, endless: Script
) -> None:
    script: Script = [SSE_HEAD, *endless, STALL]
    async with ScriptedUpstream(script) as bad, ScriptedUpstream(good_script(stream=True)) as good:
        gateway = await standing_with(site(channel(bad.base_url, **PATIENT), healthy(good)))
        with at_most(40 * MB):
            assert (await call(gateway, stream=True)).status == 200
        check_row_of_success(await audit(gateway, bad), "healthy", attempts=2)
        assert bad.flooded < 40 * MB


@pytest.mark.parametrize("endless", [LINE, LINES], ids=["line", "event"])
async def test_an_endless_later_event_ends_the_stream(standing_with: StartGateway, endless: Script) -> None:
    async with ScriptedUpstream([*STARTED, *endless, STALL]) as bad:
        gateway = await standing_with(site(channel(bad.base_url, **PATIENT)))
        with at_most(40 * MB):
            heard = await call(gateway, stream=True)
        assert check_broken_stream(heard, "upstream_error") == [ONE, TWO]
        row = await audit(gateway, bad, outcome="failed", attempts=1)
        assert (row.usage_source, row.completion_tokens) == ("estimate", 9)
        assert bad.flooded < 40 * MB


async def test_a_flood_of_comments_before_the_first_event_is_given_up_for_the_next_channel(
    standing_with: StartGateway,
) -> None:
    async with ScriptedUpstream([SSE_HEAD, COMMENTS, STALL]) as bad, ScriptedUpstream(good_script(stream=True)) as good:
        gateway = await standing_with(site(channel(bad.base_url, **PATIENT), healthy(good)))
        with at_most(10 * MB):
            assert (await call(gateway, stream=True)).status == 200
        check_row_of_success(await audit(gateway, bad), "healthy", attempts=2)
        assert bad.flooded < 10 * MB


async def test_noise_within_its_budget_between_events_may_be_any_amount_in_all(standing_with: StartGateway) -> None:
    noise = Flood(chunk(b": " + PIECE_BYTES + b"\n\n"), MAX_NOISE_BYTES // (len(PIECE_BYTES) + 4))
    first, *rest = chat_events(*WORDS)
    story = [step for _ in range(9) for step in (noise, chunk(first))]
    async with ScriptedUpstream([SSE_HEAD, *story, *map(chunk, rest), LAST_CHUNK]) as up:
        gateway = await standing_with(site(channel(up.base_url, **PATIENT)))
        heard = await call(gateway, stream=True)
        assert heard.body.endswith(b"data: [DONE]\n\n")
        await audit(gateway, outcome="completed", usage_source="upstream")
        assert up.flooded > 8 * (MAX_NOISE_BYTES - len(PIECE_BYTES))


async def test_an_endless_whole_answer_is_given_up(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([SSE_HEAD, Flood(chunk(PIECE_BYTES), 96 * MB // len(PIECE_BYTES)), STALL]) as bad:
        gateway = await standing_with(site(channel(bad.base_url, **PATIENT)))
        with at_most(100 * MB):
            check_error(await call(gateway, stream=False), "upstream_error")
        check_row_of_failure(await audit(gateway, bad), "upstream_error", attempts=1, bought=True)


async def test_an_answer_of_very_many_parts_is_given_up_unparsed(standing_with: StartGateway) -> None:
    parts = b'{"choices": [' + b"{}," * 2_000_000 + b"{}]}"
    async with ScriptedUpstream([answer(parts)]) as bad:
        gateway = await standing_with(site(channel(bad.base_url, **PATIENT)))
        with at_most(40 * MB):
            check_error(await call(gateway, stream=False), "upstream_error")
        check_row_of_failure(await audit(gateway), "upstream_error", attempts=1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bomb_is_given_up(standing_with: StartGateway, stream: bool) -> None:
    packed = compress_run(b"\0", 256)
    kind = "text/event-stream" if stream else "application/json"
    async with ScriptedUpstream([answer(packed, Content_Encoding="gzip", content_type=kind)]) as bad:
        gateway = await standing_with(site(channel(bad.base_url, **PATIENT)))
        with at_most(100 * MB):
            check_error(await call(gateway, stream=stream), "upstream_error")
        check_row_of_failure(await audit(gateway, bad), "upstream_error", attempts=1, bought=True)
