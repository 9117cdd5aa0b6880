"""More calls than limits allow, over several gateways: what passed, when it reached the provider, how long it took."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import attrs

from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.domain.rate_limit import Limits, RateLimitPermit, RateLimitSubject
from gateway.errors import RateLimited
from tests.support.cluster import start_nodes
from tests.support.fast_provider import Reaction, Seen, SwiftUpstream
from tests.support.gateway import HELLO, channel
from tests.support.gateway_process import GatewayProcess, ask_chat, open_caller
from tests.support.scripted_upstream import COMPLETION, answer

NODES = 4
PROMPT = "word " * 64
"""80 tokens by the gateway's estimate of four characters each; the provider counts more."""
TOKENS = 120
_ANSWER = answer({**COMPLETION, "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": TOKENS}})


@attrs.frozen
class Outcome:
    """When it was asked (loop time), how long until the answer, and its status; 0 if there was none."""

    at: float
    took_s: float
    status: int


@attrs.define(eq=False)
class Limited:
    """A key with one limit, a provider of its own, and one meter that decides over the same calls at the same times.

    ``per_s``: calls a second. ``service_s``: how long the provider takes.
    """

    name: str
    limits: Limits
    per_s: float
    service_s: float = 0.0
    arrived: list[float] = attrs.field(factory=list)
    running: list[tuple[float, int]] = attrs.field(factory=list)
    outcomes: list[Outcome] = attrs.field(factory=list)
    allowed: int = 0
    up: SwiftUpstream = attrs.field(factory=SwiftUpstream)
    _oracle: InMemoryRateLimiter | None = None

    @property
    def secret(self) -> str:
        return f"sk-load-{self.name}-0123456789abcdef"

    @property
    def tables(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Its channel and its key, as the configuration has them."""
        where = channel(
            self.up.base_url, name=self.name, models=[self.name], first_byte_timeout_s=60, total_timeout_s=90
        )
        limits = {name: value for name, value in attrs.asdict(self.limits).items() if value is not None}
        return where, {"name": self.name, "account": "acme", "secret": self.secret, **limits}

    def react(self, seen: Seen) -> Reaction:
        self.arrived.append(seen.at)
        self.running.append((seen.at, self.up.running))
        return Reaction(_ANSWER, self.service_s)

    def ask_oracle(self) -> None:
        """Let the one meter decide over a call that is made now."""
        loop = asyncio.get_running_loop()
        self._oracle = self._oracle or InMemoryRateLimiter(loop.time)
        subject = (RateLimitSubject("key", 1, self.limits),)
        try:
            permit = self._oracle.take_now(subject, len(PROMPT) // 4)
        except RateLimited:
            return
        self.allowed += 1
        loop.call_later(self.service_s, self._give_back, permit)

    def _give_back(self, permit: RateLimitPermit) -> None:
        assert self._oracle is not None
        self._oracle.release(permit, TOKENS)

    def count_most(self, window_s: float) -> int:
        """Return the most calls that arrived in any window."""
        most, first = 0, 0
        for last, at in enumerate(self.arrived):
            while self.arrived[first] <= at - window_s:
                first += 1
            most = max(most, last - first + 1)
        return most

    def describe(self, since: float, until: float) -> str:
        """The latencies of the answers in this time, in ms, and how many of each status."""
        found = [one for one in self.outcomes if since <= one.at < until]
        took = sorted(one.took_s * 1000 for one in found) or [0.0]
        statuses = {status: sum(one.status == status for one in found) for status in {one.status for one in found}}
        return f"p50 {took[len(took) // 2]:.0f} p99 {took[int(len(took) * 0.99)]:.0f} max {took[-1]:.0f} ms {statuses}"


@asynccontextmanager
async def limited_nodes(
    path: Path, url: str, limits: dict[str, Any], load: Sequence[Limited]
) -> AsyncIterator[Sequence[GatewayProcess]]:
    """Start nodes that serve the keys of ``load``."""
    async with AsyncExitStack() as stack:
        for one in load:
            one.up.behaviour = one.react
            await stack.enter_async_context(one.up)
        tables = {
            "channel": [one.tables[0] for one in load],
            "account": [{"name": "acme"}],
            "key": [one.tables[1] for one in load],
            "rate_limits": limits,
        }
        yield await stack.enter_async_context(start_nodes(path, [url] * NODES, tables))


async def run_load(nodes: Sequence[GatewayProcess], load: Sequence[Limited], go_on: Callable[[], bool]) -> None:
    """Make the calls of ``load``, over the nodes in turn, while ``go_on``; then wait for their answers."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as calls:
        for one in load:
            caller = await stack.enter_async_context(open_caller(one.secret))
            calls.create_task(_make_calls(nodes, one, caller, calls, go_on))


async def _make_calls(
    nodes: Sequence[GatewayProcess],
    one: Limited,
    caller: aiohttp.ClientSession,
    calls: asyncio.TaskGroup,
    go_on: Callable[[], bool],
) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number, node in enumerate(itertools.cycle(nodes)):
        await asyncio.sleep(max(0.0, start + number / one.per_s - loop.time()))
        if not go_on():
            return
        calls.create_task(_call(one, caller, node.url))


async def _call(one: Limited, caller: aiohttp.ClientSession, url: str) -> None:
    loop = asyncio.get_running_loop()
    at, status = loop.time(), 0
    one.ask_oracle()
    try:
        body = {**HELLO, "model": one.name, "messages": [{"role": "user", "content": PROMPT}]}
        async with ask_chat(caller, url, body) as response:
            await response.read()
            status = response.status
    except (aiohttp.ClientError, TimeoutError):
        pass
    one.outcomes.append(Outcome(at, loop.time() - at, status))
