"""What is done to each relay: short slices that take turns, so that what else the machine does falls on all alike."""

import asyncio
import gc
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from scripts.bench_parts.figures import percentile
from scripts.bench_parts.load import BrokenAnswer, Line, Load, StreamLine, WholeLine
from scripts.bench_parts.meter import Reading
from scripts.bench_parts.peers import SLOW
from scripts.bench_parts.processes import Relay
from scripts.bench_parts.wire import Address, write_call

DIRECT = "direct"
"""The upstream itself, asked without a relay."""
ENDLESS = 50_000
"""Events of a stream that is told when to end; each call holds money for so many tokens."""
FLOW_S = 0.05
"""Between the first events of all streams and the window in which events are counted."""

WORKED_OFF_S, WORKED_OFF_BUSY, WORKED_OFF_LOOKS = 0.25, 0.1, 200
"""A relay that has lagged behind is waited for until it is busy for less than that part of so many seconds."""

Sample = dict[str, Any]


@attrs.frozen
class Plan:
    """How much of everything. Times in seconds, rates a second.

    Attributes:
        rounds: each has so many ``turns`` of every relay, in rotating order.
        slice_s: a turn of whole answers, and the window of a turn of streams.
        callers: at the same time, of whole answers.
        streams: at the same time.
        pace_s: between two events of a stream.
        steady_rate: calls in the turns that look at latency.
        steady_events: of each of their streams.
        provider_retry_after_s: before a turn and after its last answer: what a relay writes then is its own doing.
        whole_events: of each stream that is weighed from its first byte to its last.
        burst: streams that are opened in the same moment.
        lone_rates: of calls of which each comes alone; each rate lasts ``lone_s``, and ``quiet_s`` after it, in which
            a relay may write what it has kept.
        busy_rate: JSON calls a second beside the streams while the delay of their events is looked at.
    """

    rounds: int = 5
    turns: int = 3
    slice_s: float = 0.5
    callers: int = 32
    streams: int = 64
    pace_s: float = 0.008
    steady_rate: float = 500
    steady_s: float = 1.0
    steady_events: int = 4
    steady_pace_s: float = 0.004
    provider_retry_after_s: float = 0.15
    whole_events: int = 100
    burst: int = 200
    lone_rates: tuple[float, ...] = (150, 15)
    lone_s: float = 3.0
    quiet_s: float = 1.2
    busy_rate: float = 150
    busy_s: float = 2.0


class Bench:
    """An upstream, relays before it, and the samples taken of them.

    Args:
        upstream: its process, and its port.

    Attributes:
        round: the number of this one, noted with each sample.
    """

    def __init__(self, plan: Plan, upstream: tuple[int, int]) -> None:
        self.plan = plan
        self.samples: list[Sample] = []
        self.round = 0
        self._upstream, self._port = upstream

    def read(self, relay: Relay | None) -> Reading:
        """The processes now."""
        return Reading.take(relay.pid if relay else None, self._upstream)

    async def set_pace(self, period_s: float) -> None:
        """How often each stream gets an event."""
        await self._ask(b"POST /pace", str(period_s).encode())

    async def end_streams(self) -> None:
        """Let each stream come to its end at its next turn."""
        await self._ask(b"POST /end")

    async def read_state(self) -> tuple[int, int, int]:
        """Events that the upstream has sent, those that it was too busy to send in time, and its open streams."""
        sent, missed, streams = (await self._ask(b"GET /state")).rpartition(b"\r\n")[2].split()
        return int(sent), int(missed), int(streams)

    async def _ask(self, line: bytes, body: bytes = b"") -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(b"%b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (line, len(body), body))
        answer = await reader.read(4096)
        writer.close()
        await writer.wait_closed()
        return answer

    async def weigh_json(self, relays: list[Relay]) -> None:
        """CPU a request: whole answers, one after the other, as fast as they come."""
        plan = self.plan
        with open_loads({relay.name: relay.address for relay in relays}, WholeLine) as loads:
            for relay in relays:
                await loads[relay.name].call_again(plan.callers, plan.slice_s / 2)
            for number, relay in self._turns(relays):
                load = loads[relay.name]
                load.tally.firsts_ns.clear()
                answered = load.tally.answered
                await asyncio.sleep(plan.provider_retry_after_s)
                before = self.read(relay)
                took_s = await load.call_again(plan.callers, plan.slice_s)
                at_end = self.read(relay).since(before)
                await asyncio.sleep(plan.provider_retry_after_s)
                used = at_end | {"relay_cpu_ns": self.read(relay).since(before)["relay_cpu_ns"]}
                self.note("json", relay.name, number, requests=load.tally.answered - answered, took_s=took_s, **used)

    async def weigh_events(self, relays: list[Relay]) -> None:
        """CPU an event: a window in the middle of streams, with neither their beginnings nor their ends in it."""
        plan = self.plan
        await self.set_pace(plan.pace_s)
        by_name = {relay.name: relay for relay in relays}
        with open_loads(self._with_direct(relays), StreamLine) as loads:
            for load in loads.values():
                await load.open_streams(plan.streams, 5)
                await load.settle()
            for number, name in self._turns(list(loads)):
                load = loads[name]
                forget(load)
                await asyncio.sleep(plan.provider_retry_after_s)
                await load.open_streams(plan.streams, ENDLESS)
                await asyncio.sleep(FLOW_S)
                seen, pieces, before = load.tally.events, load.tally.pieces, self.read(by_name.get(name))
                await asyncio.sleep(plan.slice_s)
                used = self.read(by_name.get(name)).since(before)
                seen, pieces = load.tally.events - seen, load.tally.pieces - pieces
                delays = write_percentiles("delay", list_delays(load))
                await self._end(load, name, by_name.get(name))
                self.note("sse", name, number, events=seen, pieces=pieces, **used, **delays)

    async def look_at_latency(self, relays: list[Relay]) -> None:
        """First bytes, and events, of calls that come at a steady rate: through each relay, and without one."""
        plan = self.plan
        await self.set_pace(plan.steady_pace_s)
        by_name = {relay.name: relay for relay in relays}
        for kind, line, events in (("whole", WholeLine, 0), ("stream", StreamLine, plan.steady_events)):
            with open_loads(self._with_direct(relays), line) as loads:
                for number, name in self._turns(list(loads)):
                    load, relay = loads[name], by_name.get(name)
                    forget(load)
                    await asyncio.sleep(plan.provider_retry_after_s)
                    before = self.read(relay)
                    request = write_call(load.address, events=events)
                    await load.call_steadily(plan.steady_rate, plan.steady_s, request)
                    await asyncio.sleep(plan.provider_retry_after_s)
                    used = self.read(relay).since(before)
                    firsts = write_percentiles("first", load.tally.firsts_ns)
                    calls = len(load.tally.firsts_ns)
                    self.note(f"latency_{kind}", name, number, requests=calls, **used, **firsts)

    async def weigh_whole_streams(self, relays: list[Relay]) -> None:
        """CPU a stream from its first byte to its last."""
        plan = self.plan
        await self.set_pace(plan.pace_s)
        with open_loads({relay.name: relay.address for relay in relays}, StreamLine) as loads:
            for number, relay in self._turns(relays, turns=1):
                load = loads[relay.name]
                await load.connect(plan.streams)
                await asyncio.sleep(plan.provider_retry_after_s)
                before, seen = self.read(relay), load.tally.events
                await load.open_streams(plan.streams, plan.whole_events)
                await load.settle()
                await asyncio.sleep(plan.provider_retry_after_s)
                used, events = self.read(relay).since(before), load.tally.events - seen
                if events != plan.streams * plan.whole_events:
                    raise BrokenAnswer(f"{events} events of {plan.streams} streams", relay.port)
                self.note("stream", relay.name, number, requests=plan.streams, **used)

    async def look_at_bursts(self, relays: list[Relay]) -> None:
        """First events of streams that are all opened in the same moment."""
        plan = self.plan
        await self.set_pace(plan.steady_pace_s)
        with open_loads(self._with_direct(relays), StreamLine) as loads:
            for load in loads.values():
                await load.open_streams(plan.burst, 2)
                await load.settle()
            for number, name in self._turns(list(loads)):
                load = loads[name]
                forget(load)
                await asyncio.sleep(plan.provider_retry_after_s)
                await load.open_at_once(plan.burst, 2)
                self.note("burst", name, number, **write_percentiles("first", load.tally.firsts_ns))

    async def weigh_lone_calls(self, relays: list[Relay]) -> None:
        """CPU and first byte of calls of which each comes alone, with what a relay writes after them."""
        plan = self.plan
        with open_loads(self._with_direct(relays), WholeLine) as loads:
            for rate in plan.lone_rates:
                for number, name in self._turns(list(loads), turns=1):
                    load, relay = loads[name], next((one for one in relays if one.name == name), None)
                    forget(load)
                    before = self.read(relay)
                    await load.call_steadily(rate, plan.lone_s, write_call(load.address))
                    await asyncio.sleep(plan.quiet_s)
                    used, calls = self.read(relay).since(before), len(load.tally.firsts_ns)
                    firsts = write_percentiles("first", load.tally.firsts_ns)
                    self.note(f"lone_{rate:g}", name, number, requests=calls, **used, **firsts)
        await self.weigh_rest(relays)

    async def weigh_rest(self, relays: list[Relay]) -> None:
        """CPU of relays that nothing asks; of all at once."""
        before = {relay.name: self.read(relay) for relay in relays}
        await asyncio.sleep(self.plan.lone_s)
        for relay in relays:
            used = self.read(relay).since(before[relay.name])
            self.note("rest", relay.name, 0, took_s=self.plan.lone_s, **used)

    async def look_at_busy_streams(self, relays: list[Relay]) -> None:
        """Delays of events while other calls begin and end, and what follows them is written and collected.

        In the middle of it the log file is cut off, as a rotation by copying does.
        """
        plan = self.plan
        await self.set_pace(plan.pace_s)
        addresses, by_name = self._with_direct(relays), {relay.name: relay for relay in relays}
        with open_loads(addresses, StreamLine) as loads, open_loads(addresses, WholeLine) as others:
            for number, name in self._turns(list(loads), turns=1):
                load, other = loads[name], others[name]
                forget(load)
                await load.open_streams(plan.streams, ENDLESS)
                await asyncio.sleep(FLOW_S)
                for part in range(2):
                    await other.call_steadily(plan.busy_rate, plan.busy_s / 2, write_call(other.address))
                    log = by_name[name].log if name in by_name else None
                    if part == 0 and log is not None:
                        os.truncate(log, 0)
                delays = write_percentiles("delay", list_delays(load))
                await self._end(load, name, by_name.get(name))
                self.note("busy", name, number, **delays)

    async def _end(self, load: Load, name: str, relay: Relay | None) -> None:
        await self.end_streams()
        if name in SLOW:  # so far behind that the end would take minutes
            load.leave()
        await load.settle()
        for _ in range(WORKED_OFF_LOOKS if name in SLOW else 0):  # what it still does would be taken from the next one
            before = self.read(relay)
            await asyncio.sleep(WORKED_OFF_S)
            if self.read(relay).since(before)["relay_busy"] < WORKED_OFF_BUSY:
                break

    def note(self, phase: str, relay: str, turn: int, **figures: float) -> None:
        """Keep a sample."""
        self.samples.append({"phase": phase, "relay": relay, "round": self.round, "turn": turn, **figures})

    def _with_direct(self, relays: list[Relay]) -> dict[str, Address]:
        return {relay.name: relay.address for relay in relays} | {DIRECT: Address(self._port)}

    def _turns(self, things: list[Any], turns: int = 0) -> Iterator[tuple[int, Any]]:
        """Every one of them so often as there are turns, the order moved on by one each time."""
        for number in range(turns or self.plan.turns):
            at = (self.round * self.plan.turns + number) % len(things)
            yield from ((number, thing) for thing in things[at:] + things[:at])


@contextmanager
def open_loads(addresses: dict[str, Address], kind: type[Line]) -> Iterator[dict[str, Load]]:
    """Callers of each; gone at the end, and nothing collected meanwhile: a pause would be counted as a relay's."""
    loads = {name: Load(address, kind) for name, address in addresses.items()}
    gc.collect()
    gc.disable()
    try:
        yield loads
    finally:
        gc.enable()
        for load in loads.values():
            load.close()


def forget(load: Load) -> None:
    """Let go of all times taken so far."""
    load.tally.firsts_ns.clear()
    for line in load.lines:
        if isinstance(line, StreamLine):
            line.delays_ns.clear()


def list_delays(load: Load) -> list[int]:
    """Of the events that were looked at, ns."""
    lines: Iterable[StreamLine] = (line for line in load.lines if isinstance(line, StreamLine))
    return list(itertools.chain.from_iterable(line.delays_ns for line in lines))


def write_percentiles(name: str, values_ns: list[int]) -> dict[str, float]:
    """``name_p50_ns`` and so on."""
    return {f"{name}_p{part}_ns": percentile(values_ns, part) for part in (50, 99)}
