"""The table of a run, in plain text of at most 120 columns; and two runs beside each other."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from scripts.bench_parts.figures import Ratio, Spread
from scripts.bench_parts.ours import VARIANTS
from scripts.bench_parts.peers import PEERS
from scripts.bench_parts.phases import Sample
from scripts.bench_parts.summary import Figures, Metric, find_ratio, list_metrics, read_figures

_LABEL = 35
_CELL = 21
_COLUMNS = 4
_RATIO = 28
_ABREAST = 3
"""Ratios on a line."""


@attrs.frozen
class Bar:
    """What the gateway is asked for: at most ``most``, as a figure, a ratio to ``over`` or an excess over ``above``."""

    key: str
    most: float
    over: str = ""
    above: str = ""


BARS = (
    Bar("event_cpu_us", 1.3, "nginx"),
    Bar("json_cpu_us", 11, "nginx"),
    Bar("json_cpu_us", 1.3, "bare"),
    Bar("json_cpu_us", 2.4, "rolter"),
    Bar("json_cpu_us", 1, "ferro"),
    Bar("lone_150_us", 1, "bare"),
    Bar("lone_15_us", 4, "nginx"),
    Bar("rest_ms_per_s", 0.3),
    Bar("burst_p99_us", 4000),
    Bar("stream_p50_us", 400),
    Bar("stream_p99_us", 1000),
    Bar("busy_p99_us", 300, above="nginx"),
    Bar("event_worst", 10),
    Bar("stream_worst", 10),
    Bar("open_5000_kb", 25),
)


def write_run(run: dict[str, Any]) -> Iterator[str]:
    """The lines of a whole run."""
    samples, figures = run["samples"], read_figures(run["samples"])
    relays, metrics = run["relays"], list_metrics(samples)
    yield from write_head(run)
    yield ""
    yield from write_absolutes(figures, metrics, relays)
    pairs = [("gateway", name) for name in relays if name in {"nginx", "bare", "before", *PEERS}]
    pairs += [(name, "gateway") for name in VARIANTS if name in relays and name not in {"gateway", "before"}]
    pairs = [pair for pair in pairs if {*pair} <= {*relays}]
    for at in range(0, len(pairs), _ABREAST):
        yield ""
        yield from write_ratios(figures, metrics, pairs[at : at + _ABREAST])
    yield ""
    yield from write_bars(figures, metrics)
    yield from write_busy(samples, relays)


def write_head(run: dict[str, Any]) -> Iterator[str]:
    """What was measured, on what, and how."""
    machine, plan = run["machine"], run["plan"]
    packages = [f"{name} {machine[name]}" for name in ("python", "uvloop", "aiohttp", "nginx") if machine.get(name)]
    yield f"{machine['commit']}, {run['at']}: {', '.join(packages)}"
    where = f"{machine['cores']} cores, {machine['processor']}, {machine['system']}"
    yield f"{where}; load before: {machine['load']:.2f}, niceness {machine['nice']}"
    yield f"pinned: {run['pinned']}; CPU by {run['clock']}"
    reported = [f"{plan['rounds']} rounds of {plan['turns']} turns", f"flat out: {plan['callers']} callers at a time"]
    reported += [
        f"{plan['streams']} streams of {1 / plan['pace_s']:g} events/s",
        f"steady: {plan['steady_rate']:g} calls/s",
    ]
    yield "; ".join(reported)
    versions, absent = run.get("versions", {}), run.get("absent", {})
    yield from (f"{name}: {versions.get(name, '')} {on}".replace("  ", " ") for name, on in run.get("on", {}).items())
    yield from (f"{name}: NOT AVAILABLE: {reason}"[:120] for name, reason in absent.items())
    yield "medians of rounds (lowest-highest); an event's CPU: a window in which no stream begins or ends"


def write_absolutes(figures: Figures, metrics: Iterable[Metric], relays: list[str]) -> Iterator[str]:
    """A line for each metric, a column for each relay, four beside each other."""
    for at in range(0, len(relays), _COLUMNS):
        some = relays[at : at + _COLUMNS]
        yield " " * _LABEL + "".join(f"{name:>{_CELL}}" for name in some)
        for metric in metrics:
            rounds = figures.get(metric.key, {})
            cells = [_write_spread(Spread.of(list(rounds.get(name, {}).values()))) for name in some]
            yield f"{metric.label:<{_LABEL}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)


def write_ratios(figures: Figures, metrics: Iterable[Metric], pairs: list[tuple[str, str]]) -> Iterator[str]:
    """The ratio of medians, and then the median (and spread) of the rounds' own ratios."""
    heads = [f"{ours}/{theirs}" for ours, theirs in pairs]
    yield f"{'ratio of medians; of rounds':<{_LABEL}}" + "".join(f"{head:>{_RATIO}}" for head in heads)
    for metric in metrics:
        cells = [_write_ratio(find_ratio(figures, metric.key, ours, theirs)) for ours, theirs in pairs]
        yield f"{metric.label:<{_LABEL}}" + "".join(f"{cell:>{_RATIO}}" for cell in cells)


def write_bars(figures: Figures, metrics: Iterable[Metric]) -> Iterator[str]:
    """What was asked for, and whether it is so."""
    labels = {metric.key: metric.label.strip() for metric in metrics}
    for bar in BARS:
        value = find_bar(figures, bar)
        if value is not None and not math.isnan(value):
            over = f", over {bar.over}'s" if bar.over else f", above {bar.above}'s" if bar.above else ""
            message = f"{value:.2f} (at most {bar.most:g})"
            yield f"{'kept  ' if value <= bar.most else 'MISSED'} {labels[bar.key]}{over}: {message}"


def find_bar(figures: Figures, bar: Bar) -> float | None:
    """The gateway's figure; None where it was not measured."""
    if bar.over:
        ratio = find_ratio(figures, bar.key, "gateway", bar.over)
        return ratio.each.median if ratio else None
    medians = {name: Spread.of(list(rounds.values())).median for name, rounds in figures.get(bar.key, {}).items()}
    if "gateway" not in medians or (bar.above and bar.above not in medians):
        return None
    return medians["gateway"] - medians.get(bar.above, 0.0)


def write_busy(samples: list[Sample], relays: list[str]) -> Iterator[str]:
    """How busy the cores were: whether it was the relay that set the pace, or the bench's own ends; and the clock."""
    for phase, label in (("json", "JSON"), ("sse", "streams"), ("crowd_carry_", "crowds")):
        for name in relays:
            mine = [one for one in samples if one["relay"] == name and one["phase"].startswith(phase)]
            if mine:
                busy = [Spread.of([one[f"{part}_busy"] for one in mine]) for part in ("relay", "upstream", "client")]
                reported = [f"{part.median:.0%} (most {part.high:.0%})" for part in busy]
                own, upstream, client = reported
                yield f"{label}: {name} {own} of its core; of the other one upstream {upstream}, client {client}"
    clocks = [f"{one['relay']} {one['clock']:.3f}" for one in samples if one["phase"] == "clock"]
    if clocks:
        yield f"CPU clock over the ticks of /proc: {', '.join(clocks)}"


def write_comparison(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Two runs beside each other: medians, and by how much the second differs."""
    first, second = read_figures(before["samples"]), read_figures(after["samples"])
    yield f"A: {before['machine']['commit']}, {before['at']}    B: {after['machine']['commit']}, {after['at']}"
    yield f"{'':<{_LABEL}}{'':10}{'A':>{_CELL}}{'B':>{_CELL}}{'B/A':>8}{'B/A over nginx':>18}"
    for metric in list_metrics([*before["samples"], *after["samples"]]):
        ones, others = first.get(metric.key, {}), second.get(metric.key, {})
        for name in (name for name in before["relays"] if name in ones and name in others):
            a, b = (Spread.of(list(relays[name].values())) for relays in (ones, others))
            cells = f"{_write_spread(a):>{_CELL}}{_write_spread(b):>{_CELL}}"
            ratio = f"{b.median / a.median:.2f}" if a.median else "-"
            yield f"{metric.label:<{_LABEL}}{name:<10}{cells}{ratio:>8}{_compare(first, second, metric.key, name):>18}"


def _compare(first: Figures, second: Figures, key: str, name: str) -> str:
    """By how much a relay's ratio to nginx differs: what is left when the machine was faster one day than another."""
    ratios = [find_ratio(figures, key, name, "nginx") for figures in (first, second)]
    values = [ratio.each.median for ratio in ratios if ratio and ratio.each.median]
    return f"{values[1] / values[0]:.2f}" if len(values) == 2 and name != "nginx" else "-"


def _write_ratio(ratio: Ratio | None) -> str:
    if ratio is None or math.isnan(ratio.of_medians):
        return "-"
    return f"{write_number(ratio.of_medians)}; {_write_spread(ratio.each)}"


def _write_spread(spread: Spread) -> str:
    if math.isnan(spread.median):
        return "-"
    return f"{write_number(spread.median)} ({write_number(spread.low)}-{write_number(spread.high)})"


def write_number(value: float) -> str:
    """Three digits, or as many as there are before the point."""
    if abs(value) >= 10_000_000:
        return f"{value / 1_000_000:.0f}M"
    if abs(value) >= 100_000:
        return f"{value / 1000:.0f}k"
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"
