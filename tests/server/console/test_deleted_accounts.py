"""Charts and lists name an account that is deleted, and lead nowhere for it; and the forecast below a chart."""

import html
import re

from gateway.domain.request_log import RequestRecord
from gateway.server.console.filters import format_usd
from tests.support.console_people import Person, make_administrator
from tests.support.fault_scene import site
from tests.support.gateway import HELLO, KEY, RunningGateway, channel
from tests.support.request_records import read_ms
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

NOON_S = read_ms("2026-11-30 12:00") // 1000
_LINK = re.compile(r'href="/console(/(?:requests|usage|accounts)[^"]*)"')
_FORECAST = re.compile(r'<p class="forecast"><small>(.*?)</small></p>', re.DOTALL)
CHARTED = ("?group=account&span=24h", "/models/m?span=24h", "/channels/up?group=account&span=24h",
           "/usage?end_user=ann&group=account&span=24h", "/usage?tag=team%3Dweb&group=account&span=30d")  # fmt: skip


async def send(gateway: RunningGateway, secret: str) -> None:
    headers = {"Authorization": f"Bearer {secret}", "x-gateway-tags": "team=web"}
    async with gateway.post({**HELLO, "user": "ann", "max_tokens": 100}, headers=headers) as response:
        assert response.status == 200, await response.text()


async def test_an_account_that_is_deleted_is_named_and_no_link_leads_to_nothing(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url)))
        ada = await make_administrator(gateway)
        assert (await ada.call("POST", "/accounts", {"name": "gone"}))[0] == 201
        secret = "sk-" + "a" * 44
        status, _ = await ada.call("POST", "/keys", {"name": "app", "account": "gone", "secret": secret})
        assert status == 201
        for each in (KEY, secret):
            await send(gateway, each)
        _, accounts = await ada.call("GET", "/accounts")
        gone_id = next(account["id"] for account in accounts["data"] if account["name"] == "gone")
        await gateway.rows(2)
        status, answered = await ada.call("DELETE", "/accounts/gone")
        assert status == 200, answered
        for path in CHARTED:
            status, page = await ada.open(path)
            assert (status, f"{gone_id} (deleted)" in page) == (200, True), path
            links = {html.unescape(link) for link in _LINK.findall(page)}
            assert not [link for link in links if "deleted" in link], path
            for link in links:
                assert (await ada.open(link))[0] == 200, link
        await ada.session.close()


async def find_expected(person: Person, owner: str) -> str:
    """What is expected to be spent of an owner's quota, in dollars as the console writes it."""
    _, report = await person.call("GET", "/usage/forecast")
    (line,) = (line for line in report["data"] if line["owner"] == owner)
    return str(format_usd(line["expected_usd"]))


async def test_a_chart_of_spending_has_the_forecast_of_its_quota(gateway_with: StartGateway) -> None:
    config = {
        "account": [{"name": "acme", "quota_usd": 10, "quota_period": "monthly"}, {"name": "free"}],
        "key": [
            {"name": "app", "account": "acme", "secret": KEY, "quota_usd": 0.5, "quota_period": "daily"},
            {"name": "other", "account": "free", "secret": f"{KEY}-2"},
        ],
        "price": [{"model": "m", "input_usd_per_million": 1_000, "output_usd_per_million": 1_000}],
    }
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), **config), clock=lambda: NOON_S)
        ada = await make_administrator(gateway)
        for secret in (KEY, f"{KEY}-2"):
            await send(gateway, secret)
        rows: list[RequestRecord] = await gateway.rows(2)
        ids = {row.account: row.key_id for row in rows}
        for path, owner, name, quota in (
            (f"/keys/{ids['acme']}", "key", "acme/app", format_usd(0.5)),
            ("/accounts/acme", "account", "acme", format_usd(10)),
        ):
            status, page = await ada.open(path)
            (shown,) = _FORECAST.findall(page)
            words = html.unescape(re.sub("<[^>]*>", "", shown))
            expected = await find_expected(ada, owner)
            assert status == 200
            assert words.startswith(f"{name}: {expected} of {quota}"), (words, expected)
            assert words.endswith("s pace"), "no past weeks are known"
        for path in (f"/keys/{ids['free']}", "/accounts/free"):
            status, page = await ada.open(path)
            assert (status, 'data-chart="spend"' in page, _FORECAST.findall(page)) == (200, True, []), path
        await ada.session.close()
