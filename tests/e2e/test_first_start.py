"""The first start as a newcomer sees it: with no key, and with a key that its provider rejects."""

import asyncio
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.forked_commands import Forked
from tests.support.scripted_upstream import ScriptedUpstream, answer

WAIT_LIMIT_S = 30
REJECTED = {
    "error": {"message": "Incorrect API key provided", "type": "invalid_request_error", "code": "invalid_api_key"}
}
SHELL = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}


async def start(data: Path, **environ: str) -> tuple[Forked, str]:
    """Start the gateway; return it with what it printed to the end of its message."""
    out, err = data.with_suffix(".out"), data.with_suffix(".err")
    words = ["gateway", "serve", "--port", "0", "--data", str(data)]
    process = Forked(words, cwd=data.parent, env={**SHELL, **environ}, out=out, err=err)
    until = time.monotonic() + WAIT_LIMIT_S
    while "client = " not in out.read_text():
        assert time.monotonic() < until, err.read_text()
        assert process.poll() is None, err.read_text()
        await asyncio.sleep(0.01)
    return process, out.read_text()


async def paste(message: str) -> str:
    """Run the two commands of the message in a shell of its own; return what they print."""
    pasted = message.partition("Try it:\n")[2].partition("Or with")[0]
    assert re.match(r"\s*export GATEWAY_KEY=sk-\S+\n\s*curl -N ", pasted)
    shell = await asyncio.create_subprocess_exec("sh", "-c", pasted, env=SHELL, stdout=subprocess.PIPE)
    printed, _ = await asyncio.wait_for(shell.communicate(), WAIT_LIMIT_S)
    return printed.decode()


async def test_the_printed_lines_stream_an_answer_if_there_is_no_key(tmp_path: Path) -> None:
    process, message = await start(tmp_path / "data", GATEWAY_DISCOVER="0")
    try:
        printed = await paste(message)
    finally:
        process.kill()
        process.wait()
    assert "(built-in demo: no channel is configured)" in message
    assert printed.count("data: {") > 2
    assert printed.rstrip().endswith("data: [DONE]")


async def test_the_printed_lines_stream_an_answer_if_the_provider_rejects_the_key(tmp_path: Path) -> None:
    async with ScriptedUpstream([answer(REJECTED, 401)]) as up:
        process, message = await start(tmp_path / "data", OPENAI_API_KEY="sk-dead", OPENAI_BASE_URL=up.base_url)
        try:
            printed = await paste(message)
        finally:
            process.kill()
            process.wait()
    assert up.received[0].headers["authorization"] == "Bearer sk-dead"
    assert "(built-in demo: no provider has answered)" in message
    assert re.search(r"failing   openai: .*credentials", message)
    assert "sk-dead" not in message
    assert printed.count("data: {") > 2
    assert printed.rstrip().endswith("data: [DONE]")


async def test_a_provider_that_accepts_the_key_takes_the_place_of_the_demo(tmp_path: Path) -> None:
    models = {"object": "list", "data": [{"id": "gpt-5-mini", "object": "model", "created": 1, "owned_by": "openai"}]}
    async with ScriptedUpstream([answer(models)]) as up:
        environ = {"OPENAI_API_KEY": "sk-live", "OPENAI_BASE_URL": up.base_url}
        process, message = await start(tmp_path / "data", **environ)
        process.kill()
        process.wait()
    assert '"model":"gpt-5-mini"' in message
    assert "demo" not in message
    assert "failing" not in message


@pytest.mark.parametrize(("no_color", "colored"), [("", True), ("1", False)])
def test_at_a_terminal_the_first_start_prints_nothing_before_its_message(
    tmp_path: Path, no_color: str, *, colored: bool
) -> None:
    primary, secondary = pty.openpty()
    words = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    environ = {**SHELL, "GATEWAY_DISCOVER": "0", "NO_COLOR": no_color, "TERM": "xterm"}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    process = subprocess.Popen(words, cwd=tmp_path, env=environ, stdin=secondary, stdout=secondary, stderr=secondary)
    os.close(secondary)
    shown = b""
    try:
        while b"client = " not in shown:
            assert select.select([primary], [], [], WAIT_LIMIT_S)[0], shown
            shown += os.read(primary, 65536)
    finally:
        process.kill()
        process.wait()
        os.close(primary)
    assert shown.decode().lstrip().startswith("Model gateway ")
    assert "[info" not in shown.decode()
    assert (b"\x1b[" in shown) is colored
