"""Many streams at once: what each costs in memory, how many events a core carries, and whether any stream starves."""

import asyncio
import statistics
import time

from scripts.bench_parts.figures import percentile
from scripts.bench_parts.load import Line, Load, StreamLine, WholeLine
from scripts.bench_parts.meter import read_resident_kb
from scripts.bench_parts.phases import ENDLESS, Bench, Sample, forget, open_loads
from scripts.bench_parts.processes import Relay

SLOWLY_S = 1.0
"""Between two events of a stream while memory is read."""
CARRIED = 0.97
"""Of the events that were due: a relay that delivers so many in the window carries them, if most come promptly."""
PROMPT_NS = 50_000_000
"""Later than that, events wait for each other: a relay with no time left delivers many at once."""
WARM_STREAMS = 64


class LoadCallers:
    """A relay, freshly started, under more and more streams.

    Args:
        crowds: how many streams are open when memory is read, rising.
        rates: events a second of each stream, rising; the relay is asked for more until it does not carry them.
        window_s: how long each rate lasts, and each crowd before its memory is read.
    """

    def __init__(self, bench: Bench, crowds: list[int], rates: list[float], window_s: float) -> None:
        self._bench = bench
        self._crowds, self._rates, self._window_s = crowds, rates, window_s

    async def run(self, relays: list[Relay]) -> None:
        """All of it, on one relay after the other; every stream has come to its end when it returns."""
        for self._relay in relays:
            await self._run()

    async def _run(self) -> None:
        await self._warm_up()
        idle = read_resident_kb(self._relay.pid)
        self._note("idle", resident_kb=idle)
        await self._bench.set_pace(SLOWLY_S)
        with open_loads({self._relay.name: self._relay.address}, StreamLine) as loads:
            load = loads[self._relay.name]
            for crowd in self._crowds:
                began = time.monotonic()
                await load.open_streams(crowd - load.running, ENDLESS)
                opened_s = time.monotonic() - began
                await asyncio.sleep(self._window_s)
                kept = read_resident_kb(self._relay.pid)
                self._note(f"open_{crowd}", resident_kb=kept, per_stream_kb=(kept - idle) / crowd, opened_s=opened_s)
            for line in load.lines:
                look_at_all(line)
            for rate in self._rates:
                if not await self._carry(load, rate):
                    break
            await self._bench.end_streams()
            await load.settle()

    async def _warm_up(self) -> None:
        """What a process takes once, whatever it serves, is not its streams'."""
        name, addresses = self._relay.name, {self._relay.name: self._relay.address}
        with open_loads(addresses, WholeLine) as loads:
            await loads[name].call_again(32, self._window_s / 3)
        await self._bench.set_pace(0.01)
        with open_loads(addresses, StreamLine) as loads:
            await loads[name].open_streams(WARM_STREAMS, 20)
            await loads[name].settle()
        await asyncio.sleep(self._bench.plan.provider_retry_after_s)

    async def _carry(self, load: Load, rate: float) -> bool:
        """Whether the relay delivers what is due at ``rate`` events a second and stream."""
        bench, streams = self._bench, load.running
        await bench.set_pace(1 / rate)
        await asyncio.sleep(self._window_s / 3)
        forget(load)
        sent, missed, _ = await bench.read_state()
        seen, pieces, before = load.tally.events, load.tally.pieces, bench.read(self._relay)
        await asyncio.sleep(self._window_s)
        reading = bench.read(self._relay)
        used, took_s = reading.since(before), reading.at_s - before.at_s
        seen, pieces = load.tally.events - seen, load.tally.pieces - pieces
        state = await bench.read_state()
        due = rate * streams * took_s
        reported = write_delays([line.delays_ns for line in load.lines if isinstance(line, StreamLine)])
        reported |= {"sent": state[0] - sent, "missed": state[1] - missed, "pieces": pieces}
        carried = seen >= CARRIED * due and reported["delay_p50_ns"] < PROMPT_NS
        events = {"events": seen, "due": due, "events_per_s": seen / took_s, "carried": float(carried)}
        self._note(f"carry_{rate:g}", rate=rate, streams=streams, **events, **used, **reported)
        load.check()
        return carried

    def _note(self, phase: str, **figures: float) -> None:
        self._bench.note(f"crowd_{phase}", self._relay.name, 0, **figures)


def look_at_all(line: Line) -> None:
    """Of a crowd's streams each has few events."""
    if isinstance(line, StreamLine):
        line.every = 1


def write_delays(streams: list[list[int]]) -> Sample:
    """Percentiles of all events' delays, and how much worse than the usual the worst event and the worst stream are."""
    events = [delay for stream in streams for delay in stream]
    medians = [statistics.median(stream) for stream in streams if stream]
    middle = percentile(events, 50)
    return {
        "delay_p50_ns": middle,
        "delay_p99_ns": percentile(events, 99),
        "delay_most_ns": max(events, default=float("nan")),
        "event_worst": max(events, default=float("nan")) / middle,
        "stream_worst": max(medians, default=float("nan")) / percentile(medians, 50),
        "silent_streams": sum(not stream for stream in streams),
    }
