"""An honest client beside eight attackers, all from one address, with few descriptors for all of them.

``make soak ARGS=tests/faults/test_attackers.py`` runs the two minutes; ``GATEWAY_TEST_ATTACK_S=20`` makes it shorter.
"""

import asyncio
import os
import socket
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import psutil
import pytest

from tests.support.attackers import under_attack
from tests.support.gateway import CHAT, HELLO, KEY, channel
from tests.support.gateway_process import GatewayProcess
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer

ATTACK_S = float(os.environ.get("GATEWAY_TEST_ATTACK_S") or 120)
PAUSE_S = 0.02
MIN_CALLS = 20
MAX_P99_MS, MAX_RATIO = 100.0, 10.0
"""On a machine that has nothing else to do the first; else so many times what the same client sees by itself."""
LIMITED = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0})); sys.argv[0] = 'gateway'; "
    "from gateway.cli.main import main; main()"
)
ATTACKER = "sk-test-key-of-an-attacker"


def limited(data: Path, up: ScriptedUpstream, descriptors: int) -> GatewayProcess:
    """A gateway that may have so many descriptors."""
    tables: dict[str, Any] = {
        "account": [{"name": "acme"}, {"name": "evil"}],
        "key": [{"name": "a", "account": "acme", "secret": KEY}, {"name": "b", "account": "evil", "secret": ATTACKER}],
        "channel": [channel(up.base_url)],
        "routing": {"trip_failures": 1000},
    }
    return GatewayProcess(data, tables, command=("-c", LIMITED.format(descriptors), "serve"))


class Honest:
    """Calls one after the other; what each came to, and how long it took."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.found: Counter[str] = Counter()
        self.took_ms: list[float] = []

    async def call(self, session: aiohttp.ClientSession) -> None:
        began = time.perf_counter()
        try:
            async with session.post(self.url + CHAT, json=HELLO) as response:
                await response.read()
                self.found[str(response.status)] += 1
        except aiohttp.ClientError as error:
            self.found[type(error).__name__] += 1
        self.took_ms.append((time.perf_counter() - began) * 1000)

    async def keep_calling(self, seconds: float) -> None:
        """Call for so long, and at least ``MIN_CALLS`` times."""
        headers = {"Authorization": f"Bearer {KEY}"}
        until = time.monotonic() + seconds
        async with aiohttp.ClientSession(headers=headers) as session:
            while time.monotonic() < until or len(self.took_ms) < MIN_CALLS:
                await self.call(session)
                await asyncio.sleep(PAUSE_S)

    @property
    def p99_ms(self) -> float:
        return statistics.quantiles(self.took_ms, n=100)[98]

    def describe(self) -> str:
        cuts = statistics.quantiles(self.took_ms, n=1000)
        return (
            f"{len(self.took_ms)} calls {dict(self.found)}: "
            f"p50 {cuts[499]:.1f}, p99 {cuts[989]:.1f}, p99.9 {cuts[998]:.1f}, most {max(self.took_ms):.1f} ms"
        )


def check_log(gateway: GatewayProcess) -> None:
    """Nothing was a bug, and connections were logged once a minute."""
    lines = [orjson.loads(line) for line in gateway.err.read_bytes().splitlines() if line.startswith(b"{")]
    assert [line for line in lines if line["level"] in {"error", "critical"}] == []
    assert "Traceback" not in gateway.err.read_text()
    crowded = [line for line in lines if line["event"] == "connection_limit_reached"]
    assert len(crowded) <= 1 + ATTACK_S / 60


@pytest.mark.slow
async def test_an_honest_client_is_refused_nothing_beside_eight_attackers(tmp_path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up, limited(tmp_path / "data", up, 512) as gateway:
        honest = Honest(gateway.url)
        async with under_attack(gateway.url, ATTACKER):
            await honest.keep_calling(3)
        print(honest.describe())  # noqa: T201
        assert set(honest.found) == {"200"}
        check_log(gateway)


@pytest.mark.slow
async def test_silent_sockets_shut_nobody_out_of_a_process_with_few_descriptors(tmp_path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up, limited(tmp_path / "data", up, 256) as gateway:
        parts = urlsplit(gateway.url)
        silent = [socket.create_connection((parts.hostname, parts.port)) for _ in range(400)]
        try:
            honest = Honest(gateway.url)
            await honest.keep_calling(0.3)
            assert set(honest.found) == {"200"}
            assert psutil.Process(gateway.pid).num_fds() < 256
        finally:
            for sock in silent:
                sock.close()
        check_log(gateway)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_two_minutes_of_eight_attackers_at_1024_descriptors(tmp_path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up, limited(tmp_path / "data", up, 1024) as gateway:
        alone = Honest(gateway.url)
        await alone.keep_calling(5)
        words = [sys.executable, "-m", "tests.support.attackers", gateway.url, ATTACKER, str(ATTACK_S + 2)]
        attackers = await asyncio.create_subprocess_exec(*words, cwd=Path(__file__).parents[2])
        try:
            await asyncio.sleep(2)
            honest = Honest(gateway.url)
            await honest.keep_calling(ATTACK_S - 2)
            rss = psutil.Process(gateway.pid).memory_info().rss
            fds = psutil.Process(gateway.pid).num_fds()
        finally:
            if attackers.returncode is None:
                attackers.terminate()
            await attackers.wait()
        print(f"alone: {alone.describe()}\nunder attack: {honest.describe()}")  # noqa: T201
        print(f"{fds} descriptors and {rss / 2**20:.0f} MB at the end")  # noqa: T201
        assert set(honest.found) == {"200"}
        assert honest.p99_ms < max(MAX_P99_MS, MAX_RATIO * alone.p99_ms)
        check_log(gateway)
