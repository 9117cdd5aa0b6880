"""A sink's worker over a database, with a clock that only waits move."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import attrs

from gateway.config.sink_schema import SinkSpec
from gateway.domain.request_log import RequestRecord
from gateway.domain.sink import SinkState
from gateway.sinks.batch import Send
from gateway.sinks.http_senders import OtlpSender, WebhookSender
from gateway.sinks.source import KeptBodies, SinkSource, matches
from gateway.sinks.worker import POLL_S, SinkWorker
from gateway.storage.database import Database
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.sinks import SinkRepository
from tests.support.request_records import make_row


@attrs.define
class SteppedClock:
    """A clock that ``pause`` moves."""

    now_s: float
    paused: list[float] = attrs.Factory(list)

    def __call__(self) -> float:
        return self.now_s

    async def pause(self, seconds: float) -> None:
        self.paused.append(seconds)
        self.now_s += seconds


@attrs.define
class SinkScene:
    """A worker, its clock, and the states of all sinks in its database."""

    worker: SinkWorker
    clock: SteppedClock
    states: SinkRepository

    async def step(self) -> float:
        """Make one step, and let the clock pass the wait after it."""
        wait_s = await self.worker.step()
        self.clock.now_s += wait_s
        return wait_s

    async def drain(self, max_steps: int = 1_000) -> None:
        """Make steps until nothing waits."""
        for _ in range(max_steps):
            before = await self.find_state() if self.worker.state else None
            await self.step()
            state = await self.find_state()
            if before is not None and (before.delivered, before.lost, "", None) == (
                state.delivered, state.lost, state.error, state.waiting_ms,
            ):  # fmt: skip
                return
        raise AssertionError("the sink does not get on")

    async def find_state(self) -> SinkState:
        (state,) = await self.states.list_states([self.worker.name])
        return state


@asynccontextmanager
async def open_scene(
    database: Database,
    spec: SinkSpec,
    *,
    now_s: float = 1_800_000_000.0,
    bodies: KeptBodies | None = None,
    send: Send | None = None,
) -> AsyncIterator[SinkScene]:
    """Open a worker; ``send`` replaces what delivers to the address of ``spec``."""
    clock = SteppedClock(now_s)
    async with aiohttp.ClientSession() as session:
        if send is None and spec.kind == "webhook":
            send = WebhookSender(spec, session, time.time)  # receivers verify the time of signatures
        sender = send or OtlpSender(spec, session, {"up": "mistral"}.get)
        source = SinkSource(RequestLogRepository(database), partial(matches, spec.filter), bodies, clock.pause)
        states = SinkRepository(database)
        worker = SinkWorker(spec.name, source, sender, states, poll_s=POLL_S, clock=clock, pause=clock.pause)
        yield SinkScene(worker, clock, states)


def make_named_rows(names: Sequence[object], **values: Any) -> list[RequestRecord]:
    """Rows that have succeeded, a second apart."""
    fields: dict[str, Any] = {
        "outcome": "completed",
        "error": "",
        "error_code": None,
        "cost_nanos": 1_000,
        "reserved_nanos": 0,
    }
    fields |= {"overrun_nanos": 0, "limit_charges": "", **values}
    return [make_row(name, settled_ms=1_799_999_000_000 + number * 1000, **fields) for number, name in enumerate(names)]
