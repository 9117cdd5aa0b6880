"""``Idempotency-Key``: whatever happens to a call that names itself, it is made once, and answered alike ever after."""

import asyncio
import base64
import io
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.domain.idempotency import MAX_ANSWER_BYTES, MAX_KEY_CHARS
from gateway.domain.video import SUBMIT_UNKNOWN_ERROR
from gateway.server.context import SERVICES
from tests.support.fault_scene import Heard, hear, until
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel, make_template, start_gateway
from tests.support.image_providers import draw
from tests.support.image_scene import IMAGES, PAINTED, PROMPT, leave
from tests.support.openai_videos import SILENCE, Answered, OpenAiVideos, Play
from tests.support.scripted_upstream import COMPLETION, STALL, Received, Script, ScriptedUpstream, answer, chat_script
from tests.support.started_gateways import StartGateway
from tests.support.video_scene import VIDEOS, audit, await_ends, await_job, find_jobs, site, submit, without

OTHER = "sk-test-key-of-somebody-else"
IMAGE = {"model": "m", "prompt": PROMPT, "response_format": "b64_json"}
CALLS: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "chat": (CHAT, HELLO, answer(COMPLETION)),
    "picture": (IMAGES, IMAGE, PAINTED),
}
"""Where, what is asked, and the provider's answer."""
EACH = pytest.mark.parametrize("call", CALLS)
PRICES = {"price": [{"model": "*", "input_usd_per_million": 1, "output_usd_per_million": 2, "usd_per_image": 1}]}


def serve(up: ScriptedUpstream, **sections: Any) -> dict[str, Any]:
    """A configuration with one channel that answers whatever is asked."""
    return {"channel": [channel(up.base_url)], **PRICES, **sections}


async def say(gateway: RunningGateway, call: str, key: str | None = "one", **more: Any) -> Heard:
    """A call under a name."""
    path, body, _ = CALLS[call]
    headers = {} if key is None else {"Idempotency-Key": key}
    async with gateway.post({**body, **more}, path, headers=headers) as response:
        return await hear(response)


def check_replay(again: Heard, before: Heard) -> None:
    """The same answer, to the byte, which says that it is one."""
    assert (again.status, again.body) == (before.status, before.body)
    assert again.headers["Content-Type"] == before.headers["Content-Type"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in before.headers
    assert again.request_id != before.request_id


def check_conflict(heard: Heard, *, under_way: bool) -> None:
    """409: to be asked again in a moment, or never."""
    assert heard.status == 409, heard
    error = orjson.loads(heard.body)["error"]
    assert (error["code"], error["param"]) == ("idempotency_conflict", "Idempotency-Key")
    assert ("Retry-After" in heard.headers) == under_way
    assert heard.headers.get("x-should-retry") == (None if under_way else "false")
    assert ("right now" in error["message"]) == under_way


async def test_fifty_submits_under_one_name_are_one_job(gateway_with: StartGateway) -> None:
    go_on = asyncio.Event()
    async with OpenAiVideos(Play(submit=(go_on, "ok"))) as up:
        gateway = await gateway_with(site(up.channel()))
        crowd = [asyncio.create_task(submit(gateway, "take", key="one", mark=f"call {number}")) for number in range(50)]
        await until(lambda: up.submits)
        await until(lambda: sum(calling.done() for calling in crowd) == 49)
        go_on.set()
        heard = await asyncio.gather(*crowd)
        assert Counter(one.status for one in heard) == {200: 1, 409: 49}
        for one in heard:
            if one.status == 409:
                check_conflict(one, under_way=True)
        (first,) = (one for one in heard if one.status == 200)
        for one in await asyncio.gather(*(submit(gateway, "take", key="one") for _ in range(5))):
            check_replay(one, first)
        (job,) = (await await_ends(gateway)).values()
        assert orjson.loads(first.body)["id"] == job.id
        check_replay(await submit(gateway, "take", key="one"), first)  # as it was said, though it has ended
        assert len(up.submits) == 1
        await audit(gateway, up, rows=56)


async def test_another_body_under_the_same_name_is_refused_and_an_equal_one_is_not(gateway_with: StartGateway) -> None:
    """However it is written. What differs in a file differs."""
    async with OpenAiVideos() as up:
        gateway = await gateway_with(site(up.channel()))
        body = {"model": "m", "prompt": "take", "seconds": "4", "size": "720x1280"}
        first = await post(gateway, "one", body)
        assert first.status == 200
        check_replay(await post(gateway, "one", dict(reversed(body.items()))), first)
        for more in ({"seconds": "8"}, {"prompt": "take "}, {"seed": 1}, {"model": "n"}):
            check_conflict(await post(gateway, "one", {**body, **more}), under_way=False)
        form = await post_form(gateway, "two", body, draw())
        assert form.status == 200
        check_replay(await post_form(gateway, "two", dict(reversed(body.items())), draw()), form)
        check_conflict(await post_form(gateway, "two", body, draw(shade=1)), under_way=False)
        check_conflict(await post_form(gateway, "two", body), under_way=False)
        check_conflict(await post(gateway, "two", body), under_way=False)
        assert len(up.submits) == 2
        for job in await gateway.app[SERVICES].videos.jobs.store.list_open():
            await gateway.app[SERVICES].videos.jobs.cancel(job.id)
        await gateway.rows(11)


async def post(gateway: RunningGateway, key: str, body: Mapping[str, Any], path: str = VIDEOS) -> Heard:
    async with gateway.post(body, path, headers={"Idempotency-Key": key}) as response:
        return await hear(response)


async def post_form(gateway: RunningGateway, key: str, body: Mapping[str, Any], image: bytes = b"") -> Heard:
    form = aiohttp.FormData(body)
    if image:
        form.add_field("input_reference", io.BytesIO(image), filename="picture.png", content_type="image/png")
    else:
        form.add_field("empty", "", content_type="text/plain")
    headers = {"Idempotency-Key": key}
    async with gateway.client.post(gateway.url + VIDEOS, data=form, headers=headers) as response:
        return await hear(response)


@EACH
async def test_a_call_is_made_once_and_paid_for_once(gateway_with: StartGateway, call: str) -> None:
    """In flight it is not made again, either; nor under a name that another API key has used."""
    go_on = asyncio.Event()

    async def hold(_received: Received) -> None:
        await go_on.wait()

    keys = [{"name": "test", "account": "acme", "secret": KEY}, {"name": "other", "account": "acme", "secret": OTHER}]
    async with ScriptedUpstream([hold, CALLS[call][2]]) as up:
        gateway = await gateway_with(serve(up, account=[{"name": "acme"}], key=keys))
        calling = asyncio.create_task(say(gateway, call))
        await until(lambda: up.received)
        check_conflict(await say(gateway, call), under_way=True)
        check_conflict(await say(gateway, call, user="somebody"), under_way=False)
        go_on.set()
        first = await calling
        assert first.status == 200
        for _ in range(2):
            check_replay(await say(gateway, call), first)
        assert len(up.received) == 1
        path, body, _ = CALLS[call]
        headers = {"Idempotency-Key": "one", "Authorization": f"Bearer {OTHER}"}
        async with gateway.post(body, path, headers=headers) as response:
            other = await hear(response)
        assert (other.status, "Idempotent-Replayed" in other.headers) == (200, False)
        assert (await say(gateway, call, key=None)).status == 200
        assert len(up.received) == 3
        rows = await gateway.rows(7)
        assert Counter(row.cost_nanos > 0 for row in rows) == {True: 3, False: 4}
        assert Counter(row.status for row in rows) == {200: 5, 409: 2}


REFUSED = answer({"error": {"message": "No such thing"}}, 400)
FAILED = answer({"error": {"message": "The server cannot do this"}}, 501)
"""A failure that is not tried again."""


@EACH
async def test_a_call_that_came_to_nothing_may_be_made_again(gateway_with: StartGateway, call: str) -> None:
    """Refused by the provider, failed there, refused here, or left by its caller."""
    scripts: list[Script] = [[REFUSED], [FAILED], [STALL], [CALLS[call][2]]]
    async with ScriptedUpstream(*scripts) as up:
        gateway = await gateway_with(serve(up))
        for status in (400, 501):
            heard = await say(gateway, call)
            assert (heard.status, "Idempotent-Replayed" in heard.headers) == (status, False)
        assert (await say(gateway, call, model="unknown", key="two")).status == 404
        assert (await say(gateway, call, model="unknown", key="two")).status == 404
        calling = asyncio.create_task(say(gateway, call))
        await until(lambda: len(up.received) == 3)
        await leave(calling)
        heard = await say_until_made(gateway, call)
        assert (heard.status, "Idempotent-Replayed" in heard.headers) == (200, False)
        check_replay(await say(gateway, call), heard)
        assert len(up.received) == 4


async def say_until_made(gateway: RunningGateway, call: str) -> Heard:
    """As a client library does: again while it is told that the call is under way."""
    async with asyncio.timeout(15):
        while (heard := await say(gateway, call)).status == 409:
            check_conflict(heard, under_way=True)
            await asyncio.sleep(0.01)
    return heard


async def test_a_submit_that_was_refused_may_be_made_again_and_a_remix_is_made_once(gateway_with: StartGateway) -> None:
    refused = Answered({"error": {"message": "No such size"}}, 400)
    async with OpenAiVideos(Play(submit=(refused, "ok"), polls=("completed",))) as up:
        gateway = await gateway_with(site(up.channel()))
        assert [(await submit(gateway, "take", key="one", mark=f"{n}")).status for n in range(3)] == [400, 200, 200]
        job = await await_job(gateway, "take", "completed")
        path = f"{VIDEOS}/{job.id}/remix"
        up.plays["anew"] = Play(polls=("completed",))
        first = await post(gateway, "remix", {"prompt": "anew"}, path)
        assert first.status == 200
        check_replay(await post(gateway, "remix", {"prompt": "anew"}, path), first)
        check_conflict(await post(gateway, "remix", {"prompt": "again"}, path), under_way=False)
        remix = await await_job(gateway, "anew", "completed")
        check_conflict(await post(gateway, "remix", {"prompt": "anew"}, f"{VIDEOS}/{remix.id}/remix"), under_way=False)
        check_conflict(await submit(gateway, "anew", key="remix"), under_way=False)
        assert [(one.prompt, one.path) for one in up.submits] == [
            ("take", "/v1/videos"),
            ("take", "/v1/videos"),
            ("anew", f"/v1/videos/{up.find('take').id}/remix"),
        ]
        await gateway.rows(8)
        assert {each.state for each in (await find_jobs(gateway)).values()} == {"completed"}


ODD = {"empty": "", "too long": "x" * (MAX_KEY_CHARS + 1), "not ASCII": "schl\u00fcssel", "a tab": "a\tb"}


async def test_a_name_that_is_none_is_refused_and_a_stream_takes_no_notice_of_any(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], chat_script("a", "b")) as up:
        gateway = await gateway_with(serve(up))
        for name, key in ODD.items():
            heard = await say(gateway, "chat", key=key)
            assert heard.status == 400, name
            assert orjson.loads(heard.body)["error"]["param"] == "Idempotency-Key"
        assert not up.received
        assert (await say(gateway, "chat", key="x" * MAX_KEY_CHARS)).status == 200
        for _ in range(2):
            heard = await say(gateway, "chat", key="two", stream=True)
            assert (heard.status, "Idempotent-Replayed" in heard.headers) == (200, False)
        assert len(up.received) == 3
        await gateway.rows(len(ODD) + 3)


async def test_an_answer_that_is_too_large_to_be_kept_is_not_paid_for_twice(gateway_with: StartGateway) -> None:
    data = base64.b64encode(draw() + bytes(MAX_ANSWER_BYTES * 3 // 4)).decode()
    long = answer({"created": 1, "data": [{"b64_json": data}]})
    async with ScriptedUpstream([long]) as up:
        gateway = await gateway_with(serve(up))
        assert (await say(gateway, "picture")).status == 200
        heard = await say(gateway, "picture")
        assert (heard.status, heard.headers["x-should-retry"]) == (409, "false")
        assert "too large" in orjson.loads(heard.body)["error"]["message"]
        assert len(up.received) == 1
        await gateway.rows(2)


async def test_what_cannot_be_noted_is_not_made_and_what_was_made_is_answered(gateway_with: StartGateway) -> None:
    go_on = asyncio.Event()

    async def hold(_received: Received) -> None:
        await go_on.wait()

    async with ScriptedUpstream([hold, answer(COMPLETION)]) as up:
        gateway = await gateway_with(serve(up))
        async with without(gateway, "replays"):
            heard = await say(gateway, "chat")
            assert (heard.status, orjson.loads(heard.body)["error"]["code"]) == (503, "overloaded")
            assert not up.received
            assert (await asyncio.gather(say(gateway, "chat", key=None), set_soon(go_on)))[0].status == 200
        go_on.clear()
        calling = asyncio.create_task(say(gateway, "chat", key="two"))
        await until(lambda: len(up.received) == 2)
        async with without(gateway, "replays"):
            go_on.set()
            assert (await calling).status == 200
        assert len(up.received) == 2
        await gateway.rows(3)


async def set_soon(event: asyncio.Event) -> None:
    event.set()


@pytest.mark.slow
async def test_a_submit_that_is_cut_off_by_a_stop_is_not_made_again_under_its_name(
    tmp_path: Path, template_path: Path
) -> None:
    """Its caller had left, and the provider did not answer in the time that a stop has for it."""
    if not template_path.exists():
        await make_template(template_path)
    async with OpenAiVideos(Play(submit=(SILENCE, "ok"))) as up:
        config = {**site(up.channel(total_timeout_s=60)), "server": {"drain_timeout_s": 0.2}}
        gateway = await start_gateway(tmp_path / "data", template_path, config)
        calling = asyncio.create_task(submit(gateway, "take", key="one"))
        await until(lambda: up.submits)
        await leave(calling)
        gateway.audited = False  # what is held for the job is held over the stop
        await gateway.close()
        again = await start_gateway(tmp_path / "data", template_path, config)
        heard = await submit(again, "take", key="one", mark="again")
        (job,) = (await await_ends(again)).values()
        assert orjson.loads(heard.body)["id"] == job.id
        assert (job.state, job.error_code) == ("failed", SUBMIT_UNKNOWN_ERROR.code)
        assert up.count("take") == 1
        await again.close()


async def test_names_are_known_after_a_restart(tmp_path: Path, template_path: Path) -> None:
    """What was answered is answered alike. What was cut off is a job where there is one, else it is made once more."""
    if not template_path.exists():
        await make_template(template_path)
    async with OpenAiVideos(Play(polls=("queued",))) as up, ScriptedUpstream([answer(COMPLETION)]) as chat:
        config = site(up.channel(models=["v"]), channel(chat.base_url, "chat"))
        gateway = await start_gateway(tmp_path / "data", template_path, config)
        reported, cut = [await say(gateway, "chat", key) for key in ("told", "cut")]
        video, lost = [await submit(gateway, key, key=key, model="v") for key in ("video", "lost")]
        assert [heard.status for heard in (reported, cut, video, lost)] == [200] * 4
        await gateway.client.close()
        await gateway.stop()
        gateway.folder.close()
        with closing(sqlite3.connect(tmp_path / "data" / "gateway.db", isolation_level=None)) as store:
            # As a process leaves them that ends in the middle.
            store.execute("UPDATE replays SET state = 'running', status = 0, body = '' WHERE name IN ('cut', 'lost')")
        up.usual.polls = ("completed",)

        again = await start_gateway(tmp_path / "data", template_path, config)
        check_replay(await say(again, "chat", "told"), reported)
        check_replay(await submit(again, "video", key="video", model="v"), video)
        found = await asyncio.gather(*(submit(again, "lost", key="lost", model="v") for _ in range(3)))
        assert {orjson.loads(heard.body)["id"] for heard in found} == {orjson.loads(lost.body)["id"]}
        assert (up.count("video"), up.count("lost"), len(chat.received)) == (1, 1, 2)
        made = await asyncio.gather(*(say(again, "chat", "cut") for _ in range(3)))
        assert Counter(heard.status for heard in made if "Idempotent-Replayed" not in heard.headers)[200] == 1
        assert {heard.status for heard in made} <= {200, 409}
        assert len(chat.received) == 3
        check_conflict(await say(again, "chat", "told", user="somebody"), under_way=False)
        await await_ends(again)
        await again.close()
