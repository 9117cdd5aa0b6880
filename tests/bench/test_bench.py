"""``scripts/bench.py``: its smallest run has every figure, and what samples come to is right. No figure is judged."""

import asyncio
import math
import os
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from scripts import bench
from scripts.bench_parts import relays, wire
from scripts.bench_parts.crowd import write_delays
from scripts.bench_parts.figures import Ratio, Spread, percentile
from scripts.bench_parts.load import Load, WholeLine
from scripts.bench_parts.meter import read_cpu_ns
from scripts.bench_parts.page import write_pages
from scripts.bench_parts.phases import DIRECT, Plan
from scripts.bench_parts.summary import METRICS, read_figures
from scripts.bench_parts.table import write_comparison, write_number, write_run
from tests.support.gateway_process import eventually

TINY = Plan(
    rounds=1,
    turns=1,
    slice_s=0.05,
    callers=4,
    streams=4,
    steady_s=0.05,
    steady_events=2,
    provider_retry_after_s=0.01,
    whole_events=3,
    burst=4,
    lone_s=0.1,
    quiet_s=0.01,
    busy_s=0.1,
)
FINITE = st.floats(0.001, 1e9)


@pytest.fixture
def names() -> tuple[str, ...]:
    """All three relays; without nginx where that is not installed, which CI does not forgive."""
    if relays.find_nginx() is None:
        if os.environ.get("CI"):
            pytest.fail("nginx is not installed")
        return ("gateway", "bare")
    return bench.RELAYS


def measure(**order: Any) -> dict[str, Any]:
    return uvloop.run(bench.run(bench.Order(TINY, pinned=False, **order)))


@pytest.mark.cost
def test_an_observed_gateway_is_measured_beside_one_that_is_not() -> None:
    run = measure(names=("gateway", "observed"), parts=("json",))
    figures = read_figures(run["samples"])
    assert all(math.isfinite(figures["json_cpu_us"][name][0]) for name in ("gateway", "observed"))
    assert any("observed" in line and "gateway" in line for line in write_run(run))


@pytest.mark.cost
def test_the_smallest_run_has_every_figure(names: tuple[str, ...], tmp_path: Path) -> None:
    """Of every relay, and each is a number; what is written to a file reads the same. A crowd needs one relay here."""
    run = measure(names=names, parts=bench.PARTS[:-1])
    run["samples"] += measure(names=("bare",), parts=("streams",), crowds=[2, 6], rates=[20.0], window_s=0.1)["samples"]
    figures = read_figures(run["samples"])
    for metric in METRICS:
        measured = ("bare",) if metric.phase.startswith("crowd") else names
        assert {*figures[metric.key]} == {*measured}, metric
        assert all(math.isfinite(value) for name in measured for value in figures[metric.key][name].values()), metric
    assert {"open_2_kb", "open_6_mb", "carried_rate", "stream_worst", "event_worst"} <= {*figures}
    bench.write_file(run, tmp_path / "run.json")
    again = bench.read_run(tmp_path / "run.json")
    assert list(write_run(again)) == list(write_run(run))
    assert all(len(line) <= 120 for line in write_run(run))
    assert any(line.startswith("CPU a streamed event") and "gateway" in line for line in write_comparison(run, again))
    assert {sample["relay"] for sample in run["samples"] if sample["phase"] == "sse"} == {*names, DIRECT}


@pytest.mark.parametrize(
    ("ci", "missing", "left"),
    [("true", "litellm", ("bare",)), ("", "nginx", ("bare",)), ("true", "nginx", None)],
    ids=["peer_in_ci", "nginx", "nginx_in_ci"],
)
def test_a_relay_that_cannot_be_had_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ci: str,
    missing: str,
    left: tuple[str, ...] | None,
) -> None:
    """With the reason. CI goes on without a peer, not without nginx."""
    monkeypatch.setenv("CI", ci)
    names, reasons = (missing, "bare"), {missing: "there is none"}
    if left is None:
        with pytest.raises(SystemExit):
            bench.choose(names, lambda name: reasons.get(name, ""))
    else:
        assert bench.choose(names, lambda name: reasons.get(name, "")) == (left, reasons)
    assert f"{missing}: not available: there is none" in capsys.readouterr().err


def make_run(**medians: dict[str, float]) -> dict[str, Any]:
    """A run whose gateway and peers had these figures of a JSON request (us), and of a start (ms)."""
    samples = [
        {"phase": "json", "relay": name, "round": 0, "turn": 0, "requests": 1, "took_s": 1, "relay_cpu_ns": us * 1000}
        for name, us in medians["json"].items()
    ]
    samples += [
        {"phase": "start", "relay": name, "round": 0, "turn": 0, "start_s": ms / 1000, "resident_kb": 1024}
        for name, ms in medians["start"].items()
    ]
    return {
        "at": "now", "pinned": "to nothing", "clock": "a clock", "plan": attrs.asdict(TINY), "samples": samples,
        "machine": dict.fromkeys(("cores", "processor", "system", "python", "nginx", "commit"), "?") | {"load": 0.0},
        "relays": ["gateway", "nginx", "rolter"], "on": {"gateway": "all"}, "versions": {"rolter": "0.1"},
        "absent": {"smg": "no wheel"},
    }  # fmt: skip


def test_the_page_says_first_what_is_worse(tmp_path: Path) -> None:
    """In order of the distance, with what could not be measured; the README keeps what stands around its table."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("before\n<!-- bench: begin -->\nold\n<!-- bench: end -->\nafter\n")
    both = {"gateway": 100.0, "rolter": 50.0, "nginx": 10.0}
    write_pages(make_run(json=both, start={"gateway": 20.0, "nginx": 19.0, "rolter": 90.0}), tmp_path)
    page = (tmp_path / "docs" / "benchmarks.md").read_text()
    worse = page.partition("## What others do better")[2].partition("## Figures")[0].strip().splitlines()
    assert worse == [
        "- JSON request, flat out: CPU, us: nginx 10.0, rolter 50.0; Model Gateway 100.",
        "- Start, to the first answer, ms: nginx 19.0; Model Gateway 20.0.",
    ]
    assert "| SMG | | | **not available**: no wheel |" in page
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("before\n<!-- bench: begin -->\n\n| | JSON request")
    assert "| **Model Gateway** | 100 |" in readme
    assert readme.endswith("<!-- bench: end -->\nafter\n")


@given(st.lists(FINITE, min_size=1, max_size=40), st.floats(0, 100))
def test_a_percentile_lies_where_it_should(values: list[float], part: float) -> None:
    """At least so many are not above it, at least the rest not below it, but for the neighbours it lies between."""
    found = percentile(values, part)
    assert min(values) <= found <= max(values)
    assert sum(value <= found for value in values) >= math.floor((len(values) - 1) * part / 100)
    assert sum(value >= found for value in values) >= math.floor((len(values) - 1) * (1 - part / 100))


def test_percentiles_by_hand() -> None:
    assert [percentile([4, 1, 3, 2], part) for part in (0, 50, 100)] == [1, 2.5, 4]
    assert percentile(range(101), 99) == 99
    assert math.isnan(percentile([], 50))


def test_a_round_is_compared_with_itself() -> None:
    """A machine that was twice as slow in one round was so for both."""
    ratio = Ratio.of({0: 10.0, 1: 20.0, 2: 11.0}, {0: 5.0, 1: 10.0, 2: 5.5})
    assert ratio == Ratio(2.0, Spread(2.0, 2.0, 2.0))
    lone = Ratio.of({0: 10.0}, {1: 5.0})
    assert lone.of_medians == 2.0
    assert math.isnan(lone.each.median)
    assert math.isnan(Ratio.of({0: 1.0}, {0: 0.0}).of_medians)


def take(relay: str, number: int, turn: int, **figures: float) -> dict[str, Any]:
    return {"phase": "json", "relay": relay, "round": number, "turn": turn, "took_s": 1.0, **figures}


def test_a_rounds_turns_are_summed_before_they_are_divided() -> None:
    turns = [
        take("gateway", 0, 0, requests=10, relay_cpu_ns=10_000),
        take("gateway", 0, 1, requests=30, relay_cpu_ns=90_000),
    ]
    figures = read_figures(turns)
    assert figures["json_cpu_us"] == {"gateway": {0: 2.5}}
    assert figures["core_rps"] == {"gateway": {0: 400_000}}
    assert figures["seen_rps"] == {"gateway": {0: 20}}


def test_what_a_relay_adds_is_told_against_the_same_turn() -> None:
    phase = {"phase": "latency_stream", "requests": 1, "relay_cpu_ns": 1, "first_p99_ns": 0}
    firsts = {"gateway": (5_000, 90_000, 7_000), DIRECT: (1_000, 80_000, 1_000)}
    samples = [
        {**phase, "relay": relay, "round": 0, "turn": turn, "first_p50_ns": first}
        for relay, values in firsts.items()
        for turn, first in enumerate(values)
    ]
    assert read_figures(samples)["stream_p50_us"] == {"gateway": {0: 6.0}}


def test_a_stream_that_starves_is_seen() -> None:
    reported = write_delays([[10, 12, 11], [10, 11, 12], [500, 400, 600], []])
    assert reported["silent_streams"] == 1
    assert reported["stream_worst"] == 500 / 11
    assert reported["event_worst"] == 600 / percentile([10, 12, 11, 10, 11, 12, 500, 400, 600], 50)


def test_an_event_says_when_it_was_sent() -> None:
    """As its chunk, in any piece that holds it whole; and they are all of one length."""
    event = wire.write_event()
    assert event.count(wire.MARK) == 1
    assert len(event) == len(wire.write_event())
    delay = wire.read_delay_ns(b"rest of another" + event)
    assert delay is not None
    assert 0 <= delay < 60 * 10**9
    assert wire.read_delay_ns(event[:60]) is None
    assert wire.read_delay_ns(event[: event.index(wire.MARK) + len(wire.MARK) + 5]) is None


async def test_a_relay_that_closes_idle_connections_is_called_on_new_ones() -> None:
    opened: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        while await reader.read(65_536):
            writer.write(wire.ANSWER)
        writer.close()

    async def are_all_closed() -> bool:
        return all(line.closed for line in load.lines)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    load = Load(wire.Address(server.sockets[0].getsockname()[1]), WholeLine)
    await load.call_again(2, 0)
    for writer in opened:
        writer.close()
    await eventually(are_all_closed, 20)
    await load.call_again(2, 0)
    assert load.tally.answered == 4
    load.close()
    await asyncio.gather(*(writer.wait_closed() for writer in opened), return_exceptions=True)
    server.close()
    await server.wait_closed()


def test_the_clock_of_a_process_is_its_own() -> None:
    """The same account that the process itself reads."""
    before = time.process_time_ns()
    read = read_cpu_ns(os.getpid())
    assert before <= read <= time.process_time_ns()


@pytest.mark.parametrize(
    ("value", "written"), [(1.234, "1.23"), (12.34, "12.3"), (1234.5, "1234"), (123_456.7, "123k")]
)
def test_numbers_keep_three_digits(value: float, written: str) -> None:
    assert write_number(value) == written
