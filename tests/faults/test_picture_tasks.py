"""Pictures that are made as a task: never lost for one bad answer, never left behind, and never paid for in vain."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from tests.support.dashscope_images import DashScopeImages
from tests.support.fault_scene import check_error, until
from tests.support.image_providers import ImageProvider
from tests.support.image_scene import (
    A_IMAGE,
    DATA_URL,
    PAINTED,
    ask,
    audit,
    await_given_up,
    check_images,
    check_row,
    healthy,
    leave,
    read_stored,
    site,
    task_channel,
)
from tests.support.openai_images import CustomImages
from tests.support.replicate_images import ReplicateImages
from tests.support.scripted_upstream import RST, STALL, Received, Script, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

TASK = "gm3qorzdhgbfurvjtvhg6dck00"
BEGUN = answer({"id": TASK, "status": "starting"}, 201)
RUNNING = answer({"id": TASK, "status": "processing"})
DONE = answer({"id": TASK, "status": "succeeded", "output": [DATA_URL]})
CANCELLED = answer({"id": TASK, "status": "canceled"})
CANCEL = ("POST", f"/v1/predictions/{TASK}/cancel")
BROKEN = answer({"detail": "Internal server error"}, 500)
VENDORS = pytest.mark.parametrize("vendor", [DashScopeImages, ReplicateImages])
WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
Vendor = Callable[..., DashScopeImages | ReplicateImages]


def list_asked(up: ScriptedUpstream) -> list[tuple[str, str]]:
    return [(received.method, received.path) for received in up.received]


def count_begun(provider: ImageProvider) -> int:
    """Tasks that it has begun, or was about to."""
    return sum(method == "POST" and not path.endswith("/cancel") for method, path in provider.requests)


def count_polls(provider: ImageProvider) -> int:
    return sum(method == "GET" for method, _ in provider.requests)


# The caller leaves.


@WAYS
@VENDORS
async def test_a_caller_who_leaves_takes_the_task_along(
    standing_with: StartGateway, vendor: Vendor, *, stream: bool
) -> None:
    async with vendor(endless=True) as provider:
        gateway = await standing_with(site(provider.channel()))
        calling = asyncio.create_task(ask(gateway, stream=stream))
        await until(lambda: count_polls(provider))
        await leave(calling)
        await until(lambda: provider.cancelled)
        await audit(gateway, outcome="client_closed", status=499, attempts=1, images=1, cost_nanos=A_IMAGE)
        assert (len(provider.cancelled), count_begun(provider)) == (1, 1)


async def test_a_task_that_can_no_longer_be_cancelled_is_a_line_in_the_log(standing_with: StartGateway) -> None:
    """DashScope cancels what is still in its queue, and nothing else."""
    async with DashScopeImages(polls=1000) as provider:
        gateway = await standing_with(site(provider.channel()))
        with capture_logs() as lines:
            calling = asyncio.create_task(ask(gateway))
            await until(lambda: count_polls(provider) > 1)
            await leave(calling)
            await until(lambda: any(line["event"] == "provider_task_not_cancelled" for line in lines))
        assert provider.cancelled == []
        await audit(gateway, outcome="client_closed", cost_nanos=A_IMAGE)


@WAYS
async def test_a_task_that_is_only_being_begun_is_cancelled_as_soon_as_its_id_is_known(
    standing_with: StartGateway, *, stream: bool
) -> None:
    go_on = asyncio.Event()

    async def hold(_received: Received) -> None:
        await go_on.wait()

    async with ScriptedUpstream([hold, BEGUN], [CANCELLED]) as up:
        gateway = await standing_with(site(task_channel(up)))
        calling = asyncio.create_task(ask(gateway, stream=stream))
        await until(lambda: up.received)
        await leave(calling)
        await audit(gateway, outcome="client_closed", status=499, attempts=1, cost_nanos=A_IMAGE)
        assert len(up.received) == 1
        go_on.set()
        await until(lambda: CANCEL in list_asked(up))
        assert list_asked(up)[1:] == [CANCEL]


async def test_a_caller_who_leaves_while_the_image_is_fetched_has_nothing_cancelled(
    standing_with: StartGateway,
) -> None:
    """The task has ended: there is nothing to be cancelled, and the picture is there and paid for."""
    async with ScriptedUpstream([STALL]) as up:
        url = up.base_url + "/picture.png"
        done = answer({"id": TASK, "status": "succeeded", "output": [url]})
        async with ScriptedUpstream([BEGUN], [done], [CANCELLED]) as tasks:
            gateway = await standing_with(site(task_channel(tasks), egress={"allow": ["127.0.0.1"]}))
            calling = asyncio.create_task(ask(gateway))
            await until(lambda: up.received)
            await leave(calling)
            await asyncio.wait_for(up.hung_up.wait(), 15)
            await audit(gateway, up, outcome="client_closed", cost_nanos=A_IMAGE, images=1)
            assert CANCEL not in list_asked(tasks)


# The gateway is stopped.


@WAYS
@VENDORS
async def test_a_gateway_that_stops_cancels_its_tasks_and_tells_their_callers(
    gateway_with: StartGateway, vendor: Vendor, *, stream: bool
) -> None:
    async with vendor(endless=True) as provider:
        gateway = await gateway_with(site(provider.channel(), server={"drain_timeout_s": 0.05}))
        calling = asyncio.create_task(ask(gateway, stream=stream))
        await until(lambda: count_polls(provider))
        await gateway.stop()
        check_error(await calling, "overloaded")
        assert (len(provider.cancelled), count_begun(provider)) == (1, 1)
        (row,) = await read_stored(gateway)
        check_row(row, outcome="interrupted", error_code="overloaded", status=503, attempts=1, images=1)


async def test_a_gateway_that_stops_waits_for_the_id_of_what_it_has_begun(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([0.15, BEGUN], [CANCELLED]) as up:
        gateway = await gateway_with(site(task_channel(up), server={"drain_timeout_s": 0}))
        calling = asyncio.create_task(ask(gateway))
        await until(lambda: up.received)
        await gateway.stop()
        check_error(await calling, "overloaded")
        assert list_asked(up)[1:] == [CANCEL]
        (row,) = await read_stored(gateway)
        check_row(row, outcome="interrupted", images=1)


async def test_a_task_that_ends_within_the_drain_is_answered(gateway_with: StartGateway) -> None:
    async with ReplicateImages(polls=5) as provider:
        gateway = await gateway_with(site(provider.channel()))
        calling = asyncio.create_task(ask(gateway))
        await until(lambda: count_polls(provider))
        await gateway.stop()
        heard = await calling
        assert heard.status == 200
        assert provider.cancelled == []
        (row,) = await read_stored(gateway)
        check_row(row, outcome="completed", images=1)


# Answers that say nothing of the task.

POLLS: dict[str, list[Script]] = {
    "500": [[BROKEN]],
    "HTML with 502": [[answer(b"<html>Bad gateway</html>", 502, content_type="text/html")]],
    "HTML with 200": [[answer(b"<html>Sign in</html>", content_type="text/html")]],
    "an empty body": [[answer(b"")]],
    "garbage": [[answer(b"\x00\xff{]")]],
    "half a body": [[answer({"id": TASK, "status": "succeeded"})[:-9], RST]],
    "a reset": [[RST], [RST]],
    "no HTTP": [[b"WHAT\r\n\r\n", RST]],
    "429": [[answer({"detail": "slow down"}, 429, retry_after="2")]],
    "404": [[answer({"detail": "Prediction not found"}, 404)]],
    "503, to come back later": [[answer(b"", 503, retry_after="1")]],
    "all of these": [[BROKEN], [answer(b"")], [RST], [RST], [answer({}, 429)], [answer(b"<html>")], [RUNNING]],
}


@pytest.mark.parametrize("name", POLLS)
async def test_a_task_goes_on_whatever_is_said_of_it_in_passing(standing_with: StartGateway, name: str) -> None:
    async with ScriptedUpstream([BEGUN], *POLLS[name], [RUNNING], [DONE]) as up:
        gateway = await standing_with(site(task_channel(up)))
        heard = await ask(gateway)
        assert heard.status == 200, heard
        check_images(orjson.loads(heard.body)["data"], 1)
        await audit(gateway, outcome="completed", channel="tasks", attempts=1, images=1)
        assert CANCEL not in list_asked(up)
        assert list_asked(up)[0][0] == "POST"
        assert sum(method == "POST" for method, _ in list_asked(up)) == 1


@VENDORS
@pytest.mark.parametrize("stumble", ["error", "html"])
async def test_every_vendor_s_task_goes_on(standing_with: StartGateway, vendor: Vendor, stumble: str) -> None:
    async with vendor(stumble=stumble) as provider:
        gateway = await standing_with(site(provider.channel()))
        check_images(orjson.loads((await ask(gateway)).body)["data"], 1)
        await audit(gateway, outcome="completed", images=1)
        assert (provider.cancelled, count_begun(provider)) == ([], 1)


@pytest.mark.slow
@pytest.mark.parametrize("end", [BROKEN, answer({"detail": "not found"}, 404)], ids=["500", "404"])
async def test_a_task_that_is_lost_for_good_is_the_next_channel_s_to_paint(
    gateway_with: StartGateway, end: bytes
) -> None:
    async with ScriptedUpstream([BEGUN], [end]) as up, ScriptedUpstream([PAINTED]) as good:
        gateway = await gateway_with(site(task_channel(up), healthy(good)))
        heard = await ask(gateway)
        assert (heard.status, heard.headers["x-gateway-attempts"]) == (200, "2")
        await until(lambda: CANCEL in list_asked(up))
        await audit(gateway, outcome="completed", channel="healthy", attempts=2, images=1)
    async with ScriptedUpstream([BEGUN], [end]) as up:
        alone = await gateway_with(site(task_channel(up)))
        check_error(await ask(alone), "upstream_error")
        await until(lambda: CANCEL in list_asked(up))
        await audit(alone, outcome="failed", error_code="upstream_error", status=502, cost_nanos=0)


FAILURES: dict[str, Any] = {
    "failed": {"id": TASK, "status": "failed", "error": "CUDA out of memory at 10.2.3.4 for provider-key"},
    "cancelled by somebody else": {"id": TASK, "status": "canceled"},
    "in no state that is known": {"id": TASK, "status": "hibernating"},
    "done, without an image": {"id": TASK, "status": "succeeded", "output": []},
    "done, with nonsense": {"id": TASK, "status": "succeeded", "output": [{"a": 1}, 5]},
    "done, with no address": {"id": TASK, "status": "succeeded", "output": "javascript:alert(1)"},
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_task_that_fails_costs_nothing(standing_with: StartGateway, name: str) -> None:
    script: list[Script] = [[BEGUN], [answer(FAILURES[name])], [CANCELLED]]
    async with ScriptedUpstream(*script) as up:
        gateway = await standing_with(site(task_channel(up)))
        check_error(await ask(gateway), "upstream_error")
        await await_given_up(gateway)
        assert (CANCEL in list_asked(up)) is (name == "in no state that is known")
        await audit(gateway, outcome="failed", error_code="upstream_error", cost_nanos=0, attempts=1)


# Time.


@WAYS
@VENDORS
async def test_a_task_that_takes_longer_than_the_channel_may_is_cancelled(
    standing_with: StartGateway, vendor: Vendor, *, stream: bool
) -> None:
    async with vendor(endless=True) as provider:
        gateway = await standing_with(site(provider.channel(total_timeout_s=0.2)))
        check_error(await ask(gateway, stream=stream), "upstream_timeout")
        await until(lambda: provider.cancelled)
        await audit(gateway, outcome="failed", error_code="upstream_timeout", status=504, images=1)


async def test_a_task_that_is_never_begun_is_given_up_in_time(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as up, ScriptedUpstream([PAINTED]) as good:
        gateway = await standing_with(site(task_channel(up, total_timeout_s=0.15), healthy(good)))
        heard = await ask(gateway)
        assert heard.status == 200
        assert heard.headers["x-gateway-tried"].startswith("upstream_timeout;")
        await until(up.hung_up.is_set)
        await audit(gateway, up, outcome="completed", channel="healthy", attempts=2, images=1)


# Several at once.

ONE_AT_A_TIME = [{"name": "black-forest-labs/flux-schnell", "max_n": 1}]


async def test_a_part_that_fails_takes_the_others_along_and_the_next_channel_paints_all(
    standing_with: StartGateway,
) -> None:
    async with ReplicateImages("ok", "ok", "fail", "ok", endless=True) as provider, CustomImages() as good:
        channels = (provider.channel(fan_out=True), good.channel("healthy", priority=-1))
        gateway = await standing_with(site(*channels, model=ONE_AT_A_TIME))
        heard = await ask(gateway, n=4)
        check_images(orjson.loads(heard.body)["data"], 4)
        await until(lambda: len(provider.cancelled) == 3)
        row = await audit(gateway, outcome="completed", channel="healthy", attempts=2, images=4)
        assert (row.reserved_nanos, row.cost_nanos) == (4 * A_IMAGE, 4 * A_IMAGE)
        assert [heard.count for heard in good.heard] == [4]
        assert count_begun(provider) == 4


async def test_a_part_that_fails_on_the_only_channel_costs_nothing(standing_with: StartGateway) -> None:
    async with ReplicateImages("ok", "fail", "ok", endless=True) as provider:
        gateway = await standing_with(site(provider.channel(fan_out=True), model=ONE_AT_A_TIME))
        check_error(await ask(gateway, n=3), "upstream_error")
        await until(lambda: len(provider.cancelled) == 2)
        await audit(gateway, outcome="failed", cost_nanos=0, images=0, attempts=1)


@WAYS
async def test_a_caller_who_leaves_four_parts_cancels_four_tasks(standing_with: StartGateway, *, stream: bool) -> None:
    async with ReplicateImages(endless=True) as provider:
        gateway = await standing_with(site(provider.channel(fan_out=True), model=ONE_AT_A_TIME))
        calling = asyncio.create_task(ask(gateway, n=4, stream=stream))
        await until(lambda: count_begun(provider) == 4)
        await leave(calling)
        await until(lambda: len(provider.cancelled) == 4)
        assert len(set(provider.cancelled)) == 4
        await audit(gateway, outcome="client_closed", cost_nanos=4 * A_IMAGE, images=4)


async def test_parts_that_wait_for_their_turn_are_never_begun(standing_with: StartGateway) -> None:
    async with ReplicateImages(endless=True) as provider:
        channel = provider.channel(fan_out=True, max_concurrency=2)
        gateway = await standing_with(site(channel, model=ONE_AT_A_TIME))
        calling = asyncio.create_task(ask(gateway, n=5))
        await until(lambda: count_polls(provider) >= 4)
        assert count_begun(provider) == 2
        await leave(calling)
        await until(lambda: len(provider.cancelled) == 2)
        await audit(gateway, outcome="client_closed", cost_nanos=2 * A_IMAGE)
        assert count_begun(provider) == 2


async def test_many_callers_who_leave_at_once_leave_no_task_behind(standing_with: StartGateway) -> None:
    """Some of them while their task is being begun, some later."""
    async with ReplicateImages(endless=True) as provider:
        gateway = await standing_with(site(provider.channel()))
        calls = [asyncio.create_task(ask(gateway, stream=number % 2 == 1)) for number in range(20)]
        for number, calling in enumerate(calls):
            if number % 4 == 0:
                await asyncio.sleep(0.01)
            await leave(calling)
        await until(lambda: gateway.running == 0)
        await await_given_up(gateway)
        assert len(set(provider.cancelled)) == len(provider.cancelled) == len(provider.heard)
        await gateway.check_books()


async def test_a_streamed_task_that_fails_before_a_comment_is_answered_as_an_error(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([BEGUN], [answer(FAILURES["failed"])]) as up:
        gateway = await standing_with(site(task_channel(up)))
        check_error(await ask(gateway, stream=True), "upstream_error")
        await audit(gateway, outcome="failed", stream=True, cost_nanos=0)


# Keys.


async def test_a_task_is_asked_after_and_cancelled_with_the_key_that_began_it(standing_with: StartGateway) -> None:
    """Another account's key would not find it."""
    polled = asyncio.Event()

    async def tell(_received: Received) -> None:
        polled.set()

    scripts: list[Script] = [[BEGUN], [RUNNING], [DONE], [BEGUN], [tell, STALL], [CANCELLED]]
    async with ScriptedUpstream(*scripts) as up:
        channel = task_channel(up, api_keys=["first-key-of-two", "second-key-of-two"])
        del channel["api_key"]
        gateway = await standing_with(site(channel))
        assert (await ask(gateway)).status == 200
        calling = asyncio.create_task(ask(gateway))
        await polled.wait()
        await leave(calling)
        await until(lambda: list_asked(up)[-1] == CANCEL)
        used = [received.headers["authorization"] for received in up.received]
        assert [set(used[:3]), set(used[3:])] == [{used[0]}, {used[3]}]
        assert used[0] != used[3]
        assert [row.images for row in await gateway.rows(2)] == [1, 1]


async def test_a_key_that_is_refused_while_a_task_is_asked_after_is_somebody_else_s_to_make_good(
    standing_with: StartGateway,
) -> None:
    denied = answer({"title": "Unauthenticated", "detail": "no valid token", "status": 401}, 401)
    async with ScriptedUpstream([BEGUN], [denied], [denied]) as up, ScriptedUpstream([PAINTED]) as good:
        gateway = await standing_with(site(task_channel(up), healthy(good)))
        heard = await ask(gateway)
        assert (heard.status, heard.headers["x-gateway-attempts"]) == (200, "2")
        await await_given_up(gateway)
        assert [method for method, _ in list_asked(up)] == ["POST", "GET", "POST"]
        await audit(gateway, outcome="completed", channel="healthy", attempts=2, images=1)
