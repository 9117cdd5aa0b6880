"""What is in ``deploy/`` and the Dockerfile: each proxy passes a stream event by event, each file is well formed."""

import asyncio
import contextlib
import io
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import yaml

from gateway.config.loader import read_config
from tests.support.fault_scene import UNHURRIED
from tests.support.gateway import HELLO, KEY, channel
from tests.support.proxies import make_context
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Received,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
    delta,
    event,
)
from tests.support.sockets import find_free_port
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows
from tests.support.tools import find_tool

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
PIECES = [event(delta("a")), event(delta("b")), event(delta("", "stop")), DONE]
"""A chat stream; each piece leaves the provider when the client has the one before."""
JSON = {"Content-Type": "application/json"}
WAIT_LIMIT_S = 30
LARGE = 8 * 2**20
"""More than nginx takes without being told to."""


@contextlib.contextmanager
def run_nginx(folder: Path, gateway: str) -> Iterator[str]:
    """Run nginx with the site of ``deploy/nginx``: its addresses and its certificate are replaced."""
    nginx, port, http = find_tool("nginx", "nginx-light"), find_free_port(), find_free_port()
    _, certificate = make_context(folder, "127.0.0.1")
    site = (DEPLOY / "nginx" / "gateway.conf").read_text().replace("127.0.0.1:8080", gateway)
    site = re.sub(r"listen \[::\].*\n", "", site).replace("listen 443", f"listen 127.0.0.1:{port}")
    site = site.replace("listen 80", f"listen 127.0.0.1:{http}")
    site = re.sub(r"(ssl_certificate +).*;", rf"\1{certificate};", site)
    site = re.sub(r"(ssl_certificate_key +).*;", rf"\1{folder}/key.pem;", site)
    paths = "".join(f"{name}_temp_path {folder};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = folder / "nginx.conf"
    config.write_text(f"pid {folder}/pid; daemon off; events {{}} http {{ access_log off; {paths}\n{site} }}")
    with subprocess.Popen([nginx, "-e", str(folder / "error"), "-c", str(config), "-p", str(folder)]) as process:
        try:
            yield f"https://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextlib.contextmanager
def run_caddy(folder: Path, gateway: str) -> Iterator[str]:
    """Run Caddy with ``deploy/Caddyfile``: its addresses are replaced, and its certificate is its own."""
    caddy, port = find_tool("caddy", "caddy"), find_free_port()
    site = (DEPLOY / "Caddyfile").read_text().replace("127.0.0.1:8080", gateway)
    site = site.replace("ai.example.com {", f"http://127.0.0.1:{port} {{")
    config = folder / "Caddyfile"
    config.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + site)
    command = [caddy, "run", "--adapter", "caddyfile", "--config", str(config)]
    environ = {**os.environ, "HOME": str(folder)}
    with (folder / "log").open("wb") as log, subprocess.Popen(command, env=environ, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def open_client(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client of the proxy, once the proxy answers."""
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(url, connector=connector, headers={"Authorization": f"Bearer {KEY}"}) as client:
        async with asyncio.timeout(WAIT_LIMIT_S):
            while True:
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    async with client.get("/healthz") as response:
                        assert response.status == 200
                        break
                await asyncio.sleep(0.02)
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("run_proxy", [run_nginx, run_caddy])
async def test_a_proxy_passes_streams_addresses_and_large_bodies(
    run_proxy: type[contextlib.AbstractContextManager[str]], standing_with: StartGateway, tmp_path: Path
) -> None:
    heard = asyncio.Event()

    async def wait_for_client(_received: Received) -> None:
        await asyncio.wait_for(heard.wait(), WAIT_LIMIT_S)
        heard.clear()

    script: list[Step] = [SSE_HEAD]
    for piece in PIECES:
        script += [chunk(piece), wait_for_client]
    async with ScriptedUpstream([*script, LAST_CHUNK], [answer(COMPLETION)]) as up:
        key = {"name": "test", "account": "acme", "secret": KEY, "allow_ips": ["127.0.0.1"]}
        gateway = await standing_with(
            {"server": {"trusted_proxies": ["127.0.0.1"]}, "channel": [channel(up.base_url, **UNHURRIED)], "key": [key]}
        )
        with run_proxy(tmp_path, gateway.url.removeprefix("http://")) as url:  # type: ignore[call-arg]
            async with open_client(url) as client:
                async with client.post("/v1/chat/completions", json={**HELLO, "stream": True}) as response:
                    assert response.status == 200
                    for piece in PIECES:
                        assert await asyncio.wait_for(response.content.readexactly(len(piece)), WAIT_LIMIT_S) == piece
                        heard.set()
                large = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * LARGE}]})
                async with client.post("/v1/chat/completions", data=io.BytesIO(large), headers=JSON) as response:
                    assert response.status != 413, await response.text()
                assert len(up.received[-1].body) > LARGE
                # A client cannot choose the address that the gateway sees.
                async with client.get("/v1/models", headers={"X-Forwarded-For": "203.0.113.7"}) as response:
                    assert response.status == 200


def read_instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile: word and arguments."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_runs_without_root_and_copies_what_is_there() -> None:
    instructions = read_instructions()
    assert [rest for word, rest in instructions if word == "USER"] == ["10001"]
    copied = [rest.split() for word, rest in instructions if word == "COPY" and not rest.startswith("--from")]
    allowed = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    for *sources, _ in copied:
        for source in sources:
            assert list(ROOT.glob(source.rstrip("/"))), source
            assert any(source.rstrip("/") == name or name.startswith(source) for name in allowed), source
    assert all(word != "ADD" for word, _ in instructions)


def test_the_image_has_the_drivers_of_postgresql_and_s3_pinned_by_hash(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "pins-dev.txt", tmp_path / "scripts")
    (cut,) = (
        rest for word, rest in read_instructions() if word == "RUN" and "pins-postgres.txt" in rest and "sed" in rest
    )
    subprocess.run(["sh", "-c", cut], cwd=tmp_path, check=True)
    lines = (tmp_path / "scripts" / "pins-postgres.txt").read_text().replace("\\\n", "").splitlines()
    assert [line.partition("==")[0] for line in lines] == ["asyncpg", "obstore"]
    assert all("--hash=sha256:" in line for line in lines)
    assert any("-r scripts/pins-postgres.txt" in rest for word, rest in read_instructions() if word == "RUN")


def test_the_composition_keeps_the_root_read_only() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    gateway = services["gateway"]
    assert gateway["read_only"]
    assert gateway["cap_drop"] == ["ALL"]
    assert {name for name, service in services.items() if "profiles" not in service} == {"gateway"}
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists(), source


def render_chart(*values: str) -> list[dict[str, Any]]:
    helm = find_tool("helm", "helm") if shutil.which("helm") else pytest.skip("no helm: https://helm.sh")
    chart = str(DEPLOY / "helm" / "model-gateway")
    options = ["--set", ",".join(values)] if values else []
    subprocess.run([helm, "lint", "--strict", chart, *options], check=True, capture_output=True)
    done = subprocess.run([helm, "template", "x", chart, *options], check=True, capture_output=True, text=True)
    return list(yaml.safe_load_all(done.stdout))


def test_the_chart_renders_what_kubernetes_knows() -> None:
    made = render_chart("ingress.enabled=true", "existingSecret=keys", "settings=[server]")
    assert [each["kind"] for each in made] == ["ConfigMap", "Service", "StatefulSet", "Ingress"]
    assert made[2]["spec"]["replicas"] == 1


@table_rows(("journal", "kind"), [("disk", "StatefulSet"), ("store", "Deployment")])
def test_the_chart_renders_nodes_of_a_cluster(journal: str, kind: str) -> None:
    made = {each["kind"]: each for each in render_chart(
        "cluster.enabled=true", f"cluster.journal={journal}", "cluster.replicas=3", "existingSecret=keys"
    )}  # fmt: skip
    assert set(made) == {"PodDisruptionBudget", "Service", kind}
    spec = made[kind]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    environ = {
        each["name"]: each.get("value", "10.1.2.3").replace("$(POD_IP)", "10.1.2.3") for each in container["env"]
    }
    del environ["POD_IP"]
    secret = {"GATEWAY_STORE__URL": "postgresql://db/gateway", "GATEWAY_STORE__MASTER_KEY": "5a" * 32}
    config = read_config(None, environ | secret)
    assert (config.cluster.enabled, config.cluster.journal) == (True, journal)
    assert config.cluster.url == "http://10.1.2.3:8080"
    assert pod["terminationGracePeriodSeconds"] > config.server.shutdown_delay_s + config.server.drain_timeout_s + 5
    assert spec["replicas"] == 3
    assert ("volumeClaimTemplates" in spec) == (journal == "disk")
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert made["PodDisruptionBudget"]["spec"]["selector"] == spec["selector"]


@table_rows("value", ["cluster.journal=none", "cluster.enabled=true"])
def test_the_chart_refuses_a_cluster_that_cannot_start(value: str) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        render_chart(value)
