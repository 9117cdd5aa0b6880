"""``gateway chat`` and ``gateway open``."""

import asyncio
import json
import os
import pty
import sys

import pytest

from tests.support.cli_operator import log, sit_down
from tests.support.command_line import AT_A_TERMINAL, environment
from tests.support.gateway import KEY, channel
from tests.support.scripted_upstream import LAST_CHUNK, SSE_HEAD, ScriptedUpstream, answer, chat_events, chunk
from tests.support.started_gateways import StartGateway

__all__ = ["log"]
"""A fixture of every test here, too."""
REPLY = [SSE_HEAD, *map(chunk, chat_events("Rhine,\n", "Po\x1b[31m")), LAST_CHUNK]


async def test_one_answer_is_printed_and_the_temporary_key_is_deleted(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(REPLY) as up:
        operator = await sit_down(gateway_with, {"channel": [channel(up.base_url)]})
        words = ("chat", "m", "Name", "two rivers", "--system", "Be brief")
        assert await operator.see(*words) == "Rhine,\nPo\ufffd[31m\n"
        assert json.loads(up.received[-1].body)["messages"] == [
            {"role": "system", "content": "Be brief"},
            {"role": "user", "content": "Name two rivers"},
        ]
        assert await operator.ask("chat", stdin="Name two rivers\n") == {"model": "m", "content": "Rhine,\nPo\x1b[31m"}
        assert json.loads(up.received[-1].body)["messages"] == [{"role": "user", "content": "Name two rivers"}]
        assert [key["name"] for key in (await operator.ask("keys"))["data"]] == ["test"]
        rows = await operator.gateway.rows(2)
        assert all(row.key_name.startswith("chat-") for row in rows)


async def test_an_error_of_a_chat_is_shown_and_the_temporary_key_is_deleted(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({"error": {"message": "Too long for me"}}, 400)]) as up:
        operator = await sit_down(gateway_with, {"channel": [channel(up.base_url)]})
        refused = await operator.type("chat", "m", "hi")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "Too long for me" in refused.stderr
        assert len((await operator.ask("keys"))["data"]) == 1
        unknown = await operator.type("chat", "nothing", "hi", "--api-key", KEY)
        assert (unknown.exit_code, "nothing" in unknown.stderr) == (1, True)
        bad = await operator.type("chat", "m", "hi", "--api-key", "sk-wrong")
        assert (bad.exit_code, "Traceback" in bad.stderr) == (1, False)


@pytest.mark.slow
async def test_at_a_terminal_every_line_is_a_prompt_and_the_model_gets_the_whole_chat(
    gateway_with: StartGateway,
) -> None:
    async with ScriptedUpstream(REPLY) as up:
        operator = await sit_down(gateway_with, {"channel": [channel(up.base_url)]})
        words = ["chat", "m", "--api-key", KEY, "--data", str(operator.gateway.folder.path)]
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", AT_A_TERMINAL, *words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment()
        )
        os.close(theirs)
        printed = ""
        for number, typed in enumerate(("one\n", "two\n", "\x04"), 1):
            while printed.count(">>> ") < number:
                printed += (await asyncio.to_thread(os.read, ours, 4096)).decode()
            os.write(ours, typed.encode())
        assert await process.wait() == 0
        os.close(ours)
        sent = [message["content"] for message in json.loads(up.received[-1].body)["messages"]]
        assert sent == ["one", "Rhine,\nPo\x1b[31m", "two"]


async def test_the_consoles_address_is_printed_and_opened(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = await sit_down(gateway_with)
    url = f"{operator.gateway.url}/console"
    printed = await operator.type("open", "--print")
    assert (printed.exit_code, printed.stdout) == (0, f"{url}\n")
    assert "There is no administrator yet" in printed.stderr
    assert await operator.ask("open") == {"url": url}
    seen = operator.gateway.folder.path / "opened"
    script = seen.with_suffix(".sh")
    script.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    script.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{script} %s")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "open", "--data", str(operator.gateway.folder.path),
        env={**environment(), "BROWSER": f"{script} %s"},
    )  # fmt: skip
    assert await process.wait() == 0
    assert seen.read_text() == f"{url}\n"
