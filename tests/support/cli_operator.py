"""An operator at the command line of a running gateway."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from gateway.cli.main import main
from tests.support.gateway import RunningGateway
from tests.support.scripted_upstream import ScriptedUpstream
from tests.support.started_gateways import StartGateway


@pytest.fixture(autouse=True)
def log() -> Iterator[list[Any]]:
    """What the gateway logs: it is in the process of the commands, and must not print among what they do."""
    with capture_logs() as entries:
        yield entries


@attrs.frozen
class Operator:
    """Who types commands at a gateway of the test's own event loop."""

    gateway: RunningGateway

    async def type(self, *words: str, stdin: str | None = None, width: int = 80) -> Result:
        words = (*words, "--data", str(self.gateway.folder.path))
        env = {"COLUMNS": str(width)}
        return await asyncio.to_thread(lambda: CliRunner().invoke(main, words, input=stdin, env=env))

    async def see(self, *words: str, stdin: str | None = None, width: int = 80) -> str:
        """What a command that works prints."""
        result = await self.type(*words, stdin=stdin, width=width)
        assert result.exit_code == 0, result.output
        assert max(map(len, result.stdout.splitlines()), default=0) <= width
        return result.stdout

    async def ask(self, *words: str, stdin: str | None = None) -> Any:
        """Its JSON."""
        result = await self.type(*words, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    async def add(self, upstream: ScriptedUpstream, *words: str, stdin: str | None = None) -> Any:
        """A channel called ``lab`` to ``upstream``."""
        first = ("channels", "add", "lab", "--provider", "custom", "--base-url", upstream.base_url)
        return await self.ask(*first, *words, stdin=stdin)


async def sit_down(gateway_with: StartGateway, config: Any = None) -> Operator:
    gateway = await gateway_with(config or {})
    gateway.folder.announce(gateway.url)
    return Operator(gateway)
