"""Runs coding agents as installed, with an address and a key only, over a strict provider of each vendor.

A task over a route of three providers is in ``chain.py``.

Each does the task of ``tests/support/strict_providers/agent_task.py`` in a folder of its own, as docs/clients.md
configures it. The task is done if the file was edited, the last text arrived, and the provider refused nothing.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import attrs

from scripts.client_runs.environments import FOLDER, Missing, find_tool, install_node
from tests.support.gateway import KEY
from tests.support.gateway_process import GatewayProcess
from tests.support.strict_providers import STRICT
from tests.support.strict_providers.agent_task import BEFORE, LEARNED, NOT_FOUND, Agent, Outcome, write_prompt

TASK_S = 120
_KEPT = ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE")
_KNOWN_TO_CODEX = (
    "gpt-5.6-sol", "gpt-5.6-terra", "gpt-5.5", "gpt-5.6-luna", "gpt-6-sol", "gpt-6-luna", "gpt-6.1-sol",
    "gpt-6.1-terra", "gpt-6.2-sol", "gpt-6-astra",
)  # fmt: skip
"""Names whose models Codex knows, one for each provider: it sends other tools for them."""
_CODEX_CONFIG = """
model = "{model}"
model_provider = "gateway"

[model_providers.gateway]
name = "Gateway"
base_url = "{url}/v1"
env_key = "GATEWAY_KEY"
wire_api = "responses"
"""


@attrs.frozen
class AgentProgram:
    """A coding agent.

    Attributes:
        packages: what is installed for it.
        known: it is asked for a model that it knows.
    """

    name: str
    environment: str
    packages: Mapping[str, str]
    known: bool = False


_CODEX, _CLAUDE = {"@openai/codex": "0.171.0"}, {"@anthropic-ai/claude-code": "2.1.332"}
AGENTS = (
    AgentProgram("Codex, a known model", "codex", _CODEX, known=True),
    AgentProgram("Codex, another model", "codex", _CODEX),
    AgentProgram("Claude Code", "claude-code", _CLAUDE),
)


@attrs.frozen
class TaskResult:
    """What became of a task; ``error`` is empty if it was done."""

    agent: str
    provider: str
    error: str
    skipped: bool = False


async def run_tasks(agents: list[AgentProgram], *, verbose: bool) -> list[TaskResult]:
    """Start the providers and the gateway, and let each agent do the task over each provider."""
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(kind()) for kind in STRICT]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = [(f"model-{number}", known) for number, known in enumerate(_KNOWN_TO_CODEX)]
        tables = {
            "channel": [
                provider.channel(f"channel-{both[0]}", models=list(both), model_map=dict.fromkeys(both, provider.model))
                for provider, both in zip(providers, names, strict=True)
            ],
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
        }
        gateway = await stack.enter_async_context(GatewayProcess(folder / "data", tables))
        results = []
        for agent in agents:
            for provider, both in zip(providers, names, strict=True):
                place = folder / f"{agent.environment}-{both[agent.known]}"
                results.append(await _run_task(agent, provider, both[agent.known], gateway.url, place, verbose=verbose))
        return results


async def _run_task(
    agent: AgentProgram, provider: Agent, model: str, url: str, place: Path, *, verbose: bool
) -> TaskResult:
    provider.refusals.clear()
    try:
        outcome = await run_agent(agent, url, model, place)
    except Missing as missing:
        return TaskResult(agent.name, provider.label, str(missing), skipped=True)
    refusals = tuple(one for one in provider.refusals if one != NOT_FOUND and LEARNED not in one)
    error = attrs.evolve(outcome, refusals=refusals).find_fault()
    if error and verbose:
        error += f"\n{outcome.text}"
    return TaskResult(agent.name, provider.label, error)


async def run_agent(agent: AgentProgram, url: str, model: str, place: Path) -> Outcome:
    """Install an agent and let it do the task in the new folder ``place``. Raises ``Missing``."""
    installed = await asyncio.to_thread(install_node, FOLDER / agent.environment, agent.packages)
    node = find_tool("node")
    home, work = place / "home", place / "work"
    home.mkdir(parents=True)
    work.mkdir()
    note = work / "note.txt"
    note.write_text(f"{BEFORE}\n")
    run = _run_codex if agent.environment == "codex" else _run_claude
    text = await run(node, installed, home, work, url=url, model=model, prompt=write_prompt(str(note)))
    outcome = Outcome(note.read_text(), text, ())
    shutil.rmtree(place, ignore_errors=True)
    return outcome


async def _run_codex(node: str, installed: Path, home: Path, work: Path, *, url: str, model: str, prompt: str) -> str:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(_CODEX_CONFIG.format(model=model, url=url))
    command = (
        node, str(installed / "@openai" / "codex" / "bin" / "codex.js"), "exec", "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox", prompt,
    )  # fmt: skip
    return await run_program(command, home, work, {"GATEWAY_KEY": KEY})


async def _run_claude(node: str, installed: Path, home: Path, work: Path, *, url: str, model: str, prompt: str) -> str:
    script = installed / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"
    command = (node, str(script), "--print", "--allowedTools", "Bash,Edit,Read,Grep,ToolSearch", "--", prompt)
    environ = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
    }
    return await run_program(command, home, work, environ)


async def run_program(command: tuple[str, ...], home: Path, work: Path, environ: Mapping[str, str]) -> str:
    """Run ``command`` and return all that it writes."""
    env = {name: os.environ[name] for name in _KEPT if name in os.environ} | {"HOME": str(home), **environ}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=work,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TASK_S):
            out, _ = await process.communicate()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)  # both are a script that starts a program
        out, _ = await process.communicate()
        out += f"\nstill running after {TASK_S} s".encode()
    return out.decode(errors="replace")


def write_task_table(results: list[TaskResult]) -> str:
    """Return a Markdown table of providers and agents, and below it the reason of all that did not pass."""
    agents = list(dict.fromkeys(one.agent for one in results))
    found = {(one.provider, one.agent): one for one in results}
    rows = [["Task over", *agents], ["---"] * (len(agents) + 1)]
    rows += [
        [provider, *(_write_cell(found.get((provider, agent))) for agent in agents)]
        for provider in dict.fromkeys(one.provider for one in results)
    ]
    reasons = [f"- {one.agent}, {one.provider}: {one.error}" for one in results if one.error]
    return "\n".join([*("| " + " | ".join(row) + " |" for row in rows), "", *reasons])


def _write_cell(result: TaskResult | None) -> str:
    if result is None:
        return "-"
    return "skipped" if result.skipped else "failed" if result.error else "done"
