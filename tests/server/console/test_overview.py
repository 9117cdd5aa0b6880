"""The overview: latency, errors by kind, users and forecasts."""

import re
from datetime import UTC, datetime

from gateway.server.console.requests import complete_time
from tests.support.admin_calls import AdminApi
from tests.support.console_people import make_administrator
from tests.support.fault_scene import PRICE
from tests.support.gateway import KEY, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

MESSAGES = [{"role": "user", "content": "hi"}]


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


async def test_latency_errors_and_the_path_of_a_refused_request_are_shown(gateway_with: StartGateway) -> None:
    refusal = {"error": {"message": "overloaded", "type": "server_error"}}
    async with ScriptedUpstream([answer(COMPLETION)], [answer(refusal, 500)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)]})
        ada = await make_administrator(gateway)
        async with ada.session:
            _, page = await ada.open("")
            assert "<h3>Errors</h3>" not in page
            for body in ({"model": "m"}, {"model": "m"}, {}):
                async with gateway.post({"messages": MESSAGES, **body}):
                    pass
            await gateway.rows(3)
            _, page = await ada.open("")
            assert re.search(r'Duration</span><span class="value"><a [^>]*>\d', page)
            kinds = re.findall(r'outcome=(\w+)&amp;error_code=(\w+)"', page)
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
        assert re.search(r'href="/admin/v1/usage/export\?by=user&amp;since=[^"]+"', page)


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
