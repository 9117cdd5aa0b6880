"""Budgets in requests: of one request, or shared by all requests of a session."""

import asyncio
from typing import Any

import pytest

from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_budget import BudgetHeader, parse_budget
from gateway.errors import InvalidRequest
from gateway.server.context import SERVICES
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


async def test_what_a_session_has_spent_outlives_its_budget_in_memory(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100)]) as up:
        gateway = await gateway_with(config(up))
        headers, status = {BUDGET: "0.005; session=run1"}, 200
        while status == 200:
            status, _, _ = await ask(gateway, headers)
        sent = len(up.received)
        gateway.app[SERVICES].billing.limits.open_budgets().book.balances.clear()  # as a restart does
        status, body, _ = await ask(gateway, headers)
        assert (status, body["error"]["code"]) == (403, "budget_exceeded")
        assert len(up.received) == sent


@pytest.mark.parametrize("text", ["", "x", "-1", "1e3", "0.0000000001", "1; sess=a", "1; session=", "1,5"])
def test_a_malformed_budget_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_budget(text)
    assert refused.value.param == BUDGET


def test_budgets_are_read_exactly() -> None:
    assert parse_budget("2.00") == BudgetHeader(2 * NANOS_PER_USD, "")
    assert parse_budget(" 0.000000001 ; session = run 1 ") == BudgetHeader(1, "run 1")
