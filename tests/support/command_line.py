"""The gateway's command line, run in processes of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from click.testing import CliRunner, Result

from gateway.cli.main import main
from gateway.storage.data_folder import find_holder
from tests.support.forked_commands import Forked

GATEWAY = [sys.executable, "-m", "gateway"]


# Ctrl-C as in a terminal: a shell that puts the tests into the background has it ignored, and children inherit that.
AT_A_TERMINAL = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("gateway", run_name="__main__", alter_sys=True)
"""


WAIT_LIMIT_S = 30
"""What is waited for comes sooner; only a machine with much else to do is this slow."""


Process = Forked | subprocess.Popen[str]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return {**kept, "GATEWAY_DISCOVER": "0", "PYTHONPATH": str(Path(__file__).parent.parent)}


MANY = "tests.support.many_commands"


def run_many(cwd: Path, *commands: list[str]) -> list[list[Any]]:
    """Exit code, stdout and stderr of each, in a process of their own that has its imports behind it."""
    out, err = cwd / "many.out", cwd / "many.err"
    process = Forked([MANY, json.dumps(commands)], cwd=cwd, env=environment(), out=out, err=err)
    with ended_with_the_test(process):
        assert process.wait(WAIT_LIMIT_S * len(commands)) == 0, err.read_text()
    done: list[list[Any]] = json.loads(out.read_text())["done"]
    return done


@attrs.frozen
class Server:
    process: Forked
    data: Path
    greeting: str

    @property
    def url(self) -> str:
        return str((find_holder(self.data) or {})["url"])

    @property
    def secret(self) -> str:
        return next(word for word in self.greeting.split() if word.startswith("sk-"))

    def invoke(self, *args: str, **kwargs: Any) -> Result:
        return CliRunner().invoke(main, [*args, "--data", str(self.data)], **kwargs)

    def ask(self, *args: str) -> Any:
        result = self.invoke(*args, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def chat(self, secret: str, url: str = "", body: str = "", **more: Any) -> str:
        body = body or json.dumps({"model": "demo-chat", "messages": [{"role": "user", "content": "hi"}], **more})
        request = urllib.request.Request(  # noqa: S310 - http only
            url or f"{self.url}/v1/chat/completions",
            body.encode(),
            {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=WAIT_LIMIT_S) as response:  # noqa: S310
            return str(response.read().decode())

    def tidy(self) -> None:
        """Delete what a test has added: the next one finds the first account and the first key alone."""
        for account in self.ask("accounts")["data"]:
            if account["name"] != "local":
                self.ask("accounts", "delete", account["name"], "--yes")
        for key in self.ask("keys")["data"]:
            if key["id"] != 1:
                self.ask("keys", "delete", str(key["id"]), "--yes")


@contextlib.contextmanager
def ended_with_the_test(process: Process) -> Iterator[None]:
    """Whatever becomes of the test, its process does not outlive it."""
    try:
        yield
    finally:
        process.kill()
        process.wait()


def start_server(data: Path) -> Server:
    """A gateway that has greeted; ``stop_server`` ends it."""
    out, err = data.with_suffix(".out"), data.with_suffix(".log")
    words = ["gateway", "serve", "--port", "0", "--data", str(data)]
    process = Forked(words, cwd=data.parent, env=environment(), out=out, err=err)
    greeting = ""
    try:
        greeting = read_greeting(process, out)
    finally:
        if not greeting:
            process.kill()
            process.wait()
    return Server(process, data, greeting)


def read_greeting(process: Forked, out: Path) -> str:
    """All of it. Fails where the process ends first."""
    until = time.monotonic() + WAIT_LIMIT_S
    while time.monotonic() < until and process.poll() is None:
        output = out.read_text()
        if "client = " in output or "gateway keys add" in output:
            return output
        time.sleep(0.005)
    raise AssertionError(f"the gateway did not greet: {out.with_suffix('.log').read_text()}")


def stop_server(server: Server, number: signal.Signals) -> int:
    with ended_with_the_test(server.process):
        server.process.send_signal(number)
        return server.process.wait(WAIT_LIMIT_S)


@contextlib.contextmanager
def serving(data: Path, ended_by: signal.Signals) -> Iterator[Server]:
    """A gateway that has greeted; ``ended_by`` must end it in order."""
    server = start_server(data)
    with ended_with_the_test(server.process):
        yield server
        assert stop_server(server, ended_by) == 0
