"""How far the answers of a shadow model agree with those that callers got, through the whole gateway."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.operation import OPERATIONS
from gateway.domain.request_log import RequestRecord
from gateway.domain.route import ModelShare, Route, RouteStep, StepShadow
from gateway.server.context import SERVICES
from gateway.server.sampled_answer import MAX_SAMPLE_BYTES, MAX_SAMPLES, SampledAnswer
from gateway.server.shadow_requests import ShadowRequests
from tests.support import anthropic_cassettes as claude
from tests.support.admin_calls import ask_office
from tests.support.fault_scene import UNHURRIED
from tests.support.gateway import RunningGateway, channel
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    ScriptedUpstream,
    answer,
    chunk,
    delta,
    event,
    usage_frame,
)

StartFresh = Callable[..., Awaitable[RunningGateway]]
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
PROVIDERS = {"openai": "custom", "anthropic": "anthropic"}
COPIED = Route("fast", (RouteStep((ModelShare("old"),), shadow=StepShadow(("new",), 1.0, max_running=1_000)),))


def script(provider: str, text: str, finish: str, *, stream: bool) -> Script:
    """A whole answer of an upstream. ``finish`` is a word of OpenAI's."""
    stop = {"stop": "end_turn", "length": "max_tokens"}[finish]
    usage = {"input_tokens": 5, "output_tokens": 7}
    if provider == "anthropic" and stream:
        pieces = claude.start(0, "text", text="") + claude.text(0, text[:3]) + claude.text(0, text[3:]) + claude.stop(0)
        whole = claude.begin("msg_1", usage) + pieces + claude.finish(stop, output_tokens=7) + claude.STOP
        return [SSE_HEAD, chunk(whole), LAST_CHUNK]
    if provider == "anthropic":
        content = [{"type": "text", "text": text}]
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": claude.MODEL, "content": content}
        return [answer({**message, "stop_reason": stop, "stop_sequence": None, "usage": usage})]
    if stream:
        events = [event(delta(text[:3])), event(delta(text[3:])), event(delta("", finish)), event(usage_frame()), DONE]
        return [SSE_HEAD, *map(chunk, events), LAST_CHUNK]
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return [answer({**COMPLETION, "choices": [choice]})]


def site(old: ScriptedUpstream, new: ScriptedUpstream, provider: str = "openai") -> dict[str, Any]:
    """The route ``fast`` of the model ``old`` at an OpenAI server, whose shadow ``new`` is one of ``provider``."""
    lines = [
        channel(old.base_url, "of-old", models=["old"], **UNHURRIED),
        channel(new.base_url, "of-new", models=["new"], provider=PROVIDERS[provider], **UNHURRIED),
    ]
    step = {"models": ["old"], "shadow": {"models": ["new"], "share": 1.0}}
    return {"channel": lines, "route": [{"name": "fast", "step": [step]}]}


async def ask(gateway: RunningGateway, client: str = "openai", **body: Any) -> bytes:
    asked = {"model": "fast", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}], **body}
    async with gateway.post(asked, path=PATHS[client]) as response:
        assert response.status == 200, await response.text()
        answered: bytes = await response.read()
        return answered


async def find_copy(gateway: RunningGateway) -> RequestRecord:
    own, copy = sorted(await gateway.rows(2), key=lambda row: row.shadow)
    assert (own.agreement_ppm, own.agreed_on) == (None, "")
    assert copy.shadow
    return copy


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("client", PATHS)
async def test_answers_are_compared_in_every_format(
    gateway_with: StartFresh, client: str, provider: str, stream: bool
) -> None:
    own_script = script("openai", "Hello dear world", "stop", stream=stream)
    same, other = (
        script(provider, text, finish, stream=stream)
        for text, finish in (("hello  dear WORLD", "stop"), ("Hello there", "length"))
    )
    async with ScriptedUpstream(own_script) as old, ScriptedUpstream(same, other) as new:
        gateway = await gateway_with(site(old, new, provider))
        for _ in range(2):
            assert b"dear" in await ask(gateway, client, stream=stream)
            await gateway.app[SERVICES].background.wait()
        found = await gateway.rows(4)
        copies = [(row.agreement_ppm, row.agreed_on, row.outcome, row.completion_tokens) for row in found if row.shadow]
        assert copies == [(1_000_000, "text,tools,finish", "completed", 7), (400_000, "tools", "completed", 7)]
        _, report = await ask_office(gateway, "GET", "/routes/fast/shadow")
        own, copied = report["data"]
        assert (own["compared"], own["mean_agreement"], own["same_text"]) == (0, None, 0)
        facts = (copied["compared"], copied["mean_agreement"], copied["same_text"], copied["same_tools"])
        assert (*facts, copied["same_finish"]) == (2, 0.7, 1, 2, 1)
        _, listed = await ask_office(gateway, "GET", "/requests?shadow=true")
        assert {row["agreement_ppm"] for row in listed["data"]} == {1_000_000, 400_000}


def call_tools(*arguments: str) -> bytes:
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "find", "arguments": text}}
        for number, text in enumerate(arguments)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return answer({**COMPLETION, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})


async def test_tool_calls_are_compared_by_their_arguments(gateway_with: StartFresh) -> None:
    own = call_tools('{"city": "Paris", "days": 2}', '{"city": "Rome"}')
    same, other = call_tools('{"city":"Rome"}', '{"days":2,"city":"Paris"}'), call_tools('{"city": "Oslo"}')
    async with ScriptedUpstream([own]) as old, ScriptedUpstream([same], [other]) as new:
        gateway = await gateway_with(site(old, new))
        for _ in range(2):
            await ask(gateway)
            await gateway.app[SERVICES].background.wait()
        copies = [row for row in await gateway.rows(4) if row.shadow]
        assert [row.agreed_on for row in copies] == ["text,tools,finish", "text,finish"]
        assert copies[0].agreement_ppm == 1_000_000
        assert 0 < (copies[1].agreement_ppm or 0) < 1_000_000


@pytest.mark.parametrize("stream", [False, True])
async def test_what_failed_or_is_too_large_is_not_compared(gateway_with: StartFresh, stream: bool) -> None:
    large = script("openai", "word " * (MAX_SAMPLE_BYTES // 5), "stop", stream=stream)
    broken = [answer({"error": {"message": "ill"}}, 500)]
    async with ScriptedUpstream(script("openai", "hello", "stop", stream=stream)) as old:
        async with ScriptedUpstream(large, broken) as new:
            gateway = await gateway_with(site(old, new))
            for _ in range(2):
                await ask(gateway, stream=stream)
                await gateway.app[SERVICES].background.wait()
            copies = [row for row in await gateway.rows(4) if row.shadow]
        assert [row.outcome for row in copies] == ["completed", "failed"]
        assert {(row.agreement_ppm, row.agreed_on) for row in copies} == {(None, "")}


def test_places_of_answers_are_free_once_these_are_dropped_or_too_large() -> None:
    """While more requests than there are places run all the time."""
    requests = ShadowRequests(lambda: 0.0)
    drawn = [requests.draw(COPIED, "chat") for _ in range(MAX_SAMPLES + 10)]
    assert [is_held(sample) for sample in drawn] == [True] * MAX_SAMPLES + [False] * 10
    drawn[0] = None
    later = requests.draw(COPIED, "chat")
    assert is_held(later)
    assert later is not None
    later.add(b"x" * MAX_SAMPLE_BYTES)
    assert not is_held(later)
    assert is_held(requests.draw(COPIED, "chat"))


def is_held(sample: SampledAnswer | None) -> bool:
    assert sample is not None
    sample.add(b"x")
    return bool(sample.build_part().content)


def test_only_requests_that_may_be_copied_are_drawn() -> None:
    requests = ShadowRequests(lambda: 0.0)
    drawn = {operation for operation in OPERATIONS if requests.draw(COPIED, operation) is not None}
    assert drawn == {name for name, facts in OPERATIONS.items() if facts.conversation} | {"completions"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_comparison_that_fails_leaves_the_copy_complete(
    gateway_with: StartFresh, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr("gateway.server.sampled_answer.compare_answers", fail)
    answered = script("openai", "hello", "stop", stream=stream)
    async with ScriptedUpstream(answered) as old, ScriptedUpstream(answered) as new:
        gateway = await gateway_with(site(old, new))
        await ask(gateway, stream=stream)
        copy = await find_copy(gateway)
        assert (copy.outcome, copy.agreement_ppm, copy.agreed_on) == ("completed", None, "")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_shutdown_during_the_comparison_leaves_the_copy_complete(
    gateway_with: StartFresh, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    comparing = asyncio.Event()

    async def wait(*_: object) -> None:
        comparing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.server.sampled_answer.run_in_thread", wait)
    answered = script("openai", "hello", "stop", stream=stream)
    async with ScriptedUpstream(answered) as old, ScriptedUpstream(answered) as new:
        gateway = await gateway_with(site(old, new))
        await ask(gateway, stream=stream)
        await comparing.wait()
        await gateway.app[SERVICES].background.close(0)
        copy = await find_copy(gateway)
        assert (copy.outcome, copy.agreement_ppm, copy.completion_tokens) == ("completed", None, 7)


async def test_nothing_of_the_texts_is_stored(gateway_with: StartFresh, tmp_path: Path) -> None:
    answered = script("openai", "pomegranate", "stop", stream=False)
    async with ScriptedUpstream(answered) as old, ScriptedUpstream(answered) as new:
        gateway = await gateway_with(site(old, new))
        assert b"pomegranate" in await ask(gateway)
        assert (await find_copy(gateway)).agreement_ppm == 1_000_000
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"of-new" in stored
    assert b"pomegranate" not in stored
