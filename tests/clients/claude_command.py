"""Claude Code without its host: one prompt, and a command that the model asks for."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from steps import HELLO, KEY, URL, Skip, Step, run

SCRIPT = Path(sys.argv[1]) / "node_modules" / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"
NOTE = "the harbour is closed"


def list_steps(model: str) -> dict[str, Step]:
    return {"chat": lambda: ask(model, "Hello", HELLO), "tools": lambda: ask(model, "What does note.txt say?", NOTE)}


def ask(model: str, prompt: str, wanted: str) -> None:
    node = shutil.which("node")
    if node is None:
        raise Skip("no node on this machine")
    env = {
        **os.environ,
        "ANTHROPIC_BASE_URL": URL,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "DISABLE_AUTOUPDATER": "1",
    }
    command = [node, str(SCRIPT), "--print", "--allowedTools", "Bash(cat:*)", "--", prompt]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "note.txt").write_text(NOTE)
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
    if wanted not in done.stdout:
        raise AssertionError(f"exit code {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")


run(list_steps)
