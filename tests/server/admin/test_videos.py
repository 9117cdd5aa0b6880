"""The admin API's videos: found and followed for any account, cancelled, and the webhooks of their ends."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from gateway.domain.webhook import build_secret, sign_delivery
from gateway.server.context import SERVICES
from tests.support.admin_calls import Ask, ask_office
from tests.support.console_people import invite, make_administrator
from tests.support.fault_scene import until
from tests.support.gateway import KEY, RunningGateway
from tests.support.openai_videos import Answered, OpenAiVideos, Play
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.video_scene import VIDEOS, await_job, find_jobs, site, submit

OTHER_KEY = "sk-test-key-of-another-caller"
STRANGER = "video_" + "0" * 32
PEOPLE = {
    "account": [{"name": "acme", "quota_usd": 100}, {"name": "other"}],
    "key": [
        {"name": "test", "account": "acme", "secret": KEY},
        {"name": "theirs", "account": "other", "secret": OTHER_KEY},
    ],
}


@pytest.fixture
def end() -> asyncio.Event:
    """Until it is set, the provider says nothing of any task but ``slow``."""
    return asyncio.Event()


@pytest.fixture
async def up(end: asyncio.Event) -> AsyncIterator[OpenAiVideos]:
    plays = {"slow": Play(polls=("in_progress", end, "completed")), "bad": Play(polls=("in_progress", "failed"))}
    async with OpenAiVideos(**plays) as up:
        yield up


@pytest.fixture
async def gateway(up: OpenAiVideos, gateway_with: StartGateway, end: asyncio.Event) -> AsyncIterator[RunningGateway]:
    yield await gateway_with(site(up.channel(), **PEOPLE))
    end.set()  # at its end nothing is to be held


@pytest.fixture
def ask(gateway: RunningGateway) -> Ask:
    return partial(ask_office, gateway)


async def begin(gateway: RunningGateway, prompt: str, *states: str, key: str = KEY) -> str:
    """The id of a job of that prompt, once it is in one of these states; without any, once it has ended."""
    async with gateway.post({"model": "m", "prompt": prompt, "seconds": "4"}, VIDEOS, headers=bearer(key)) as response:
        assert response.status == 200, await response.text()
    return (await await_job(gateway, prompt, *states)).id


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def list_ids(ask: Ask, query: str = "") -> list[str]:
    status, value = await ask("GET", f"/videos?{query}")
    assert (status, value["object"]) == (200, "list"), value
    return [video["id"] for video in value["data"]]


@pytest.mark.slow
async def test_jobs_of_all_accounts_are_listed_filtered_and_paged(gateway: RunningGateway, ask: Ask) -> None:
    slow, bad = await begin(gateway, "slow", "processing"), await begin(gateway, "bad")
    theirs = await begin(gateway, "theirs", key=OTHER_KEY)
    for query, expected in (
        ("", [theirs, bad, slow]),
        ("order=asc", [slow, bad, theirs]),
        ("limit=2", [theirs, bad]),
        (f"after={theirs}", [bad, slow]),
        (f"after={theirs}&limit=1", [bad]),
        (f"after={slow}&order=asc", [bad, theirs]),
        (f"after={STRANGER}", []),
        ("account=acme", [bad, slow]),
        ("account=other", [theirs]),
        ("live=true", [slow]),
        ("live=true&account=other", []),
        ("live=false", [theirs, bad, slow]),
        ("status=processing", [slow]),
        ("status=failed", [bad]),
        ("status=completed&account=acme", []),
        ("status=completed", [theirs]),
        ("status=queued", []),
        ("status=failed&live=true", []),
        (f"status=completed&after={slow}&order=asc", [theirs]),
        (f"status=completed&after={theirs}", []),
        (f"ids={bad},{STRANGER},{slow}", [bad, slow]),
        (f"ids={STRANGER}&limit=x", []),
    ):
        assert await list_ids(ask, query) == expected, query


@pytest.mark.slow
async def test_a_member_sees_and_ends_its_own_accounts_jobs_and_hears_nothing_of_channels(
    gateway: RunningGateway, ask: Ask
) -> None:
    mine, theirs = await begin(gateway, "slow", "processing", key=OTHER_KEY), await begin(gateway, "bad")
    ada = await make_administrator(gateway)
    mia = await invite(ada, "mia", "member", "other")
    for query, expected in (("", [mine]), (f"ids={mine},{theirs}", [mine]), (f"after={theirs}&order=asc", [])):
        status, listed = await mia.call("GET", f"/videos?{query}")
        assert (status, [video["id"] for video in listed["data"]]) == (200, expected), query
    for method, path in (("GET", ""), ("POST", "/cancel")):
        refused = [await mia.call(method, f"/videos/{video_id}{path}") for video_id in (theirs, STRANGER)]
        assert [status for status, _ in refused] == [404, 404]
        assert refused[0][1]["error"]["code"] == refused[1][1]["error"]["code"]
    assert await mia.call("GET", f"/deliveries?video={theirs}") == (200, {"object": "list", "data": []})
    _, shown = await mia.call("GET", f"/videos/{mine}")
    whole = (await ask("GET", f"/videos/{mine}"))[1]
    hidden = {name for name in whole if whole[name] != shown[name] and shown[name] is None}
    assert hidden >= {"channel", "provider", "upstream_model", "upstream_id"}
    assert "up1" not in str(shown)
    status, cancelled = await mia.call("POST", f"/videos/{mine}/cancel")
    assert (status, cancelled["status"], cancelled["channel"]) == (200, "failed", None)
    (reported,) = (await ask("GET", "/audit-trail?action=video.cancelled"))[1]["data"]
    assert (reported["actor"], reported["account"]) == ("mia", "other")
    for person in (ada, mia):
        await person.session.close()


REFUSED: tuple[tuple[str, str, int, str, str | None], ...] = (
    ("GET", f"/videos/{STRANGER}", 404, "not_found", "video_id"),
    ("GET", "/videos/1", 404, "not_found", "video_id"),
    ("GET", "/videos/..%2F..%2Fkeys", 404, "not_found", "video_id"),
    ("POST", f"/videos/{STRANGER}/cancel", 404, "not_found", "video_id"),
    ("GET", f"/videos/{STRANGER}/cancel", 405, "method_not_allowed", None),
    ("DELETE", f"/videos/{STRANGER}", 405, "method_not_allowed", None),
    ("GET", "/videos?limit=x", 400, "invalid_request", "limit"),
    ("GET", "/videos?order=up", 400, "invalid_request", "order"),
    ("GET", "/videos?after=1", 400, "invalid_request", "after"),
    ("GET", "/videos?after=", 400, "invalid_request", "after"),
    ("GET", "/videos?live=1", 400, "invalid_request", "live"),
    ("GET", "/videos?status=running", 400, "invalid_request", "status"),
    ("GET", "/videos?status=", 400, "invalid_request", "status"),
    ("GET", "/videos?account=nobody", 404, "not_found", "account"),
    ("GET", "/videos?ids=", 400, "invalid_request", "ids"),
    ("GET", f"/videos?ids={','.join([STRANGER] * 101)}", 400, "invalid_request", "ids"),
    ("GET", "/deliveries?video=1", 400, "invalid_request", "video"),
    ("GET", "/deliveries?limit=-1", 400, "invalid_request", "limit"),
    ("GET", "/keys/99/webhook-secret", 404, "not_found", None),
    ("GET", "/keys/x/webhook-secret", 404, "not_found", None),
)


async def test_a_refusal_says_what_is_wrong(ask: Ask) -> None:
    for method, path, status, code, param in REFUSED:
        found, value = await ask(method, path)
        assert (found, value["error"]["code"], value["error"]["param"]) == (status, code, param), path


@pytest.mark.slow
async def test_a_job_is_shown_with_all_that_its_operator_needs_and_nothing_of_what_it_shows(
    gateway: RunningGateway, ask: Ask, end: asyncio.Event
) -> None:
    video_id = await begin(gateway, "slow", "processing")
    _, shown = await ask("GET", f"/videos/{video_id}")
    job = await find_job(gateway, video_id)
    assert shown.keys() >= (await ask("GET", "/videos"))[1]["data"][0].keys()
    reported = {
        "id": video_id,
        "status": "processing",
        "live": True,
        "account": "acme",
        "key_name": "test",
        "model": "m",
        "seconds": "4",
        "channel": "up",
        "provider": "custom",
        "upstream_model": "m",
        "upstream_id": "video_up1",
        "request_id": job.receipt.id,
        "polls": job.polls,
        "failures": 0,
        "completed_at": None,
        "error_code": None,
        "media_id": None,
        "held_usd": 1,
        "price_usd": 1,
        "cost_usd": 0,
        "cost_nanos": 0,
        "webhook_url": None,
        "deliveries": [],
    }
    assert {name: shown[name] for name in reported} == reported
    assert shown["created_at"] <= shown["updated_at"] <= shown["due_at"] < shown["deadline_at"]
    assert "slow" not in str(shown)
    assert "provider-key" not in str(shown)
    end.set()
    job = await await_job(gateway, "slow")
    _, shown = await ask("GET", f"/videos/{video_id}")
    assert (shown["status"], shown["live"], shown["progress"]) == ("completed", False, 100)
    assert (shown["held_usd"], shown["price_usd"], shown["cost_usd"], shown["cost_nanos"]) == (0, 1, 1, 10**9)
    assert (shown["media_id"], shown["media_type"], shown["media_bytes"]) == (job.media_id, "video/mp4", 300_000)
    assert (shown["due_at"], shown["owner"], shown["lease_until"]) == (None, None, None)
    assert shown["completed_at"] < shown["expires_at"]

    _, shown = await ask("GET", f"/videos/{await begin(gateway, 'bad')}")
    assert (shown["error_code"], shown["error_message"]) == (
        "upstream_error",
        "The machine ran out of film (internal_error)",
    )
    assert (shown["held_usd"], shown["price_usd"], shown["cost_usd"]) == (0, 1, 0)


@pytest.mark.slow
async def test_a_job_is_cancelled_once_and_costs_nothing(gateway: RunningGateway, ask: Ask) -> None:
    video_id = await begin(gateway, "slow", "processing")
    answers = await asyncio.gather(*(ask("POST", f"/videos/{video_id}/cancel") for _ in range(5)))
    assert sorted(status for status, _ in answers) == [200, 409, 409, 409, 409]
    (cancelled,) = (value for status, value in answers if status == 200)
    assert (cancelled["status"], cancelled["error_code"], cancelled["held_usd"]) == ("failed", "cancelled", 0)
    assert {value["error"]["code"] for status, value in answers if status == 409} == {"conflict"}
    (row,) = await gateway.rows(1)
    assert (row.outcome, row.error_code, row.cost_nanos) == ("cancelled", "cancelled", 0)
    _, audit_log = await ask("GET", "/audit-trail?action=video")
    (reported,) = audit_log["data"]
    assert (reported["action"], reported["subject"], reported["account"]) == ("video.cancelled", video_id, "acme")
    assert reported["detail"] == {"status": ["processing", "failed"]}
    assert (await ask("GET", "/accounts/acme"))[1]["held_usd"] == 0


@pytest.mark.slow
async def test_the_audit_tells_jobs_from_calls_and_finds_no_fault_while_they_come_and_go(
    gateway: RunningGateway, ask: Ask, end: asyncio.Event, up: OpenAiVideos
) -> None:
    prompts, refused = [f"slow {number}" for number in range(6)], [f"no {number}" for number in range(3)]
    up.plays |= dict.fromkeys(prompts, up.plays["slow"])
    up.plays |= dict.fromkeys(refused, Play(submit=(Answered({"error": {"message": "No film"}}, 400),)))
    audits = asyncio.gather(*(ask("GET", "/audit") for _ in range(5)))
    heard = await asyncio.gather(*(submit(gateway, prompt) for prompt in [*prompts, *refused]))
    assert [one.status for one in heard] == [200] * 6 + [400] * 3
    assert [audited["problems"] for _, audited in await audits] == [[]] * 5
    _, audited = await ask("GET", "/audit")
    assert (audited["problems"], audited["open_holds"], audited["video_holds"]) == ([], 0, 6)
    assert (audited["held_usd"], audited["video_held_usd"]) == (6, 6)
    end.set()
    for prompt in prompts:
        await await_job(gateway, prompt)
    _, audited = await ask("GET", "/audit")
    assert (audited["problems"], audited["video_holds"], audited["held_usd"]) == ([], 0, 0)
    assert audited["charged_usd"] == 6


@pytest.mark.slow
async def test_a_key_is_told_of_its_videos_signed_with_its_own_secret(
    gateway_with: StartGateway, up: OpenAiVideos
) -> None:
    async with ScriptedUpstream([answer(b"{}")]) as hook:
        gateway = await gateway_with(site(up.channel(), **PEOPLE))
        ask = partial(ask_office, gateway)
        url = f"http://127.0.0.1:{hook.port}/videos?token=t"
        _, made = await ask("POST", "/keys", {"name": "told", "account": "acme", "webhook_url": url})
        secret, key = made.pop("secret"), f"/keys/{made['id']}"
        assert made["webhook_url"] == url
        assert (await ask("PATCH", key, {"rpm": 60}))[1] == {**made, "rpm": 60, "locked": ["rpm"]}
        for odd in ("nowhere", "http://a:99999/", "http://[::1", "https://u:p@example.com"):
            for method, path, more in (("PATCH", key, {}), ("POST", "/keys", {"name": "odd", "account": "acme"})):
                status, refused = await ask(method, path, {"webhook_url": odd, **more})
                assert (status, refused["error"]["param"]) == (400, "webhook_url"), odd
        video_id = await begin(gateway, "good", key=secret)
        await until(lambda: hook.received)
        received = hook.received[0]
        _, reported = await ask("GET", f"{key}/webhook-secret")
        services = gateway.app[SERVICES]
        assert reported == {"secret": build_secret(services.videos.find_secret(made["id"]))}
        assert reported != (await ask("GET", "/keys/1/webhook-secret"))[1]
        delivery_id, sent_s = received.headers["webhook-id"], int(received.headers["webhook-timestamp"])
        signature = sign_delivery(services.videos.find_secret(made["id"]), delivery_id, sent_s, received.body)
        assert received.headers["webhook-signature"] == signature

        async with asyncio.timeout(15):
            while (await ask("GET", "/deliveries"))[1]["data"][0]["status"] == "pending":  # noqa: ASYNC110 - it has no bell
                await asyncio.sleep(0.01)
        _, listed = await ask("GET", f"/deliveries?video={video_id}")
        (delivery,) = listed["data"]
        assert (delivery["id"], delivery["event"], delivery["url"]) == (delivery_id, "video.completed", url)
        assert (delivery["status"], delivery["attempts"], delivery["answer"]) == ("delivered", 1, 200)
        assert (await ask("GET", f"/videos/{video_id}"))[1]["deliveries"] == [delivery]
        assert (await ask("GET", "/deliveries"))[1]["data"] == [delivery]
        assert (await ask("GET", f"/deliveries?video={STRANGER}"))[1]["data"] == []

        assert (await ask("PATCH", key, {"webhook_url": None}))[1]["webhook_url"] is None
        untold = await begin(gateway, "good again", key=secret)
        assert (await ask("GET", f"/deliveries?video={untold}"))[1]["data"] == []


async def find_job(gateway: RunningGateway, video_id: str) -> Any:
    return next(job for job in (await find_jobs(gateway)).values() if job.id == video_id)
