"""Where the gateway's time goes under load: py-spy looks into a running one from outside, which costs it nothing.

    make profile                          whole answers, then streams; ten seconds each
    make profile ARGS="--only sse --seconds 30"

Prints the functions in which most samples were taken, by themselves and with what they called, and leaves flame graphs
in ``build/profile`` (``json.svg``, ``sse.svg``: open them in a browser). The load is the bench's. Threads that wait for
work (``_connection_worker_thread``, ``_worker``) are taken for busy ones.

A sample says where the interpreter was, not what a call cost: on a relay of four hundred short calls a request it is
their number that costs. ``tests/bench/test_call_steps.py`` counts them.
"""

import argparse
import asyncio
import collections
import shutil
import subprocess
import sys
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.bench import ROOT, Order, Scene, set_scene
from scripts.bench_parts.load import StreamLine, WholeLine
from scripts.bench_parts.phases import ENDLESS, Plan, open_loads
from scripts.bench_parts.processes import Relay

PARTS = ("json", "sse")
RATE = 400
"""Samples a second."""
SHOWN = 30
WARM_S = 1.0


async def drive_json(scene: Scene, relay: Relay, seconds: float) -> None:
    """Whole answers, flat out."""
    with open_loads({relay.name: relay.address}, WholeLine) as loads:
        await loads[relay.name].call_again(scene.bench.plan.callers, seconds)


async def drive_sse(scene: Scene, relay: Relay, seconds: float) -> None:
    """Streams that go on."""
    await scene.bench.set_pace(scene.bench.plan.pace_s)
    with open_loads({relay.name: relay.address}, StreamLine) as loads:
        await loads[relay.name].open_streams(scene.bench.plan.streams, ENDLESS)
        await asyncio.sleep(seconds)
        await scene.bench.end_streams()
        await loads[relay.name].settle()


DRIVES = {"json": drive_json, "sse": drive_sse}


async def look(scene: Scene, relay: Relay, part: str, seconds: float) -> tuple[Path, Path]:
    """Samples of one kind of load: raw, and as a picture."""
    folder = ROOT / "build" / "profile"
    folder.mkdir(parents=True, exist_ok=True)
    raw, image = folder / f"{part}.txt", folder / f"{part}.svg"
    for kind, path in (("raw", raw), ("flamegraph", image)):
        driving = asyncio.create_task(DRIVES[part](scene, relay, seconds + WARM_S))
        await asyncio.sleep(WARM_S / 2)
        words = ["record", "-p", str(relay.pid), "-r", str(RATE), "-d", str(int(seconds)), "-f", kind, "-o", str(path)]
        spying = await asyncio.create_subprocess_exec(find_spy(), *words, stdout=subprocess.DEVNULL, stderr=-1)
        _, answer = await spying.communicate()
        await driving
        if spying.returncode:
            sys.exit(f"py-spy: {answer.decode(errors='replace').strip()}")
    return raw, image


def find_spy() -> str:
    """Py-spy's path. Exits where it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    path = str(beside) if beside.exists() else shutil.which("py-spy")
    if path is None:
        sys.exit("py-spy is not installed: make profile sets it up")
    return path


def count_samples(raw: str) -> tuple[int, collections.Counter[str], collections.Counter[str]]:
    """Folded stacks -> how many samples there are, and those of each function: at the top, and anywhere."""
    top: collections.Counter[str] = collections.Counter()
    anywhere: collections.Counter[str] = collections.Counter()
    for line in raw.splitlines():
        stack, _, number = line.rpartition(" ")
        names = [frame.rpartition(":")[0] for frame in stack.split(";")]
        top[names[-1]] += int(number)
        anywhere.update({name: int(number) for name in names})
    return sum(top.values()), top, anywhere


def write_table(part: str, raw: str) -> list[str]:
    """The functions with most samples."""
    total, top, anywhere = count_samples(raw)
    lines = [f"{part}: {total} samples", f"{'itself':>7} {'in all':>7}"]
    for name, number in top.most_common(SHOWN):
        lines.append(f"{100 * number / total:6.1f}% {100 * anywhere[name] / total:6.1f}%  {name}")
    return lines


async def run(given: argparse.Namespace) -> None:
    """Every part, one after the other."""
    order = Order(Plan(), names=("gateway",), parts=PARTS)
    with set_scene(order) as scene, scene.running(order.names) as (relay,):
        for part in given.only.split(","):
            raw, image = await look(scene, relay, part, given.seconds)
            print("\n".join(write_table(part, raw.read_text())))
            print(f"flame graph: {image}\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="default: %(default)s")
    parser.add_argument("--seconds", type=int, default=10, help="of samples a part, twice; default: %(default)s")
    given = parser.parse_args()
    unknown = {*given.only.split(",")} - {*PARTS}
    if unknown:
        sys.exit(f"Unknown: {', '.join(sorted(unknown))}")
    uvloop.run(run(given))


if __name__ == "__main__":
    main()
