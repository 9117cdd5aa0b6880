"""nginx and Caddy in front of nodes, as ``deploy`` has them, and callers of the nodes behind them."""

import contextlib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import aiohttp

from tests.support.gateway import CHAT, HELLO
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.scripted_upstream import DONE, LAST_CHUNK, SSE_HEAD, chunk, delta, event
from tests.support.sockets import find_free_port
from tests.support.tools import find_tool

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RunProxy = Callable[[Path, Sequence[GatewayProcess]], AbstractContextManager[str]]
PIECES = [event(delta(letter)) for letter in "abcdef"]
END = event(delta("", "stop"))
STREAM = [SSE_HEAD, *(step for piece in PIECES for step in (chunk(piece), 0.1)), chunk(END + DONE), LAST_CHUNK]
"""It takes 0.6 s."""


def name_addresses(nodes: Sequence[GatewayProcess]) -> list[str]:
    return [node.url.removeprefix("http://") for node in nodes]


@contextlib.contextmanager
def run_nginx(folder: Path, nodes: Sequence[GatewayProcess]) -> Iterator[str]:
    """Run nginx with ``deploy/nginx/cluster.conf`` without its certificate. Its log is ``error`` in the folder."""
    site = (DEPLOY / "nginx" / "cluster.conf").read_text()
    first, *others = name_addresses(nodes)
    site = site.replace("10.0.0.11:8080", first)
    site = re.sub(r"10\.0\.0\.12:8080(.*\n)", lambda line: "server ".join(each + line[1] for each in others), site)
    with _run_nginx(folder, site) as url:
        yield url


@contextlib.contextmanager
def run_single_nginx(folder: Path, address: str) -> Iterator[str]:
    """Run nginx with ``deploy/nginx/gateway.conf`` in front of one gateway. Its log is ``error`` in the folder."""
    site = (DEPLOY / "nginx" / "gateway.conf").read_text()
    with _run_nginx(folder, site.replace("127.0.0.1:8080", address)) as url:
        yield url


@contextlib.contextmanager
def _run_nginx(folder: Path, site: str) -> Iterator[str]:
    nginx, port, other = find_tool("nginx", "nginx-light"), find_free_port(), find_free_port()
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
    """Run Caddy with ``deploy/Caddyfile.cluster`` without its certificate. Its log is ``error`` in the folder."""
    caddy, port = find_tool("caddy", "caddy"), find_free_port()
    site = (DEPLOY / "Caddyfile.cluster").read_text()
    site = site.replace("10.0.0.11:8080 10.0.0.12:8080", " ".join(name_addresses(nodes)))
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
        async with open_caller(self._secrets[number % len(self._secrets)], 60) as caller:
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
            self.failed.append(f"{response.status} of {response.headers.get('Server')}: {content.decode()[-300:]}")
        self.done["stream" if stream else "whole"] += 1


async def is_answering(url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession() as client, client.get(f"{url}/healthz") as response:
            return response.status == 200
    return False


async def wait_for_proxy(proxy: str, log: Path) -> None:
    try:
        await eventually(lambda: is_answering(proxy), 30)
    except TimeoutError:
        raise AssertionError(log.read_text()[-4000:]) from None
