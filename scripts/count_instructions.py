"""Counts the instructions of a JSON request and of a streamed event, in the gateway and in the bare relay.

    python scripts/count_instructions.py
    python scripts/count_instructions.py --before /path/to/another/tree

Valgrind counts what runs in user space. On a quiet machine both counts repeat within 0.2 %, where CPU time varies by
5 %: a change of 1 % can be seen. On a busy machine a request's count still repeats within 4 %; an event's does not,
because events that come together cost less. The kernel's work is not counted, and a cache miss counts as much as a hit:
the bench weighs these. ``callgrind_annotate --inclusive=yes --tree=caller FILE`` shows a count's C functions; the files
are kept in ``build/instructions``.
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.bench import ROOT, Order, Scene, set_scene
from scripts.bench_parts.load import StreamLine, WholeLine
from scripts.bench_parts.phases import Plan, open_loads
from scripts.bench_parts.processes import Relay
from scripts.bench_parts.wire import write_call

FOLDER = ROOT / "build" / "instructions"
WARM = 200
REQUESTS = 400
EVENTS = (100, 600)
"""Lengths of two streams: their difference leaves out what a stream costs besides its events."""
PACE_S = 0.01
"""Slow enough under valgrind that, on a quiet machine, no two events come together."""
FIRST_CLEANUP_S = 35.0
"""After this time from the start, the first sweep of the cleanup has ended. A sweep opens a connection to the database:
within the count, it would add some 37,000 instructions to each request, 4 %."""
COMMITTED_S = 2.5
"""After this time, the rows of the last request are stored."""


class Counter:
    """Valgrind's counter of one process, which counts between ``start`` and ``stop``."""

    def __init__(self, relay: Relay) -> None:
        self._pid = relay.pid
        self._name = relay.name

    def start(self) -> None:
        """Count from now on."""
        self._control("--instr=on")

    def stop(self, part: str) -> int:
        """Return the number of instructions since ``start``, and keep valgrind's file under the name of ``part``."""
        self._control("--instr=off")
        self._control(f"--dump={part}")
        newest = max(FOLDER.glob(f"{self._pid}.out.*"), key=lambda path: path.stat().st_mtime_ns)
        counted = next(line for line in newest.read_text().splitlines() if line.startswith("totals: "))
        newest.replace(FOLDER / f"{self._name}-{part}.out")
        return int(counted.split()[1])

    def _control(self, option: str) -> None:
        subprocess.run(
            ["callgrind_control", option, str(self._pid)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )


async def count_request(relay: Relay) -> float:
    """Return the instructions of one JSON request, its row in the database included."""
    counter = Counter(relay)
    with open_loads({relay.name: relay.address}, WholeLine) as loads:
        load, request = loads[relay.name], write_call(relay.address)
        await load.connect(1)
        for number in range(WARM + REQUESTS):
            if number == WARM:
                await asyncio.sleep(FIRST_CLEANUP_S)
                counter.start()
            load.begin(request)
            await load.settle()
        await asyncio.sleep(COMMITTED_S)
    return counter.stop("json") / REQUESTS


async def count_event(scene: Scene, relay: Relay) -> float:
    """Return the instructions of one event of a stream."""
    counter, counted = Counter(relay), []
    await scene.bench.set_pace(PACE_S)
    with open_loads({relay.name: relay.address}, StreamLine) as loads:
        for number, events in enumerate((EVENTS[0], *EVENTS)):  # the first warms up
            counter.start()
            await loads[relay.name].open_streams(1, events)
            await loads[relay.name].settle()
            await asyncio.sleep(COMMITTED_S)
            counted.append(counter.stop(f"sse-{number}"))
    return (counted[2] - counted[1]) / (EVENTS[1] - EVENTS[0])


async def run(order: Order) -> None:
    """Count, and print a line a relay."""
    with set_scene(order) as scene:
        prefix = (
            "valgrind",
            "--tool=callgrind",
            "--quiet",
            "--instr-atstart=no",
            f"--callgrind-out-file={FOLDER}/%p.out",
        )
        counting = attrs.evolve(scene, place=attrs.evolve(scene.place, prefix=prefix))
        with counting.running(order.names) as relays:
            print(f"{'instructions':<12} {'JSON request':>14} {'event':>10}")
            for relay in relays:
                request, event = await count_request(relay), await count_event(scene, relay)
                print(f"{relay.name:<12} {request:>14,.0f} {event:>10,.0f}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="TREE", help="count in another tree of the gateway as well")
    given = parser.parse_args()
    if shutil.which("callgrind_control") is None:
        sys.exit("valgrind is not installed (Debian: apt install valgrind)")
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = ("gateway", "bare", *(("before",) if given.before else ()))
    uvloop.run(run(Order(Plan(), names=names, parts=(), before=given.before or ROOT)))


if __name__ == "__main__":
    main()
