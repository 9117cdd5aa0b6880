"""The nodes of ``compose.yaml`` are configured right, and the Caddy in front of them passes a killed one over."""

import asyncio
import contextlib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.loader import read_config
from tests.support.cluster import MASTER_KEY, start_nodes
from tests.support.gateway import CHAT, HELLO, KEY, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.sockets import find_free_port
from tests.support.tools import find_tool

ROOT = Path(__file__).resolve().parents[2]
NODES = ("node-1", "node-2")
KILLED_AFTER, MORE = 20, 60
"""Answers before a node is killed, and after."""


def read_services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return services


def expand(text: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+):-(.*?)\}", lambda found: variables.get(found[1], found[2]), text)


@pytest.mark.parametrize("name", NODES)
def test_the_environment_of_each_node_is_a_valid_configuration(name: str) -> None:
    service = read_services()[name]
    environ = {key: expand(value, {"GATEWAY_MASTER_KEY": MASTER_KEY}) for key, value in service["environment"].items()}
    config = read_config(None, environ)
    assert config.cluster.enabled
    assert config.cluster.url == f"http://{name}:8080"
    assert config.store.url == "postgresql://gateway:gateway@postgres/gateway"
    assert config.store.media_url == "/media"
    assert service["profiles"] == ["scale"]
    assert "media:/media" in service["volumes"]
    assert f"{name}:/data" in service["volumes"]


@contextlib.contextmanager
def run_caddy(folder: Path, nodes: Sequence[GatewayProcess]) -> Iterator[str]:
    """Run Caddy with the file of the composition, in front of ``nodes``; yield its address."""
    caddy, port = find_tool("caddy", "caddy"), find_free_port()
    site = (ROOT / "deploy" / "compose" / "Caddyfile").read_text()
    addresses = " ".join(node.url.removeprefix("http://") for node in nodes)
    assert "reverse_proxy node-1:8080 node-2:8080 {" in site
    site = site.replace("node-1:8080 node-2:8080", addresses).replace(":8080 {", f"http://127.0.0.1:{port} {{", 1)
    config = folder / "Caddyfile"
    config.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + site)
    command = [caddy, "run", "--adapter", "caddyfile", "--config", str(config)]
    environ = {**os.environ, "HOME": str(folder)}
    with (folder / "log").open("wb") as log, subprocess.Popen(command, env=environ, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_clients_of_the_balancer_get_answers_when_a_node_is_killed(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url = await shared_postgres.empty()
    keys = [{"name": f"k{number}", "account": "acme", "secret": f"{KEY}{number}"} for number in range(8)]
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "key": keys}
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
            with run_caddy(tmp_path, nodes) as balancer:
                answers: Counter[int | str] = Counter()
                going_on = True

                async def call_again(secret: str) -> None:
                    async with open_caller(secret) as caller:
                        while going_on:
                            try:
                                async with caller.post(balancer + CHAT, json=HELLO) as response:
                                    await response.read()
                                    answers[response.status] += 1
                            except OSError as error:
                                answers[type(error).__name__] += 1

                async def has(count: int) -> bool:
                    return answers[200] >= count

                async def is_listening() -> bool:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", int(balancer.rpartition(":")[2]))
                        writer.close()
                        return True
                    return False

                await eventually(is_listening, 30)
                calls = [asyncio.create_task(call_again(key["secret"])) for key in keys]
                await eventually(lambda: has(KILLED_AFTER), 30)
                await nodes[0].kill()
                before = answers[200]
                await eventually(lambda: has(before + MORE), 60)
                going_on = False
                await asyncio.gather(*calls)
    assert set(answers) <= {200, 502}, answers
    assert answers[502] <= 2 * len(keys)  # what was at the node when it was killed, and connections that were kept
