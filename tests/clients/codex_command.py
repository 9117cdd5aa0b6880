"""Codex without its host: one prompt, and a command that the model asks for."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from steps import HELLO, KEY, URL, Step, run

COMMAND = str(Path(sys.argv[1]) / "node_modules" / ".bin" / "codex")
HOME = Path.home() / ".codex"
HOME.mkdir()
CONFIG = f"""
model_provider = "gateway"
web_search = "disabled"

[model_providers.gateway]
name = "Gateway"
base_url = "{URL}/v1"
env_key = "GATEWAY_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
NOTE = "the harbour is closed"


def list_steps(model: str) -> dict[str, Step]:
    return {"chat": lambda: ask(model, "Hello", HELLO), "tools": lambda: ask(model, "What does note.txt say?", NOTE)}


def ask(model: str, prompt: str, wanted: str) -> None:
    (HOME / "config.toml").write_text(CONFIG)
    env = {**os.environ, "GATEWAY_KEY": KEY, "CODEX_HOME": str(HOME)}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "note.txt").write_text(NOTE)
        last = Path(folder) / "last.txt"
        command = [
            COMMAND, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
            "--model", model, "--output-last-message", str(last), prompt,
        ]  # fmt: skip
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        answered = last.read_text() if last.exists() else ""
    if wanted not in answered:
        raise AssertionError(f"exit code {done.returncode}, answer {answered!r}: {done.stderr[-700:]}")


run(list_steps)
