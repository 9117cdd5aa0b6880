"""Runs the snippets of the console's page Connect as somebody copies them, each in an environment with its package.

The gateway has its demo only. A snippet has worked if its program ends well and shows the demo's answer.
"""

import asyncio
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import attrs

from gateway.server.admin.prefix import PREFIX
from gateway.server.sessions import CONSOLE_HEADER
from scripts.client_runs.agents import TaskResult, run_program
from scripts.client_runs.clients import NODE, PYTHON
from scripts.client_runs.environments import FOLDER, Missing, find_tool, install_node, install_python
from tests.support.connect_page import read_snippets
from tests.support.gateway import KEY
from tests.support.gateway_process import GatewayProcess

TASK = "Connect"
ANSWER = "has travelled through the gateway"
_AIDER_OPTIONS = (
    "--no-check-update --analytics-disable --no-show-model-warnings --no-gitignore --yes-always --no-pretty --no-git "
    "--no-detect-urls --message Hello"
)
_AGENTS: Mapping[str, Mapping[str, str]] = {
    "codex": {"@openai/codex": "0.171.0"},
    "claude-code": {"@anthropic-ai/claude-code": "2.1.332"},
    "gemini-cli": {"@google/gemini-cli": "0.61.0"},
    "opencode": {"opencode-ai": "1.18.33"},
}


@attrs.frozen
class PageSnippet:
    """A snippet of the page.

    Attributes:
        tab: the name of the tab.
        name: the snippet's name on the page; of two in one tab, the one with the command.
        environment: the name in ``PYTHON``, ``NODE`` or ``_AGENTS``.
        options: what a command of a terminal gets besides, as it would wait for a person without.
        files: a file below the home folder -> the snippet with its content.
        binary: the command's program below the installed packages, for a package whose script after the installation
            would put it in place.
    """

    tab: str
    name: str
    environment: str
    options: str = ""
    files: Mapping[str, str] = {}
    binary: str = ""


SNIPPETS = (
    PageSnippet("Python", "python", "sdks"),
    PageSnippet("Google Gen AI", "google", "sdks"),
    PageSnippet("Node.js", "node", "node"),
    PageSnippet("LangChain", "langchain", "langchain"),
    PageSnippet("LlamaIndex", "llamaindex", "llamaindex"),
    PageSnippet("Vercel AI SDK", "ai-sdk", "node"),
    PageSnippet("aider", "aider", "aider", _AIDER_OPTIONS),
    PageSnippet(
        "Claude Code",
        "claude-code",
        "claude-code",
        "--print Hello",
        binary="@anthropic-ai/claude-code-linux-x64/claude",
    ),
    PageSnippet("Codex", "codex-env", "codex", "exec --skip-git-repo-check Hello", {".codex/config.toml": "codex"}),
    PageSnippet(
        "Gemini CLI",
        "gemini-cli",
        "gemini-cli",
        "--skip-trust -p Hello",
        {".gemini/settings.json": "gemini-cli-settings"},
    ),
    PageSnippet(
        "opencode",
        "opencode-env",
        "opencode",
        "run Hello",
        {"work/opencode.json": "opencode"},
        "opencode-linux-x64/bin/opencode",
    ),
)


async def run_snippets(snippets: list[PageSnippet]) -> list[TaskResult]:
    """Start a gateway, copy the page's snippets, and run them one after another."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        tables = {"account": [{"name": "acme"}], "key": [{"name": "test", "account": "acme", "secret": KEY}]}
        async with GatewayProcess(Path(folder) / "data", tables) as gateway:
            codes = read_snippets(await _open_page(gateway), KEY)
            for snippet in snippets:
                home = Path(folder) / snippet.name
                (home / "work").mkdir(parents=True)
                try:
                    output = await _run_snippet(snippet, codes, home)
                except Missing as missing:
                    results.append(TaskResult(snippet.tab, TASK, str(missing), skipped=True))
                    continue
                is_answered = ANSWER in " ".join(output.split())
                results.append(TaskResult(snippet.tab, TASK, "" if is_answered else output[-600:] or "no output"))
    return results


async def _open_page(gateway: GatewayProcess) -> str:
    """Make an administrator, sign in, and return the page."""
    link = await gateway.ask("links", {"account": "acme", "role": "administrator"})
    fields = {"token": link["token"], "name": "ada", "passphrase": secrets.token_urlsafe()}
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar, headers={CONSOLE_HEADER: "1"}) as browser:
        async with browser.post(f"{gateway.url}{PREFIX}/links/use", json=fields, raise_for_status=True):
            pass
        async with browser.get(f"{gateway.url}/console/connect") as response:
            return await response.text()


async def _run_snippet(snippet: PageSnippet, codes: Mapping[str, str], home: Path) -> str:
    """Return all that the snippet's program writes. Raises ``Missing``."""
    for path, name in snippet.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(codes[name])
    folder, code = FOLDER / snippet.environment, codes[snippet.name]
    if snippet.environment in PYTHON:
        await asyncio.to_thread(install_python, folder, "\n".join(PYTHON[snippet.environment]))
        if not snippet.options:
            return await run_program((str(folder / "bin" / "python"), "-c", code), home, home / "work", {})
        return await _run_command(snippet, code, home, folder / "bin")
    packages = _AGENTS.get(snippet.environment) or NODE[snippet.environment]
    installed = await asyncio.to_thread(install_node, folder, packages)
    if snippet.binary:
        (home / "bin").mkdir()
        (home / "bin" / Path(snippet.binary).name).symlink_to(installed / snippet.binary)
        return await _run_command(snippet, code, home, home / "bin")
    if snippet.options:
        return await _run_command(snippet, code, home, installed / ".bin")
    program = folder / f"connect-{snippet.name}.mjs"  # where node looks for its packages
    program.write_text(code)
    return await run_program((find_tool("node"), str(program)), home, home / "work", {})


async def _run_command(snippet: PageSnippet, code: str, home: Path, commands: Path) -> str:
    environ = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"}
    return await run_program(("sh", "-c", f"{code} {snippet.options}"), home, home / "work", environ)
