"""U14: what a provider says about tokens is believed when it is whole numbers in range, and else estimated."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.fault_scene import audit, call, site
from tests.support.gateway import channel
from tests.support.scripted_upstream import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedUpstream,
    chunk,
    delta,
    event,
    usage_frame,
)
from tests.support.started_gateways import StartGateway
from tests.support.usage_answers import MISSING, TEXT, UNBELIEVABLE, answer_of

ESTIMATE = (1, 3)
"""Of "hi" and of ``TEXT``, four characters a token."""


def stream_of(*frames: dict[str, Any], after: bytes = b"") -> list[bytes]:
    text = chunk(event(delta(TEXT)) + event(delta("", "stop")))
    return [SSE_HEAD, text, chunk(b"".join(event(frame) for frame in frames) + DONE + after), LAST_CHUNK]


def frame_of(usage: Any) -> dict[str, Any]:
    frame = usage_frame()
    if usage is MISSING:
        del frame["usage"]
    else:
        frame["usage"] = usage
    return frame


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("usage", UNBELIEVABLE, ids=lambda usage: "missing" if usage is MISSING else str(usage))
async def test_usage_that_cannot_be_believed_is_estimated(
    standing_with: StartGateway, usage: Any, stream: bool
) -> None:
    script = stream_of(frame_of(usage)) if stream else [answer_of(usage)]
    async with ScriptedUpstream(script) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        assert (await call(gateway, stream=stream)).status == 200
        row = await audit(gateway, outcome="completed", usage_source="estimate")
        assert (row.prompt_tokens, row.completion_tokens, row.cost_nanos) == (*ESTIMATE, 7_000)


@pytest.mark.parametrize(("cached", "counted"), [(3, 3), (9, 5), (-3, 0), ("3", 0), (None, 0)])
@pytest.mark.parametrize("stream", [False, True])
async def test_cached_tokens_are_never_more_than_the_prompt_nor_less_than_none(
    standing_with: StartGateway, cached: Any, counted: int, stream: bool
) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": cached}}
    script = stream_of(frame_of(usage)) if stream else [answer_of(usage)]
    async with ScriptedUpstream(script) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        await call(gateway, stream=stream)
        row = await audit(gateway, usage_source="upstream", prompt_tokens=5, completion_tokens=7)
        assert row.cached_tokens == counted


@pytest.mark.parametrize(
    ("frames", "tokens"),
    [
        ([usage_frame(5, 7), usage_frame(6, 8)], (6, 8)),
        ([usage_frame(5, 7), frame_of({"prompt_tokens": -1})], (5, 7)),
        ([usage_frame(5, 7), frame_of(None)], (5, 7)),
        ([delta("", "stop", usage=usage_frame(5, 7)["usage"])], (5, 7)),
        ([delta("", usage=usage_frame(1, 1)["usage"]), usage_frame(5, 7)], (5, 7)),
    ],
    ids=["twice", "then nonsense", "then null", "with the finish", "running totals"],
)
async def test_the_last_usage_that_can_be_believed_counts(
    standing_with: StartGateway, frames: list[dict[str, Any]], tokens: tuple[int, int]
) -> None:
    async with ScriptedUpstream(stream_of(*frames)) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        heard = await call(gateway, stream=True)
        assert heard.events[-1] == DONE
        row = await audit(gateway, outcome="completed", usage_source="upstream")
        assert (row.prompt_tokens, row.completion_tokens) == tokens


async def test_usage_after_the_end_mark_is_not_charged(standing_with: StartGateway) -> None:
    async with ScriptedUpstream(stream_of(usage_frame(5, 7), after=event(usage_frame(50_000, 70_000)))) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        await call(gateway, stream=True)
        row = await audit(gateway, outcome="completed")
        assert (row.prompt_tokens, row.completion_tokens) == (5, 7)


async def test_text_after_the_end_mark_is_not_charged(standing_with: StartGateway) -> None:
    async with ScriptedUpstream(stream_of(after=event(delta("never delivered" * 50)))) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        await call(gateway, stream=True)
        row = await audit(gateway, outcome="completed", usage_source="estimate")
        assert (row.prompt_tokens, row.completion_tokens) == ESTIMATE


async def test_the_caller_who_asked_for_usage_gets_the_providers_frame_as_it_is(standing_with: StartGateway) -> None:
    async with ScriptedUpstream(stream_of(usage_frame(5, 7))) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        heard = await call(gateway, stream=True, stream_options={"include_usage": True})
        assert heard.events[-2] == event(usage_frame(5, 7))
        await audit(gateway, usage_source="upstream")


HUGE = {"prompt_tokens": 100_000_000, "completion_tokens": 100_000_000, "total_tokens": 200_000_000}


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_that_cannot_be_is_charged_as_the_most_that_can_and_flagged(
    standing_with: StartGateway, stream: bool
) -> None:
    """Two hundred million tokens for "hi" would be $300 at a dollar a million."""
    script = stream_of(frame_of(HUGE)) if stream else [answer_of(HUGE)]
    async with ScriptedUpstream(script) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        with capture_logs() as lines:
            assert (await call(gateway, stream=stream, max_tokens=20)).status == 200
        row = await audit(gateway, outcome="completed", usage_source="bound", completion_tokens=20)
        assert row.prompt_tokens <= 18
        assert row.cost_nanos <= row.reserved_nanos
        (line,) = [line for line in lines if line["event"] == "usage_implausible"]
        assert (line["request_id"], line["channel"], line["reason"]) == (
            row.id, "up", "the provider says 100000000 and 100000000 tokens",
        )  # fmt: skip
