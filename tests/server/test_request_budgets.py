"""Budgets in requests: of one request, or shared by all requests of a session."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import delete, insert
from typing_extensions import override

from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.attribution import Attribution
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_budget import SESSION_BUDGET, BudgetHeader, SessionState, parse_budget
from gateway.errors import InvalidRequest, StoreUnavailable
from gateway.server.context import SERVICES
from gateway.storage.database import Database
from gateway.storage.limit_counters import LimitCounters
from gateway.storage.schema import limit_counters, session_states
from gateway.storage.session_states import SessionStateRepository
from tests.support.contexts import make_context
from tests.support.gateway import CHAT, KEY, RunningGateway, channel
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

PRICE = {"model": "m", "input_usd_per_million": 10, "output_usd_per_million": 20}
REQUEST: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
BUDGET, LEFT = "x-gateway-budget", "x-gateway-session-usd-left"


def complete(completion_tokens: int) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": completion_tokens, "total_tokens": 1 + completion_tokens}
    return answer(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    )


def config(up: ScriptedUpstream, **more: Any) -> dict[str, Any]:
    key = {"name": "test", "account": "acme", "secret": KEY, **more}
    return {"channel": [channel(up.base_url)], "price": [PRICE], "key": [key]}


async def ask(gateway: RunningGateway, headers: dict[str, str]) -> tuple[int, Any, Any]:
    async with gateway.post(REQUEST, CHAT, headers=headers) as response:
        return response.status, await response.json(), response.headers


@pytest.mark.parametrize("status", [403, 429])
async def test_a_request_beyond_its_own_budget_is_not_sent(gateway_with: StartGateway, status: int) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up, quota_status=status))
        refused, body, headers = await ask(gateway, {BUDGET: "0.0001"})
        assert (refused, body["error"]["code"]) == (status, "budget_exceeded")
        assert (headers["x-should-retry"], headers["x-gateway-budget-usd"]) == ("false", "0.0001")
        assert "$0.0001" in body["error"]["message"]
        assert not up.received
        assert [(await ask(gateway, {BUDGET: "0.1"}))[0] for _ in range(2)] == [200, 200], "each request has its own"
        assert all(BUDGET not in request.headers for request in up.received)


async def test_what_is_forgotten_leaves_no_balance_and_is_counted_anew(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        budgets = gateway.app[SERVICES].billing.limits.open_budgets()
        assert [(await ask(gateway, {BUDGET: f"0.004; session=run{run}"}))[0] for run in (1, 2)] == [200, 200]
        assert len(budgets.book.balances) == 2
        await gateway.rows(2)
        budgets.forget()
        assert not budgets.book.balances, "the balances of sessions that never come back stay in memory"
        status, body, _ = await ask(gateway, {"x-gateway-session": "run1"})
        assert (status, body["error"]["code"]) == (403, "budget_exceeded")


async def test_six_agents_share_the_budget_of_their_session(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        refusals: list[Any] = []

        async def run(headers: dict[str, str]) -> int:
            answered = 0
            while True:
                status, body, sent_headers = await ask(gateway, headers)
                if status != 200:
                    refusals.append((status, body["error"], sent_headers))
                    return answered
                answered += 1

        first = {BUDGET: "0.05; session=run1"}
        status, _, headers = await ask(gateway, first)
        assert (status, LEFT in headers, "x-gateway-limit-usd-left" in headers) == (200, True, False)
        counts = await asyncio.gather(run(first), *(run({"x-gateway-session": "run1"}) for _ in range(5)))
        rows = await gateway.rows(1 + sum(counts) + 6)
        spent_nanos = sum(row.cost_nanos for row in rows)
        assert 0.04 * NANOS_PER_USD < spent_nanos <= 0.05 * NANOS_PER_USD
        assert len(up.received) == 1 + sum(counts)
        assert {row.session for row in rows} == {"run1"}
        status, error, headers = refusals[-1]
        assert (status, error["code"]) == (403, "budget_exceeded")
        assert "budget of the session 'run1' ($0.05)" in error["message"]
        assert float(headers["x-gateway-budget-usd"]) == 0.05
        assert round(float(headers["x-gateway-budget-spent-usd"]) * NANOS_PER_USD) == spent_nanos
        assert (await ask(gateway, {"x-gateway-session": "run2"}))[0] == 200, "another session has no budget"


async def test_the_rest_of_a_budget_is_in_a_header(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(50)]) as up:
        gateway = await gateway_with(config(up))
        spent = 0.0
        for _ in range(3):
            _, _, headers = await ask(gateway, {BUDGET: "1", "x-gateway-session": "s"})
            spent += float(headers["x-gateway-cost-usd"])
            assert float(headers[LEFT]) == pytest.approx(1 - spent)
        assert LEFT not in (await ask(gateway, {}))[2]


async def test_a_budget_is_lowered_freely_and_raised_as_far_as_the_key_allows(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up, max_session_usd=0.5))
        for budget, expected in (("0.1", 200), ("0.05", 200), ("0.3", 200), ("0.51", 403), ("0.3", 200)):
            assert (await ask(gateway, {BUDGET: f"{budget}; session=a"}))[0] == expected, budget
        status, body, _ = await ask(gateway, {BUDGET: "2; session=new"})
        assert (status, "max_session_usd" in body["error"]["message"]) == (403, True)
        assert len(up.received) == 4


async def test_without_max_session_usd_a_budget_is_not_raised(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        statuses = [(await ask(gateway, {BUDGET: f"{budget}; session=a"}))[0] for budget in (9, 8, 9)]
        assert statuses == [200, 200, 403]


async def restart(gateway: RunningGateway, max_sessions: int = 100) -> None:
    """Forget all budgets, and load the stored ones as a start does."""
    limits = gateway.app[SERVICES].billing.limits
    spending = limits.spending
    assert spending is not None
    limits.budgets = spending.budgets = None
    await limits.load_sessions()
    if limits.budgets is not None:
        limits.budgets._max_sessions = max_sessions


async def test_a_budget_outlives_a_restart(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up, quota_status=429))
        for budget in ("0.01", "0.005"):
            assert (await ask(gateway, {BUDGET: f"{budget}; session=run1"}))[0] == 200
        await gateway.rows(2)
        await restart(gateway)
        _, _, headers = await ask(gateway, {"x-gateway-session": "run1"})
        assert 0 < float(headers[LEFT]) < 0.005
        status = 200
        while status == 200:
            status, body, headers = await ask(gateway, {"x-gateway-session": "run1"})
        assert (status, body["error"]["code"], headers["x-gateway-budget-usd"]) == (429, "budget_exceeded", "0.005")
        sent = len(up.received)
        await restart(gateway)
        status, body, headers = await ask(gateway, {"x-gateway-session": "run1"})
        assert (status, headers["x-gateway-budget-usd"]) == (429, "0.005")
        assert float(headers["x-gateway-budget-spent-usd"]) > 0
        status, body, _ = await ask(gateway, {BUDGET: "0.02; session=run1"})
        assert (status, "cannot become" in body["error"]["message"]) == (429, True), "it is not raised anew"
        assert len(up.received) == sent


async def test_sessions_beyond_those_in_memory_keep_their_budgets(gateway_with: StartGateway) -> None:
    """Each request looks its session up: no budget is forgotten for want of memory, and no end."""
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        for number in range(4):
            assert (await ask(gateway, {BUDGET: f"{0.01 + number / 1000:.3f}; session=s{number}"}))[0] == 200
        await gateway.rows(4)
        await restart(gateway, max_sessions=1)
        for number in (3, 0, 2, 1, 0):
            _, _, headers = await ask(gateway, {"x-gateway-session": f"s{number}"})
            assert float(headers[LEFT]) < 0.01 + number / 1000
        assert LEFT not in (await ask(gateway, {"x-gateway-session": "plain"}))[2]
        budgets = gateway.app[SERVICES].billing.limits.open_budgets()
        assert len(budgets._ended) == 1
        assert len(budgets.book.balances) <= 1


async def test_an_interrupted_cost_counts_for_a_session_that_is_not_in_memory(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        assert (await ask(gateway, {BUDGET: "0.01; session=old"}))[0] == 200
        (row,) = await gateway.rows(1)
        await restart(gateway)
        limits = gateway.app[SERVICES].billing.limits
        assert limits.list_charges(row) == row.limit_charges
        limits.open_budgets().forget()
        limits.open_budgets().book.balances.clear()
        assert limits.list_charges(row) == row.limit_charges
        assert (await ask(gateway, {"x-gateway-session": "old"}))[0] == 200
        status, _, headers = await ask(gateway, {"x-gateway-session": "old"})
        assert (status, float(headers[LEFT]) < 0.01) == (200, True)


async def test_a_budget_that_cannot_be_stored_sends_nothing(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        assert (await ask(gateway, {BUDGET: "0.01; session=a"}))[0] == 200
        budgets = gateway.app[SERVICES].billing.limits.open_budgets()
        stored_states, budgets.states = budgets.states, UnwritableStates(gateway.app[SERVICES].storage.database)
        status, _, _ = await ask(gateway, {BUDGET: "0.005; session=a"})
        assert (status, len(up.received)) == (503, 1)
        budgets.states = stored_states
        _, _, headers = await ask(gateway, {"x-gateway-session": "a"})
        assert float(headers[LEFT]) > 0.005, "the budget is still the former one"


@pytest.mark.parametrize(
    ("settings", "body", "expected"),
    [({"rpm": 1}, {}, 429), ({"models": ["m"]}, {"model": "other"}, 403), ({"quota_usd": 0}, {}, 403)],
)
async def test_a_request_that_is_refused_anyway_stores_no_budget(
    gateway_with: StartGateway, settings: dict[str, Any], body: dict[str, Any], expected: int
) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up, **settings))
        if "rpm" in settings:
            assert (await ask(gateway, {}))[0] == 200
        for number in range(3):
            headers = {BUDGET: f"0.000000001; session=random{number}"}
            async with gateway.post({**REQUEST, **body}, CHAT, headers=headers) as response:
                assert response.status == expected
        states = SessionStateRepository(gateway.app[SERVICES].storage.database)
        assert await states.list_newest(10) == []


async def test_old_budgets_of_sessions_without_requests_are_deleted(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        for number in range(3):
            assert (await ask(gateway, {BUDGET: f"0.000000001; session=random{number}"}))[0] == 403
        assert (await ask(gateway, {BUDGET: "0.01; session=used"}))[0] == 200
        await gateway.rows(4)
        await restart(gateway)
        services = gateway.app[SERVICES]
        limits, now_ms = services.billing.limits, int(services.clock() * 1000)
        states = SessionStateRepository(services.storage.database)
        assert await limits.retire_sessions(now_ms - 60_000) == 0
        assert len(await states.list_newest(10)) == 4
        await states.put_budget(SessionState("1:unused", 10), now_ms, lambda _former: True)
        assert await limits.retire_sessions(now_ms + 60_000) == 1
        assert "unused" not in [state.session for state in await states.list_newest(10)]


async def test_the_sums_of_a_deleted_account_stay_with_its_requests(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        assert (await ask(gateway, {BUDGET: "1; session=a"}))[0] == 200
        (row,) = await gateway.rows(1)
        services = gateway.app[SERVICES]
        limits, counters = services.billing.limits, LimitCounters(services.storage.database)
        await services.storage.database.change(delete(session_states))
        assert await limits.retire_sessions(int(services.clock() * 1000)) == 0
        assert sum((await counters.list_all()).values()) == row.cost_nanos
        gone = {"counter": SESSION_BUDGET.counter, "subject": "1:gone", "start_s": 0, "spent_nanos": 3}
        await services.storage.database.change(insert(limit_counters).values(gone))
        assert limits.open_budgets().list_balances(1, "gone", must_count=True)
        assert await limits.retire_sessions(int(services.clock() * 1000)) == 1
        assert sum((await counters.list_all()).values()) == row.cost_nanos
        assert not limits.open_budgets().holds("1:gone"), "what it has spent is read again"


async def test_a_budget_that_is_deleted_before_its_request_reserves_is_opened_again(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        limits = gateway.app[SERVICES].billing.limits
        budgets = limits.open_budgets()
        now_ms = int(gateway.app[SERVICES].clock() * 1000) + 60_000
        ctx = make_context(Caller(Account(1, "acme"), ApiKey(1, 1, "k", b"", "")))
        ctx.attribution = Attribution(session="a")
        await budgets.open_for(ctx, 5)
        assert await limits.retire_sessions(now_ms) == 1
        assert not budgets.list_balances(1, "a")
        await budgets.check_request(ctx)
        assert [balance.limit_nanos for balance in budgets.list_balances(1, "a")] == [5]


async def test_a_refused_raise_after_a_restart_tells_what_is_spent(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        assert (await ask(gateway, {BUDGET: "1; session=a"}))[0] == 200
        (row,) = await gateway.rows(1)
        await restart(gateway)
        status, _, headers = await ask(gateway, {BUDGET: "2; session=a"})
        assert status == 403
        assert round(float(headers["x-gateway-budget-spent-usd"]) * NANOS_PER_USD) == row.cost_nanos


async def test_a_slow_look_up_delays_no_other_session(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        assert (await ask(gateway, {BUDGET: "0.01; session=a"}))[0] == 200
        budgets, may_answer = gateway.app[SERVICES].billing.limits.open_budgets(), asyncio.Event()
        budgets.states = SlowStates(gateway.app[SERVICES].storage.database, may_answer)
        slow = [asyncio.create_task(ask(gateway, {"x-gateway-session": "slow"})) for _ in range(2)]
        await asyncio.wait_for(ask(gateway, {"x-gateway-session": "fast"}), 10)
        assert not any(task.done() for task in slow)
        may_answer.set()
        assert [(await task)[0] for task in slow] == [200, 200]
        assert budgets.states.looked_up.count("slow") == 1


class SlowStates(SessionStateRepository):
    """Sessions whose row of the session ``slow`` is read late."""

    def __init__(self, database: Database, may_answer: asyncio.Event) -> None:
        super().__init__(database)
        self._may_answer = may_answer
        self.looked_up: list[str] = []

    @override
    async def find(self, subject: str) -> SessionState:
        session = subject.partition(":")[2]
        self.looked_up.append(session)
        if session == "slow":
            await self._may_answer.wait()
        return await super().find(subject)


class UnwritableStates(SessionStateRepository):
    """Sessions in a database that does not take writes."""

    @override
    async def put_budget(
        self, state: SessionState, now_ms: int, may_replace: Callable[[SessionState], bool]
    ) -> SessionState:
        raise StoreUnavailable("The gateway's store cannot be written")


@pytest.mark.parametrize("text", ["", "x", "-1", "1e3", "0.0000000001", "1; sess=a", "1; session=", "1,5"])
def test_a_malformed_budget_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_budget(text)
    assert refused.value.param == BUDGET


def test_budgets_are_read_exactly() -> None:
    assert parse_budget("2.00") == BudgetHeader(2 * NANOS_PER_USD, "")
    assert parse_budget(" 0.000000001 ; session = run 1 ") == BudgetHeader(1, "run 1")
