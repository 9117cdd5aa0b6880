"""Every fault of a provider, before and after the first byte, streamed and whole, alone and beside a healthy channel.

One table of what all of it came to ends the run; see ``table.py``. What a cell must come to is said here once:
before the first byte the caller gets the fault's status, or the second channel's answer; after it one error event and
no end mark, whichever other provider is well. It is charged once, for what it was given.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import attrs
import orjson
import pytest

from gateway.domain.rate_limit import compute_smooth_burst
from gateway.domain.token_estimate import estimate_text
from gateway.routing.channel_state import INSISTING_RPM
from tests.support import converse_scripts as converse
from tests.support import format_scripts as foreign
from tests.support.fault_scene import (
    TOKENS,
    Heard,
    audit,
    call,
    check_broken_stream,
    check_error,
    check_row_of_failure,
    check_row_of_success,
    check_trail,
    good_script,
    healthy,
    read_text,
    read_word,
    site,
)
from tests.support.gateway import RunningGateway, channel
from tests.support.outcome_table import Channels, Notes, When
from tests.support.scripted_upstream import FIN, LAST_CHUNK, RST, Script, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.upstream_scripts import AFTER, BEFORE, BODY, FINE, ONE, STARTED, TEXT, TWO, Fault

BAD = "bad"


@attrs.frozen
class ProviderType:
    """What the channel that fails speaks. ``counted``: tokens of the prompt that it tells of at the beginning."""

    provider: str
    before: Sequence[Fault]
    after: Sequence[Fault]
    fine: Sequence[Fault]
    counted: int = 1


PROVIDERS_OF_FORMATS = (
    ProviderType("custom", BEFORE, AFTER, FINE),
    ProviderType("anthropic", foreign.CLAUDE_BEFORE, foreign.CLAUDE_AFTER, foreign.CLAUDE_FINE, counted=5),
    ProviderType("gemini", foreign.GEMINI_BEFORE, foreign.GEMINI_AFTER, foreign.GEMINI_FINE),
    ProviderType("bedrock_converse", converse.BEFORE, converse.AFTER, converse.FINE),
)
CHANNELS: tuple[Channels, ...] = ("one", "two")


@attrs.frozen
class Cell:
    """One scene in one corner of the table."""

    provider_type: ProviderType
    scene: Fault
    stream: bool
    channels: Channels

    def __str__(self) -> str:
        return f"{self.provider_type.provider} {self.scene.name}{' stream' if self.stream else ''}, {self.channels}"

    async def play(self, standing_with: StartGateway, doors: AsyncExitStack) -> "Played":
        """Call a gateway whose first channel plays the scene."""
        bad = await doors.enter_async_context(ScriptedUpstream(self.scene.script))
        good = await doors.enter_async_context(ScriptedUpstream(good_script(stream=self.stream)))
        ups = [channel(bad.base_url, BAD, provider=self.provider_type.provider, **self.scene.timers)]
        gateway = await standing_with(site(*ups, *([healthy(good)] if self.channels == "two" else ())))
        return Played(gateway, await call(gateway, stream=self.stream), bad, good)

    def note(self, notes: Notes, heard: Heard, when: When) -> None:
        name = self.scene.number + (
            "" if self.provider_type.provider == "custom" else f" {self.provider_type.provider}"
        )
        notes.add_cell(name, read_word(heard), stream=self.stream, when=when, channels=self.channels)


@attrs.frozen
class Played:
    gateway: RunningGateway
    heard: Heard
    bad: ScriptedUpstream
    good: ScriptedUpstream

    @property
    def asked(self) -> tuple[int, int]:
        """Requests that came to each."""
        return len(self.bad.received), len(self.good.received)


def list_cells(name: str) -> list[Any]:
    cells = [
        Cell(provider_type, scene, stream, channels)
        for provider_type in PROVIDERS_OF_FORMATS
        for scene in getattr(provider_type, name)
        for stream in ((True,) if name == "after" else scene.streams)
        for channels in CHANNELS
    ]
    slow = pytest.mark.slow  # more than the gateway keeps of an answer takes its time
    return [pytest.param(cell, id=str(cell), marks=[slow] if cell.scene.number == "U10" else []) for cell in cells]


@pytest.mark.parametrize("cell", list_cells("before"))
async def test_before_the_first_byte(standing_with: StartGateway, notes: Notes, cell: Cell) -> None:
    """It is the caller's answer where there is no other channel, and else nothing the caller could hear of."""
    code, stream = cell.scene.code, cell.stream
    async with AsyncExitStack() as doors:
        played = await cell.play(standing_with, doors)
        heard = played.heard
        cell.note(notes, heard, "after" if cell.scene.begun and not stream else "before")
        row = await audit(played.gateway, status=heard.status, stream=stream, id=heard.request_id)
        if cell.channels == "one":
            check_error(heard, code)
            attempts, bought = cell.scene.attempts, cell.scene.is_broken_off(stream=stream)
            check_row_of_failure(row, code, attempts=attempts, bought=bought)
            check_trail(heard, row, *[(BAD, code)] * attempts)
            assert played.asked == (attempts, 0)
        else:
            assert (heard.status, heard.whole) == (200, True)
            assert b"error" not in heard.body
            assert b"good" in heard.body or b"hello" in heard.body
            check_row_of_success(row, "healthy", attempts=2)
            check_trail(heard, row, (BAD, code), ("healthy", "ok"))
            assert played.asked == (1, 1)


@pytest.mark.parametrize("cell", list_cells("after"))
async def test_after_the_first_byte(standing_with: StartGateway, notes: Notes, cell: Cell) -> None:
    """One error event in the stream, no end mark, no other channel; what had come is charged."""
    code, counted = cell.scene.code, cell.provider_type.counted
    async with AsyncExitStack() as doors:
        played = await cell.play(standing_with, doors)
        heard = played.heard
        cell.note(notes, heard, "after")
        before = check_broken_stream(heard, code)
        assert read_text(before) == TEXT
        if cell.provider_type.provider == "custom":
            assert before[:2] == [ONE, TWO]
        assert played.asked == (1, 0)
        broken = [] if LAST_CHUNK in cell.scene.script else [played.bad]
        row = await audit(played.gateway, *broken, outcome="failed", error_code=code, channel=BAD, status=200)
        check_trail(heard, row, (BAD, code))
        assert row.first_byte_ms is not None
        assert (row.usage_source, row.prompt_tokens) == ("estimate", counted)
        assert row.completion_tokens == estimate_text(TEXT)


@pytest.mark.parametrize("cell", list_cells("fine"))
async def test_a_strange_answer_is_an_answer(standing_with: StartGateway, notes: Notes, cell: Cell) -> None:
    """The same words and the same end, once; charged by numbers that can be true."""
    async with AsyncExitStack() as doors:
        played = await cell.play(standing_with, doors)
        heard = played.heard
        cell.note(notes, heard, "after" if cell.scene.begun else "before")
        assert (heard.status, heard.whole) == (200, True)
        assert b"late" not in heard.body
        if cell.stream:
            assert read_text(heard.events) == TEXT
            assert heard.body.count(b"[DONE]") == 1
        else:
            assert orjson.loads(heard.body)["choices"][0]["message"]["content"] == TEXT
        assert played.asked == (1, 0)
        row = await audit(played.gateway, outcome="completed", usage_source=cell.scene.code, channel=BAD)
        check_trail(heard, row, (BAD, "ok"))
        estimate = estimate_text("hi"), estimate_text(TEXT)
        counted = TOKENS if cell.scene.code == "upstream" else estimate
        assert (row.prompt_tokens, row.completion_tokens) == counted


@attrs.frozen
class Death:
    """How a channel fails each time; the caller's part of it, and when in the answer it is."""

    name: str
    script: Script
    word: str
    when: When
    stream: bool


DEATHS = [
    Death("RST", [RST], "502", "before", stream=True),
    Death("RST", [RST], "502", "before", stream=False),
    Death("half a stream", [*STARTED, RST], "frame", "after", stream=True),
    Death("half a body", [answer(BODY)[:-3], FIN], "502", "after", stream=False),
]


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"{death.name}{' stream' if death.stream else ''}")
async def test_the_third_failure_in_a_row_is_the_last(
    standing_with: StartGateway, notes: Notes, death: Death, channels: Channels
) -> None:
    """From then on the channel is not asked where another serves; alone, it still is at a bounded rate."""
    stream = death.stream
    async with ScriptedUpstream(death.script) as dead, ScriptedUpstream(good_script(stream=stream)) as good:
        ups = [channel(dead.base_url, BAD), *([healthy(good)] if channels == "two" else ())]
        gateway = await standing_with(site(*ups, routing={"cooldown_s": 60}))
        heard = [await call(gateway, stream=stream) for _ in range(5)]
        notes.add_cell("U17", read_word(heard[-1]), stream=stream, when=death.when, channels=channels)
        usual = death.word if channels == "one" or death.word == "frame" else "next"
        rows = await gateway.rows(5)
        if channels == "one":
            assert [read_word(one) for one in heard] == [usual] * 5
            tries = 2 if death.name == "RST" else 1
            assert [row.attempts for row in rows] == [tries] * 5
            more = [await call(gateway, stream=stream) for _ in range(compute_smooth_burst(INSISTING_RPM))]
            check_error(more[-1], "no_available_channel")
            assert more[-1].headers["Retry-After"] == "1"
            assert "x-gateway-attempts" not in more[-1].headers
            row = (await gateway.rows(5 + len(more)))[-1]
            assert (row.attempts, row.channel, row.cost_nanos) == (0, None, 0)
        else:
            assert [read_word(one) for one in heard] == [usual] * 3 + ["200"] * 2
            assert len(dead.received) == 3
            assert [row.channel for row in rows][3:] == ["healthy"] * 2
            assert [row.attempts for row in rows][3:] == [1, 1]
