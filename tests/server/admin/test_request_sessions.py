"""Sessions over the admin API: listed with their budgets, ended for good, and those of other accounts not seen."""

import asyncio
from typing import Any

import pytest

from gateway.server.context import SERVICES
from tests.support.admin_calls import AdminApi
from tests.support.fault_scene import site, until
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, STALL, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

BUDGET, SESSION = "x-gateway-budget", "x-gateway-session"
COST_USD = 0.000019
OTHER_KEY = "sk-test-key-of-another-account"


def make_config(up: ScriptedUpstream, **sections: Any) -> dict[str, Any]:
    return site(
        channel(up.base_url),
        account=[{"name": "acme"}, {"name": "other"}],
        key=[
            {"name": "test", "account": "acme", "secret": KEY},
            {"name": "theirs", "account": "other", "secret": OTHER_KEY},
        ],
        **sections,
    )


async def ask(gateway: RunningGateway, path: str = CHAT, body: Any = HELLO, **headers: str) -> tuple[int, Any]:
    async with gateway.post(body, path, headers=headers) as response:
        return response.status, await response.json()


async def test_a_session_is_listed_with_its_budget_and_what_is_left(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(make_config(up))
        admin = AdminApi(gateway)
        for _ in range(3):
            assert (await ask(gateway, **{BUDGET: "1; session=run/1", "x-gateway-user": "ann"}))[0] == 200
        assert (await ask(gateway, **{SESSION: "run2"}))[0] == 200
        assert (await ask(gateway, **{SESSION: "run/1", "Authorization": f"Bearer {OTHER_KEY}"}))[0] == 200
        theirs, plain, ours = (await admin("GET", "/request-sessions"))["data"]
        assert [ours["session"], ours["account"], ours["key"], ours["end_user"]] == ["run/1", "acme", "test", "ann"]
        assert (ours["requests"], ours["prompt_tokens"], ours["completion_tokens"]) == (3, 15, 21)
        assert (ours["first_prompt_tokens"], ours["last_prompt_tokens"], ours["cached_share"]) == (5, 5, 0)
        assert ours["spent_usd"] == pytest.approx(3 * COST_USD)
        assert (ours["budget_usd"], ours["ended_at"]) == (1, None)
        assert ours["budget_left_usd"] == pytest.approx(1 - 3 * COST_USD)
        assert (plain["session"], plain["budget_usd"], plain["budget_left_usd"]) == ("run2", None, None)
        assert (theirs["session"], theirs["account"]) == ("run/1", "other")
        assert await admin("GET", f"/request-sessions/{ours['id'].replace('/', '%2F')}") == ours
        assert [one["id"] for one in (await admin("GET", "/request-sessions?session=run/1"))["data"]] == [
            ours["id"],
            theirs["id"],
        ]
        page = await admin("GET", "/request-sessions?limit=1")
        assert page["data"] == [theirs]
        assert (await admin("GET", f"/request-sessions?limit=5&before={page['next']}"))["data"] == [plain, ours]
        for cursor in ("x", "7-", "-7", "7-x", "7-8-9"):
            refused = await admin("GET", f"/request-sessions?before={cursor}", status=400)
            assert refused["error"]["param"] == "before"
        assert (await admin("GET", "/request-sessions?end_user=ann"))["data"] == [ours]
        assert (await admin("GET", "/request-sessions?account=other"))["data"] == [theirs]
        assert (await admin("GET", "/request-sessions?since=2100-01-01"))["data"] == []


async def test_an_ended_session_is_cancelled_and_refused_in_every_format(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], [STALL], [answer(COMPLETION)]) as up:
        gateway = await gateway_with(make_config(up))
        admin = AdminApi(gateway)
        assert (await ask(gateway, **{SESSION: "run1"}))[0] == 200
        (before,) = (await admin("GET", "/request-sessions"))["data"]
        running = asyncio.create_task(ask(gateway, **{SESSION: "run1"}))
        await until(lambda: len(up.received) == 2)
        assert (await admin("GET", f"/request-sessions/{before['id']}"))["running"] == 1
        ended = await admin("POST", f"/request-sessions/{before['id']}/end")
        assert (ended["id"], ended["cancelled"]) == (before["id"], 1)
        status, value = await running
        assert (status, value["error"]["code"]) == (409, "request_cancelled")
        messages = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
        for path, body in (
            (CHAT, HELLO),
            ("/v1/responses", {"model": "m", "input": "hello"}),
            ("/v1/messages", messages),
            ("/v1beta/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}),
        ):
            status, value = await ask(gateway, path, body, **{SESSION: "run1"})
            assert status == 403, path
            assert "session_ended" in str(value), value
            assert "'run1' was ended" in value["error"]["message"]
        status, value = await ask(gateway, **{BUDGET: "1; session=run1"})
        assert (status, value["error"]["code"]) == (403, "session_ended")
        assert len(up.received) == 2, "nothing more is sent"
        assert (await ask(gateway, **{SESSION: "run2"}))[0] == 200
        after = await admin("GET", f"/request-sessions/{before['id']}")
        assert after["ended_at"] == ended["ended_at"]
        assert await admin("POST", f"/request-sessions/{before['id']}/end") == {**ended, "cancelled": 0}
        trail = await admin.list_trail("request")
        assert trail == [("request.session_ended", "run1", {"account": "acme"})], "once"


async def test_a_session_that_only_runs_can_be_ended(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await gateway_with(make_config(up))
        admin = AdminApi(gateway)
        running = asyncio.create_task(ask(gateway, **{SESSION: "first"}))
        await until(lambda: len(up.received) == 1)
        (session,) = (await admin("GET", "/request-sessions?session=first"))["data"]
        assert (session["requests"], session["running"], session["key"], session["started_at"]) == (0, 1, None, None)
        assert (await admin("POST", f"/request-sessions/{session['id']}/end"))["cancelled"] == 1
        assert (await running)[0] == 409


async def test_unknown_sessions_are_not_found(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(make_config(up))
        admin = AdminApi(gateway)
        for subject in ("1:none", "none", "1:", "x:none", f"1:{'x' * 300}"):
            assert (await admin("GET", f"/request-sessions/{subject}", status=404))["error"]["code"] == "not_found"
            await admin("POST", f"/request-sessions/{subject}/end", status=404)
        assert gateway.app[SERVICES].billing.limits.budgets is None, "nothing was loaded for them"
