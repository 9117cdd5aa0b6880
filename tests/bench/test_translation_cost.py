"""What a streamed event costs in CPU, passed through and translated. ``make test ARGS="tests/bench -n0 -s"`` shows it.

Budget: an event that is translated costs at most three times what one costs that passes: the whole of it, from the
provider's socket to the caller's. Where a provider shares a core what passes may cost half as much, and what is
translated does not: there the budget is half as much again. Kinds take turns, and those of one round are compared: a
machine's speed and its other work are in both. One round that keeps the budget will do, and there are further ones, up
to a number, where none did.

What the budget then lets through is found by the other test: the bytecodes of the gate's own part are counted, which
are the same in every run.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
import attrs
import psutil
import pytest

from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.formats.anthropic.request import parse_messages_call
from gateway.formats.gemini.request import parse_generate_call
from gateway.formats.openai.chat import parse_chat_call
from gateway.formats.openai.responses import parse_responses_call
from gateway.formats.registry import is_translated, make_exchange
from gateway.formats.translator import ResponseIdentity
from tests.support import anthropic_cassettes as messages
from tests.support import gemini_cassettes as gemini
from tests.support.gateway import CHAT, KEY
from tests.support.gateway_process import GatewayProcess
from tests.support.scripted_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    Received,
    ScriptedUpstream,
    Step,
    chat_events,
    chunk,
    delta,
    event,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

EVENTS = 1_000
ROUNDS = 7
MOST_ROUNDS = 42
GATE_ROUNDS = 15
MOST = 4.5
"""Times what an event costs that passes, on whatever cores they are."""
WORD = " wordy"
ALONE = b'" wordy"'
"""As the whole of a text: a response repeats at its end what it has said."""
GOOGLE, STREAMED = "/v1beta/models/", "streamGenerateContent?alt=sse"
RESPONSES = "/v1/responses"
NAMING = ResponseIdentity("0123456789abcdef01234567", "m", 1_750_000_000)


@attrs.frozen
class Recording:
    """A provider's stream: what comes before its text, one event a word, and what comes after."""

    before: tuple[bytes, ...]
    word: bytes
    after: tuple[bytes, ...]


CHAT_STREAM = Recording((event(delta("")),), event(delta(WORD)), tuple(chat_events()))
MESSAGES_STREAM = Recording(
    (messages.begin("msg_1"), messages.start(0, "text", text="")),
    messages.text(0, WORD),
    (messages.stop(0), messages.finish("end_turn", output_tokens=EVENTS), messages.STOP),
)
GEMINI_STREAM = Recording(
    (),
    gemini.stream(gemini.chunk({"text": WORD}, used=gemini.usage(11, 3, totalTokenCount=14), index=0)),
    (gemini.stream(gemini.chunk({"text": ""}, reason="STOP", used=gemini.usage(11, EVENTS), index=0)),),
)


@attrs.frozen
class Kind:
    """One caller's language over one provider's."""

    name: str
    path: str
    provider: str
    wire: Wire
    recording: Recording

    @property
    def call(self) -> InferenceRequest:
        if self.path.startswith(GOOGLE):
            return parse_generate_call(self.body, model=self.name, stream=True)
        if self.path == RESPONSES:
            return parse_responses_call(self.body)
        return parse_chat_call(self.body) if self.path == CHAT else parse_messages_call(self.body)

    @property
    def body(self) -> dict[str, Any]:
        if self.path.startswith(GOOGLE):
            return {"contents": [{"parts": [{"text": "hi"}]}]}
        if self.path == RESPONSES:
            return {"model": self.name, "stream": True, "input": "hi", "store": False}
        asked = {"model": self.name, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        return asked if self.path == CHAT else {**asked, "max_tokens": 8_000}


PASSED = Kind("chat", CHAT, "custom", "openai_chat", CHAT_STREAM)
KINDS = (
    PASSED,
    Kind("messages", "/v1/messages", "anthropic", "anthropic_messages", MESSAGES_STREAM),
    Kind("anthropic -> chat", CHAT, "anthropic", "anthropic_messages", MESSAGES_STREAM),
    Kind("chat -> anthropic", "/v1/messages", "custom", "openai_chat", CHAT_STREAM),
    Kind("chat -> responses", RESPONSES, "mistral", "openai_chat", CHAT_STREAM),
    Kind("anthropic -> responses", RESPONSES, "anthropic", "anthropic_messages", MESSAGES_STREAM),
    Kind("gemini -> chat", CHAT, "gemini", "gemini_generate", GEMINI_STREAM),
    Kind("gemini", f"{GOOGLE}gemini:{STREAMED}", "gemini", "gemini_generate", GEMINI_STREAM),
    Kind("chat -> gemini", f"{GOOGLE}chat%20-%3E%20gemini:{STREAMED}", "custom", "openai_chat", CHAT_STREAM),
    Kind(
        "anthropic -> gemini",
        f"{GOOGLE}anthropic%20-%3E%20gemini:{STREAMED}",
        "anthropic",
        "anthropic_messages",
        MESSAGES_STREAM,
    ),
)
TRANSLATED = [kind for kind in KINDS if is_translated(kind.call.operation, kind.wire)]


def test_the_kinds_are_what_they_are_called() -> None:
    assert [kind.name for kind in TRANSLATED] == [kind.name for kind in KINDS if "->" in kind.name]


def feed(kind: Kind) -> tuple[float, bytes]:
    """CPU seconds for the words alone, an event a piece, and what left."""
    transform = make_exchange(kind.call, kind.wire, NAMING).open_gate(())
    recording = kind.recording
    left = [transform.feed(piece) for piece in recording.before]
    began = time.process_time()
    left += [transform.feed(recording.word) for _ in range(EVENTS)]
    took = time.process_time() - began
    left += [transform.feed(piece) for piece in recording.after]
    left.append(transform.finish())
    assert transform.error is None
    return took, b"".join(left)


def test_a_gate_alone() -> None:
    """Printed only: beside a socket on either side it is the smaller part."""
    costs: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
    for _ in range(GATE_ROUNDS):
        for kind in KINDS:
            took, left = feed(kind)
            assert left.count(ALONE) == EVENTS
            costs[kind.name].append(took / EVENTS * 1e6)
    report("the gate alone", costs)


COUNTED = 100
MOST_STEPS = {
    "anthropic -> chat": 680,
    "chat -> anthropic": 1_170,
    "gemini -> chat": 710,
    "chat -> responses": 900,
    "anthropic -> responses": 900,
    "chat -> gemini": 870,
    "anthropic -> gemini": 710,
}
"""Bytecodes of an event in the gate alone, with a third to spare: Python's versions differ in what they make of it."""


@pytest.mark.parametrize("kind", TRANSLATED, ids=lambda kind: kind.name)
def test_a_translated_event_takes_few_steps(kind: Kind) -> None:
    transform = make_exchange(kind.call, kind.wire, NAMING).open_gate(())
    for piece in (*kind.recording.before, kind.recording.word):
        transform.feed(piece)
    steps = count_steps(lambda: [transform.feed(kind.recording.word) for _ in range(COUNTED)]) / COUNTED
    print(f"\n{kind.name}: {steps:.0f} bytecodes an event of at most {MOST_STEPS[kind.name]}", end="")
    assert steps <= MOST_STEPS[kind.name]


def count_steps(work: Callable[[], object]) -> int:
    """Bytecodes in which ``work`` is done."""
    steps = 0

    def note(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


def test_steps_are_counted() -> None:
    few, many = (count_steps(partial(lambda times: [str(each) for each in range(times)], most)) for most in (100, 200))
    assert 1.8 < many / few < 2.2


async def test_a_translated_event_costs_a_few_times_a_passed_one(tmp_path: Path) -> None:
    """A gateway in a process of its own; every event is read, judged and written by itself, for none comes sooner."""
    async with AsyncExitStack() as stack:
        turns = {kind.name: asyncio.Semaphore(0) for kind in KINDS}
        channels = []
        for kind in KINDS:
            up = await stack.enter_async_context(ScriptedUpstream(play(kind.recording, turns[kind.name])))
            channels.append(
                {
                    "name": kind.name.replace(" -> ", "-"),
                    "provider": kind.provider,
                    "base_url": up.base_url,
                    "api_key": "provider-key",
                    "models": [kind.name],
                },
            )
        tables = {
            "channel": channels,
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
        }
        gateway = await stack.enter_async_context(GatewayProcess(tmp_path / "data", tables))
        session = await stack.enter_async_context(aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}))
        costs: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
        for kind in KINDS:
            await hear(session, gateway, kind, turns[kind.name])
        for done in range(MOST_ROUNDS):
            if done >= ROUNDS and max(compare(costs).values()) <= MOST:
                break
            for kind in KINDS:
                costs[kind.name].append(await hear(session, gateway, kind, turns[kind.name]) / EVENTS * 1e6)
        rows, _ = await gateway.read_rows()
        assert {row.outcome for row in rows} <= {"completed"}
    ratios = report("a whole gateway", costs)
    assert {name: ratio for name, ratio in ratios.items() if ratio > MOST} == {}


def play(recording: Recording, turn: asyncio.Semaphore) -> list[Step]:
    """One word at a time: each when its caller has heard the one before."""

    async def wait(_received: Received) -> None:
        await turn.acquire()

    steps: list[Step] = [SSE_HEAD, *map(chunk, recording.before)]
    for _ in range(EVENTS):
        steps += [chunk(recording.word), wait]
    return [*steps, *map(chunk, recording.after), LAST_CHUNK]


async def hear(
    session: aiohttp.ClientSession,
    gateway: GatewayProcess,
    kind: Kind,
    turn: asyncio.Semaphore,
) -> float:
    """CPU seconds of the gateway's process from the first word to the last."""
    heard, began, ended = 0, 0.0, 0.0
    async with session.post(gateway.url + kind.path, json=kind.body) as response:
        assert response.status == 200, await response.text()
        async for piece in response.content.iter_any():
            words = piece.count(ALONE)
            if words and not heard:
                began = measure_cpu_s(gateway.pid)
            heard += words
            if heard == EVENTS and not ended:
                ended = measure_cpu_s(gateway.pid)
            for _ in range(words):
                turn.release()
    assert heard == EVENTS
    return ended - began


def measure_cpu_s(pid: int) -> float:
    """Seconds of processor time so far: by the scheduler's own books where they can be read, which know more than
    hundredths.
    """
    tasks = Path(f"/proc/{pid}/task")
    try:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9
    except OSError:
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)


def compare(costs: dict[str, list[float]]) -> dict[str, float]:
    """How many times the passed one's cost each one's is, in its best round."""
    passed = costs[PASSED.name]
    return {
        name: min(cost / least for cost, least in zip(figures, passed, strict=True)) for name, figures in costs.items()
    }


def report(what: str, costs: dict[str, list[float]]) -> dict[str, float]:
    """Print and return what ``compare`` finds."""
    ratios = compare(costs)
    for name, figures in costs.items():
        spread = f"{min(figures):.1f}-{max(figures):.1f} us an event, {len(figures)} times"
        print(f"\n{what}, {name}: {spread}: {ratios[name]:.2f} times the passed one's", end="")
    print()
    return ratios
