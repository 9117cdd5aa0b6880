"""Runs a real gateway under mixed load with faults and leaving clients, and checks that nothing is lost or left over.

    .venv/bin/python -m scripts.soak --minutes 30
    GATEWAY_TEST_LOAD_MINUTES=30 make soak ARGS=tests/faults/test_mixed_load.py

Callers make every kind of call (``soak_parts/calls.py``). Three channels serve the chat model, the third in another API
format. The second is broken for the middle third of the time, and breaks off one stream in a hundred at any other; a
fourth channel answers nonsense. Exit code 1 if a request has no row or more than one, if the books do not agree, if
resident memory grows by more than 3 % over the second half, if descriptors or tasks are left over, if the log has an
error, if more than one call in a hundred fails, or if the broken channel was not left alone and taken back.
"""

import argparse
import asyncio
import collections
import os
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import orjson
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.storage.data_folder import find_holder
from scripts.soak_parts.calls import KEY, OTHER_KEY, Caller
from scripts.soak_parts.memory import Curve, watch
from scripts.soak_parts.providers import Providers
from tests.support.gateway_process import write_toml

MOST_FAILED = 0.01
MOST_GROWTH = 0.03
WARM_UP_S, SETTLE_S = 5.0, 3.0
STEP_S = 10.0
PROVIDERS = 5
EVERY_CALL = frozenset({"request_settled", "request_served"})
TABLES: dict[str, Any] = {
    "server": {"port": 0, "log_format": "json"},
    "routing": {"cooldown_s": 1, "max_cooldown_s": 2, "warm_up_s": 2},
    "billing": {"unpriced": "free"},
    "account": [{"name": "soak", "quota_usd": 1_000_000, "quota_period": "monthly", "rpm": 100_000_000}],
    "key": [
        {"name": "soak", "account": "soak", "secret": KEY, "quota_usd": 1_000_000, "tpm": 1_000_000_000},
        {"name": "other", "account": "soak", "secret": OTHER_KEY},
    ],
    "price": [
        {"model": model, "input_usd_per_million": 2.5, "output_usd_per_million": 10} for model in ("m", "nonsense")
    ],
}


@attrs.frozen
class Load:
    """How long the load lasts, and how many clients make it with what pause between two calls."""

    seconds: float
    callers: int
    pause_s: float


@attrs.frozen
class Measure:
    """The gateway's process at one moment."""

    cpu_s: float
    descriptors: int
    tasks: int
    running: int

    @classmethod
    async def take(cls, process: psutil.Process, run: "Soak") -> "Measure":
        times, health = process.cpu_times(), await run.ask("health")
        return cls(times.user + times.system, process.num_fds(), health["tasks"], health["running"])


class Soak:
    """A gateway under load.

    Args:
        data: its data folder.
        url: its address.
    """

    def __init__(self, data: Path, url: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {(data / 'admin.token').read_text().strip()}"}
        self.counted = 0
        self.done: collections.Counter[str] = collections.Counter()
        self.failed: collections.Counter[str] = collections.Counter()

    async def run(self, load: Load) -> None:
        """Let the clients call."""
        until = time.monotonic() + load.seconds
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            aiohttp.ClientSession(headers=self._headers) as admin,
        ):
            each = [Caller(self._url, session, admin) for _ in range(load.callers)]
            await asyncio.gather(*(caller.run(until, load.pause_s) for caller in each))
        for caller in each:
            self.counted += caller.counted
            self.done += caller.done
            self.failed += caller.failed

    async def ask(self, name: str) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession(headers=self._headers) as session,
            session.get(f"{self._url}/admin/v1/{name}") as response,
        ):
            return dict(await response.json())


async def soak(load: Load) -> bool:
    """Run all. Return whether nothing was lost or left over."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        async with Providers() as providers:
            (path / "gateway.toml").write_text(write_toml({**TABLES, "channel": providers.channels}))
            command = ["-m", "gateway", "serve", "--config", f"{path}/gateway.toml", "--data", f"{path}/data"]
            environ = {**os.environ, "GATEWAY_DISCOVER": "0"}
            with (path / "log").open("wb") as log:
                gateway = await asyncio.create_subprocess_exec(
                    sys.executable, *command, stdout=log, stderr=log, env=environ
                )
                try:
                    good = await _drive(path / "data", psutil.Process(gateway.pid), providers, load)
                finally:
                    gateway.terminate()
                    status = await gateway.wait()
                    print(f"exit code {status}")
        return all([good, _report_log(path / "log"), status == 0])


async def _drive(data: Path, process: psutil.Process, providers: Providers, load: Load) -> bool:
    while not (url := (find_holder(data) or {}).get("url")):
        await asyncio.sleep(0.05)
    run = Soak(data, str(url))
    await run.run(attrs.evolve(load, seconds=WARM_UP_S))
    await asyncio.sleep(SETTLE_S)
    before = await Measure.take(process, run)
    curve, *_ = await asyncio.gather(
        watch(process, load.seconds, STEP_S), run.run(load), _break(providers, load.seconds)
    )
    await asyncio.sleep(SETTLE_S)
    after = await Measure.take(process, run)
    return _report(run, curve, (before, after), load.callers) & await _report_books(run, data)


def _report(run: Soak, curve: Curve, measures: tuple[Measure, Measure], callers: int) -> bool:
    before, after = measures
    calls, failed = sum(run.done.values()), sum(run.failed.values())
    print(f"{calls} calls, {failed} failed: {dict(run.failed.most_common(10))}\n{dict(run.done)}")
    print(f"CPU {(after.cpu_s - before.cpu_s) / calls * 1e6:.0f} us a call\n{curve.describe()}")
    print(f"tasks {before.tasks} -> {after.tasks}, descriptors {before.descriptors} -> {after.descriptors}")
    idle = callers * PROVIDERS  # connections to providers that wait for the next request
    kept = after.tasks - before.tasks <= callers // 2 and after.descriptors - before.descriptors <= idle
    return kept and after.running == 0 and failed <= calls * MOST_FAILED and curve.growth <= MOST_GROWTH


async def _report_books(run: Soak, data: Path) -> bool:
    with closing(sqlite3.connect(f"file:{data / 'gateway.db'}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT COUNT(*) FROM requests WHERE key_name = 'soak'").fetchone()[0]
        outcomes = dict(connection.execute("SELECT outcome, COUNT(*) FROM requests GROUP BY outcome").fetchall())
    audit = await run.ask("audit")
    print(f"{rows} rows for {run.counted} calls; all rows: {outcomes}\naudit: {audit}")
    return bool(rows == run.counted and audit["ok"] and audit["open_holds"] == 0)


async def _break(providers: Providers, seconds: float) -> None:
    for down in (True, False):
        await asyncio.sleep(seconds / 3)
        providers.shaky.down = down


def _report_log(path: Path) -> bool:
    """Print how often each event was logged. Return False for an error, or if the broken channel was not noticed."""
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.startswith(b"{")]
    answer = collections.Counter((line["level"], line["event"], line.get("channel")) for line in lines)
    for (level, name, channel), times in sorted(answer.items(), key=str):
        if name not in EVERY_CALL:
            print(f"log: {level} {name}{f' {channel}' if channel else ''}: {times}")
    surprises = [line for line in lines if line["level"] in {"error", "critical"} or "exception" in line]
    for line in surprises[:5]:
        print(line)
    seen = answer["warning", "circuit_tripped", "shaky"] and answer["info", "circuit_recovered", "shaky"]
    return bool(seen) and not surprises


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="caches fill for about five: take twenty or more")
    parser.add_argument("--callers", type=int, default=20)
    parser.add_argument("--pause-s", type=float, default=0.1, help="mean pause of a client between two calls")
    given = parser.parse_args()
    sys.exit(0 if asyncio.run(soak(Load(given.minutes * 60, given.callers, given.pause_s))) else 1)


if __name__ == "__main__":
    main()
