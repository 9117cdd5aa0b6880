"""Runs a real gateway under a long, hostile load, kills it in the middle, and checks that nothing is lost or left over.

    .venv/bin/python -m scripts.soak                 two hours
    .venv/bin/python -m scripts.soak --minutes 5     shorter: memory is judged from ten minutes a process on
    .venv/bin/python -m scripts.soak --strict        on a machine of its own: the event loop's lag is judged, too

Callers make every kind of call with the keys of many accounts (``soak_parts/calls.py``); some leave. An operator edits
keys, accounts, channels, prices and settings, exports and reloads (``soak_parts/edits.py``). One provider is down for a
sixth of the time and breaks off streams at any other, one answers nonsense. In the middle the gateway is killed
(``kill -9``) and started again. Ten minutes apart and at the end, each row is compared with the calls and its cost with
the prices that its model has had, and the ledger is verified. At the end nothing may be left: no task, descriptor,
request, hold, reservation or job. Exit code 1 if anything is wrong; what it is, is the last that is printed.
"""

import argparse
import asyncio
import collections
import contextlib
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import attrs
import orjson
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.domain.price import Price
from gateway.storage.sqlite_database import READER_COUNT
from scripts.soak_parts.calls import KINDS, Caller, Site
from scripts.soak_parts.edits import EDITS, Operator
from scripts.soak_parts.marks import Marks
from scripts.soak_parts.memory import Curve, watch
from scripts.soak_parts.providers import Providers
from tests.support.gateway_process import GatewayProcess
from tests.support.sockets import find_free_port

MOST_FAILED = 0.01
MOST_GROWTH = 0.03
MOST_LAG_MS = 50.0
JUDGED_S = 600.0
"""A process that was watched for less has not shown how its memory goes on."""
WARM_S, WARM_PART = 1200.0, 1 / 6
CHECK_S = 600.0
REST_S = 120.0
AFTER_START_S = 3.0
PROGRAM = "import sys; sys.argv[0] = 'gateway'; from gateway.cli.main import main; main()"
TABLES: dict[str, Any] = {"routing": {"cooldown_s": 1, "max_cooldown_s": 2}, "billing": {"unpriced": "refuse"}}


@attrs.frozen
class Load:
    """How long the load lasts, and how many clients make it with what pause between two calls."""

    seconds: float
    callers: int = 20
    pause_s: float = 0.1
    strict: bool = False


class Rest(NamedTuple):
    """What a process has that nothing asks. Its sockets are left out: providers and clients end connections."""

    tasks: int
    files: collections.Counter[str]


def list_files(pid: int) -> collections.Counter[str]:
    """What a process has open, by path or kind; sockets are left out."""
    files: collections.Counter[str] = collections.Counter()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            files[str(descriptor.readlink()).partition(":[")[0]] += 1
    del files["socket"]
    return files


class Soak:
    """A gateway under load, and all that is known of it.

    Args:
        folder: for all that is written.

    Attributes:
        problems: what is wrong, in words.
    """

    def __init__(self, folder: Path, providers: Providers, load: Load) -> None:
        tables = {**TABLES, "channel": providers.channels}
        port = find_free_port()
        self.gateway = GatewayProcess(folder / "data", tables, command=("-c", PROGRAM, "serve"), port=port)
        prices: dict[str, list[Price | None]] = {}
        self.marks = Marks(prices)
        self.site = Site(f"http://127.0.0.1:{port}", self.marks)
        self.problems = self.marks.problems
        self.operator = Operator(self.site, "", dict(providers.channels[0]), prices)
        self.curves: list[Curve] = []
        self._providers, self._load = providers, load
        self._sequence = 0
        self._events: collections.Counter[tuple[str, str, str]] = collections.Counter()

    async def run(self) -> None:
        """All of it."""
        load = self._load
        async with self.gateway:
            self.operator.token = self.gateway.token.strip()
            await self.operator.found()
            before = await self._warm_up()
            breaking = asyncio.create_task(self._break_a_provider())
            calling = asyncio.create_task(self._call())
            await self._watch_half()
            await self._kill()
            await self._watch_half()
            await asyncio.gather(calling, breaking)
            await self._rest()
            await self.check(late_s=0)
            self._compare(before, await self._measure())
            await self._verify()
            self._report()
            if status := await self.gateway.end():
                self.problems.append(f"the gateway ended with {status}")
            self._read_log()
        self._check_log(load.seconds)

    async def check(self, *, late_s: float | None = None) -> None:
        """Compare rows, costs and ledger with what is known now."""
        rows, self._sequence = await self.gateway.read_rows(self._sequence)
        self.marks.take(rows)
        self.marks.check_late(**({} if late_s is None else {"late_s": late_s}))
        audit, health = await self.operator.ask("GET", "audit"), await self.operator.ask("GET", "health")
        self.problems += audit["problems"]
        lag, memory = health["loop_lag_ms"], health["memory_bytes"] / 1e6
        if lag["max"] > MOST_LAG_MS and self._load.strict:
            self.problems.append(f"the event loop was held for {lag['max']:.0f} ms")
        if health["queue"]["failing"] or health["queue"]["set_aside"]:
            self.problems.append(f"the write queue: {health['queue']}")
        calls, wrong = sum(self.site.done.values()), sum(self.site.failed.values())
        print(
            f"{time.strftime('%H:%M:%S')} {calls} calls, {wrong} failed, {self.marks.rows} rows, {audit['open_holds']} "
            f"held; {memory:.1f} MB, lag p99 {lag['p99']:.1f} max {lag['max']:.0f} ms; {len(self.problems)} problems",
            *(f"\n  failed: {name}: {times}" for name, times in self.site.failed.most_common(3)),
            flush=True,
        )

    @contextlib.asynccontextmanager
    async def _callers(self, count: int) -> Any:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield [Caller(self.site, session) for _ in range(count)]

    async def _warm_up(self) -> Rest:
        """Every call and every edit once, so that all is loaded that a rest compares."""
        async with self._callers(len(KINDS)) as callers:
            await asyncio.gather(*(caller.make(call) for caller, call in zip(callers, KINDS, strict=True)))
        for edit in EDITS:
            await edit(self.operator)
        await self._rest()
        return await self._measure()

    async def _call(self) -> None:
        load, until = self._load, time.monotonic() + self._load.seconds
        async with self._callers(load.callers) as callers:
            calling = (caller.run(until, load.pause_s) for caller in callers)
            await asyncio.gather(*calling, self.operator.run(until, 10 * load.pause_s))

    async def _watch_half(self) -> None:
        """The first or second half of the time: look at memory, and check each ten minutes."""
        half = self._load.seconds / 2
        watching = asyncio.create_task(watch(psutil.Process(self.gateway.pid), half, min(10.0, half / 20)))
        until = time.monotonic() + half
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, CHECK_S))
            await self.check()
        self.curves.append((await watching).since(min(WARM_S, self._load.seconds * WARM_PART)))

    async def _kill(self) -> None:
        """``kill -9``, and a start on the same folder while the callers go on."""
        self.site.restarting = True
        await self.gateway.kill()
        self._read_log()
        began = time.monotonic()
        await self.gateway.start()
        print(f"killed; it answers again after {time.monotonic() - began:.1f} s", flush=True)
        await asyncio.sleep(AFTER_START_S)
        self.site.restarting = False

    async def _break_a_provider(self) -> None:
        for down in (True, False):
            await asyncio.sleep(self._load.seconds / 6)
            self._providers.shaky.down = down

    async def _rest(self) -> None:
        """Until nothing runs and nothing is held; what still does then is a problem."""
        until = time.monotonic() + REST_S
        while left := await self._list_left():
            if time.monotonic() > until:
                self.problems.append(f"left over after {REST_S:.0f} s: {left}")
                return
            await asyncio.sleep(0.5)

    async def _list_left(self) -> dict[str, Any]:
        audit, health = await self.operator.ask("GET", "audit"), await self.operator.ask("GET", "health")
        left = {name: audit[name] for name in ("open_holds", "video_holds", "held_usd", "waiting_rows")}
        left |= {"running": health["running"], "videos": health["videos"]["open"], "clients": health["connections"] - 1}
        return {name: count for name, count in left.items() if count > 0}

    async def _measure(self) -> Rest:
        health, files = await self.operator.ask("GET", "health"), list_files(self.gateway.pid)
        # A reader is opened when others are busy, and kept; SQLite keeps the file of one that was closed while others
        # hold locks (https://www.sqlite.org/src/file/src/os_unix.c, "UnixUnusedFd").
        for name in ("gateway.db", "gateway.db-wal"):
            path = str(self.gateway.data / name)
            files[path] = max(files[path], READER_COUNT + 2)
        return Rest(health["tasks"] - health["connections"], files)  # a client's connection has a task

    def _compare(self, before: Rest, after: Rest) -> None:
        print(f"tasks {before.tasks} -> {after.tasks}, files {before.files.total()} -> {after.files.total()}")
        if after.tasks > before.tasks:
            self.problems.append(f"tasks are left over: {before.tasks} -> {after.tasks}")
        if more := after.files - before.files:
            self.problems.append(f"files are left open: {dict(more)}")

    async def _verify(self) -> None:
        """As an operator does."""
        words = ["-m", "gateway", "verify", "--data", str(self.gateway.data), "--config", str(self.gateway.config)]
        asked = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=-1, stderr=-2, env=dict(os.environ))
        answer, _ = await asked.communicate()
        if asked.returncode:
            self.problems.append(f"gateway verify: {answer.decode()[-600:]}")

    def _report(self) -> None:
        done, failed = self.site.done, self.site.failed
        print(f"calls: {dict(done)}\nedits: {dict(self.operator.done)}\nrows: {dict(self.marks.outcomes)}")
        for curve in self.curves:
            print(curve.describe())
            if curve.seconds >= JUDGED_S and curve.growth > MOST_GROWTH:
                self.problems.append(f"resident memory grew by {curve.growth:+.1%}")
        for name, times in failed.most_common(10):
            print(f"failed: {name}: {times}")
        if failed.total() > MOST_FAILED * done.total():
            self.problems.append(f"{failed.total()} of {done.total()} calls failed: {dict(failed.most_common(3))}")

    def _read_log(self) -> None:
        """The process's lines; the last of a killed one may be cut off."""
        for line in self.gateway.err.read_bytes().splitlines():
            with contextlib.suppress(orjson.JSONDecodeError):
                fields = orjson.loads(line)
                self._events[fields["level"], fields["event"], fields.get("channel") or ""] += 1
                if fields["level"] in {"error", "critical"} or "exception" in fields:
                    self.problems.append(f"the log: {line.decode()[:2000]}")

    def _check_log(self, seconds: float) -> None:
        for (level, name, channel), times in sorted(self._events.items()):
            if level != "info" and name not in {"request_settled", "request_served"} and not channel.startswith("c1"):
                print(f"log: {level} {name} {channel}: {times}")
        seen = (
            self._events["warning", "circuit_tripped", "shaky"] and self._events["info", "circuit_recovered", "shaky"]
        )
        if not seen and seconds >= JUDGED_S:
            self.problems.append("the broken channel was not left alone, or not taken back")


async def soak(load: Load) -> list[str]:
    """Run all. Return what is wrong."""
    random.seed()
    with tempfile.TemporaryDirectory() as folder:
        async with Providers() as providers:
            run = Soak(Path(folder), providers, load)
            await run.run()
    return list(dict.fromkeys(run.problems))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--callers", type=int, default=20)
    parser.add_argument("--pause-s", type=float, default=0.1, help="mean pause of a client between two calls")
    parser.add_argument("--strict", action="store_true", help=f"a lag above {MOST_LAG_MS:g} ms is an error")
    given = parser.parse_args()
    problems = asyncio.run(soak(Load(given.minutes * 60, given.callers, given.pause_s, given.strict)))
    print("\n".join(f"PROBLEM: {problem}" for problem in problems[:50]) or "nothing is lost or left over")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
