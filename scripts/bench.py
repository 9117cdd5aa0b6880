"""What the gateway costs beside nginx and a bare aiohttp relay: CPU, delay and memory, in one run that takes turns.

    make bench                                  the whole of it: some ten minutes, on a machine that does nothing else
    make bench ARGS=--quick                     a rough look, without crowds
    make bench ARGS="--only sse --rounds 9"     parts of it: json, sse, latency, whole, burst, lone, busy, streams
    make bench ARGS="--before ../other-tree"    the gateway of another tree beside this one's
    make bench ARGS="--nice -15"                as root, where others use the machine, too
    make bench ARGS="--relay gateway,observed"  what metrics and traces cost: scraped each 5 s, 1 % of requests traced
    make bench ARGS="--relay gateway,kept --only sse,whole"
                                                what it costs to keep all bodies, and every stream for its readers
    make bench ARGS="--with rolter,ferro,smg,envoy,litellm"
                                                all variants of the gateway, and other gateways from their packages
    make bench ARGS="--with rolter --page"      the same, and docs/benchmarks.md and README's table made from it
    make bench ARGS="--page-of A.json"          the page from an earlier run
    make bench ARGS="--compare A.json B.json"   two runs, beside each other

The relay that is measured has a core of its own; the upstream and the callers share another. All of a relay's CPU
counts: every thread, user and system. Turns are short and their order rotates, so that whatever else the machine does
falls on all alike: trust the ratios of rounds more than absolutes. Every sample is in ``build/bench/*.json``.

How an event is weighed: streams are opened, each has had its first event, and then for a window in which none begins or
ends the relay's CPU and the events that arrived are counted. First bytes are looked at under a steady rate of calls,
through each relay and without one; what is told is the difference. Crowds are opened on processes freshly started.
"""

import argparse
import contextlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import orjson
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.bench_parts import meter, relays
from scripts.bench_parts.crowd import LoadCallers
from scripts.bench_parts.load import BrokenAnswer
from scripts.bench_parts.page import write_pages
from scripts.bench_parts.peers import PEERS, SLOW, find_version
from scripts.bench_parts.phases import Bench, Plan
from scripts.bench_parts.processes import NoRelay, Place, Relay, start_python
from scripts.bench_parts.summary import read_figures, write_summary
from scripts.bench_parts.table import write_comparison, write_run

ROOT = Path(__file__).parents[1]
PARTS = ("json", "sse", "latency", "whole", "burst", "lone", "busy", "streams")
RELAYS = ("gateway", "nginx", "bare")
FULL = ("gateway", "postgres", "tls", "translated", "observed", "nginx", "bare")
CROWDS = [1000, 5000]
RATES = [2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
WINDOW_S = 1.5
SPARE_FILES = 500
NOT_PINNED = "nothing, as asked, or for want of two cores or the right to"
QUICK = Plan(rounds=3, turns=1, slice_s=0.3, steady_s=0.5, lone_s=1.0, busy_s=1.0)


@attrs.frozen
class Order:
    """What is to be measured.

    Attributes:
        names: of relays.
        parts: of ``PARTS``.
        crowds: streams open at once, rising.
        rates: events a second of each of a crowd's streams, rising.
        tree: of the gateway's source.
        before: of another gateway's.
        pinned: to cores, where there are two.
        absent: why relays that were asked for cannot be had.
    """

    plan: Plan
    names: tuple[str, ...] = RELAYS
    parts: tuple[str, ...] = PARTS
    crowds: list[int] = attrs.Factory(lambda: CROWDS)
    rates: list[float] = attrs.Factory(lambda: RATES)
    window_s: float = WINDOW_S
    tree: Path = ROOT
    before: Path = ROOT
    pinned: bool = True
    absent: dict[str, str] = attrs.Factory(dict)


@attrs.frozen
class Scene:
    """What stands while a bench runs: the upstream, and where relays are started.

    Attributes:
        absent: why a peer has no figures, or not all.
        on: what each relay has switched on.
    """

    bench: Bench
    place: Place
    pinned: str
    absent: dict[str, str]
    on: dict[str, str] = attrs.Factory(dict)

    @contextlib.contextmanager
    def running(self, names: tuple[str, ...]) -> Iterator[list[Relay]]:
        """So many relays; stopped at the end. A peer that does not start is left out, and named in ``absent``."""
        with contextlib.ExitStack() as stack:
            started = []
            for name in (name for name in names if name not in self.absent):
                try:
                    relay = relays.STARTS[name](self.place)
                except NoRelay as error:
                    if name not in PEERS:
                        raise
                    self.absent[name] = str(error)
                    continue
                stack.callback(relay.stop)
                self.on[name] = relay.on
                self.bench.note("start", name, 0, start_s=relay.start_s, resident_kb=relay.rest_kb)
                started.append(relay)
            yield started


@contextlib.contextmanager
def set_scene(order: Order) -> Iterator[Scene]:
    """Pinned, with the upstream running."""
    was, cores = meter.find_pins(), meter.find_cores() if order.pinned else None
    relay_core, others = cores or (None, None)
    most = max(order.crowds, default=0) if "streams" in order.parts else 0
    files = meter.raise_limits(max(2 * most + SPARE_FILES, 4096))
    if files < 2 * most + SPARE_FILES:
        sys.exit(f"{most} streams need {2 * most + SPARE_FILES} open files, and {files} is the limit: --crowds 1000")
    pinned = f"relay on core {relay_core}, upstream and callers on core {others}" if cores else NOT_PINNED
    with tempfile.TemporaryDirectory() as folder:
        upstream = start_python("upstream", ["scripts.bench_parts.upstream"], others, others)
        place = Place(Path(folder), upstream.port, relay_core, others, files, order.tree, order.before)
        try:
            yield Scene(Bench(order.plan, (upstream.pid, upstream.port)), place, pinned, dict(order.absent))
        finally:
            upstream.stop()
            meter.unpin(was)


def choose(
    names: tuple[str, ...], find_reason: Callable[[str], str] = relays.find_reason
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Those of them that can be started, and why the others cannot. Exits under ``CI``, where all but peers must."""
    missing = {name: reason for name in names if (reason := find_reason(name))}
    for name, reason in missing.items():
        print(f"{name}: not available: {reason}", file=sys.stderr)
    if os.environ.get("CI") and not {*missing} <= {*PEERS}:
        sys.exit(1)
    return tuple(name for name in names if name not in missing), missing


async def measure(order: Order, scene: Scene) -> None:
    """All rounds; the samples are the bench's."""
    bench = scene.bench
    ways = {"json": bench.weigh_json, "sse": bench.weigh_events, "latency": bench.look_at_latency}
    ways |= {"whole": bench.weigh_whole_streams, "burst": bench.look_at_bursts}
    ways |= {"lone": bench.weigh_lone_calls, "busy": bench.look_at_busy_streams}
    standing = [part for part in order.parts if part in ways]
    with scene.running(order.names if standing else ()) as started:
        for number in range(order.plan.rounds):
            bench.round = number
            for part in standing:
                say(f"round {number + 1} of {order.plan.rounds}: {part}")
                await measure_part(part, ways[part], started, scene)
        for relay in started:
            bench.note("clock", relay.name, 0, clock=meter.check_clock(relay.pid))
            bench.note("peak", relay.name, 0, resident_kb=meter.read_peak_kb(relay.pid))
    if "streams" in order.parts:
        await measure_crowds(order, scene)


async def measure_part(
    part: str, measure_all: Callable[[list[Relay]], Awaitable[None]], started: list[Relay], scene: Scene
) -> None:
    """A part of a round. A peer that answers wrongly is left out from here on; the part is measured anew."""
    kept, broken = len(scene.bench.samples), True
    while broken:
        broken = False
        try:
            await measure_all(started)
        except BrokenAnswer as error:
            peer = next((one for one in started if one.port == error.port and one.name in PEERS), None)
            if peer is None:
                raise
            started.remove(peer)
            scene.absent[peer.name] = f"from {part} on: {error}"
            del scene.bench.samples[kept:]
            broken = True


async def measure_crowds(order: Order, scene: Scene) -> None:
    """Crowds of streams, on a relay at a time: each needs its core to itself, and its memory as it was at the start.

    Not on peers that would take minutes to open them.
    """
    names = tuple(name for name in order.names if name not in SLOW)
    for number in range(order.plan.rounds):
        scene.bench.round = number
        at = number % max(len(names), 1)
        for name in names[at:] + names[:at]:
            say(f"round {number + 1} of {order.plan.rounds}: crowds of {name}")
            with scene.running((name,)) as started:
                crowd = LoadCallers(scene.bench, order.crowds, order.rates, order.window_s)
                await measure_part("streams", crowd.run, started, scene)


def say(what: str) -> None:
    """Report the progress: on one line of a terminal, or a line each."""
    if sys.stderr.isatty():
        print(f"\r{what:<60}", end="", file=sys.stderr, flush=True)
    elif what:
        print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


async def run(order: Order) -> dict[str, Any]:
    """A whole run, as it is written to its file."""
    with set_scene(order) as scene:
        machine, at = meter.describe_machine(relays.read_nginx_version()), time.strftime("%Y-%m-%d %H:%M:%S")
        await measure(order, scene)
        say("")
        samples = scene.bench.samples
        return {
            "at": at,
            "machine": machine,
            "pinned": scene.pinned,
            "clock": meter.SOURCE,
            "plan": attrs.asdict(order.plan),
            "crowds": {"streams": order.crowds, "rates": order.rates, "window_s": order.window_s},
            "relays": [name for name in order.names if name in scene.on],
            "on": scene.on,
            "absent": scene.absent,
            "versions": {name: find_version(PEERS[name]) for name in order.names if name in PEERS},
            "summary": write_summary(read_figures(samples)),
            "samples": samples,
        }


def write_file(result: dict[str, Any], path: Path) -> None:
    """Into a file, its folder made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))


def read_run(path: Path) -> dict[str, Any]:
    """A run from its file. JSON has no NaN: what was not measured is null there."""
    run: dict[str, Any] = orjson.loads(path.read_bytes())
    for sample in run["samples"]:
        sample |= {key: math.nan for key, value in sample.items() if value is None}
    return run


def read_order(given: argparse.Namespace) -> Order:
    """From the command line. Exits where it makes no sense."""
    plan = attrs.evolve(QUICK if given.quick else Plan(), **({"rounds": given.rounds} if given.rounds else {}))
    parts = tuple(given.only.split(",")) if given.only else PARTS[:-1] if given.quick else PARTS
    ours = given.relay.split(",") if given.relay else FULL if given.peers else RELAYS
    names = (*ours, *(given.peers.split(",") if given.peers else ()))
    names = (*names, "before") if given.before else names
    unknown = [*({*parts} - {*PARTS}), *({*names} - {*relays.STARTS})]
    if unknown:
        sys.exit(f"Unknown: {', '.join(unknown)}. Parts: {', '.join(PARTS)}; relays: {', '.join(relays.STARTS)}")
    tree, before = (Path(path or ROOT).resolve() for path in (given.tree, given.before))
    crowds = [int(crowd) for crowd in given.crowds.split(",")]
    there, absent = choose(names)
    pinned = not given.unpinned
    return Order(plan, there, parts, crowds=crowds, tree=tree, before=before, pinned=pinned, absent=absent)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short rounds, no crowds")
    parser.add_argument("--rounds", type=int, help=f"default: {Plan().rounds}")
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--relay", help=f"default: {','.join(RELAYS)}; beside peers {','.join(FULL)}")
    parser.add_argument("--with", dest="peers", help=f"other gateways, installed at first use: {','.join(PEERS)}")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md and README's table")
    parser.add_argument("--page-of", type=Path, metavar="RUN", help="write them from a JSON file; nothing is measured")
    parser.add_argument("--crowds", default=",".join(map(str, CROWDS)), help="streams at once, default: %(default)s")
    parser.add_argument("--tree", help="whose gateway is measured; default: this one's")
    parser.add_argument("--before", help="another tree, whose gateway is measured beside it")
    parser.add_argument("--unpinned", action="store_true", help="leave it to the system where everything runs")
    parser.add_argument("--nice", type=int, default=0, help="-10: before whatever else runs on this machine (root)")
    parser.add_argument("--out", type=Path, help="the JSON file; default: build/bench/TIME-COMMIT.json")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="two JSON files; nothing is measured")
    return parser.parse_args()


def main() -> None:
    """The command line."""
    given = read_options()
    if given.compare:
        print("\n".join(write_comparison(*map(read_run, given.compare))))
        return
    if given.page_of:
        write_pages(read_run(given.page_of), ROOT)
        return
    try:
        with meter.go_before(given.nice):
            result = uvloop.run(run(read_order(given)))
    except (BrokenAnswer, NoRelay, PermissionError) as error:
        sys.exit(f"\n{error}")
    name = f"{result['at'].replace(':', '').replace(' ', '-')}-{result['machine']['commit']}.json"
    path = given.out or ROOT / "build" / "bench" / name
    write_file(result, path)
    print("\n".join(write_run(result)))
    print(f"every sample: {path}")
    if given.page:
        write_pages(result, ROOT)


if __name__ == "__main__":
    main()
