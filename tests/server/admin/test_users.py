"""Forgetting an end user: rows, sums and keys get one random name, the money stays the same, the audit has no name."""

import asyncio
from typing import Any

import aiohttp
import attrs
import pytest

from gateway.billing.forgotten_users import UserRenaming
from gateway.domain.attribution import build_stored_user
from gateway.errors import Conflict
from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from gateway.videos.reservations import build_end
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.video_gateway import ACCOUNTS, VIDEOS, VideoGateway
from tests.support.video_records import make_job

SECRETS = {"acme": "sk-test-key-of-the-first-account", "other": "sk-test-key-of-another-account"}
LIMIT = {"name": "users", "of": "user", "usd": 100, "window": "day"}


def make_config(base_url: str, **sections: Any) -> dict[str, Any]:
    price = {"model": "m", "input_usd_per_million": 1_000, "output_usd_per_million": 1_000}
    return {
        "channel": [channel(base_url, models=["m"])],
        "price": [price],
        "account": [{"name": name} for name in SECRETS],
        "key": [{"name": name, "account": name, "secret": secret} for name, secret in SECRETS.items()],
        **sections,
    }


@attrs.frozen
class ForgetScenario:
    """A gateway that serves users and forgets them."""

    gateway: RunningGateway

    async def ask(self, user: str, account: str = "acme", text: str = "hi") -> None:
        headers = {"Authorization": f"Bearer {SECRETS[account]}"}
        body = {**HELLO, "model": "m", "user": user, "messages": [{"role": "user", "content": text}]}
        async with self.gateway.post(body, headers=headers) as response:
            assert response.status == 200, await response.text()

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.gateway.admin_token}"}
        url = f"{self.gateway.url}{PREFIX}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, json=body, headers=headers) as response,
        ):
            return response.status, await response.json()

    async def list_users(self, **filters: str) -> dict[str, int]:
        query = "".join(f"&{name}={value}" for name, value in filters.items())
        _, report = await self.call("GET", f"/usage?by=user{query}")
        return {line["user"]: line["requests"] for line in report["data"]}

    async def verify(self) -> None:
        _, report = await self.call("GET", "/audit")
        assert report["ok"], report["problems"]


@pytest.mark.parametrize("limits", [[], [LIMIT]])
async def test_a_user_is_forgotten_in_rows_sums_and_keys(
    gateway_with: StartGateway, limits: list[dict[str, Any]]
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        sections = {"limit": limits} if limits else {}
        scenario = ForgetScenario(await gateway_with(make_config(up.base_url, **sections)))
        for user, account in (("ann", "acme"), ("ann", "acme"), ("bob", "acme"), ("ann", "other")):
            await scenario.ask(user, account)
        _, key = await scenario.call("POST", "/keys", {"name": "hers", "account": "acme", "user": "ann"})
        status, forgotten = await scenario.call("POST", "/users/forget", {"user": "ann", "account": "acme"})
        assert (status, forgotten["requests"], forgotten["sums"], forgotten["keys"]) == (200, 2, 1, 1), forgotten
        name = forgotten["name"]
        assert await scenario.list_users() == {name: 2, "bob": 1, "ann": 1}
        assert await scenario.list_users(account="other") == {"ann": 1}
        _, rows = await scenario.call("GET", f"/requests?end_user={name}")
        assert len(rows["data"]) == 2
        assert (await scenario.call("GET", f"/keys/{key['id']}"))[1]["user"] == name
        await scenario.verify()
        await scenario.ask("ann")
        assert (await scenario.list_users())["ann"] == 2
        await scenario.verify()
        _, trail = await scenario.call("GET", "/audit-trail")
        (entry,) = [row for row in trail["data"] if row["action"] == "user.forgotten"]
        assert (entry["subject"], forgotten["audit"]) == (name, 1)
        (created,) = [row for row in trail["data"] if row["subject"] == "acme/hers"]
        assert created["detail"]["user"] == [None, name]
        assert "ann" not in str(trail)
        _, again = await scenario.call("POST", "/users/forget", {"user": "ann"})
        assert (again["requests"], again["name"] != name) == (2, True)
        assert "ann" not in await scenario.list_users()
        stored = await scenario.gateway.rows(5)
        assert not any("ann" in row.end_user + row.limit_charges for row in stored)
        await scenario.verify()


@pytest.mark.parametrize("limits", [[], [LIMIT, {**LIMIT, "name": "rolling", "window": "rolling:24h"}]])
async def test_running_requests_of_a_forgotten_user_get_the_new_name(
    gateway_with: StartGateway, limits: list[dict[str, Any]]
) -> None:
    has_arrived, may_answer = asyncio.Event(), asyncio.Event()

    async def wait(received: Received) -> None:
        if received.json["messages"][0]["content"] == "long":
            has_arrived.set()
            await may_answer.wait()

    async with ScriptedUpstream([wait, answer(COMPLETION)]) as up:
        sections = {"limit": limits} if limits else {}
        scenario = ForgetScenario(await gateway_with(make_config(up.base_url, **sections)))
        await scenario.ask("ann")
        running = asyncio.create_task(scenario.ask("ann", text="long"))
        await has_arrived.wait()
        _, forgotten = await scenario.call("POST", "/users/forget", {"user": "ann"})
        name = forgotten["name"]
        assert (forgotten["requests"], await scenario.list_users()) == (1, {name: 1})
        await scenario.ask("ann")
        may_answer.set()
        await running
        assert await scenario.list_users() == {name: 2, "ann": 1}
        await scenario.verify()
        spending = scenario.gateway.app[SERVICES].billing.limits.spending
        books = spending.list_books() if limits else ()
        assert [sorted(book.balances) for book in books] == [["1:ann", f"1:{name}"]] * len(limits)
        await scenario.ask("ann")
        for book in books:
            balance, rows = book.balances["1:ann"], await scenario.gateway.rows(4)
            costs = [row.cost_nanos for row in rows if row.end_user == "ann"]
            assert (len(costs), balance.spent_nanos) == (2, sum(costs)), "what was spent before is another's"
        await scenario.verify()


async def test_a_forgotten_user_stays_in_no_video(gateway_with: StartGateway) -> None:
    """One job has ended, one waits at its provider, one is asked about while the user is forgotten."""
    limit = {"name": "films", "of": "user", "usd": 100, "window": "day"}
    async with OpenAiVideos(Play(polls=["completed"]), waits=Play(polls=["queued"], hint_ms=600_000)) as provider:
        config = {
            "channel": [provider.channel()],
            "egress": {"allow": ["127.0.0.1"]},
            **ACCOUNTS,
            "limit": [limit],
            "price": [{"model": "m", "usd_per_second": 0.1}],
            "model": [{"name": "m", "seconds": [4, 8], "sizes": ["1280x720"]}],
        }
        gateway = await gateway_with(config)
        videos, scenario = VideoGateway(gateway, provider), ForgetScenario(gateway)
        submitted = [await film(videos, prompt) for prompt in ("quick", "waits", "waits")]
        await videos.finish(submitted[0])
        jobs = gateway.app[SERVICES].videos.jobs
        reservations = jobs.reservations
        at_work = await reservations.store.find(submitted[1])
        _, forgotten = await scenario.call("POST", "/users/forget", {"user": "ann"})
        assert (forgotten["requests"], forgotten["videos"]) == (1, 3)
        late_job = attrs.evolve(at_work, state="failed")
        assert await reservations.finish(late_job, build_end(late_job, late_job.receipt.started_ms + 1), None, None)
        await jobs.cancel(submitted[2])
        stored = [await reservations.store.find(video_id) for video_id in submitted]
        assert {job.receipt.end_user for job in stored} == {forgotten["name"]}
        assert all(f':{forgotten["name"]}"' in job.receipt.limit_charges for job in stored)
        rows = await gateway.rows(3)
        assert {row.end_user for row in rows} == {forgotten["name"]}
        assert not any(':ann"' in row.limit_charges for row in [*rows, *(job.receipt for job in stored)])
        await scenario.verify()


async def test_a_user_with_an_open_video_under_a_limit_is_not_forgotten_on_a_node() -> None:
    """The database has set money aside under the name in the receipt."""
    job = make_job("film", account=1)
    receipt = attrs.evolve(job.receipt, end_user="ann", limit_charges='[["films|user|day|UTC","1:ann",5]]')
    job = attrs.evolve(job, receipt=receipt)
    renaming = UserRenaming(frozenset({"ann"}), "x", None, receipt.started_ms, is_on_node=True)
    with pytest.raises(Conflict, match="Videos of this user"):
        renaming.check_jobs([job])
    attrs.evolve(renaming, account_id=2).check_jobs([job])
    attrs.evolve(renaming, names=frozenset({"bob"})).check_jobs([job])
    renamed = renaming.rename_row(receipt)
    assert (renamed.end_user, renamed.limit_charges) == ("x", receipt.limit_charges)


async def film(videos: VideoGateway, prompt: str) -> str:
    heard = await videos.ask("POST", VIDEOS, json={"model": "m", "prompt": prompt}, headers={"x-gateway-user": "ann"})
    assert heard.status == 200, heard.body
    return str(heard.json["id"])


async def test_a_hashed_user_is_forgotten_by_name(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        scenario = ForgetScenario(await gateway_with(make_config(up.base_url, attribution={"users": "hash"})))
        await scenario.ask("ann")
        rules = scenario.gateway.app[SERVICES].live_config.attribution
        assert await scenario.list_users() == {build_stored_user("ann", rules): 1}
        _, forgotten = await scenario.call("POST", "/users/forget", {"user": "ann"})
        assert await scenario.list_users() == {forgotten["name"]: 1}


async def test_unknown_users_are_none_and_empty_names_are_refused(gateway_with: StartGateway) -> None:
    scenario = ForgetScenario(await gateway_with(make_config("http://127.0.0.1:9/v1")))
    status, forgotten = await scenario.call("POST", "/users/forget", {"user": "nobody"})
    assert (status, forgotten["requests"], forgotten["sums"], forgotten["keys"]) == (200, 0, 0, 0)
    status, body = await scenario.call("POST", "/users/forget", {"user": " "})
    assert (status, body["error"]["param"]) == (400, "user")
