"""Nodes behind a load balancer are restarted one after the other: no call fails, and no stream breaks."""

import asyncio
import contextlib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import CHAT, HELLO, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedUpstream,
    answer,
    chunk,
    delta,
    event,
)
from tests.support.sockets import find_free_port
from tests.support.spending_callers import PRICE
from tests.support.tools import find_tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KEYS = 8
"""Each belongs to one node, as long as that serves."""
PIECES = [event(delta(letter)) for letter in "abcdef"]
END = event(delta("", "stop"))
DELAY_S = 2.5
"""Longer than the proxies take a node for dead that has come back."""


def name_addresses(nodes: Sequence[GatewayProcess]) -> list[str]:
    return [node.url.removeprefix("http://") for node in nodes]


@contextlib.contextmanager
def run_nginx(folder: Path, nodes: Sequence[GatewayProcess]) -> Iterator[str]:
    """Run nginx with ``deploy/nginx/cluster.conf`` without its certificate."""
    nginx, port, other = find_tool("nginx", "nginx-light"), find_free_port(), find_free_port()
    site = (DEPLOY / "nginx" / "cluster.conf").read_text()
    for number, address in enumerate(name_addresses(nodes), start=11):
        site = site.replace(f"10.0.0.{number}:8080", address)
    site = re.sub(r"ssl_certificate.*;|listen \[::\].*\n", "", site)
    site = site.replace("listen 443 ssl http2", f"listen 127.0.0.1:{port}")
    site = site.replace("listen 80", f"listen 127.0.0.1:{other}")
    paths = "".join(f"{name}_temp_path {folder};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = folder / "nginx.conf"
    config.write_text(f"pid {folder}/pid; daemon off; events {{}} http {{ access_log off; {paths}\n{site} }}")
    with subprocess.Popen([nginx, "-e", str(folder / "error"), "-c", str(config), "-p", str(folder)]) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextlib.contextmanager
def run_caddy(folder: Path, nodes: Sequence[GatewayProcess]) -> Iterator[str]:
    """Run Caddy with ``deploy/Caddyfile.cluster`` without its certificate."""
    caddy, port = find_tool("caddy", "caddy"), find_free_port()
    site = (DEPLOY / "Caddyfile.cluster").read_text()
    for number, address in enumerate(name_addresses(nodes), start=11):
        site = site.replace(f"10.0.0.{number}:8080", address)
    site = site.replace("ai.example.com {", f"http://127.0.0.1:{port} {{")
    config = folder / "Caddyfile"
    config.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + site)
    command = [caddy, "run", "--adapter", "caddyfile", "--config", str(config)]
    environ = {**os.environ, "HOME": str(folder)}
    with (folder / "error").open("wb") as log, subprocess.Popen(command, env=environ, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


class Callers:
    """Each calls with a key of its own, now for a stream and now for a whole answer."""

    def __init__(self, url: str, secrets: Sequence[str], log: Path) -> None:
        self._url, self._secrets, self.log = url, secrets, log
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []
        self.going_on = True

    async def run(self, number: int) -> None:
        async with open_caller(self._secrets[number % len(self._secrets)]) as caller:
            while self.going_on:
                number += 1
                try:
                    await self._call(caller, stream=number % 2 == 0)
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    self.failed.append(repr(error))

    async def wait(self, more: int) -> None:
        until = self.done.total() + more

        async def is_reached() -> bool:
            return bool(self.failed) or self.done.total() >= until

        await eventually(is_reached, 60)
        assert not self.failed, (self.failed[0], self.log.read_text()[-2000:])

    async def _call(self, caller: aiohttp.ClientSession, *, stream: bool) -> None:
        body = {**HELLO, "model": "s" if stream else "m", "max_tokens": 10, "stream": stream}
        async with caller.post(self._url + CHAT, json=body) as response:
            content = await response.read()
        whole = not stream or (content.endswith(DONE) and content.count(b"data:") == len(PIECES) + 2)
        if response.status != 200 or not whole:
            self.failed.append(f"{response.status} {content.decode()[-300:]}")
        self.done["stream" if stream else "whole"] += 1


STREAM = [SSE_HEAD, *(step for piece in PIECES for step in (chunk(piece), 0.1)), chunk(END + DONE), LAST_CHUNK]
"""It takes 0.6 s."""


async def find_states(url: str) -> dict[str, int]:
    connection = await asyncpg.connect(url)
    try:
        found = await connection.fetchrow(
            "SELECT (SELECT count(*) FROM credit_leases) AS leases, (SELECT count(*) FROM requests) AS requests,"
            " (SELECT count(*) FROM requests WHERE outcome <> 'completed') AS incomplete"
        )
        return dict(found)
    finally:
        await connection.close()


async def is_answering(url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession() as client, client.get(f"{url}/healthz") as response:
            return response.status == 200
    return False


async def wait_for(proxy: str, log: Path) -> None:
    try:
        await eventually(lambda: is_answering(proxy), 30)
    except TimeoutError:
        raise AssertionError(log.read_text()[-4000:]) from None


async def find_readiness(node: GatewayProcess) -> int:
    """The status of ``/readyz`` over a new connection; 0 if none is accepted."""
    try:
        async with aiohttp.ClientSession() as client, client.get(f"{node.url}/readyz") as response:
            return response.status
    except aiohttp.ClientError:
        return 0


async def watch_stop(node: GatewayProcess, seen: list[int]) -> None:
    """Note how ``/readyz`` changes until no connection is accepted."""
    while not seen or seen[-1]:
        status = await find_readiness(node)
        if seen[-1:] != [status]:
            seen.append(status)
        await asyncio.sleep(0.02)


async def restart(node: GatewayProcess) -> None:
    """Stop a node in order and start it again at the same address."""
    seen: list[int] = [await find_readiness(node)]
    watching = asyncio.create_task(watch_stop(node, seen))
    node.port = int(node.url.rpartition(":")[2])
    assert await node.end() == 0
    await watching
    assert seen == [200, 503, 0], "it says that it stops before it accepts no more"
    await node.start()


@pytest.mark.parametrize("run_proxy", [run_nginx, pytest.param(run_caddy, marks=pytest.mark.soak)])
async def test_nodes_are_restarted_one_after_the_other_and_no_call_fails(
    run_proxy: Callable[[Path, Sequence[GatewayProcess]], AbstractContextManager[str]],
    tmp_path: Path,
    shared_postgres: SharedPostgres,
) -> None:
    url = await shared_postgres.empty()
    async with ScriptedUpstream([0.02, answer(COMPLETION)]) as up, ScriptedUpstream(STREAM) as streams:
        tables = {
            "server": {"log_format": "json", "shutdown_delay_s": DELAY_S, "trusted_proxies": ["127.0.0.1"]},
            "channel": [channel(up.base_url), channel(streams.base_url, "streams", models=["s"])],
            "account": [{"name": "acme"}],
            "price": [PRICE, {**PRICE, "model": "s"}],
            "cluster": {"enabled": True, "journal": "store"},
        }
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
            made = [
                await nodes[0].ask("keys", {"name": f"k{number}", "account": "acme", "quota_usd": 100.0})
                for number in range(KEYS)
            ]
            with run_proxy(tmp_path, nodes) as proxy:
                await wait_for(proxy, tmp_path / "error")
                callers = Callers(proxy, [key["secret"] for key in made], tmp_path / "error")
                calls = [asyncio.create_task(callers.run(number)) for number in range(KEYS)]
                for node in nodes:
                    await callers.wait(20)
                    await restart(node)
                await callers.wait(20)
                callers.going_on = False
                await asyncio.gather(*calls)
            assert [await node.end() for node in nodes] == [0, 0]
    found = await find_states(url)
    print(dict(callers.done), found)  # noqa: T201 - what happened
    assert callers.failed == []
    assert found == {"leases": 0, "requests": callers.done.total(), "incomplete": 0}
