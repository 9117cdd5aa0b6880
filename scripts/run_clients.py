"""Runs real clients against a gateway in front of providers of three API formats; `make test-clients`.

Coding agents do a task over a strict provider of each of nine vendors; see ``scripts/client_runs/agents.py``. A second
task goes over a route of three providers, two of which fail on the way; see ``scripts/client_runs/chain.py``. The
snippets of the console's page Connect run as copied; see ``scripts/client_runs/connect_page.py``.

    .venv/bin/python -m scripts.run_clients                 # all of them
    .venv/bin/python -m scripts.run_clients litellm Codex   # those with these words in their names
    .venv/bin/python -m scripts.run_clients "over a route"  # the agents over a route
    .venv/bin/python -m scripts.run_clients "on connect"    # the snippets of the console's page

Each client is a small program in ``tests/clients`` with an environment of its own under ``.venv/clients``, made at its
first run from package registries. Prints a table of clients and formats, and one of agents and vendors. Exit code 1 if
a step failed whose reason is not in ``scripts/client_runs/clients.py``, or a task. What needs a language or packages
that are missing is skipped, and named.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from scripts.client_runs.agents import AGENTS, run_tasks, write_task_table
from scripts.client_runs.chain import run_chains
from scripts.client_runs.clients import CLIENTS, Client
from scripts.client_runs.connect_page import SNIPPETS, run_snippets
from scripts.client_runs.environments import Missing, prepare
from scripts.client_runs.providers import AnthropicModels, GeminiModels, OpenAIModels, list_channels
from scripts.client_runs.results import FORMATS, Result, read_results, write_table
from tests.support.gateway import KEY
from tests.support.gateway_process import GatewayProcess

RUN_S = 240
_KEPT = ("PATH", "LANG", "TMPDIR", "GOCACHE", "SSL_CERT_FILE")


async def run_all(clients: list[Client], *, verbose: bool) -> list[Result]:
    """Start the providers and the gateway, and run the clients one after another."""
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(kind()) for kind in (OpenAIModels, AnthropicModels, GeminiModels)]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tables = {
            "channel": [channel for provider in providers for channel in list_channels(provider)],
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
        }
        gateway = await stack.enter_async_context(GatewayProcess(folder / "data", tables))
        results: list[Result] = []
        for client in clients:
            home = folder / f"home{len(results)}"
            home.mkdir()
            found = await run_one(client, gateway.url, home, verbose=verbose)
            results += found
            counts = ", ".join(f"{sum(one.state == state for one in found)} {state}" for state in _list_states(found))
            print(f"{client.name}: {counts}", file=sys.stderr, flush=True)
        for provider in providers:
            refused = sorted({one for one in provider.refusals if one != "Not found"})
            print(*(f"{provider.slug} refused: {one}" for one in refused), sep="\n", file=sys.stderr)
        return results


def _list_states(results: list[Result]) -> list[str]:
    return sorted({one.state for one in results})


async def run_one(client: Client, url: str, home: Path, *, verbose: bool) -> list[Result]:
    """Run a client's program with a home folder of its own, and return its steps."""
    try:
        words = await asyncio.to_thread(prepare, client)
    except Missing as missing:
        return [Result(client.name, model, "run", "skipped", str(missing)) for model in FORMATS]
    embeddings = {"over-openai": "embed-openai", "over-gemini": "embed-gemini"}
    env = {name: os.environ[name] for name in _KEPT if name in os.environ} | {
        "HOME": str(home),
        "GATEWAY_URL": url,
        "GATEWAY_KEY": KEY,
        "GATEWAY_MODELS": ",".join(FORMATS),
        "GATEWAY_EMBEDDING_MODELS": json.dumps(embeddings),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, cwd=home, env=env, stdout=pipe, stderr=pipe)
    ended = ""
    try:
        async with asyncio.timeout(RUN_S):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
        ended = f"still running after {RUN_S} s"
    if process.returncode and not ended:
        ended = f"exit code {process.returncode}: {err.decode(errors='replace')[-400:]}"
    if verbose:
        print(err.decode(errors="replace"), file=sys.stderr)
    return read_results(client, out.decode(errors="replace"), ended=ended)


def main() -> int:
    """Run the clients that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only clients with one of these words in their names")
    parser.add_argument("--verbose", action="store_true", help="also show what the programs write on standard error")
    args = parser.parse_args()
    wanted = [word.lower() for word in args.words]
    clients = [one for one in CLIENTS if _is_wanted(one.name, wanted)]
    agents = [one for one in AGENTS if _is_wanted(one.name, wanted)]
    chained = [one for one in AGENTS if _is_wanted(f"{one.name} over a route", wanted)]
    snippets = [one for one in SNIPPETS if _is_wanted(f"{one.tab} on connect", wanted)]
    if not clients and not chained and not snippets:
        parser.error("no client has such a name")
    results = asyncio.run(run_all(clients, verbose=args.verbose)) if clients else []
    tasks = asyncio.run(run_tasks(agents, verbose=args.verbose)) if agents else []
    tasks += asyncio.run(run_chains(chained, verbose=args.verbose)) if chained else []
    tasks += asyncio.run(run_snippets(snippets)) if snippets else []
    if clients:
        print(write_table(results, [client.name for client in clients]))
    if tasks:
        print(write_task_table(tasks))
    return int(any(one.state == "failed" for one in results) or any(one.error and not one.skipped for one in tasks))


def _is_wanted(name: str, words: list[str]) -> bool:
    return not words or any(word in name.lower() for word in words)


if __name__ == "__main__":
    sys.exit(main())
