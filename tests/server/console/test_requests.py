"""The list of requests as somebody walks through it, by its links and its filters."""

import html
import re
from datetime import UTC, datetime, timedelta
from typing import get_args

from gateway.cli.table import find_color
from gateway.domain.request_log import Outcome
from gateway.server.console.labels import LABELS
from gateway.server.console.rendering import build_environment
from gateway.server.context import SERVICES
from gateway.storage.request_log import RequestLogRepository
from tests.support.console_people import Person, make_administrator
from tests.support.gateway import channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

_OLDER = re.compile(r'href="/console(/requests\?[^"]*)" rel="next"')


async def _walk(person: Person, path: str) -> list[str]:
    """Every page from there on to the oldest."""
    pages: list[str] = []
    while path:
        assert len(pages) < 10, "it has no end"
        status, page = await person.open(path)
        assert status == 200
        pages.append(page)
        found = _OLDER.search(page)
        path = html.unescape(found[1]) if found else ""
    return pages


async def test_what_is_rare_among_millions_is_come_to_page_by_page(gateway_with: StartGateway) -> None:
    """A look goes only so far back. Where it finds nothing the page says so, and leads on."""
    gateway = await gateway_with({})
    ada = await make_administrator(gateway)
    for model in ("rare", *["demo-chat"] * 5):
        async with gateway.post({"model": model, "messages": [{"role": "user", "content": "hi"}]}):
            pass
    await gateway.rows(6)
    services = gateway.app[SERVICES]
    log = services.admin.history.log
    assert isinstance(log, RequestLogRepository)
    log._ordered_rows = 2
    pages = await _walk(ada, "/requests?text=not_found&account=acme")
    assert ["/console/requests/req_" in page for page in pages] == [False, False, True]
    assert ["No request matches so far" in page for page in pages] == [True, True, False]
    assert all('<input type="hidden" name="account" value="acme">' in page for page in pages), "the form keeps it"
    await ada.session.close()


async def test_what_has_no_price_has_a_badge_and_a_filter_in_every_list(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        free, paid = channel(up.base_url, "up", models=["mystery"]), channel(up.base_url, "paid", models=["m"])
        price = {"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 2}
        gateway = await gateway_with({"channel": [free, paid], "price": [price]})
        ada = await make_administrator(gateway)
        for model in ("m", "mystery"):
            async with gateway.post({"model": model, "messages": [{"role": "user", "content": "hi"}]}) as response:
                assert ("x-gateway-cost-usd" in response.headers) == (model == "m")
        await gateway.rows(2)
        for path, badges in {
            "/requests": 1,
            "/requests?unpriced=true": 1,
            "/requests?unpriced=false": 0,
            "/models": 1,
            "/models?price=none": 1,
            "/models?price=set": 0,
            "": 2,
        }.items():
            status, page = await ada.open(path)
            assert (status, page.count(">No price</span>")) == (200, badges), path
        await ada.session.close()


@table_rows("outcome", get_args(Outcome))
def test_an_outcome_has_one_color_in_the_console_and_in_the_terminal(outcome: str) -> None:
    parts = build_environment("en").get_template("parts.html")
    badge = str(getattr(parts.module, "outcome_badge")(outcome))  # noqa: B009 - a macro is no attribute to mypy
    assert f">{LABELS[outcome]}<" in badge
    tone = {"green": "good", "red": "bad", "yellow": "warn", "": "quiet"}[find_color(outcome.replace("_", " "))]
    assert f'class="badge {tone}"' in badge


_SUMS = re.compile(r'<p class="sums">(.*?)</p>', re.DOTALL)
_FIGURE = re.compile(
    r'<th scope="row"><a class="cut" href="/console(/requests\?[^"]*)">([^<]*)</a>[^\n]*</th>\s*'
    r'<td class="number">(\d+)</td>.*?<td class="number">(\$[\d.]+)</td></tr>'
)


async def test_each_number_of_the_overview_leads_to_rows_that_sum_to_it(gateway_with: StartGateway) -> None:
    """By model, key, channel and end user; and what failed."""
    async with ScriptedUpstream([answer(COMPLETION)], [answer({"error": {"message": "no"}}, 500)]) as up:
        price = {"model": "m", "input_usd_per_million": 1000, "output_usd_per_million": 1000}
        gateway = await gateway_with({"channel": [channel(up.base_url, "up", models=["m", "n"])], "price": [price],
                                      "billing": {"unpriced": "free"}})  # fmt: skip
        ada = await make_administrator(gateway)
        asked = [("m", "ann"), ("m", "bob"), ("n", "ann"), ("m", ""), ("m", "ann"), ("gone", "ann")]
        for model, user in asked:
            body = {"model": model, "user": user, "messages": [{"role": "user", "content": "hi"}]}
            async with gateway.post(body):
                pass
        await gateway.rows(len(asked))
        async with ada.session:
            _, overview = await ada.open("?span=24h")
            figures = _FIGURE.findall(overview)
            assert {name for _, name, _, _ in figures} >= {"m", "n", "acme/test", "up", "ann", "bob"}
            for path, name, count, spent in figures:
                status, page = await ada.open(html.unescape(path))
                assert (status, page.count("data-row>")) == (200, int(count)), name
                found = _SUMS.search(page)
                assert found, name
                assert f"{count} request" in found[1], name
                assert f"<strong>{spent}</strong>" in found[1], name
            failed = re.search(r'<a href="/console(/requests\?[^"]*status=error)">(\d+)</a>', overview)
            assert failed
            _, page = await ada.open(html.unescape(failed[1]))
            assert page.count("data-row>") == int(failed[2]) > 0
            _, page = await ada.open("/requests?last=15m")
            assert '<p class="sums">' not in page, "there are no stored sums of a quarter of an hour"
            yesterday = datetime.now(UTC).date() - timedelta(days=1)  # once a day, the last 24 hours begin at midnight
            _, page = await ada.open(f"/requests?since={yesterday}T00:00:00Z&end_user=ann")
            assert '<p class="sums">' in page
            _, page = await ada.open(f"/requests?since={yesterday}T01:00:00Z&end_user=ann")
            assert '<p class="sums">' not in page, "users have sums of days"
