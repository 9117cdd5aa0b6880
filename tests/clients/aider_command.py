"""aider, with one message and no repository of its own to begin with."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from steps import HELLO, KEY, URL, Step, expect, run

COMMAND = str(Path(sys.executable).parent / "aider")
QUIET = (
    "--no-check-update", "--analytics-disable", "--no-show-model-warnings", "--no-gitignore", "--yes-always",
    "--no-pretty", "--no-git", "--no-suggest-shell-commands", "--no-detect-urls",
)  # fmt: skip


def list_steps(model: str) -> dict[str, Step]:
    return {"chat": lambda: ask(model, "--no-stream"), "stream": lambda: ask(model, "--stream")}


def ask(model: str, *words: str) -> None:
    env = {**os.environ, "OPENAI_API_BASE": f"{URL}/v1", "OPENAI_API_KEY": KEY, "TERM": "dumb"}
    command = [COMMAND, *QUIET, *words, "--model", f"openai/{model}", "--message", "Hello"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)
    if HELLO not in done.stdout:
        raise AssertionError(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    expect(done.returncode, 0)


run(list_steps)
