"""Kept requests that are sent again: who pays, what is refused, and how the answers are compared."""

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from tests.support.admin_calls import AdminApi
from tests.support.console_people import invite, make_administrator
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.secret_samples import SECRETS
from tests.support.started_gateways import StartGateway
from tests.support.text_provider import open_text_provider

PAYER = "sk-test-key-of-the-one-who-asks"
ASKED = [{"role": "user", "content": "say hello"}]
GEMINI = "/v1beta/models/m:"
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"model": "m", "messages": ASKED}),
    ("/v1/chat/completions", {"model": "m", "messages": ASKED, "stream": True}),
    ("/v1/messages", {"model": "m", "messages": ASKED, "max_tokens": 99}),
    ("/v1/messages", {"model": "m", "messages": ASKED, "max_tokens": 99, "stream": True}),
    ("/v1/responses", {"model": "m", "input": "say hello"}),
    ("/v1/responses", {"model": "m", "input": "say hello", "stream": True}),
    (f"{GEMINI}generateContent", {"contents": [{"parts": [{"text": "say hello"}]}]}),
    (f"{GEMINI}streamGenerateContent?alt=sse", {"contents": [{"parts": [{"text": "say hello"}]}]}),
    (f"{GEMINI}embedContent", {"content": {"parts": [{"text": "say hello"}]}}),
    ("/v1/completions", {"model": "m", "prompt": "say hello"}),
    ("/v1/embeddings", {"model": "m", "input": "say hello"}),
    ("/v1/moderations", {"model": "m", "input": "say hello"}),
    ("/v1/rerank", {"model": "m", "query": "say hello", "documents": ["hello"]}),
]
TEXTS = 8
"""The first so many of these are answered with a text."""
PRICES = [
    {"model": name, "input_usd_per_million": cost, "output_usd_per_million": cost}
    for name, cost in (("m", 1), ("new", 3))
]


@attrs.define
class Site:
    """A gateway that keeps bodies of the account ``acme``; ``lab`` pays for replays."""

    gateway: RunningGateway
    office: AdminApi
    payer_id: int
    received: list[tuple[str, dict[str, Any]]]

    async def ask(self, path: str, body: dict[str, Any]) -> str:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with self.gateway.client.post(self.gateway.url + path, json=body, headers=headers) as response:
            text = await response.text()
            assert response.status == 200, text
            return str(response.headers["X-Request-Id"])

    async def replay(self, request_id: str, status: int = 200, **fields: Any) -> Any:
        body = {"model": "new", "key": self.payer_id, **fields}
        return await self.office("POST", f"/requests/{request_id}/replay", body, status)


@pytest.fixture
async def site(gateway_with: StartGateway) -> AsyncIterator[Site]:
    received: list[tuple[str, dict[str, Any]]] = []
    async with open_text_provider(received) as base_url:
        config = {
            "channel": [
                channel(base_url, models=["m", "new"]),
                channel(base_url, "spare", models=["new"], priority=-1),
            ],
            "account": [{"name": "acme"}, {"name": "lab", "quota_usd": 1}],
            "key": [
                {"name": "test", "account": "acme", "secret": KEY},
                {"name": "payer", "account": "lab", "secret": PAYER},
            ],
            "price": PRICES,
            "requests": {"keep_bodies": "all"},
        }
        gateway = await gateway_with(config)
        office = AdminApi(gateway)
        keys = (await office("GET", "/keys"))["data"]
        yield Site(gateway, office, next(key["id"] for key in keys if key["name"] == "payer"), received)


async def test_fifty_requests_of_every_operation_are_sent_again_and_compared(site: Site) -> None:
    """The one who asks pays for each of them, and its row names the first request."""
    bodies = [(number % len(BODIES), *BODIES[number % len(BODIES)]) for number in range(50)]
    asked = [(kind, await site.ask(path, body)) for kind, path, body in bodies]
    first_sum = (await site.office("GET", "/accounts/acme"))["spent_usd"]
    first_bodies = site.received.copy()
    site.received.clear()
    spent_usd = 0.0
    for (kind, request_id), (path, sent) in zip(asked, first_bodies, strict=True):
        compared = await site.replay(request_id, expect=["says HELLO"] if kind < TEXTS else [])
        first, second = compared["first"], compared["second"]
        row = await site.office("GET", f"/requests/{second['id']}")
        assert (row["replay_of"], row["account"], row["key_name"]) == (request_id, "lab", "payer")
        assert (row["outcome"], row["model"], first["model"]) == ("completed", "new", "m")
        assert (second["cost_usd"], second["outcome"]) == (row["cost_usd"], "completed")
        assert second["cost_usd"] == pytest.approx(3 * first["cost_usd"])
        assert site.received[-1] == (path, {**sent, "model": "new"})
        if kind < TEXTS:
            assert (first["text"].strip(), second["text"].strip()) == ("m says hello", "new says hello")
            assert [change["kind"] for change in compared["changes"]] == ["old", "new", "same"]
            assert (compared["same_text"], compared["same_tools"], second["problems"]) == (False, True, [])
        spent_usd += second["cost_usd"]
    assert len(site.received) == 50
    assert (await site.office("GET", "/accounts/lab"))["spent_usd"] == pytest.approx(spent_usd)
    assert (await site.office("GET", "/accounts/acme"))["spent_usd"] == first_sum
    assert (await site.office("GET", "/bodies"))["requests"] == 50  # no replay is kept: it would be a second copy
    trail = (await site.office("GET", "/audit-trail?action=bodies.replayed&limit=100"))["data"]
    assert [entry["subject"] for entry in trail] == [request_id for _, request_id in reversed(asked)]


async def test_embeddings_are_compared_by_their_angle(site: Site) -> None:
    compared = await site.replay(await site.ask("/v1/embeddings", {"model": "m", "input": "say hello"}))
    assert compared["cosine"] == pytest.approx(0.5**0.5)


async def test_a_redacted_or_cut_body_is_not_sent_as_if_it_were_whole(site: Site) -> None:
    secret = SECRETS["github"]
    redacted = await site.ask("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": secret}]})
    refused = await site.replay(redacted, 409)
    assert "Values of the body were replaced" in refused["error"]["message"]
    long = {"model": "m", "messages": [{"role": "user", "content": "word " * 100_000}]}
    cut = await site.ask("/v1/chat/completions", long)
    for allows in (False, True):
        refused = await site.replay(cut, 409, allow_redacted=allows)
        assert "without its middle" in refused["error"]["message"]
    assert len(site.received) == 2
    await site.replay(redacted, allow_redacted=True)
    assert site.received[-1][1]["messages"][0]["content"] == "[secret 1]"


async def test_an_answer_that_was_cut_is_not_compared(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    request_id = await site.ask(*BODIES[0])
    monkeypatch.setattr("gateway.server.replayed_request.MAX_ANSWER_BYTES", 20)
    compared = await site.replay(request_id, expect=["hello"])
    assert (compared["first"]["is_whole"], compared["second"]["is_whole"]) == (True, False)
    assert (compared["same_text"], compared["same_tools"], compared["changes"]) == (None, None, None)
    assert compared["second"]["problems"] == ["a part of the answer is missing or was replaced"]


async def test_the_limits_and_models_of_the_key_that_pays_apply(site: Site) -> None:
    request_id = await site.ask(*BODIES[0])
    poor = await site.office("POST", "/keys", {"name": "poor", "account": "lab", "quota_usd": 1e-9}, 201)
    compared = await site.replay(request_id, key=poor["id"])
    assert (compared["second"]["outcome"], compared["second"]["cost_usd"]) == ("refused", 0)
    assert compared["second"]["problems"] == ["the request did not complete: refused"]
    assert (compared["same_text"], compared["same_tools"], compared["changes"]) == (None, None, None)
    bound = await site.office("POST", "/keys", {"name": "bound", "account": "lab", "models": ["m"]}, 201)
    compared = await site.replay(request_id, key=bound["id"])
    assert compared["second"]["outcome"] == "refused"
    assert len(site.received) == 1
    refused = await site.replay(request_id, 400, key=None)
    assert refused["error"]["param"] == "key"
    assert (await site.replay(request_id, 404, key=999))["error"]["param"] == "key"
    disabled = await site.office("PATCH", f"/keys/{poor['id']}", {"status": "disabled"})
    assert (await site.replay(request_id, 401, key=disabled["id"]))["error"]["code"] == "key_disabled"


async def test_a_channel_is_chosen(site: Site) -> None:
    request_id = await site.ask(*BODIES[0])
    assert (await site.replay(request_id, channel="spare"))["second"]["channel"] == "spare"
    compared = await site.replay(request_id, channel="spare", model="m")
    assert "'spare' does not serve the model 'm'" in compared["second"]["error"]


async def test_an_answer_is_judged_by_words_and_by_a_schema(site: Site) -> None:
    request_id = await site.ask(*BODIES[0])
    compared = await site.replay(request_id, expect=["hello", "goodbye"], schema={"type": "object"})
    assert compared["second"]["problems"] == ["the words 'goodbye' are missing", "the text is no JSON"]
    refused = await site.replay(request_id, 400, schema={"$ref": "#"})
    assert refused["error"]["param"] == "schema"
    assert len(site.received) == 2


async def test_a_member_sends_what_it_may_read_again_and_its_account_pays(site: Site) -> None:
    request_id = await site.ask(*BODIES[0])
    ada = await make_administrator(site.gateway)
    ben, eve = await invite(ada, "ben", "member", "acme"), await invite(ada, "eve", "member", "lab")
    vic = await invite(ada, "vic", "viewer", "acme")
    path = f"/requests/{request_id}/replay"
    async with ada.session, ben.session, eve.session, vic.session:
        assert (await ben.call("POST", path, {"model": "new"}))[0] == 403
        for member in (await site.office("GET", "/members"))["data"]:
            await site.office("PATCH", f"/members/{member['id']}", {"may_read_bodies": True})
        assert (await eve.call("POST", path, {"model": "new"}))[0] == 404
        assert (await vic.call("POST", path, {"model": "new"}))[0] == 403
        assert (await ben.call("POST", path, {"model": "new", "key": site.payer_id}))[0] == 404
        assert (await ben.call("POST", path, {"model": "new", "channel": "up"}))[0] == 403
        assert len(site.received) == 1
        status, compared = await ben.call("POST", path, {"model": "new"})
        assert (status, compared["second"]["channel"]) == (200, None)
        row = await site.office("GET", f"/requests/{compared['second']['id']}")
        assert (row["account"], row["replay_of"]) == ("acme", request_id)


async def test_the_rule_against_loops_of_the_key_that_pays_applies(site: Site) -> None:
    request_id = await site.ask(*BODIES[0])
    key = {"name": "agent", "account": "lab", "loops": {"same_prompt": 2}}
    agent = await site.office("POST", "/keys", key, 201)
    outcomes = [(await site.replay(request_id, key=agent["id"]))["second"]["outcome"] for _ in range(3)]
    assert outcomes == ["completed", "completed", "refused"]
    assert len(site.received) == 3
    assert (await site.replay(request_id))["second"]["outcome"] == "completed"


async def test_a_refusal_for_now_says_when_to_try_again(site: Site) -> None:
    request_id = await site.ask(*BODIES[0])
    slow = await site.office("POST", "/keys", {"name": "slow", "account": "lab", "rpm": 1}, 201)
    compared = [await site.replay(request_id, key=slow["id"]) for _ in range(2)]
    assert [run["second"]["outcome"] for run in compared] == ["completed", "refused"]
    assert compared[0]["retry_after_s"] is None
    assert 0 < compared[1]["retry_after_s"] <= 60
