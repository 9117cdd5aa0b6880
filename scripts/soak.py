"""Runs a real gateway under mixed load with faults and leaving callers, and says what it cost and whether it leaked.

    .venv/bin/python scripts/soak.py --seconds 60

About half of the calls are streams. One call in a hundred meets a provider that breaks off, one in a hundred leaves
half-way. Exit code 1 where a request has no row or more than one, where the books do not agree, or where descriptors
are left over.
"""

import argparse
import asyncio
import collections
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.store.folder import find_holder
from tests.fakes.upstream import (
    COMPLETION,
    FIN,
    SSE_HEAD,
    ScriptedUpstream,
    Step,
    answer,
    chat_script,
    chunk,
    delta,
    event,
)

KEY = "sk-soak-soak-soak-soak"
RARELY = 0.01
SETTLE_S = 2.0
WORDS = [f" word{index}" for index in range(40)]
SCRIPTS: dict[str, Sequence[Step]] = {
    "json": [answer(COMPLETION)],
    "stream": [step for part in chat_script(*WORDS) for step in (part, 0.002)],
    "broken": [SSE_HEAD, chunk(event(delta("half"))), FIN],
}
HEAD = f"""
[server]
port = 0
log_format = "json"
[[account]]
name = "soak"
quota_usd = 1000000
quota_period = "monthly"
rpm = 100000000
[[key]]
name = "soak"
account = "soak"
secret = "{KEY}"
quota_usd = 1000000
tpm = 1000000000
max_concurrency = 10000
"""
CHANNEL = """
[[channel]]
name = "{model}"
provider = "custom"
base_url = "{base_url}"
models = ["{model}"]
[[price]]
model = "{model}"
input_usd_per_million = 2.5
output_usd_per_million = 10
"""


@attrs.frozen
class Measure:
    """The gateway's process at one moment."""

    cpu_s: float
    resident_mb: float
    descriptors: int

    @classmethod
    def take(cls, process: psutil.Process) -> "Measure":
        """Now."""
        times = process.cpu_times()
        return cls(times.user + times.system, process.memory_info().rss / 1e6, process.num_fds())


@attrs.define
class Soak:
    """The callers and what became of their calls."""

    url: str
    calls: int = 0
    outcomes: collections.Counter[str] = attrs.Factory(collections.Counter)

    async def run(self, callers: int, seconds: float) -> None:
        """``callers`` of them, each calling again and again for ``seconds``."""
        until = time.monotonic() + seconds
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(self._caller(session, until) for _ in range(callers)))

    async def _caller(self, session: aiohttp.ClientSession, until: float) -> None:
        while time.monotonic() < until:
            self.calls += 1
            try:
                self.outcomes[await self._call(session)] += 1
            except aiohttp.ClientError as error:
                self.outcomes[type(error).__name__] += 1

    async def _call(self, session: aiohttp.ClientSession) -> str:
        model = "broken" if random.random() < RARELY else random.choice(["json", "stream"])
        body = {"model": model, "stream": model != "json", "messages": [{"role": "user", "content": "hi"}]}
        async with session.post(f"{self.url}/v1/chat/completions", json=body) as response:
            if model == "stream" and random.random() < 2 * RARELY:
                await response.content.readany()
                response.close()
                return "left half-way"
            raw = await response.read()
        if response.status != 200:
            return f"status {response.status}"
        if model == "json":
            return "json"
        return "stream" if raw.endswith(b"data: [DONE]\n\n") else "stream with an error event"


async def soak(seconds: float, callers: int) -> bool:
    """The whole run. True where nothing was lost or left over."""
    async with AsyncExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = HEAD
        for model, script in SCRIPTS.items():
            up = await stack.enter_async_context(ScriptedUpstream(script))
            config += CHANNEL.format(model=model, base_url=up.base_url)
        (path / "gateway.toml").write_text(config)
        log = stack.enter_context((path / "log").open("wb"))
        command = [
            sys.executable,
            "-m",
            "gateway",
            "serve",
            "--config",
            f"{path}/gateway.toml",
            "--data",
            f"{path}/data",
        ]
        environ = {**os.environ, "GATEWAY_DISCOVER": "0"}
        gateway = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environ)
        try:
            good = await _drive(path / "data", psutil.Process(gateway.pid), seconds, callers)
        finally:
            gateway.terminate()
            print(f"exit code {await gateway.wait()}")
        _report_log(path / "log")
    return good


async def _drive(data: Path, process: psutil.Process, seconds: float, callers: int) -> bool:
    while not (url := (find_holder(data) or {}).get("url")):
        await asyncio.sleep(0.05)
    warm = Soak(url)
    await warm.run(callers, 2.0)
    await asyncio.sleep(SETTLE_S)
    before = Measure.take(process)
    run = Soak(url)
    await run.run(callers, seconds)
    await asyncio.sleep(SETTLE_S)
    after = Measure.take(process)
    calls = warm.calls + run.calls
    rows, endings = _read_rows(data / "gateway.db")
    print(f"{run.calls} calls in {seconds:g} s: {run.calls / seconds:.0f} a second")
    print(f"outcomes: {dict(run.outcomes)}")
    print(f"CPU {(after.cpu_s - before.cpu_s) / run.calls * 1e6:.0f} us a call")
    print(f"resident {before.resident_mb:.1f} -> {after.resident_mb:.1f} MB")
    print(f"descriptors {before.descriptors} -> {after.descriptors}")
    print(f"rows {rows} for {calls} calls: {endings}")
    audit = await _audit(url, data)
    print(f"audit: {audit}")
    books_agree = audit["ok"] and audit["open_holds"] == 0
    return books_agree and rows == calls and after.descriptors <= before.descriptors + callers // 2


async def _audit(url: str, data: Path) -> dict[str, Any]:
    token = (data / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{url}/admin/v1/audit") as response:
        return dict(await response.json())


def _read_rows(database: Path) -> tuple[int, dict[str, int]]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        endings = dict(connection.execute("SELECT ending, COUNT(*) FROM requests GROUP BY ending").fetchall())
    return sum(endings.values()), endings


def _report_log(path: Path) -> None:
    lines = path.read_bytes().splitlines()
    levels = collections.Counter(line.partition(b'"level": "')[2].partition(b'"')[0].decode() for line in lines)
    print(f"log lines by level: {dict(levels)}")
    for line in [line for line in lines if b'"level": "info"' not in line and line.startswith(b"{")][:5]:
        print(line.decode())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--callers", type=int, default=50)
    given = parser.parse_args()
    sys.exit(0 if asyncio.run(soak(given.seconds, given.callers)) else 1)


if __name__ == "__main__":
    main()
