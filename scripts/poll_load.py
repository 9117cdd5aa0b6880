"""Two thousand jobs over five channels, one dead and one slow: are the others' asked after in time, and at what cost?

    python scripts/poll_load.py [--jobs 2000] [--seconds 90]

Starts a provider of the convention and a gateway, each a process of its own, has the jobs begun, then kills one channel
and slows down another. Printed: how late the polls of healthy channels were against when they were due, the gateway's
CPU as the system accounts for it, and its resident memory.
"""

import argparse
import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import aiohttp
import orjson
import psutil
from aiohttp import web

KEY = "sk-load-key-of-the-only-caller"
CHANNELS = 5
DEAD, SLOW = 3, 4
SLOW_S = 20.0
WAITS_S = (2.0, 4.0, 8.0, 15.0)
"""Before the first look, the second, the third, and every later one."""
CALLERS = 32


class Provider:
    """Videos that are never done. Remembers when each was asked after."""

    def __init__(self) -> None:
        self.polls: dict[str, list[float]] = defaultdict(list)
        self.slow = False
        self._count = 0

    def make(self, number: int) -> web.Application:
        """One channel's server."""
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/videos", self._submit)
        app.router.add_get("/v1/videos/{id}", self._poll)
        app["number"] = number
        return app

    async def _models(self, request: web.Request) -> web.Response:
        listed = [{"id": f"film-{request.app['number']}", "object": "model"}]
        return web.json_response({"object": "list", "data": listed})

    async def _submit(self, request: web.Request) -> web.Response:
        await request.read()
        self._count += 1
        task = f"task-{request.app['number']}-{self._count}"
        self.polls[task].append(time.monotonic())
        return web.json_response({"id": task, "object": "video", "status": "queued", "progress": 0})

    async def _poll(self, request: web.Request) -> web.Response:
        task = request.match_info["id"]
        self.polls[task].append(time.monotonic())
        if self.slow and request.app["number"] == SLOW:
            await asyncio.sleep(SLOW_S)
        looks = len(self.polls[task])
        return web.json_response({"id": task, "object": "video", "status": "in_progress", "progress": min(looks, 99)})


def provide(ports: list[int], pipe: Connection) -> None:
    """The provider's process: "dead" closes one channel, "slow" slows one down, "report" tells every poll."""
    asyncio.run(_provide(ports, pipe))


async def _provide(ports: list[int], pipe: Connection) -> None:
    provider, sites = Provider(), []
    for number, port in enumerate(ports):
        runner = web.AppRunner(provider.make(number), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        sites.append(runner)
    pipe.send("ready")
    while True:
        word = await asyncio.to_thread(pipe.recv)
        if word == "break":
            await sites[DEAD].cleanup()
            provider.slow = True
            pipe.send("broken")
        else:
            pipe.send(dict(provider.polls))
            return


def find_ports(count: int) -> list[int]:
    """Ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def write_config(folder: Path, ports: list[int], own: int) -> Path:
    """The gateway's settings."""
    lines = [f"[server]\nport = {own}\n[videos]\nmax_open = 100000\n", '[[account]]\nname = "load"\n']
    lines.append(f'[[key]]\nname = "load"\naccount = "load"\nsecret = "{KEY}"\n')
    for number, port in enumerate(ports):
        lines.append(
            f'[[channel]]\nname = "c{number}"\nprovider = "custom"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
            f'api_key = "k"\nmodels = ["film-{number}"]\n'
        )
    path = folder / "gateway.toml"
    path.write_text("\n".join(lines))
    return path


async def submit(url: str, jobs: int) -> None:
    """Have the jobs begun."""
    numbers = iter(range(jobs))

    async def call(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = {"model": f"film-{number % CHANNELS}", "prompt": f"film {number}", "seconds": "4"}
            async with session.post(f"{url}/v1/videos", json=body) as response:
                raw = await response.read()
                if response.status != 200:
                    raise SystemExit(f"{response.status}: {raw!r}")

    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
        for _ in range(100):
            try:
                async with session.get(f"{url}/readyz") as response:
                    if response.status == 200:
                        break
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
        await asyncio.gather(*(call(session) for _ in range(CALLERS)))


def weigh(polls: dict[str, list[float]], since: float) -> tuple[list[float], int]:
    """How long healthy polls took against when they were due, and how many there were since then."""
    ratios, count = [], 0
    for task, times in polls.items():
        if task.split("-")[1] in {str(DEAD), str(SLOW)}:
            continue
        for index in range(1, len(times)):
            if times[index] >= since:
                due_s = WAITS_S[min(index - 1, len(WAITS_S) - 1)]
                ratios.append((times[index] - times[index - 1]) / due_s)
                count += 1
    return ratios, count


def main() -> None:
    """Run it, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=90.0)
    asked = parser.parse_args()
    *ports, own = find_ports(CHANNELS + 1)
    ours, theirs = multiprocessing.Pipe()
    provider = multiprocessing.Process(target=provide, args=(ports, theirs), daemon=True)
    provider.start()
    ours.recv()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = write_config(folder, ports, own)
        log = (folder / "log").open("wb")
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--data", str(folder / "data")]
        gateway = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            report(gateway, ours, f"http://127.0.0.1:{own}", asked)
        finally:
            gateway.terminate()
            gateway.wait(20)
            provider.terminate()


def report(gateway: "subprocess.Popen[bytes]", pipe: Connection, url: str, asked: argparse.Namespace) -> None:
    """Measure, and print."""
    began = time.monotonic()
    asyncio.run(submit(url, asked.jobs))
    print(f"{asked.jobs} jobs begun in {time.monotonic() - began:.1f} s")
    pipe.send("break")
    pipe.recv()
    process = psutil.Process(gateway.pid)
    time.sleep(5)
    since, before = time.monotonic(), process.cpu_times()
    resident = [process.memory_info().rss]
    for _ in range(10):
        time.sleep(asked.seconds / 10)
        resident.append(process.memory_info().rss)
    passed, after = time.monotonic() - since, process.cpu_times()
    pipe.send("report")
    ratios, count = weigh(pipe.recv(), since)
    ratios.sort()
    cpu = after.user + after.system - before.user - before.system
    sizes = [round(size / 2**20, 1) for size in resident]
    result = {
        "healthy_polls": count,
        "late_ratio": {
            "median": round(median(ratios), 3),
            "p99": round(ratios[int(len(ratios) * 0.99)], 3),
            "max": round(ratios[-1], 3),
        },
        "cpu_of_one_core": round(cpu / passed, 4),
        "resident_mb": {"first": sizes[0], "last": sizes[-1], "most": max(sizes)},
    }
    print(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())


if __name__ == "__main__":
    main()
