"""A process with SQLite, one OpenAI channel and no extra imports what it uses, and nothing besides."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sockets import find_free_port

SERVE = """
import os, signal, sys, threading, urllib.error, urllib.request
from gateway.cli.main import main

def report(url):
    while True:
        try:
            urllib.request.urlopen(url, timeout=1)
            break
        except OSError:
            threading.Event().wait(0.02)
    watched = {"gateway", "rich", "babel", "alembic", "jinja2", "sqlalchemy"}
    names = sorted(name for name in sys.modules if name.partition(".")[0] in watched)
    print("\\nMODULES " + " ".join(names), flush=True)  # in one piece: the other thread may print its address now
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=report, args=[sys.argv.pop()], daemon=True).start()
main()
"""
"""Serves until it is ready, and prints its modules."""
FILE = """
[[channel]]
name = "up"
provider = "openai"
api_keys = ["sk-none"]
models = ["gpt-5-mini"]
"""
MAX_LINES = 56_600
"""Of the gateway's modules."""
UNUSED = (
    "alembic", "babel", "gateway.alerts", "gateway.auth.sessions", "gateway.batches", "gateway.billing.reconcile",
    "gateway.formats.redaction", "gateway.server.kept_exchange", "gateway.storage.bodies",
    "gateway.billing.cache_use", "gateway.server.cached_answers", "gateway.storage.answer_cache",
    "gateway.cli.channels", "gateway.cluster", "gateway.domain.credit", "gateway.domain.leased_balance",
    "gateway.demo.server", "gateway.doctor", "gateway.formats.audio.deepgram", "gateway.formats.audio.transcriptions",
    "gateway.formats.batches", "gateway.formats.chat.anthropic.request_writer", "gateway.formats.chat.bedrock",
    "gateway.formats.chat.gemini", "gateway.formats.files",
    "gateway.formats.images.backends", "gateway.formats.images.bfl", "gateway.formats.images.openai",
    "gateway.formats.realtime", "gateway.formats.rerank", "gateway.formats.videos.kling", "gateway.media.images",
    "gateway.media.word_filter", "gateway.providers.azure_openai",
    "gateway.server.admin.accounts", "gateway.server.admin.handler", "gateway.server.background_responses",
    "gateway.server.console.page", "gateway.server.handlers.realtime", "gateway.server.handlers.videos",
    "gateway.server.openapi", "gateway.server.tls_site", "gateway.services.alerts", "gateway.services.sinks",
    "gateway.sinks", "gateway.storage.bucket", "gateway.storage.postgres",
    "gateway.storage.sinks", "gateway.storage.subject_bounds", "gateway.storage.valkey", "jinja2", "rich",
    "sqlalchemy.orm",
)  # fmt: skip
"""With all modules below them."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules of a process that is ready, at its first start."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "gateway.toml").write_text(FILE)
    command = ["serve", "--data", "data", "--config", "gateway.toml", "--port", str(find_free_port())]
    done = subprocess.run(
        [sys.executable, "-c", SERVE, *command, f"http://127.0.0.1:{command[-1]}/readyz"],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in {0, -signal.SIGTERM}, done.stderr  # ready, it may not handle the signal yet
    (names,) = [line for line in done.stdout.splitlines() if line.startswith("MODULES ")]
    return names.split()[1:]


def test_a_plain_process_imports_nothing_that_it_does_not_use(loaded: list[str]) -> None:
    assert "gateway.formats.chat.openai.chat" in loaded
    assert [name for name in loaded for part in UNUSED if f"{name}.".startswith(f"{part}.")] == []


def test_a_plain_process_imports_few_lines_of_ours(loaded: list[str]) -> None:
    package = Path(__file__).parents[1]
    files = [package / f"{name.replace('.', '/')}.py" for name in loaded if name.startswith("gateway.")]
    lines = sum(len(path.read_text().splitlines()) for path in files if path.exists())
    print(f"a plain process imports {lines} lines of ours")  # noqa: T201
    assert lines <= MAX_LINES
