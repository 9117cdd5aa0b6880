"""Nodes under every kind of load whose primary is lost and whose standby is promoted, and what must then be true."""

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import attrs

from tests.support.cluster import FREQUENT_SERVE, is_known, start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.lost_servers import Pair, check_books, open_pair
from tests.support.networks import Network
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.postgres import PostgresServer
from tests.support.scripted_upstream import (
    COMPLETION,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedUpstream,
    answer,
    chat_events,
    chunk,
)
from tests.support.spending_callers import COST_NANOS, PRICE, RESERVED_NANOS, call
from tests.support.steady_callers import STREAM, WHOLE, SteadyCallers
from tests.support.video_scene import PRICE as VIDEO_PRICE
from tests.support.video_scene import SECONDS, VIDEOS

BACK_S = 15.0
"""Until the last 503 after the promotion of a standby, at most."""
WITHIN_S = 60.0
_KEYS = 4
"""Of requests in turn; the last key has a spending limit that they reach."""
_JOB_EVERY_S = 0.5
_PATIENT = {"first_byte_timeout_s": 60, "idle_timeout_s": 60, "total_timeout_s": 120}
"""Channels that wait for a busy machine: a second attempt would be another call of the provider."""


def _of_network(lose: Callable[[Network], None]) -> Callable[[PostgresServer], None]:
    def lose_server(server: PostgresServer) -> None:
        assert server.network is not None
        lose(server.network)

    return lose_server


FAULTS: dict[str, Callable[[PostgresServer], None]] = {
    "killed": lambda server: server.signal(signal.SIGKILL),
    "frozen": lambda server: server.signal(signal.SIGSTOP),
    "dropped packets": _of_network(Network.drop),
    "no route to host": _of_network(Network.refuse_host),
    "network unreachable": _of_network(Network.refuse_network),
}
"""How a primary is lost: the process, or the way to it."""
_APART = ("dropped packets", "no route to host", "network unreachable")


@attrs.frozen
class Loss:
    """How a primary is lost.

    Attributes:
        fault: one of ``FAULTS``.
        good_first: the URL of the database names the standby first.
        sync: a commit waits for the standby.
        behind_s: what the standby lacks, in seconds. A synchronous one has it, and has not replayed it.
        away_s: the time from the loss to the promotion, in seconds.
    """

    fault: str
    good_first: bool
    sync: bool = True
    behind_s: float = 0.0
    away_s: float = 1.0

    def __str__(self) -> str:
        order, kind = "first" if self.good_first else "last", "sync" if self.sync else "async"
        return f"{self.fault}, good {order}, {kind}, {self.behind_s:g} s behind, {self.away_s:g} s away"


@attrs.define
class Load:
    """Callers of all nodes: requests, streams and video jobs.

    ``accepted``: the jobs that a node has answered with 200.
    """

    nodes: Sequence[GatewayProcess]
    callers: SteadyCallers
    chats: ScriptedUpstream
    streams: ScriptedUpstream
    videos: OpenAiVideos
    capped: str
    of_videos: str
    limit_nanos: int
    accepted: list[str] = attrs.Factory(list)
    job_answers: Counter[int] = attrs.Factory(Counter)
    drained: Counter[int] = attrs.Factory(Counter)

    @asynccontextmanager
    async def run(self, per_s: float) -> AsyncIterator[None]:
        """Send requests while the block runs, and wait for the last answers."""
        async with self.callers.run(per_s), open_caller(self.of_videos, WITHIN_S) as caller:
            tasks = set[asyncio.Task[None]]()

            async def submit_all() -> None:
                for number in itertools.count():
                    tasks.add(asyncio.create_task(self._submit(caller, number)))
                    await asyncio.sleep(_JOB_EVERY_S)

            submitting = asyncio.create_task(submit_all())
            try:
                yield
            finally:
                submitting.cancel()
                await asyncio.gather(submitting, *tasks, return_exceptions=True)

    async def wait_until_served(self) -> None:
        """Wait until the last answers of each node are right."""

        async def is_served() -> bool:
            last = [
                [each.status for each in self.callers.answers if each.node == at][-10:] for at in range(len(self.nodes))
            ]
            return all(set(each) <= {200, 403} for each in last)

        await eventually(is_served, 120)

    async def spend_rest(self) -> None:
        """Call with the capped key until every node refuses it."""

        async def is_spent() -> bool:
            statuses = [await call(node, self.capped) for node in self.nodes]
            self.drained.update(statuses)
            return set(statuses) == {403}

        await eventually(is_spent, 120)

    async def wait_for_jobs(self) -> None:
        """Wait until all jobs that were accepted have ended, at whichever node they are asked for."""
        async with open_caller(self.of_videos, WITHIN_S) as caller:
            states = Counter[object]()

            async def have_all_ended() -> bool:
                states.clear()
                for node, job in zip(itertools.cycle(self.nodes), self.accepted, strict=False):
                    async with caller.get(f"{node.url}{VIDEOS}/{job}") as response:
                        states[
                            (await response.json()).get("status") if response.status == 200 else response.status
                        ] += 1
                return states == {"completed": len(self.accepted)}

            try:
                await eventually(have_all_ended, 120)
            except TimeoutError:
                raise AssertionError(f"not all of {len(self.accepted)} accepted jobs have ended: {states}") from None

    async def _submit(self, caller: aiohttp.ClientSession, number: int) -> None:
        body = {"model": "v", "prompt": f"job {number}", "seconds": str(SECONDS)}
        try:
            async with caller.post(self.nodes[number % len(self.nodes)].url + VIDEOS, json=body) as response:
                answered = await response.json()
                self.job_answers[response.status] += 1
                if response.status == 200:
                    self.accepted.append(answered["id"])
        except (aiohttp.ClientError, OSError, TimeoutError):
            self.job_answers[0] += 1


@asynccontextmanager
async def open_load(
    path: Path, url: str, *, nodes: int, capped_calls: int, command: Sequence[str] = FREQUENT_SERVE
) -> AsyncIterator[Load]:
    """Start nodes and providers. ``capped_calls``: how many requests the limit of the last key covers."""
    part = [SSE_HEAD, *(step for event in chat_events("a", "b", "c") for step in (chunk(event), 0.3)), LAST_CHUNK]
    play = Play(polls=("queued", "in_progress", "completed"), hint_ms=300, size=2_000)
    limit_nanos = capped_calls * COST_NANOS + RESERVED_NANOS - COST_NANOS
    async with AsyncExitStack() as stack:
        chats = await stack.enter_async_context(ScriptedUpstream([answer(COMPLETION)]))
        streams = await stack.enter_async_context(ScriptedUpstream(part))
        videos = await stack.enter_async_context(OpenAiVideos(play))
        tables = {
            "channel": [
                channel(chats.base_url, "whole", **_PATIENT),
                channel(streams.base_url, "streams", models=["s"], **_PATIENT),
                videos.channel("videos", models=["v"], **_PATIENT),
            ],
            "price": [PRICE, {**PRICE, "model": "s"}, {**VIDEO_PRICE, "model": "v"}],
            "egress": {"allow": ["127.0.0.1"]},
            "account": [{"name": "acme"}],
        }
        running = await stack.enter_async_context(start_nodes(path, [url] * nodes, tables, command=command))
        quotas: list[dict[str, Any]] = [
            {},
            {"quota_usd": 1e6},
            {},
            {"quota_usd": limit_nanos / 1e9},
            {"quota_usd": 1e6},
        ]
        keys = [
            await running[0].ask("keys", {"name": f"k{number}", "account": "acme", **quota})
            for number, quota in enumerate(quotas)
        ]
        *secrets, of_videos = (str(key["secret"]) for key in keys)
        for secret in (*secrets, of_videos):
            await eventually(partial(is_known, running, secret), 60)
        callers = SteadyCallers(running, secrets, WITHIN_S, (WHOLE, WHOLE, WHOLE, WHOLE, STREAM))
        yield Load(running, callers, chats, streams, videos, secrets[-1], of_videos, limit_nanos)


async def lose_primary(
    path: Path,
    loss: Loss,
    *,
    per_s: float = 20,
    nodes: int = 2,
    before_s: float = 2.0,
    command: Sequence[str] = FREQUENT_SERVE,
) -> float:
    """Lose the primary of nodes under load, promote its standby, and check everything.

    Return how many seconds after the promotion the last request was refused for want of the store.
    """
    delay = [f"recovery_min_apply_delay={loss.behind_s}s"] if loss.sync and loss.behind_s else []
    lasts_s = before_s + (0.0 if loss.sync else loss.behind_s)
    capped_calls = int(per_s / _KEYS * (lasts_s + 5))
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(
            open_pair(*delay, apart=loss.fault in _APART, good_first=loss.good_first, sync=loss.sync)
        )
        if pair.primary.network is not None:
            command = pair.primary.network.name_command(command)
        load = await stack.enter_async_context(
            open_load(path, pair.url, nodes=nodes, capped_calls=capped_calls, command=command)
        )
        if not loss.sync:
            await eventually(pair.is_level, 30)  # it has the keys
        async with load.run(per_s):
            await load.callers.wait(int(before_s * per_s), within_s=120)
            if loss.behind_s and not loss.sync:
                await pair.detach()
                await asyncio.sleep(loss.behind_s)
            await asyncio.to_thread(FAULTS[loss.fault], pair.primary)
            await asyncio.sleep(loss.away_s)
            await asyncio.to_thread(pair.standby.promote)
            promoted_s = time.monotonic()
            await load.wait_until_served()
            await load.callers.wait(int(2 * per_s))
        refused = [each.at_s for each in load.callers.answers if each.status == 503]
        back_s = max([at_s - promoted_s for at_s in refused], default=0.0)
        _report(loss, load, back_s)
        await load.spend_rest()
        await load.wait_for_jobs()
        await _check(loss, load, pair)
        assert [await node.end() for node in load.nodes] == [0] * nodes
    return back_s


def _report(loss: Loss, load: Load, back_s: float) -> None:
    answers = load.callers.answers
    slowest_s = max(each.took_s for each in answers)
    found = f"last 503 {back_s:.1f} s after the promotion, slowest answer {slowest_s:.1f} s"
    print(f"{loss}: {found}, answers {dict(load.callers.count())}, jobs {dict(load.job_answers)}")  # noqa: T201


async def _check(loss: Loss, load: Load, pair: Pair) -> None:
    """Check that calls of providers, answers, rows and charges agree, and that the limit has held."""
    assert set(load.callers.count()) <= {200, 403, 503}
    assert set(load.job_answers) <= {200, 503}
    served = load.callers.count()[200] + load.drained[200]
    assert served == len(load.chats.received) + len(load.streams.received)
    assert set(Counter(each.prompt for each in load.videos.submits).values()) <= {1}
    url = pair.name_survivor()
    await check_books(load.nodes, url, served, videos=len(load.videos.submits))
    capped = sum(each.key == _KEYS - 1 and each.status == 200 for each in load.callers.answers) + load.drained[200]
    left = load.limit_nanos - capped * COST_NANOS
    audits = [await node.ask("audit") for node in load.nodes]
    connection = await asyncpg.connect(url)
    try:
        recorded = int(await connection.fetchval("SELECT coalesce(sum(overrun_nanos), 0)::bigint FROM requests"))
    finally:
        await connection.close()
    print(f"limit: {left / 1e9} of {load.limit_nanos / 1e9} USD left, overruns {recorded}, {audits[0]['overruns']}")  # noqa: T201
    if loss.sync:
        assert (0 <= left < RESERVED_NANOS, recorded) == (True, 0)
    assert left >= -recorded
    assert all(bool(audit["overruns"]) == (left < 0) for audit in audits)
