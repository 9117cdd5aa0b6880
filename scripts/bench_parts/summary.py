"""Samples -> what is printed: one figure a round, relay and metric; then medians, spreads and ratios."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from scripts.bench_parts.figures import Ratio, Spread
from scripts.bench_parts.phases import DIRECT, Sample

Read = Callable[[list[Sample], list[Sample]], float]
Rounds = dict[int, float]
Figures = dict[str, dict[str, Rounds]]
"""metric -> relay -> round -> figure."""


@attrs.frozen
class Metric:
    """A line of the table.

    Attributes:
        phase: of the samples that it is made from; or what the phases of those begin with.
        read: the turns of one relay in one round, and of the upstream asked directly -> the figure.
    """

    key: str
    label: str
    phase: str
    read: Read

    def covers(self, phase: str) -> bool:
        """Whether samples of ``phase`` are its."""
        return phase == self.phase or (self.phase.endswith("_") and phase.startswith(self.phase))


def per(over: str, under: str, scale: float) -> Read:
    """The sum of the one over the sum of the other."""

    def read(turns: list[Sample], _direct: list[Sample]) -> float:
        whole = sum(turn[under] for turn in turns)
        return sum(turn[over] for turn in turns) / whole / scale if whole else math.nan

    return read


def added(name: str, scale: float) -> Read:
    """What a relay adds: its figure less that of the upstream asked directly in the same turn; the turns' median."""

    def read(turns: list[Sample], direct: list[Sample]) -> float:
        bare = {turn["turn"]: turn[name] for turn in direct}
        return Spread.of([(turn[name] - bare[turn["turn"]]) / scale for turn in turns if turn["turn"] in bare]).median

    return read


def plain(name: str, scale: float = 1) -> Read:
    """The turns' median."""
    return lambda turns, _direct: Spread.of([turn[name] / scale for turn in turns]).median


def _one_core(turns: list[Sample], _direct: list[Sample]) -> float:
    requests = sum(turn["requests"] for turn in turns)
    found: float = requests * 1e9 / sum(turn["relay_cpu_ns"] for turn in turns)
    return found if requests else math.nan


def _most_by_cpu(turns: list[Sample], _direct: list[Sample]) -> float:
    found: float = max(turn["events"] * 1e9 / turn["relay_cpu_ns"] for turn in turns)
    return found


def _most_carried(turns: list[Sample], _direct: list[Sample]) -> float:
    """Events a second of the best step: what it carried, or what it still delivered when asked for more."""
    found: float = max(turn["events_per_s"] for turn in turns)
    return found


def _last_carried(name: str, scale: float = 1) -> Read:
    def read(turns: list[Sample], _direct: list[Sample]) -> float:
        carried = [turn for turn in turns if turn["carried"]]
        return float(max(carried, key=lambda turn: turn["rate"])[name]) / scale if carried else math.nan

    return read


_CPU_A_CALL = per("relay_cpu_ns", "requests", 1e3)
METRICS: tuple[Metric, ...] = (
    Metric("json_cpu_us", "CPU a JSON request, flat out, us", "json", _CPU_A_CALL),
    Metric("steady_cpu_us", "  at the steady rate, us", "latency_whole", _CPU_A_CALL),
    Metric("event_cpu_us", "CPU a streamed event, us", "sse", per("relay_cpu_ns", "events", 1e3)),
    Metric("event_pieces", "  reads an event came in", "sse", per("pieces", "events", 1)),
    Metric("stream_cpu_us", "CPU a short stream, all of it, us", "latency_stream", _CPU_A_CALL),
    Metric("whole_stream_us", "CPU a stream of 100 events, us", "stream", _CPU_A_CALL),
    Metric("lone_150_us", "CPU a lone call, 150/s, us", "lone_150", _CPU_A_CALL),
    Metric("lone_150_p50_us", "  added first byte, p50, us", "lone_150", added("first_p50_ns", 1e3)),
    Metric("lone_15_us", "CPU a lone call, 15/s, us", "lone_15", _CPU_A_CALL),
    Metric("rest_ms_per_s", "CPU at rest, ms a second", "rest", per("relay_cpu_ns", "took_s", 1e6)),
    Metric("core_rps", "JSON requests/s of a core (1/CPU)", "json", _one_core),
    Metric("seen_rps", "  seen, flat out", "json", per("requests", "took_s", 1)),
    Metric("whole_p50_us", "added first byte, JSON, p50, us", "latency_whole", added("first_p50_ns", 1e3)),
    Metric("whole_p99_us", "added first byte, JSON, p99, us", "latency_whole", added("first_p99_ns", 1e3)),
    Metric("burst_p50_us", "added first event, 200 at once, p50, us", "burst", added("first_p50_ns", 1e3)),
    Metric("burst_p99_us", "added first event, 200 at once, p99, us", "burst", added("first_p99_ns", 1e3)),
    Metric("stream_p50_us", "added first event, p50, us", "latency_stream", added("first_p50_ns", 1e3)),
    Metric("stream_p99_us", "added first event, p99, us", "latency_stream", added("first_p99_ns", 1e3)),
    Metric("delay_p50_us", "added delay of an event, p50, us", "sse", added("delay_p50_ns", 1e3)),
    Metric("delay_p99_us", "added delay of an event, p99, us", "sse", added("delay_p99_ns", 1e3)),
    Metric("busy_p99_us", "  beside calls and their writes, p99", "busy", added("delay_p99_ns", 1e3)),
    Metric("start_ms", "start, to the first answer, ms", "start", plain("start_s", 1e-3)),
    Metric("rest_mb", "resident, after start, MB", "start", plain("resident_kb", 1024)),
    Metric("peak_mb", "  at most, crowds left out, MB", "peak", plain("resident_kb", 1024)),
    Metric("idle_mb", "resident, idle, MB", "crowd_idle", plain("resident_kb", 1024)),
)
"""Those of crowds are named after how many streams there were; see ``list_metrics``."""

_CARRY = "crowd_carry_"
CARRY: tuple[Metric, ...] = (
    Metric("core_events_per_s", "events/s of a core (1/CPU), crowd", _CARRY, _most_by_cpu),
    Metric("most_events_per_s", "  seen", _CARRY, _most_carried),
    Metric("carried_rate", "events/s a stream, carried", _CARRY, _last_carried("rate")),
    Metric("carried_p50_us", "  delay of an event then, p50, us", _CARRY, _last_carried("delay_p50_ns", 1e3)),
    Metric("carried_p99_us", "  delay of an event then, p99, us", _CARRY, _last_carried("delay_p99_ns", 1e3)),
    Metric("stream_worst", "  slowest stream / median stream", _CARRY, _last_carried("stream_worst")),
    Metric("event_worst", "  slowest event / median event", _CARRY, _last_carried("event_worst")),
)


def list_metrics(samples: Iterable[Sample]) -> list[Metric]:
    """The lines that these samples fill."""
    phases = {sample["phase"] for sample in samples}
    crowds = sorted(int(phase.rpartition("_")[2]) for phase in phases if phase.startswith("crowd_open_"))
    memory = [metric for crowd in crowds for metric in _list_memory(crowd)]
    return [metric for metric in (*METRICS, *memory, *CARRY) if any(map(metric.covers, phases))]


def _list_memory(crowd: int) -> list[Metric]:
    phase = f"crowd_open_{crowd}"
    return [
        Metric(f"open_{crowd}_mb", f"resident, {crowd:,} streams, MB", phase, plain("resident_kb", 1024)),
        Metric(f"open_{crowd}_kb", "  KB a stream above idle", phase, plain("per_stream_kb")),
    ]


def read_figures(samples: list[Sample]) -> Figures:
    """One figure for every metric, relay and round."""
    found: Figures = defaultdict(lambda: defaultdict(dict))
    for metric in list_metrics(samples):
        turns: dict[tuple[str, int], list[Sample]] = defaultdict(list)
        for sample in samples:
            if metric.covers(sample["phase"]):
                turns[sample["relay"], sample["round"]].append(sample)
        for (relay, number), mine in turns.items():
            if relay != DIRECT:
                found[metric.key][relay][number] = metric.read(mine, turns.get((DIRECT, number), []))
    return {key: dict(relays) for key, relays in found.items()}


def find_ratio(figures: Figures, key: str, ours: str, theirs: str) -> Ratio | None:
    """None where one of the two has none."""
    relays = figures.get(key, {})
    return Ratio.of(relays[ours], relays[theirs]) if ours in relays and theirs in relays else None


def write_summary(figures: Figures, base: Iterable[str] = ("nginx", "bare")) -> dict[str, Any]:
    """Medians, spreads and ratios of every relay to each of ``base``, for the file."""
    return {
        key: {relay: _write_line(figures, key, relay, rounds, base) for relay, rounds in relays.items()}
        for key, relays in figures.items()
    }


def _write_line(
    figures: Figures, key: str, relay: str, rounds: Mapping[int, float], base: Iterable[str]
) -> dict[str, Any]:
    ratios = {other: find_ratio(figures, key, relay, other) for other in base if other != relay}
    return attrs.asdict(Spread.of(list(rounds.values()))) | {
        "rounds": list(rounds.values()),
        "over": {other: attrs.asdict(ratio) for other, ratio in ratios.items() if ratio},
    }
