"""What do nodes on PostgreSQL cost beside one process on SQLite? CPU time of the gateways, in turns of one run.

    python scripts/nodes_load.py --server postgresql://postgres:secret@127.0.0.1 [--rounds 8] [--limited]

Five arrangements run side by side and are called in turns, each with one key that has a spending limit: one process on
SQLite, two of them that know nothing of each other, one on PostgreSQL, a cluster of one node, and a cluster of two.
Where there are two, both are called at the same time and share a core, which costs something by itself.

Printed is the CPU time of the gateway processes a request, by the median of the rounds, its spread, the ratio to SQLite
in the same rounds, and the CPU time of the database's server if it runs on this machine. ``--limited`` gives the key
and its account rate limits, too. The user of ``--server`` must be able to create databases; those of the run are
deleted at its end. Exit code 1 if a promise is not kept: two nodes serve at least 1.9 times the requests of one per CPU
second, leaving out what two separate processes pay for the core that they share, and PostgreSQL costs at most 1.15
times what SQLite costs.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import asyncpg
import attrs
import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.bench_parts import meter, ours, processes
from scripts.bench_parts.load import Load, WholeLine
from scripts.bench_parts.wire import Address

ROOT = Path(__file__).parents[1]
MASTER_KEY = "5a" * 32
ARRANGEMENTS = (
    ("SQLite", 1, False, False),
    ("2 x SQLite", 2, False, False),
    ("PostgreSQL", 1, True, False),
    ("1 node", 1, True, True),
    ("2 nodes", 2, True, True),
)
"""Names, numbers of processes, whether on PostgreSQL, and whether in a cluster."""
CALLERS = 32
SETTLE_S = 0.3
"""After the last answer: what a gateway still stores then is its own cost."""
MOST_RATIO, LEAST_GAIN = 1.15, 1.9


@attrs.frozen
class Arrangement:
    """Gateways that serve together: their processes and ports."""

    name: str
    processes: Sequence[subprocess.Popen[bytes]]
    ports: Sequence[int]

    def read_cpu_ns(self) -> int:
        return sum(meter.read_cpu_ns(process.pid) for process in self.processes)


@attrs.frozen
class DatabaseMeter:
    """The CPU time of a PostgreSQL server on this machine.

    Attributes:
        server: its first process; None: it runs elsewhere.
        costs: microseconds a request, of each turn, by the arrangement.
    """

    server: psutil.Process | None
    costs: dict[str, list[float]] = attrs.field(factory=dict)

    def read(self) -> dict[int, int]:
        """Return the CPU time of each of its processes."""
        found = {}
        for process in () if self.server is None else self.server.children():
            with contextlib.suppress(OSError):  # it has ended
                found[process.pid] = meter.read_cpu_ns(process.pid)
        return found


async def find_server(url: str) -> psutil.Process | None:
    """Return the process that starts those of the server's connections; None if the server is elsewhere."""
    connection = await asyncpg.connect(f"{url}/postgres")
    try:
        session = psutil.Process(await connection.fetchval("SELECT pg_backend_pid()"))
        return session.parent() if session.name() == "postgres" else None
    except psutil.Error:
        return None
    finally:
        await connection.close()


def main() -> None:
    """Measure as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="URL of a PostgreSQL server, without a database")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each turn")
    parser.add_argument("--limited", action="store_true", help="with rate limits")
    uvloop.run(run(parser.parse_args()))


async def run(options: argparse.Namespace) -> None:
    """Start everything, take turns, print the table."""
    cores = meter.find_cores() or (None, None)
    with contextlib.ExitStack() as stack:
        upstream = processes.start_python("upstream", ["scripts.bench_parts.upstream"], cores[1], cores[1])
        stack.callback(upstream.stop)
        config = stack.enter_context(write_config(upstream.port, ours.LIMITS if options.limited else ""))
        async with make_databases(options.server, 3) as urls:
            arrangements = [
                stack.enter_context(
                    start(config, cores, name=name, count=count, cluster=cluster, url=urls.pop() if stored else "")
                )
                for name, count, stored, cluster in ARRANGEMENTS
            ]
            server = DatabaseMeter(await find_server(options.server))
            costs = await take_turns(arrangements, options.rounds, options.seconds, server)
            stack.close()
    print_table(costs, server)
    ratio = find_ratio(costs, "PostgreSQL", "SQLite")
    sharing = find_ratio(costs, "2 x SQLite", "SQLite")
    raw = 2 / find_ratio(costs, "2 nodes", "1 node")
    gain = raw * sharing
    print(f"two nodes with a CPU second each: {raw:.2f} times the requests of one, and {2 / sharing:.2f} if separate")
    print(f"without what sharing a core costs: {gain:.2f} times")
    sys.exit(0 if ratio <= MOST_RATIO and gain >= LEAST_GAIN else 1)


@contextlib.contextmanager
def write_config(upstream: int, limits: str) -> Iterator[Path]:
    """Yield the path of a configuration in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "gateway.toml")
        config.write_text(ours.GATEWAY.format(limits=limits, upstream=upstream, key=""))
        yield config


@contextlib.asynccontextmanager
async def make_databases(server: str, count: int) -> AsyncIterator[list[str]]:
    """So many empty databases; yields their URLs."""
    names = [f"gateway_bench_{os.getpid()}_{number}" for number in range(count)]
    connection = await asyncpg.connect(f"{server}/postgres")
    try:
        for name in names:
            await connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        yield [f"{server}/{name}" for name in names]
    finally:
        for name in names:
            await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.close()


@contextlib.contextmanager
def start(
    config: Path, cores: tuple[int | None, int | None], *, name: str, count: int, cluster: bool, url: str
) -> Iterator[Arrangement]:
    """Run the gateways of one arrangement on the first of ``cores``; this process stays on the second."""
    environ = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
    environ |= ours.ALONE | ({"GATEWAY_STORE__URL": url} if url else {})
    if cluster:
        environ |= {"GATEWAY_CLUSTER__ENABLED": "true", "GATEWAY_STORE__MASTER_KEY": MASTER_KEY}
    processes, ports = [], []
    try:
        for number in range(count):
            data = config.parent / f"{name}-{number}"
            command = ours.build_command(config, data)
            with Path(f"{data}.log").open("wb") as log:
                meter.pin(cores[0])
                processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environ))
                meter.pin(cores[1])
            ports.append(_await_port(data, processes[-1], Path(f"{data}.log")))
        yield Arrangement(name, processes, ports)
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(30)


def _await_port(data: Path, process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + processes.START_S
    while process.poll() is None and time.monotonic() < until:
        if port := ours.find_port(data):
            return port
        time.sleep(0.05)
    sys.exit(f"A gateway did not start:\n{log.read_text(errors='replace')[-2000:]}")


async def take_turns(
    arrangements: Sequence[Arrangement], rounds: int, seconds: float, server: DatabaseMeter
) -> dict[str, list[float]]:
    """Call each arrangement in every round, in rotating order. Returns its CPU time a request in microseconds."""
    loads = {each.name: [Load(Address(port), WholeLine) for port in each.ports] for each in arrangements}
    costs: dict[str, list[float]] = {each.name: [] for each in arrangements}
    gc.disable()
    for number in range(-1, rounds):  # the first round only warms up
        at = number % len(arrangements)
        for each in (*arrangements[at:], *arrangements[:at]):
            cost, of_server = await _take_turn(each, loads[each.name], seconds, server)
            if number >= 0:
                costs[each.name].append(cost)
                server.costs.setdefault(each.name, []).append(of_server)
    for load in (one for some in loads.values() for one in some):
        load.close()
    return costs


async def _take_turn(
    arrangement: Arrangement, loads: Sequence[Load], seconds: float, server: DatabaseMeter
) -> tuple[float, float]:
    """Return the CPU time of the gateways and of the database a request, in microseconds."""
    answered = sum(load.tally.answered for load in loads)
    before, server_before = arrangement.read_cpu_ns(), server.read()
    await asyncio.gather(*(load.call_again(CALLERS // len(loads), seconds) for load in loads))
    await asyncio.sleep(SETTLE_S)
    used_ns = arrangement.read_cpu_ns() - before
    server_ns = sum(after - server_before.get(pid, 0) for pid, after in server.read().items())
    requests = sum(load.tally.answered for load in loads) - answered
    return used_ns / 1000 / requests, server_ns / 1000 / requests


def find_ratio(costs: dict[str, list[float]], name: str, other: str) -> float:
    """Return what ``name`` costs in relation to ``other``, as the median over the rounds."""
    return statistics.median(a / b for a, b in zip(costs[name], costs[other], strict=True))


def print_table(costs: dict[str, list[float]], server: DatabaseMeter) -> None:
    """Print the median of each arrangement, its spread, and how it compares with SQLite in the same rounds."""
    print(f"{'':<12} {'us a request':>12} {'least':>8} {'most':>8} {'to SQLite':>10} {'database':>9}")
    for name, values in costs.items():
        ratio, of_server = find_ratio(costs, name, "SQLite"), statistics.median(server.costs[name])
        spread = f"{statistics.median(values):>12.0f} {min(values):>8.0f} {max(values):>8.0f}"
        print(f"{name:<12} {spread} {ratio:>10.2f} {of_server:>9.0f}")


if __name__ == "__main__":
    main()
