"""The snippets of the README run as they are printed, against a gateway with no configuration."""

import asyncio
import contextlib
import io
import re
import shlex
from pathlib import Path

import aiohttp
import orjson
import pytest
import pytest_asyncio

from gateway.server.context import SERVICES
from tests.support.gateway import RunningGateway
from tests.support.started_gateways import StartGateway

README = (Path(__file__).parents[2] / "README.md").read_text()
ADDRESS = "http://127.0.0.1:8080"
KEY = "sk-…"


def find_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest_asyncio.fixture(loop_scope="session")
async def fresh(gateway_with: StartGateway) -> RunningGateway:
    return await gateway_with({"account": [], "key": []})


async def test_the_python_snippets_run_in_order(
    fresh: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = find_blocks("python")
    assert len(blocks) >= 2
    code = "\n".join(blocks).replace(ADDRESS, fresh.url).replace(KEY, fresh.app[SERVICES].startup_info.secret)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        await asyncio.to_thread(exec, compile(code, "README.md", "exec"), {})
    assert "Hello" in printed.getvalue()
    assert f"{fresh.url}/media/" in printed.getvalue()
    assert (tmp_path / "hello.wav").stat().st_size > 1_000


async def test_the_curl_commands_are_answered(fresh: RunningGateway) -> None:
    secret = fresh.app[SERVICES].startup_info.secret
    shell = "\n".join(find_blocks("sh"))
    commands = re.findall(r"^curl (?:.*\\\n)*.*$", shell, re.MULTILINE)
    assert len(commands) >= 2
    assert "export GATEWAY_KEY=" in shell, "what the commands use is set before"
    for command in commands:
        words = shlex.split(command.replace("$GATEWAY_KEY", secret).replace(ADDRESS, fresh.url))
        (url,) = [word for word in words if word.startswith(fresh.url)]
        headers = dict(words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H")
        body = orjson.loads(words[words.index("-d") + 1])
        async with aiohttp.ClientSession() as client, client.post(url, json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            assert await response.read()


def test_every_link_to_a_file_leads_to_one() -> None:
    root = Path(__file__).parents[2]
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if not link.startswith("http")]
    assert len(links) >= 5
    assert [link for link in links if not (root / link).exists()] == []
