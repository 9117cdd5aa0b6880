"""What the gateway costs beside nginx and a bare aiohttp relay: CPU, delay and memory, in one run that takes turns.

    make bench                                  the whole of it: some ten minutes, on a machine that does nothing else
    make bench ARGS=--quick                     a rough look, without crowds
    make bench ARGS="--only sse --rounds 9"     parts of it: json, sse, latency, streams
    make bench ARGS="--before ../other-tree"    the gateway of another tree beside this one's
    make bench ARGS="--nice -15"                as root, where others use the machine, too
    make bench ARGS="--relay gateway,observed"  what metrics and traces cost: scraped each 5 s, 1 % of requests traced
    make bench ARGS="--with litellm"            a peer beside them, where it is installed
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import orjson
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.bench_parts import meter, relays
from scripts.bench_parts.crowd import Crowd
from scripts.bench_parts.load import BrokenAnswer
from scripts.bench_parts.phases import Bench, Plan
from scripts.bench_parts.relays import NoRelay, Place, Relay
from scripts.bench_parts.summary import read_figures, write_summary
from scripts.bench_parts.table import write_comparison, write_run

ROOT = Path(__file__).parents[1]
PARTS = ("json", "sse", "latency", "streams")
RELAYS = ("gateway", "nginx", "bare")
CROWDS = [1000, 5000]
RATES = [2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
WINDOW_S = 1.5
SPARE_FILES = 500
NOT_PINNED = "nothing, as asked, or for want of two cores or the right to"
QUICK = Plan(rounds=3, turns=1, slice_s=0.3, steady_s=0.5)


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


@attrs.frozen
class Scene:
    """What stands while a bench runs: the upstream, and where relays are started."""

    bench: Bench
    place: Place
    pinned: str

    @contextlib.contextmanager
    def running(self, names: tuple[str, ...]) -> Iterator[list[Relay]]:
        """So many relays; stopped at the end."""
        with contextlib.ExitStack() as stack:
            started = []
            for name in names:
                relay = relays.STARTS[name](self.place)
                stack.callback(relay.stop)
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
        upstream = relays.start_python("upstream", ["scripts.bench_parts.upstream"], others, others)
        place = Place(Path(folder), upstream.port, relay_core, others, files, order.tree, order.before)
        try:
            yield Scene(Bench(order.plan, (upstream.pid, upstream.port)), place, pinned)
        finally:
            upstream.stop()
            meter.unpin(was)


def choose(names: tuple[str, ...], is_installed: Callable[[str], bool] = relays.is_installed) -> tuple[str, ...]:
    """Those of them that can be started. Says which cannot; exits under ``CI``, where all but peers must."""
    missing = [name for name in names if not is_installed(name)]
    for name in missing:
        print(f"{name} is not installed: no column for it ({relays.HINTS[name]})", file=sys.stderr)
    if os.environ.get("CI") and not {*missing} <= {*relays.PEERS}:
        sys.exit(1)
    return tuple(name for name in names if name not in missing)


async def measure(order: Order, scene: Scene) -> None:
    """All rounds; the samples are the bench's."""
    bench = scene.bench
    ways = {"json": bench.weigh_json, "sse": bench.weigh_events, "latency": bench.look_at_latency}
    standing = [part for part in order.parts if part in ways]
    with scene.running(order.names if standing else ()) as started:
        for number in range(order.plan.rounds):
            bench.round = number
            for part in standing:
                say(f"round {number + 1} of {order.plan.rounds}: {part}")
                await ways[part](started)
        for relay in started:
            bench.note("clock", relay.name, 0, clock=meter.check_clock(relay.pid))
    if "streams" in order.parts:
        await measure_crowds(order, scene)


async def measure_crowds(order: Order, scene: Scene) -> None:
    """Crowds of streams, on a relay at a time: each needs its core to itself, and its memory as it was at the start.

    Not on peers, which would take minutes to open them.
    """
    names = tuple(name for name in order.names if name not in relays.PEERS)
    for number in range(order.plan.rounds):
        scene.bench.round = number
        at = number % max(len(names), 1)
        for name in names[at:] + names[:at]:
            say(f"round {number + 1} of {order.plan.rounds}: crowds of {name}")
            with scene.running((name,)) as (relay,):
                await Crowd(scene.bench, relay, order.crowds, order.rates, order.window_s).run()


def say(what: str) -> None:
    """Report the progress to the terminal."""
    if sys.stderr.isatty():
        print(f"\r{what:<60}", end="", file=sys.stderr, flush=True)


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
            "relays": list(order.names),
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
    parts = tuple(given.only.split(",")) if given.only else PARTS[:3] if given.quick else PARTS
    names = (*given.relay.split(","), *(given.peers.split(",") if given.peers else ()))
    names = (*names, "before") if given.before else names
    unknown = [*({*parts} - {*PARTS}), *({*names} - {*relays.STARTS})]
    if unknown:
        sys.exit(f"Unknown: {', '.join(unknown)}. Parts: {', '.join(PARTS)}; relays: {', '.join(relays.STARTS)}")
    tree, before = (Path(path or ROOT).resolve() for path in (given.tree, given.before))
    crowds = [int(crowd) for crowd in given.crowds.split(",")]
    return Order(plan, choose(names), parts, crowds=crowds, tree=tree, before=before, pinned=not given.unpinned)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short rounds, no crowds")
    parser.add_argument("--rounds", type=int, help=f"default: {Plan().rounds}")
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--relay", default=",".join(RELAYS), help="default: %(default)s")
    parser.add_argument("--with", dest="peers", help=f"peers, where installed: {','.join(relays.PEERS)}")
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


if __name__ == "__main__":
    main()
