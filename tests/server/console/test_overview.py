"""The overview: latency, time to the first token, and errors by kind."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.console.health_of_requests import find_percentiles
from gateway.server.console.overview import stack_spending
from gateway.server.console.requests import complete_time
from tests.support.admin_calls import AdminApi
from tests.support.console_people import make_administrator
from tests.support.fault_scene import PRICE
from tests.support.gateway import KEY, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

MESSAGES = [{"role": "user", "content": "hi"}]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[int]) -> None:
    found = find_percentiles(values)
    for percent in (50, 95):
        value = found[f"p{percent}"]
        assert value in values
        assert value is not None
        assert 100 * sum(other <= value for other in values) >= percent * len(values)
        assert 100 * sum(other < value for other in values) < percent * len(values)


def test_without_requests_there_is_no_percentile() -> None:
    assert find_percentiles([]) == {"p50": None, "p95": None}


@table_rows(
    ("given_time", "complete"),
    [
        ("", ""),
        ("2027-01-31", "2027-01-31T23:59:59Z"),
        ("2027-01-31T12:00", "2027-01-31T12:00Z"),
        ("2027-01-31T12:00:01Z", "2027-01-31T12:00:01Z"),
        ("2027-01-31T12:00:01+02:00", "2027-01-31T12:00:01+02:00"),
    ],
)
def test_a_time_to_filter_by_is_shown_with_its_zone(given_time: str, complete: str) -> None:
    assert complete_time(given_time, "23:59:59") == complete


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=30))
def test_the_stacks_of_spending_add_up_to_all_that_was_spent(cents: list[tuple[int, int, int]]) -> None:
    one, two, others = zip(*((a / 100, b / 100, c / 100) for a, b, c in cents), strict=True)
    total = [sum(values) for values in zip(one, two, others, strict=True)]
    stacks = stack_spending(total, {"one": one, "two": two}, str)
    assert [stack.name for stack in stacks] == ["one", "two", *(["Other models"] if any(others) else [])]
    assert [sum(values) for values in zip(*(stack.values for stack in stacks), strict=True)] == pytest.approx(total)
    assert [stack.name for stack in stack_spending(total, {}, str)] == ["Spent"]


async def test_latency_errors_and_the_path_of_a_refused_request_are_shown(gateway_with: StartGateway) -> None:
    refusal = {"error": {"message": "overloaded", "type": "server_error"}}
    async with ScriptedUpstream([answer(COMPLETION)], [answer(refusal, 500)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)]})
        ada = await make_administrator(gateway)
        async with ada.session:
            _, page = await ada.open("")
            assert "<h2>Errors</h2>" not in page
            for body in ({"model": "m"}, {"model": "m"}, {}):
                async with gateway.post({"messages": MESSAGES, **body}):
                    pass
            await gateway.rows(3)
            _, page = await ada.open("")
            assert "latest 3" in page
            assert re.search(r"Latency</th><td class=\"number\">\d", page)
            kinds = re.findall(r'outcome=(\w+)&amp;text=(\w+)"', page)
            assert sorted(kinds) == [("failed", "upstream_error"), ("refused", "invalid_request")]
            _, page = await ada.open("/requests?until=2031-01-31")
            assert page.count('<span class="path">/v1/chat/completions</span>') == 1
            assert 'data-moment="2031-01-31T23:59:59Z"' in page


async def test_end_users_are_listed_with_their_requests_and_a_file(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)]})
        ada = await make_administrator(gateway)
        async with ada.session:
            assert "usage/export" not in (await ada.open(""))[1]
            for user in ("u 1", "u 1", "u2"):
                async with gateway.post({"model": "m", "messages": MESSAGES, "user": user}) as response:
                    assert response.status == 200
            await gateway.rows(3)
            _, page = await ada.open("")
        assert page.count("&amp;end_user=u%201") == 1
        assert "&amp;end_user=u2" in page
        assert re.search(r'href="/admin/v1/usage/export\?by=user&amp;since=[\d-]+"', page)


async def test_quotas_that_will_be_reached_are_forecast_on_their_pages(gateway_with: StartGateway) -> None:
    noon_s = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        spec = {
            "account": [{"name": "acme"}],
            "key": [{"name": "app", "account": "acme", "secret": KEY, "quota_usd": 5, "quota_period": "daily"}],
            "price": [PRICE],
            "channel": [channel(up.base_url)],
        }
        gateway = await gateway_with(spec, clock=lambda: noon_s)
        ada = await make_administrator(gateway)
        async with ada.session:
            _, page = await ada.open("/keys/1")
            assert "Spending limit of this key" in page
            assert "not in this period" in page
            _, page = await ada.open("")
            assert "<h2>Forecast</h2>" not in page
            async with gateway.post({"messages": MESSAGES, "model": "m"}) as response:
                assert response.status == 200
            await gateway.rows(1)
            spent_usd = (await AdminApi(gateway)("GET", "/keys/1"))["spent_usd"]
            body = {"kind": "set", "amount_usd": spent_usd / 2}
            await AdminApi(gateway)("POST", "/keys/1/credits", body, 201)
            for path in ("", "/keys/1", "/accounts/acme"):
                _, page = await ada.open(path)
                assert ("Spending limit of this key" if path == "/keys/1" else "Key acme/app") in page
                assert 'datetime="2026-11-30T18:00:00Z"' in page  # half of what half a day has cost
                assert "at this period" in page
