"""Sixteen ways in which the first of two providers fails, and what the client sees of each.

The faults are those that public benchmarks of failover use. Two outcomes are allowed. ``passes``: the client gets
every word, from whichever channel. ``told``: one clear error, as an answer or as the last event of the stream; what was
cut is never passed off as whole. A stream that has begun cannot be taken over by another channel: the client would get
the beginning twice, or words that were never said together.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
import orjson
import pytest

from gateway.domain.request_log import RequestRecord
from gateway.formats.wire.sse import parse_data
from tests.support.fault_scene import Heard, audit, call, check_broken_stream, check_error, healthy, read_text, site
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.scripted_upstream import (
    DONE,
    FIN,
    LAST_CHUNK,
    RST,
    SSE_HEAD,
    STALL,
    Script,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
    delta,
    event,
    usage_frame,
)
from tests.support.started_gateways import StartGateway

Outcome = Literal["passes", "told"]

WORDS = [f" word{number}" for number in range(60)]
TEXT = "".join(WORDS)
IMPATIENT = {"first_byte_timeout_s": 0.2, "idle_timeout_s": 0.2}
RATE_LIMIT = {"error": {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}
OVERLOAD = {"error": {"message": "overloaded", "type": "server_error", "code": "overloaded"}}
TOO_LONG = {"error": {"message": "9631 tokens are too many", "type": "invalid_request_error", "param": "messages",
                      "code": "context_length_exceeded"}}  # fmt: skip
FILTERED = {"error": {"message": "refused by the safety system", "type": "invalid_request_error",
                      "code": "content_policy_violation"}}  # fmt: skip
NO_PREFILL = {"error": {"message": "no assistant prefill", "type": "invalid_request_error", "code": "invalid_prefill"}}
BROKEN_EVENT = b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"delta": {"content": \n\n'


def tell(words: Sequence[str], name: str = "m") -> list[Step]:
    """So many words, an event each; the first of them has reached the client before the last is sent."""
    first, *rest = [chunk(event(delta(word) | {"model": name})) for word in words]
    return [SSE_HEAD, first, 0.02, *rest]


def whole(name: str = "m", *, mark: bytes = DONE) -> list[Step]:
    """Every word, why it stopped, and what was used."""
    ends = event(delta("", "stop") | {"model": name}) + event(usage_frame(8, 60) | {"model": name}) + mark
    return [*tell(WORDS, name), chunk(ends), LAST_CHUNK]


GOOD = whole()


@attrs.frozen
class Fault:
    """How the first provider fails. ``scripts``: what it plays to one call after another; the last one stays.

    ``alone``: what the client sees if there is no second provider; None if a retry may answer as well as not.
    ``asked``: requests for one call that come to the first provider at most, and to the second one at least.
    """

    name: str
    scripts: tuple[Script, ...]
    outcome: Outcome
    alone: Outcome | None = "told"
    code: str = "upstream_error"
    asked: tuple[int, int] = (2, 1)
    timers: Mapping[str, float] = {}

    def __str__(self) -> str:
        return self.name


FAULTS = (
    Fault("429 once, with Retry-After", ([answer(RATE_LIMIT, 429, Retry_After="1")], GOOD), "passes", alone=None),
    Fault("429 for ever, without Retry-After", ([answer(RATE_LIMIT, 429)],), "passes"),
    Fault("500 once", ([answer(OVERLOAD, 500)], GOOD), "passes", alone=None),
    Fault("503 for ever", ([answer(OVERLOAD, 503)],), "passes"),
    Fault("reset before the headers, once", ([RST], GOOD), "passes", alone=None),
    Fault("no answer at all", ([STALL],), "passes", code="upstream_timeout", timers=IMPATIENT),
    Fault("a first word that comes late", ([SSE_HEAD, 0.8, *GOOD[1:]],), "passes", code="upstream_timeout",
          timers=IMPATIENT),
    Fault("cut after 40 words", ([*tell(WORDS[:40]), FIN],), "told", asked=(1, 0)),
    Fault("silence after 20 words", ([*tell(WORDS[:20]), STALL],), "told", code="upstream_timeout", asked=(1, 0),
          timers=IMPATIENT),
    Fault("a broken event after 10 words", ([*tell(WORDS[:10]), chunk(BROKEN_EVENT), *GOOD[12:]],), "told",
          asked=(1, 0)),
    Fault("no end mark", (whole(mark=b""),), "passes", alone="passes", asked=(1, 0)),
    Fault("a prompt that is too long", ([answer(TOO_LONG, 400)],), "passes", asked=(1, 1)),
    Fault("a refusal by the content filter", ([answer(FILTERED, 400)],), "told", asked=(1, 0)),
)  # fmt: skip
"""Thirteen; the other three have more to them than one call, and a test each."""


async def ask(gateway: RunningGateway) -> Heard:
    return await call(gateway, stream=True, stream_options={"include_usage": True})


def judge(heard: Heard) -> Outcome:
    """What the client has; fails if it cannot tell whether that is everything."""
    assert heard.whole
    if heard.status != 200:
        error = orjson.loads(heard.body)["error"]
        assert error["message"]
        assert error["code"]
        return "told"
    payloads = [data for one in heard.events if (data := parse_data(one))]
    if b'"error"' in payloads[-1]:
        assert sum(b'"error"' in one for one in payloads) == 1
        assert b"[DONE]" not in heard.body
        assert TEXT.startswith(read_text(heard.events[:-1]))
        return "told"
    assert payloads[-1] == b"[DONE]"
    assert read_text(heard.events) == TEXT
    assert b'"usage"' in heard.body
    return "passes"


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_beside_a_provider_that_is_well(standing_with: StartGateway, fault: Fault) -> None:
    async with ScriptedUpstream(*fault.scripts) as bad, ScriptedUpstream(GOOD) as good:
        gateway = await standing_with(site(channel(bad.base_url, "first", **fault.timers), healthy(good)))
        heard = await ask(gateway)
        assert judge(heard) == fault.outcome
        assert len(bad.received) <= fault.asked[0]
        assert (len(good.received) >= 1) == bool(fault.asked[1]) or fault.outcome == "passes"
        if heard.status == 200 and fault.outcome == "told":
            check_broken_stream(heard, fault.code)
        await audit(gateway, status=heard.status)
        assert (await ask(gateway)).status == heard.status  # and the gateway goes on


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_alone(standing_with: StartGateway, fault: Fault) -> None:
    async with ScriptedUpstream(*fault.scripts) as bad:
        gateway = await standing_with(site(channel(bad.base_url, "first", **fault.timers)))
        heard = await ask(gateway)
        assert judge(heard) == (fault.alone or judge(heard))
        assert len(bad.received) <= 2
        if heard.status in {502, 504}:
            check_error(heard, fault.code)
        await audit(gateway, status=heard.status)


async def test_a_stream_that_was_cut_is_not_continued_by_a_prefill(standing_with: StartGateway) -> None:
    """A second provider that takes no beginning of an answer would hide the fault behind a refusal of its own."""
    async with ScriptedUpstream([*tell(WORDS[:40]), FIN]) as bad, ScriptedUpstream([answer(NO_PREFILL, 400)]) as good:
        gateway = await standing_with(site(channel(bad.base_url, "first"), healthy(good)))
        heard = await ask(gateway)
        assert read_text(check_broken_stream(heard, "upstream_error")) == "".join(WORDS[:40])
        assert not good.received
        await audit(gateway, channel="first")


async def test_a_failover_is_told_and_charged_as_the_second_providers(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(OVERLOAD, 503)]) as bad, ScriptedUpstream(whole("m-large")) as good:
        gateway = await standing_with(site(channel(bad.base_url, "first"), healthy(good)))
        heard = await ask(gateway)
        assert judge(heard) == "passes"
        assert {
            orjson.loads(data)["model"] for one in heard.events if (data := parse_data(one)) != b"[DONE]" and data
        } == {"m-large"}
        row = await audit(gateway, channel="healthy", usage_source="upstream")
        assert (row.prompt_tokens, row.completion_tokens, row.cost_nanos) == (8, 60, 8_000 + 120_000)


DOWN: list[Step] = [answer(OVERLOAD, 503)]


@pytest.mark.parametrize(
    "flaps",
    [[DOWN, GOOD] * 10, [GOOD, DOWN] * 10, [DOWN, DOWN, GOOD] * 7, [[RST], GOOD, DOWN, GOOD] * 5],
    ids=["down, up", "up, down", "mostly down", "in several ways"],
)
async def test_ten_calls_of_ten_pass_while_the_first_provider_flaps(
    standing_with: StartGateway, flaps: list[Script]
) -> None:
    async with ScriptedUpstream(*flaps) as bad, ScriptedUpstream(GOOD) as good:
        gateway = await standing_with(site(channel(bad.base_url, "first"), healthy(good)))
        assert [judge(await ask(gateway)) for _ in range(10)] == ["passes"] * 10
        rows: list[RequestRecord] = await gateway.rows(10)
        assert {row.outcome for row in rows} == {"completed"}
        assert len(bad.received) <= 20


async def test_the_first_provider_is_used_again_when_it_is_well(standing_with: StartGateway) -> None:
    async with ScriptedUpstream(*[DOWN] * 3, GOOD) as bad, ScriptedUpstream(GOOD) as good:
        routing: dict[str, Any] = {"cooldown_s": 1, "max_cooldown_s": 1}
        gateway = await standing_with(site(channel(bad.base_url, "first"), healthy(good), routing=routing))
        served: list[str | None] = []
        for number in range(1, 40):
            assert judge(await ask(gateway)) == "passes"
            served.append((await gateway.rows(number))[-1].channel)
            if served[-1] == "first":
                break
            await asyncio.sleep(0.1)
        assert served[0] == "healthy"
        assert served[-1] == "first"


def test_the_table_says_what_may_be_expected() -> None:
    outcomes = [fault.outcome for fault in FAULTS]
    assert outcomes.count("told") == 4
    assert len(FAULTS) + 3 == 16
    assert HELLO["model"] == "m"
