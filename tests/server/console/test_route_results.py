"""The results on the page of a route: which model is a canary, what it stands beside, and what copies stand beside."""

from typing import Any

from gateway.server.admin.model_routes import ModelComparison, RouteDetails, ServedModel, ServingChannel
from gateway.server.console.route_results import compare_results, is_worse
from tests.support.console_people import make_administrator
from tests.support.gateway import CHAT, KEY, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway


def compared(model: str, requests: int, *, shadow: bool = False, failures: int = 0, cost_usd: float = 0) -> Any:
    return ModelComparison(
        model=model, shadow=shadow, requests=requests, failures=failures, mean_first_byte_ms=9.0, mean_total_ms=20.0,
        mean_completion_tokens=4.0, cost_usd=cost_usd, compared=0, mean_agreement=None, same_text=0, same_tools=0,
        same_finish=0,
    )  # fmt: skip


def served(step: int, model: str, weight: int, upstream_model: str) -> ServedModel:
    serving = ServingChannel(
        channel="one", provider="custom", upstream_model=upstream_model, price=None, price_multiplier=1
    )
    return ServedModel(step, model, weight, [serving])


ROUTE = RouteDetails(
    name="fast", about="", max_attempts=None, deadline_s=None, cache_ttl_s=None, step=(), source="console",
    overridden=False, warnings=(), version="", served=[
        served(1, "large", 9, "vendor/large"), served(1, "new", 1, "vendor/new"), served(2, "spare", 1, "spare"),
        served(2, "new", 1, "vendor/new"),
    ],
)  # fmt: skip


def test_a_canary_stands_beside_the_model_with_most_weight_under_the_providers_names() -> None:
    sums = [
        compared("gone", 10), compared("vendor/new", 10, failures=5, cost_usd=2), compared("vendor/large", 80),
        compared("spare", 0), compared("tried", 4, shadow=True), compared("vendor/new", 12, shadow=True),
    ]  # fmt: skip
    own, copies = compare_results(ROUTE, sums)
    assert [(one.sums.model, one.step, one.weight_share, one.share) for one in own] == [
        ("vendor/large", 1, 0.9, 0.8),
        ("vendor/new", 1, 0.1, 0.1),
        ("gone", None, None, 0.1),
    ]
    assert [one.ordinary and one.ordinary.model for one in own] == [None, "vendor/large", None]
    assert (own[1].answered_share, own[1].usd_per_request) == (0.5, 0.2)
    assert [(one.sums.model, one.share, one.ordinary and one.ordinary.model) for one in copies] == [
        ("tried", 0.25, "vendor/large"),
        ("vendor/new", 0.75, "vendor/large"),
    ]
    assert compare_results(ROUTE, [compared("tried", 4, shadow=True)])[1][0].ordinary is None


def test_a_figure_is_worse_only_beside_one_that_is_known() -> None:
    pairs = [(111.0, 100.0), (109.0, 100.0), (100.0, None), (None, 100.0), (1.0, 0.0), (0.0, 0.0)]
    assert [is_worse(*pair) for pair in pairs] == [True, False, False, False, True, False]


async def test_the_page_shows_what_a_canary_and_copies_cost_and_leads_to_their_requests(
    gateway_with: StartGateway,
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(
            {
                "channel": [channel(up.base_url, "one", models=["large", "new", "tried"])],
                "key": [{"name": "test", "account": "acme", "secret": KEY}],
                "billing": {"unpriced": "free"},
                "route": [{"name": "fast", "step": [
                    {"models": [{"model": "large", "weight": 3}, "new"], "shadow": {"models": ["tried"], "share": 1}}
                ]}],
            }
        )  # fmt: skip
        body: dict[str, Any] = {"model": "fast", "messages": [{"role": "user", "content": "Hi"}]}
        headers = {"Authorization": f"Bearer {KEY}"}
        sent = 0
        models: set[str] = set()
        while len(models) < 2 or sent < 4:  # the canary gets a quarter of them
            body["messages"][0]["content"] = f"Hi {sent}"  # another conversation
            async with gateway.client.post(gateway.url + CHAT, json=body, headers=headers) as response:
                assert response.status == 200
            sent += 1
            models = {row.served_model for row in await gateway.rows(2 * sent) if not row.shadow}
    ada = await make_administrator(gateway)
    status, page = await ada.open("/routes/fast")
    await ada.session.close()
    assert status == 200
    results = page.partition('id="results"')[2]
    assert results.index("served_model=large") < results.index("served_model=new") < results.index("served_model=tried")
    assert results.count("canary</span>") == 1
    assert "75 %" in results
