"""What a streamed event costs in CPU, passed through and translated. ``make bench-parts`` shows it.

Budget: an event that is translated costs at most twice what one costs that passes: the whole of it, from the
provider's socket to the client's. Kinds take turns, and the best round of each is compared: it has least of the
machine's other work. There are further rounds, up to a number, until the budget is kept.

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
import orjson
import psutil
import pytest

from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.gemini.request import parse_generate_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.chat.translation import is_translated
from gateway.formats.registry import make_translator
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

EVENTS = 1_000
ROUNDS = 3
MOST_ROUNDS = 42
GATE_ROUNDS = 15
MOST = 2.0
"""Times what an event of a chat costs that passes, on whatever cores they are."""
WORD = " wordy"
ALONE = b'" wordy"'
"""As the whole of a text: a response repeats at its end what it has said."""
GOOGLE, STREAMED = "/v1beta/models/", "streamGenerateContent?alt=sse"
RESPONSES = "/v1/responses"
IDENTITY = ResponseIdentity("0123456789abcdef01234567", "m", 1_750_000_000)


@attrs.frozen
class Recording:
    """A provider's stream: what comes before its text, one event a word, and what comes after."""

    before: tuple[bytes, ...]
    word: bytes
    after: tuple[bytes, ...]


def part(**fields: Any) -> dict[str, Any]:
    """A chunk with these fields in its delta."""
    found = delta("")
    found["choices"][0]["delta"] = fields
    return found


def named(kind: str, **fields: Any) -> bytes:
    """An event of the Responses API."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


PLACE = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
USED = {"input_tokens": 11, "output_tokens": EVENTS, "total_tokens": 11 + EVENTS}
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
RESPONSES_STREAM = Recording(
    (named("response.created", response={"id": "resp_1", "status": "in_progress", "output": []}),),
    named("response.output_text.delta", **PLACE, delta=WORD, logprobs=[], sequence_number=4),
    (
        named("response.output_text.done", **PLACE, text="", logprobs=[], sequence_number=5),
        named("response.completed", response={"id": "resp_1", "status": "completed", "output": [], "usage": USED}),
    ),
)
REASONING = {
    "openai_chat": Recording((event(delta("")),), event(part(reasoning_content=WORD)), tuple(chat_events())),
    "anthropic_messages": Recording(
        (messages.begin("msg_1"), messages.start(0, "thinking", thinking="", signature="")),
        messages.change(0, "thinking_delta", thinking=WORD),
        (),
    ),
    "gemini_generate": Recording(
        (), gemini.stream(gemini.chunk({"text": WORD, "thought": True}, used=gemini.usage(11, 3), index=0)), ()
    ),
}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "find", "arguments": ""}}
ARGUMENTS = {
    "openai_chat": Recording(
        (event(delta("")), event(part(tool_calls=[CALL]))),
        event(part(tool_calls=[{"index": 0, "function": {"arguments": WORD}}])),
        (),
    ),
    "anthropic_messages": Recording(
        (messages.begin("msg_1"), messages.start(0, "tool_use", id="toolu_1", name="find", input={})),
        messages.change(0, "input_json_delta", partial_json=WORD),
        (),
    ),
}
"""By the provider's format; Gemini sends a call whole."""


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
            return parse_generate_inference(self.body, model=self.name, stream=True)
        if self.path == RESPONSES:
            return parse_responses_inference(self.body)
        return parse_chat_inference(self.body) if self.path == CHAT else parse_messages_inference(self.body)

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
    Kind("responses", RESPONSES, "openai", "openai_responses", RESPONSES_STREAM),
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
    transform = make_translator(kind.call, kind.wire, IDENTITY).open_transform(())
    recording = kind.recording
    left = [transform.feed(piece) for piece in recording.before]
    began = time.process_time()
    left += [transform.feed(recording.word) for _ in range(EVENTS)]
    took = time.process_time() - began
    left += [transform.feed(piece) for piece in recording.after]
    left.append(transform.finish())
    assert transform.error is None
    return took, b"".join(left)


@pytest.mark.cost
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
    "responses": (130, 0, 0),
    "anthropic -> chat": (510, 530, 620),
    "chat -> anthropic": (630, 650, 860),
    "gemini -> chat": (680, 700, 0),
    "chat -> responses": (650, 690, 850),
    "anthropic -> responses": (560, 600, 700),
    "chat -> gemini": (590, 610, 860),
    "anthropic -> gemini": (500, 520, 710),
}
"""Bytecodes of an event in the gate alone, of text, reasoning and arguments, with a third to spare: Python's versions
differ in what they make of it. 0: the provider's format has no such event.
"""


@pytest.mark.parametrize("content", ["text", "reasoning", "arguments"])
@pytest.mark.parametrize("name", MOST_STEPS)
def test_an_event_takes_few_steps(name: str, content: str) -> None:
    kind = next(kind for kind in KINDS if kind.name == name)
    most = MOST_STEPS[name][["text", "reasoning", "arguments"].index(content)]
    recording = {"text": kind.recording, "reasoning": REASONING.get(kind.wire), "arguments": ARGUMENTS.get(kind.wire)}
    if (found := recording[content]) is None:
        assert not most
        return
    transform = make_translator(kind.call, kind.wire, IDENTITY).open_transform(())
    for piece in (*found.before, found.word, found.word):
        transform.feed(piece)
    before = transform.events
    steps = count_steps(lambda: [transform.feed(found.word) for _ in range(COUNTED)]) / COUNTED
    assert transform.events == before + COUNTED
    print(f"\n{kind.name}, {content}: {steps:.0f} bytecodes an event of at most {most}", end="")
    assert steps <= most


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


@pytest.mark.cost
@pytest.mark.timeout(240)
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
                }
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


async def hear(session: aiohttp.ClientSession, gateway: GatewayProcess, kind: Kind, turn: asyncio.Semaphore) -> float:
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
    """How many times the passed one's cost each one's is, in the best round of each."""
    return {name: min(figures) / min(costs[PASSED.name]) for name, figures in costs.items()}


def report(what: str, costs: dict[str, list[float]]) -> dict[str, float]:
    """Print and return what ``compare`` finds."""
    ratios = compare(costs)
    for name, figures in costs.items():
        spread = f"{min(figures):.1f}-{max(figures):.1f} us an event, {len(figures)} times"
        print(f"\n{what}, {name}: {spread}: {ratios[name]:.2f} times the passed one's", end="")
    print()
    return ratios
