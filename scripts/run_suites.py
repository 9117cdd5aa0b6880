"""Runs the resource tests of client libraries against a mock of their provider, straight and through a gateway.

    .venv/bin/python -m scripts.run_suites                        # all suites
    .venv/bin/python -m scripts.run_suites openai --spec openapi.yaml

`make test-suites` runs this. The mock is made from OpenAI's OpenAPI document, and from the types of Anthropic's
library, which has no public document. It refuses requests that do not fit, and so finds what the gateway spoils.
The suites are the ones of the libraries' source archives, and are changed in nothing. Exit code 1 if a test passes
straight but not through the gateway and ``scripts/suite_runs/differences.toml`` does not explain it, or if it explains
what is no difference. ``docs/reference/differences.md`` is made of that table.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from scripts.client_runs.environments import Missing
from scripts.suite_runs.adapter import Adapter
from scripts.suite_runs.differences import Outcomes, Runs, compare, list_corrected, load_table, read_outcomes
from scripts.suite_runs.document import Document
from scripts.suite_runs.mock import MockServer
from scripts.suite_runs.sources import PROGRAMS, fetch_suite, load_anthropic, load_openai, make_environment
from scripts.suite_runs.suites import OPENAI, SUITES, Suite
from tests.support.gateway import KEY
from tests.support.gateway_process import GatewayProcess

RUN_S = 1_200
_KEPT = ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE")


async def run_suite(suite: Suite, documents: Sequence[Document], python: Path) -> list[str]:
    """Run a suite straight and through the gateway; print how many tests pass, and return what is wrong."""
    source = await asyncio.to_thread(fetch_suite, suite)
    table = load_table()
    async with MockServer(documents, prefix=suite.base) as mock, start_gateway(suite, mock.url) as gateway:
        straight = await run_tests(suite, mock.url, source, python)
        refused = set(mock.refusals)
        async with Adapter(gateway.url, KEY) as adapter:
            through = await run_tests(suite, adapter.url, source, python)
        tests = list_corrected(suite.package, straight, through, table)
        corrected: Outcomes = {}
        if tests:
            async with Adapter(gateway.url, KEY, correct=True) as adapter:
                corrected = await run_tests(suite, adapter.url, source, python, tests=tests)
        for one in sorted(set(mock.refusals) - refused):
            print(f"the mock refused, only through the gateway: {one}", file=sys.stderr)
    runs = Runs(straight, through, corrected)
    passes = "{} pass against the mock, {} through the gateway, {} with corrected requests".format(*runs.passes)
    print(f"{suite.package} {suite.version}: of {len(straight)} tests {passes}", flush=True)
    return compare(suite.package, runs, table)


@asynccontextmanager
async def start_gateway(suite: Suite, url: str) -> AsyncIterator[GatewayProcess]:
    """Yield a gateway whose only channel leads to ``url``."""
    with tempfile.TemporaryDirectory() as folder:
        async with GatewayProcess(Path(folder) / "data", build_tables(suite, url)) as gateway:
            yield gateway


def build_tables(suite: Suite, url: str) -> dict[str, Any]:
    """Return the gateway's configuration: one channel, which leads to the mock and allows all fields."""
    channel = {
        "name": "mock",
        "provider": suite.package,
        "base_url": f"{url}/v1",
        "api_key": "provider-key",
        "models": list(suite.models),
        "allow_fields": ["*"],
    }
    return {
        "channel": [channel],
        "account": [{"name": "acme"}],
        "key": [{"name": "test", "account": "acme", "secret": KEY}],
        # A mistake in one test must not fail the next one.
        "routing": {"trip_failures": 1000},
    }


async def run_tests(suite: Suite, url: str, source: Path, python: Path, *, tests: Sequence[str] = ()) -> Outcomes:
    """Run ``tests`` of a suite, or all, against ``url``. Raises ``Missing`` if they cannot be run."""
    with tempfile.TemporaryDirectory() as home:
        outcomes = Path(home) / "outcomes.jsonl"
        env = {name: os.environ[name] for name in _KEPT if name in os.environ} | {
            "HOME": home,
            "PYTHONPATH": str(PROGRAMS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TEST_API_BASE_URL": url + suite.base,
            "SUITE_OUTCOMES": str(outcomes),
        }
        paths = tests or [f"tests/api_resources/{path}" for path in suite.paths]
        words = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-p", "report_outcomes", *paths]
        pipe, merged = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        process = await asyncio.create_subprocess_exec(python, *words, cwd=source, env=env, stdout=pipe, stderr=merged)
        try:
            async with asyncio.timeout(RUN_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode not in (0, 1):  # 1: some tests failed
            raise Missing(f"pytest ended with {process.returncode}: {output.decode(errors='replace')[-1_000:]}")
        return read_outcomes(outcomes)


async def run_all(suites: Sequence[Suite], spec: Path | None) -> list[str]:
    """Run suites one after another; return what is wrong."""
    python = await asyncio.to_thread(make_environment)
    problems = []
    for suite in suites:
        if suite is OPENAI:
            documents: Sequence[Document] = [await asyncio.to_thread(load_openai, spec)]
        else:
            documents = await asyncio.to_thread(load_anthropic, python)
        problems += await run_suite(suite, documents, python)
    return problems


def main() -> int:
    """Run the suites that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="only these packages: openai, anthropic")
    parser.add_argument("--spec", type=Path, help="OpenAI's OpenAPI document; default: the public one, fetched once")
    args = parser.parse_args()
    suites = [one for one in SUITES if not args.names or one.package in args.names]
    if not suites:
        parser.error("no suite has such a name")
    try:
        problems = asyncio.run(run_all(suites, args.spec))
    except Missing as missing:
        print(f"the suites cannot be run: {missing}", file=sys.stderr)
        return 2
    for problem in problems:
        print(problem)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
