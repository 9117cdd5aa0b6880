"""Minutes of streams with bodies and streams kept: is memory flat, is anything lost, and how much later are events?

    python -m scripts.kept_load                          ten minutes of 2,000 events a second
    python -m scripts.kept_load --minutes 1 --window 5   a look at the ratios; memory is not judged

Two gateways, one that keeps all bodies and every stream and one that keeps nothing, take turns over the provider of
``bench``. After each turn every stream of it is asked for: each has to have ended with all its events, and one of them
is read again. Printed: CPU and delay of events by the turn, the ratio of both gateways, the resident memory of the one
that keeps, and what it has kept. That memory grows until the first streams have been kept for their minute; only its
second half is judged. Exit code 1 if anything was lost, or in ten minutes if memory grew by more than 3 % in the second
half or events came more than 1 ms later at p99 than those of the gateway that keeps nothing.
"""

import argparse
import asyncio
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts.bench import Order, Scene, set_scene
from scripts.bench_parts.figures import Ratio, percentile
from scripts.bench_parts.load import StreamLine
from scripts.bench_parts.phases import ENDLESS, FLOW_S, Plan, forget, list_delays, open_loads
from scripts.bench_parts.processes import Relay
from scripts.bench_parts.wire import KEY
from scripts.soak_parts.memory import Curve, watch

MAX_GROWTH = 0.03
MAX_ADDED_MS = 1.0
"""Of the delay at p99, by the median of the turns. A run on a busy machine says nothing about it."""
JUDGED_S = 600.0
"""A shorter run has not shown how memory goes on: that of streams fills to its bound first."""
STREAMS = 40
KEPT, PLAIN = "kept", "gateway"
_ID = re.compile(rb"\r\nx-gateway-stream: (st_[0-9a-f.]+)\r\n", re.IGNORECASE)
_STORED_S = 60.0


class KeptLine(StreamLine):
    """A caller that notes the ids of its streams, and how many events each had.

    Attributes:
        streams: the events by the stream's id; empty ids are streams that are not kept.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.streams: dict[str, int] = {}
        self._id = ""

    def data_received(self, data: bytes) -> None:
        """Some events, the head before them or the end behind them."""
        if self._fresh and (match := _ID.search(data)) is not None:
            self._id = match[1].decode()
        self.streams[self._id] = self.streams.get(self._id, 0) + data.count(b"data: ")
        super().data_received(data)


@attrs.frozen
class Turn:
    """What one gateway did in one turn."""

    name: str
    number: int
    events: int
    cpu_us: float
    p50_ms: float
    p99_ms: float


@attrs.define
class KeptLoad:
    """The turns of both gateways.

    Attributes:
        problems: what was lost, in words.
    """

    scene: Scene
    rate: float
    window_s: float
    turns: list[Turn] = attrs.Factory(list)
    problems: list[str] = attrs.Factory(list)
    checked: int = 0

    async def run(self, seconds: float) -> Curve:
        """Take turns for so long; return the memory of the gateway that keeps."""
        await self.scene.bench.set_pace(STREAMS / self.rate)
        with self.scene.running((PLAIN, KEPT)) as relays:
            kept = next(relay for relay in relays if relay.name == KEPT)
            watching = asyncio.create_task(watch(psutil.Process(kept.pid), seconds, max(0.5, seconds / 200)))
            until, number = time.monotonic() + seconds, 0
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
                while time.monotonic() < until:
                    for relay in relays if number % 2 else relays[::-1]:
                        await self._take_turn(relay, number, session)
                    number += 1
            curve = await watching
            await self._check_bodies(kept)
        return curve

    async def _take_turn(self, relay: Relay, number: int, session: aiohttp.ClientSession) -> None:
        bench = self.scene.bench
        with open_loads({relay.name: relay.address}, KeptLine) as loads:
            load = loads[relay.name]
            await load.open_streams(STREAMS, ENDLESS)
            await asyncio.sleep(FLOW_S)
            forget(load)
            events, before = load.tally.events, bench.read(relay)
            await asyncio.sleep(self.window_s)
            used, events = bench.read(relay).since(before), load.tally.events - events
            delays = list_delays(load)
            await bench.end_streams()
            await load.settle()
            lines = [line for line in load.lines if isinstance(line, KeptLine)]
        figures = (percentile(delays, part) / 1e6 for part in (50, 99))
        self.turns.append(Turn(relay.name, number, events, used["relay_cpu_ns"] / max(events, 1) / 1000, *figures))
        if relay.name == KEPT:
            await self._check_streams(relay, lines, session)

    async def _check_streams(self, relay: Relay, lines: list[KeptLine], session: aiohttp.ClientSession) -> None:
        """Each stream has ended with all events that its client was sent, and the last one is read again."""
        url, stream_id, count = f"http://127.0.0.1:{relay.port}/v1/streams", "", 0
        for stream_id, count in (item for line in lines for item in line.streams.items()):
            async with session.get(f"{url}/{stream_id}") as response:
                described = await response.json()
            if (described.get("status"), described.get("events")) != ("completed", count):
                self.problems.append(f"a client was sent {count} events, and the stream is {described}")
            self.checked += 1
        async with session.get(f"{url}/{stream_id}?after=0") as response:
            data = await response.read()
        if data.count(b"\ndata: ") != count or not data.endswith(b"data: [DONE]\n\n"):
            self.problems.append(f"of {count} events {data.count(b'data: ')} were read again")

    async def _check_bodies(self, relay: Relay) -> None:
        """The bodies of all streams are kept, and of none lost."""
        folder = Path() if relay.log is None else relay.log.parent
        token = (folder / "data" / "admin.token").read_text().strip()
        url, until = f"http://127.0.0.1:{relay.port}/admin/v1/bodies", time.monotonic() + _STORED_S
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
            while True:
                async with session.get(url) as response:
                    stored = await response.json()
                if stored["requests"] + stored["lost"] > self.checked or time.monotonic() > until:
                    break
                await asyncio.sleep(0.5)
        print(f"bodies: {stored}")
        if stored["lost"] or stored["requests"] <= self.checked:  # the first request was that of the start
            self.problems.append(f"bodies of {self.checked} streams were to be kept: {stored}")


def print_turns(turns: list[Turn]) -> None:
    """Print every turn, and the ratio of what keeps to what does not."""
    for turn in turns:
        print(
            f"{turn.number:3} {turn.name:8} {turn.events:7} events, {turn.cpu_us:6.1f} us each; "
            f"later by p50 {turn.p50_ms:6.2f} p99 {turn.p99_ms:6.2f} ms"
        )
    for label, field in (("CPU an event", "cpu_us"), ("delay, p50", "p50_ms"), ("delay, p99", "p99_ms")):
        kept, plain = (
            {turn.number: getattr(turn, field) for turn in turns if turn.name == name} for name in (KEPT, PLAIN)
        )
        ratio = Ratio.of(kept, plain)
        print(f"{label}: {ratio.of_medians:.2f} of what it is without ({ratio.each.low:.2f} to {ratio.each.high:.2f})")


def compute_added_ms(turns: list[Turn]) -> float:
    """Return how much later events are at p99 where bodies and streams are kept, by the median of the turns."""
    kept, plain = ([turn.p99_ms for turn in turns if turn.name == name] for name in (KEPT, PLAIN))
    return statistics.median(kept) - statistics.median(plain)


async def load(seconds: float, rate: float, window_s: float, *, judges_delay: bool = False) -> list[str]:
    """Run all. Return what is wrong; with ``judges_delay`` also that of events."""
    order = Order(Plan(), (PLAIN, KEPT), parts=())
    with set_scene(order) as scene:
        run = KeptLoad(scene, rate, window_s)
        curve = await run.run(seconds)
    print_turns(run.turns)
    added_ms = compute_added_ms(run.turns)
    print(f"later at p99 by {added_ms:.2f} ms, by the median of the turns")
    late = curve.since(seconds / 2)
    print(curve.describe(), f"in the second half, {late.describe()}", sep="\n")
    print(f"{run.checked} streams were looked at")
    if seconds >= JUDGED_S and late.growth > MAX_GROWTH:
        run.problems.append(f"in the second half, {late.describe()}")
    if judges_delay and seconds >= JUDGED_S and added_ms > MAX_ADDED_MS:
        run.problems.append(f"events came {added_ms:.2f} ms later at p99")
    return run.problems


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=2000.0, help="events a second")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of a turn")
    given = parser.parse_args()
    problems = uvloop.run(load(given.minutes * 60, given.rate, given.window, judges_delay=True))
    print("\n".join(f"PROBLEM: {problem}" for problem in problems[:50]) or "nothing is lost")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
