"""How to call the gateway: snippets with real values, safe whatever a model is called."""

import asyncio
import re
import shlex
import subprocess
import sys
import tomllib

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.console.connect import (
    format_json_text,
    format_opencode_text,
    format_shell_json_text,
    format_shell_text,
)
from gateway.server.context import SERVICES
from tests.support.connect_page import read_snippets
from tests.support.console_people import invite, make_administrator
from tests.support.gateway import KEY, channel
from tests.support.started_gateways import StartGateway

MODEL = """it's "q" <b>&{{7+7}} $HOME `id` !! \\ {env:HOME}"""
_NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40)


@given(_NAMES)
def test_a_model_stands_between_quotes_as_what_it_is(name: str) -> None:
    assert orjson.loads(f'"{format_json_text(name)}"') == name
    (body,) = shlex.split(f'\'{{"model": "{format_shell_json_text(name)}"}}\'')
    assert orjson.loads(body) == {"model": name}


def test_an_interactive_shell_reads_a_model_between_quotes_as_what_it_is() -> None:
    line = f"printf %s '{format_shell_text(MODEL)}'\n"
    answer = subprocess.run(["bash", "--norc", "-i"], input=line.encode(), capture_output=True, check=True)
    assert answer.stdout.decode() == MODEL


def test_opencode_expands_nothing_in_the_name_of_a_model() -> None:
    text = format_opencode_text(MODEL)
    assert "{" not in text
    assert orjson.loads(f'"{text}"') == MODEL


async def test_the_snippets_have_the_address_and_a_model_and_no_secret(gateway_with: StartGateway) -> None:
    config = {"channel": [channel("http://127.0.0.1:9/v1", models=["zz-embedding", MODEL])]}
    gateway = await gateway_with({**config, "server": {"base_url": "https://ai.example.com/"}})
    ada = await make_administrator(gateway)
    ben = await invite(ada, "ben", "member", "acme")
    async with ada.session, ben.session:
        status, text = await ben.open("/connect")
        assert status == 200
        assert KEY not in text
        plain = read_snippets(text)
        assert plain["base"] == "https://ai.example.com/v1"
        assert plain["model"] == plain["cline-model"] == MODEL, "the first that chats"
        command = shlex.split(plain["curl"])
        assert "https://ai.example.com/v1/chat/completions" in command
        assert "Authorization: Bearer YOUR_KEY" in command
        assert orjson.loads(command[-1])["model"] == MODEL
        assert orjson.loads(plain["zed"])["language_models"]["openai_compatible"]["Gateway"]["api_url"] == plain["base"]
        assert 'ANTHROPIC_BASE_URL="https://ai.example.com"' in plain["claude-code"]
        assert '{"base_url": "https://ai.example.com"}' in plain["google"]
        assert 'GOOGLE_GEMINI_BASE_URL="https://ai.example.com"' in plain["gemini-cli"]
        codex = tomllib.loads(plain["codex"])
        assert (codex["model"], codex["model_providers"]["gateway"]["base_url"]) == (MODEL, plain["base"])
        opencode = orjson.loads(plain["opencode"])
        assert opencode["provider"]["gateway"]["options"]["baseURL"] == plain["base"]
        assert [*opencode["provider"]["gateway"]["models"]] == [MODEL]
        assert yaml.safe_load(plain["continue"])["models"][0]["model"] == MODEL
        assert yaml.safe_load(plain["librechat"])["endpoints"]["custom"][0]["models"]["default"] == [MODEL]
        assert "host.docker.internal" not in text
        assert "<b>&" not in text
        tabs = re.findall(r'aria-controls="(panel-\S+)"', text)
        assert sorted(tabs) == sorted(re.findall(r'role="tabpanel" id="(panel-\S+)"', text))


async def test_who_may_call_is_offered_a_chat_and_a_key_of_its_own_account(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    ada = await make_administrator(gateway)
    await gateway.app[SERVICES].auth.accounts.add_account({"name": "other"})
    await gateway.app[SERVICES].auth.accounts.add_key({"name": "theirs", "account": "other"})
    eve = await invite(ada, "eve", "viewer", "acme")
    async with ada.session, eve.session:
        _, text = await ada.open("/connect")
        assert gateway.url + "/v1" in text
        assert "host.docker.internal" in text
        assert "theirs" not in text, "a call of a page is paid by a key of one's own account"
        assert '<option value="demo-chat" selected>' in text
        assert 'data-name="connect" data-account="acme"' in text
        assert (await ada.call("POST", "/keys", {"name": "connect", "account": "acme"}))[0] == 201
        assert 'data-name="connect 2"' in (await ada.open("/connect"))[1]
        _, text = await eve.open("/connect")
        assert gateway.url + "/v1" in text
        for refused in ("make-key", 'id="trial"', "trial.js"):
            assert refused not in text
        assert "Viewers cannot create keys" in text


@pytest.mark.parametrize(
    ("snippet", "command"),
    [("curl", ["sh", "-c"]), ("python", [sys.executable, "-c"]), ("google", [sys.executable, "-c"])],
)
async def test_a_snippet_runs_as_it_was_copied(
    gateway_with: StartGateway, snippet: str, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    ada = await make_administrator(await gateway_with({}))
    async with ada.session:
        _, key = await ada.call("POST", "/keys", {"name": "connect", "account": "acme"})
        code = read_snippets((await ada.open("/connect"))[1], key["secret"])[snippet]
    assert key["secret"] in code
    process = await asyncio.create_subprocess_exec(
        *command, code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    assert b"Hello" in output or b"demo" in output, output
