"""C1: a caller who leaves at any event of a stream is settled once, and pays for what had been delivered."""

import asyncio
from collections.abc import Callable, Sequence

import attrs
import pytest

from gateway.domain.ledger import UsageFilter
from gateway.domain.request_log import RequestRecord
from gateway.domain.token_estimate import estimate_text
from gateway.domain.usage import UsageSource
from gateway.server.context import SERVICES
from tests.support.fault_scene import UNHURRIED, WAIT_LIMIT_S, audit, cost_of, site, until
from tests.support.gateway import RunningGateway, channel
from tests.support.leaving_clients import Writer, close, connect, half_close, reset
from tests.support.scripted_upstream import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    STALL,
    ScriptedUpstream,
    Step,
    chunk,
    delta,
    event,
    usage_frame,
)
from tests.support.started_gateways import StartGateway

WORDS = ("This", " is", " what", " was", " delivered", ".")
SPOKEN = [event(delta(word)) for word in WORDS]
FINISH = event(delta("", "stop"))
USAGE = event(usage_frame(5, 7))
MARK = b": what came before this has been read\n\n"
"""A comment is passed on in its place: its receiver knows how far the gateway has read."""
RESERVE = 18 * 1_000 + 4_096 * 2_000
CAPPED = {"account": [{"name": "acme", "quota_usd": 0.05}]}
"""Room for a few calls at once: a hold that stayed would be missed."""
LEAVERS = 60


@attrs.frozen
class Cut:
    """How far the provider had come when the caller left.

    ``last`` is what the caller has heard by then, nothing where it was not answered; ``words`` were delivered whole,
    and ``source`` says whose count of them the row has.
    """

    name: str
    script: Sequence[Step]
    last: bytes = b""
    words: int = 0
    source: UsageSource = "estimate"

    @property
    def tokens(self) -> tuple[int, int]:
        if self.source == "upstream":
            return 5, 7
        text = "".join(WORDS[: self.words])
        return estimate_text("hi"), estimate_text(text)


def _make_cuts() -> list[Cut]:
    cuts = [
        Cut("before the headers", []),
        Cut("before event 0", [SSE_HEAD]),
        Cut("in event 0", [SSE_HEAD, chunk(SPOKEN[0][:-1])]),
    ]
    reported: list[Step] = [SSE_HEAD]
    for index, spoken in enumerate(SPOKEN):
        if index:
            cuts.append(Cut(f"in event {index}", [*reported, chunk(MARK + spoken[:-1])], MARK, index))
        reported.append(chunk(spoken))
        cuts.append(Cut(f"after event {index}", list(reported), spoken, index + 1))
    reported.append(chunk(FINISH))
    counted = [*reported, chunk(USAGE + MARK)]
    every = len(WORDS)
    return [
        *cuts,
        Cut("after the finish", reported, FINISH, every),
        Cut("in the usage", [*reported, chunk(MARK + USAGE[:-1])], MARK, every),
        Cut("before the end mark", counted, MARK, every, "upstream"),
        Cut("in the end mark", [*counted, chunk(DONE[:-3])], MARK, every, "upstream"),
    ]


CUTS = _make_cuts()
WHOLE = [SSE_HEAD, *map(chunk, SPOKEN), chunk(FINISH), chunk(USAGE), chunk(DONE)]


@attrs.frozen
class Charged:
    """What every place that knows of charges says by now."""

    key_nanos: int
    account_nanos: int
    charged_nanos: int
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_nanos: int = 0

    def add(self, row: RequestRecord) -> "Charged":
        """The same after one charge of the row's cost."""
        spent = [self.key_nanos, self.account_nanos, self.charged_nanos]
        used = self.requests + 1, self.prompt_tokens + row.prompt_tokens, self.completion_tokens + row.completion_tokens
        return Charged(*(nanos + row.cost_nanos for nanos in spent), *used, self.cost_nanos + row.cost_nanos)  # type: ignore[call-arg]


async def read_charged(gateway: RunningGateway) -> Charged:
    balances, ledger = gateway.app[SERVICES].billing.quota._balances, gateway.app[SERVICES].billing.accounting
    spent = [balances.find_balance(owner, 1).lifetime.spent_nanos for owner in ("key", "account")]
    lines = await ledger.list_usage("key", UsageFilter(since=0, until=2**31))
    used = [(line.requests, line.prompt_tokens, line.completion_tokens, line.cost_nanos) for line in lines]
    assert len(used) <= 1
    return Charged(*spent, (await ledger.reconcile())["charged_nanos"], *(used[0] if used else ()))  # type: ignore[call-arg]


async def check_settled_once(gateway: RunningGateway, row: RequestRecord, before: Charged) -> None:
    """One charge of the row's cost in every place that knows of charges, and nothing held."""
    assert row.reserved_nanos == RESERVE
    assert row.overrun_nanos == 0
    books = await gateway.check_books()
    assert (books["open_holds"], books["held_usd"]) == (0, 0)
    assert await read_charged(gateway) == before.add(row)


@pytest.mark.parametrize("leave", [close, reset, half_close])
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name)
async def test_whoever_leaves_pays_once_for_what_had_been_delivered(
    standing_with: StartGateway, cut: Cut, leave: Callable[[Writer], None]
) -> None:
    async with ScriptedUpstream([*cut.script, STALL]) as up:
        gateway = await standing_with(site(channel(up.base_url, **UNHURRIED), **CAPPED))
        before = await read_charged(gateway)
        reader, writer = await connect(gateway, stream=True)
        await until(lambda: up.received)
        if cut.last:
            await reader.readuntil(cut.last)
        leave(writer)
        await asyncio.wait_for(up.hung_up.wait(), WAIT_LIMIT_S)
        row = await audit(gateway, up, outcome="client_closed", attempts=1)
        writer.close()
        assert (row.prompt_tokens, row.completion_tokens) == cut.tokens
        assert row.status == (200 if cut.last else 499)
        if cut.last:
            assert row.usage_source == cut.source
            assert row.cost_nanos > 0
        await check_settled_once(gateway, row, before)


@pytest.mark.parametrize("leave", [close, reset, half_close])
@pytest.mark.parametrize("end", [[], [LAST_CHUNK]], ids=["before the end of the body", "after it"])
async def test_whoever_leaves_after_the_end_mark_pays_once_for_the_whole(
    standing_with: StartGateway, end: list[Step], leave: Callable[[Writer], None]
) -> None:
    async with ScriptedUpstream([*WHOLE, *end, STALL]) as up:
        gateway = await standing_with(site(channel(up.base_url, **UNHURRIED), **CAPPED))
        before = await read_charged(gateway)
        reader, writer = await connect(gateway, stream=True)
        await reader.readuntil(LAST_CHUNK if end else DONE)
        leave(writer)
        row = await audit(gateway, outcome="completed", status=200, usage_source="upstream", cost_nanos=19_000)
        writer.close()
        await check_settled_once(gateway, row, before)


async def test_many_who_leave_at_every_event_at_once_are_each_settled_once(standing_with: StartGateway) -> None:
    """They do not wait for each other, and the provider does not wait for them: nobody pays for less than it heard."""
    slow = [step for piece in WHOLE for step in (piece, 0.002)]
    lasts = [b"\r\n\r\n", *SPOKEN, FINISH, DONE]
    async with ScriptedUpstream([*slow, LAST_CHUNK]) as up:
        gateway = await standing_with(site(channel(up.base_url, **UNHURRIED)))

        async def leave_after(last: bytes) -> str:
            reader, writer = await connect(gateway, stream=True)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.endswith(last):
                await reader.readuntil(last)
            reset(writer)
            return next(line[-28:] for line in head.decode().split("\r\n") if line.startswith("X-Request-Id"))

        places = [index % len(lasts) for index in range(LEAVERS)]
        ids = await asyncio.gather(*(leave_after(lasts[place]) for place in places))
        rows = {row.id: row for row in await gateway.rows(LEAVERS)}
        for request_id, place in zip(ids, places, strict=True):
            row = rows.pop(request_id)
            assert row.cost_nanos == cost_of(row)
            assert row.usage_source in {"estimate", "upstream"}
            assert row.completion_tokens >= estimate_text("".join(WORDS[:place]))
            assert row.outcome in ({"completed"} if lasts[place] == DONE else {"client_closed", "completed"})
        assert not rows
        books = await gateway.check_books()
        stored = await gateway.rows(LEAVERS)
        assert books["charged_nanos"] - gateway.spent_before == sum(row.cost_nanos for row in stored) > 0
