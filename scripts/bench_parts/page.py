"""A run -> docs/benchmarks.md, and the table of README between its two marks."""

import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from scripts.bench_parts.figures import Spread
from scripts.bench_parts.ours import VARIANTS
from scripts.bench_parts.peers import PEERS
from scripts.bench_parts.summary import Figures, read_figures
from scripts.bench_parts.table import write_number

OURS = "gateway"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
NAMES = {
    OURS: "Model Gateway", "postgres": "on PostgreSQL", "tls": "over TLS", "translated": "translated",
    "observed": "metrics and traces", "kept": "bodies and streams kept", "before": "before", "nginx": "nginx",
    "bare": "bare aiohttp relay",
    "rolter": "rolter", "ferro": "Ferro", "smg": "SMG", "envoy": "Envoy", "litellm": "LiteLLM",
}  # fmt: skip


@attrs.frozen
class Row:
    """A figure of the page.

    Attributes:
        scale: what the bench's figure is divided by.
        least: below it, in the bench's unit, a figure is the machine's and not the relay's.
        short: its name in the README's table; empty: it is not there.
    """

    key: str
    label: str
    scale: float = 1.0
    least: float = 0.0
    short: str = ""


LATER = 1000.0, 50.0
"""Delays are shown in ms; one of less than 50 us is noise."""
ROWS = (
    Row("json_cpu_us", "JSON request, flat out: CPU, us", short="JSON request, us"),
    Row("core_rps", "JSON requests a second of a core"),
    Row("event_cpu_us", "Streamed event: CPU, us", short="streamed event, us"),
    Row("whole_stream_us", "Stream of 100 events, all of it: CPU, us", short="stream of 100 events, us"),
    Row("lone_150_us", "Call that comes alone, 150 a second: CPU, us", short="call that comes alone, us"),
    Row("lone_150_p50_us", "Call that comes alone: first byte later by, p50, ms", *LATER),
    Row("lone_15_us", "Call that comes alone, 15 a second: CPU, us"),
    Row("rest_ms_per_s", "At rest: CPU, ms a second"),
    Row("burst_p50_us", "200 streams opened at once: first event later by, p50, ms", *LATER),
    Row("burst_p99_us", "200 streams opened at once: first event later by, p99, ms", *LATER),
    Row("stream_p50_us", "500 streams opened a second: first event later by, p50, ms", *LATER),
    Row("stream_p99_us", "500 streams opened a second: first event later by, p99, ms", *LATER, "first event, p99, ms"),
    Row("delay_p99_us", "Event later by, p99, ms", *LATER),
    Row("busy_p99_us", "Event later by, beside 150 calls a second and what is written after them, p99, ms", *LATER),
    Row("open_5000_kb", "5,000 open streams: memory each, KB", short="5,000 streams, KB each"),
    Row("start_ms", "Start, to the first answer, ms"),
    Row("rest_mb", "Memory after start, MB", short="memory, MB"),
    Row("peak_mb", "Memory at most, crowds left out, MB"),
)
BUSY = 1.0
"""Load of the machine before a run above which the page warns."""
WARNING = "**A rough look on a busy machine (load {load:.1f} before the run): do not trust these figures.**"
METHOD = """
- Pinned: {pinned}. CPU is {clock}, user and system: a relay that works on other threads pays for them. \
A database server is another process and is not counted.
- {rounds} rounds of {turns} turns whose order rotates. Flat out: {callers} clients at a time. \
Streamed event: {streams} streams of {events_per_s:g} events a second, in a window in which none begins or ends. \
A call alone: {lone_s:g} s of calls and {quiet_s:g} s after them, in which a relay may write what it has kept.
- Each other gateway is installed from its package on PyPI and runs with one worker and the settings above. \
No other gateway settles money for each request in this run; this gateway does.
"""
Medians = dict[str, dict[str, float]]


def write_pages(run: dict[str, Any], root: Path) -> None:
    """Write the page and README's table under ``root``."""
    (root / "docs" / "benchmarks.md").write_text("\n".join(write_page(run)) + "\n")
    readme = root / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{BEGIN}\n{chr(10).join(write_short(run))}\n{END}{after}")


def _warn(load: float) -> Iterator[str]:
    if load > BUSY:
        yield from ("", WARNING.format(load=load))


def find_medians(figures: Figures) -> Medians:
    """Metric -> relay -> the median of its rounds; those that were not measured are left out."""
    found = {
        key: {name: Spread.of(list(rounds.values())).median for name, rounds in relays.items()}
        for key, relays in figures.items()
    }
    return {
        key: {name: value for name, value in relays.items() if not math.isnan(value)} for key, relays in found.items()
    }


def write_page(run: dict[str, Any]) -> Iterator[str]:
    """The lines of the page: what is worse first."""
    medians, machine = find_medians(read_figures(run["samples"])), run["machine"]
    yield from ("# Benchmarks", "")
    peers = ",".join(name for name in PEERS if name in run["relays"] or name in run["absent"])
    yield f'This page is made by `make bench ARGS="--with {peers} --page"`: one run, in which all'
    yield "relays take turns. Trust the ratios between columns more than absolute figures: these depend on the machine."
    yield from _warn(machine["load"])
    yield from ("", "## What others do better", "", *write_worse(medians), "", "## Figures", "")
    for names in (_pick(run, [OURS, "nginx", "bare", *PEERS]), _pick(run, list(VARIANTS))):
        yield from (*write_table(medians, names), "")
    yield from ('Medians of the rounds. "Later by": compared with the provider asked directly.', "")
    yield from ("## What each has switched on", "")
    yield from ("| | version | language | switched on |", "|---|---|---|---|")
    yield from (_describe(run, name) for name in run["relays"])
    for name, reason in run["absent"].items():
        yield f"| {NAMES[name]} | | | **not available**: {' '.join(reason.split())[:300].replace('|', '/')} |"
    yield from ("", "## Machine and method", "")
    yield f"- {run['at']}, commit {machine['commit']}: {machine['cores']} cores, {machine['processor']},"
    yield f"  {machine['system']}, Python {machine['python']}, aiohttp {machine.get('aiohttp', '')}, uvloop"
    yield f"  {machine.get('uvloop', '')}. Load of the machine before the run: {machine['load']:.2f}."
    yield from _write_method(run)


def _write_method(run: dict[str, Any]) -> Iterator[str]:
    plan = run["plan"]
    for paragraph in METHOD.format(**{**plan, **run}, events_per_s=1 / plan["pace_s"]).strip().split("\n"):
        yield from textwrap.wrap(paragraph, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def write_worse(medians: Medians) -> Iterator[str]:
    """A line for each figure in which another relay is better than ours, worst first."""
    found = []
    for row in ROWS:
        relays = medians.get(row.key, {})
        ours = relays.get(OURS, -math.inf)
        better = {name: value for name, value in relays.items() if name not in VARIANTS and value < ours}
        if better and row.key != "core_rps":  # which says the same as the CPU of a request
            others = [
                f"{NAMES[name]} {_format(better[name], row)}" for name in sorted(better, key=lambda name: better[name])
            ]
            best = min(better.values())
            line = f"- {row.label}: {', '.join(others)}; Model Gateway {_format(ours, row)}."
            found.append((max(ours, row.least) / max(best, row.least, 1e-9), line))
    found.sort(key=lambda pair: pair[0], reverse=True)
    yield from (line for _, line in found) if found else ("- Nothing that this run measures.",)


def write_short(run: dict[str, Any]) -> Iterator[str]:
    """README's table: a line for each gateway, best event first; what others have switched on is on the page."""
    medians = find_medians(read_figures(run["samples"]))
    rows = [row for row in ROWS if row.short]
    names = _pick(run, [OURS, *PEERS, "nginx", "bare"])
    names.sort(key=lambda name: medians.get("event_cpu_us", {}).get(name, math.inf))
    yield from _warn(run["machine"]["load"])
    yield ""
    yield "| | " + " | ".join(row.short for row in rows) + " |"
    yield "|---" * (len(rows) + 1) + "|"
    for name in names:
        version = run["versions"].get(name, "")
        cells = [_cell(medians, row, name) for row in rows]
        yield (
            f"| {f'**{NAMES[name]}**' if name == OURS else NAMES[name]} {version}".rstrip()
            + f" | {' | '.join(cells)} |"
        )


def write_table(medians: Medians, names: list[str]) -> Iterator[str]:
    """A line for each figure, a column for each relay."""
    yield "| | " + " | ".join(NAMES[name] for name in names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for row in ROWS:
        if medians.get(row.key):
            yield f"| {row.label} | {' | '.join(_cell(medians, row, name) for name in names)} |"


def _cell(medians: Medians, row: Row, name: str) -> str:
    value = medians.get(row.key, {}).get(name)
    return "" if value is None else _format(value, row)


def _format(value: float, row: Row) -> str:
    shown = value / row.scale
    return f"{shown:,.0f}" if shown >= 1000 else write_number(shown)


def _pick(run: dict[str, Any], names: list[str]) -> list[str]:
    return [name for name in names if name in run["relays"]]


def _describe(run: dict[str, Any], name: str) -> str:
    machine, peer = run["machine"], PEERS.get(name)
    version = run["versions"].get(name) or {"nginx": machine["nginx"], "bare": machine.get("aiohttp", "")}.get(name, "")
    language = peer.language if peer else {"nginx": "C"}.get(name, "Python")
    return f"| {NAMES[name]} | {version} | {language} | {run['on'].get(name, '')} |"
