"""``kill -9`` while pictures are painted: no hold is left, and nothing costs anything but what a caller has whole."""

import asyncio
import io
import random
import re
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest

from gateway.domain.request_log import RequestRecord
from tests.support import uploads
from tests.support.fault_scene import until
from tests.support.gateway import KEY, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.image_providers import draw
from tests.support.image_scene import A_IMAGE, EDITS, IMAGES, PAINTED, PRICE
from tests.support.kill_runs import check_offline, roll, telling
from tests.support.multipart_bodies import TYPE, count_open, part
from tests.support.replicate_images import ReplicateImages
from tests.support.scripted_upstream import Received, ScriptedUpstream

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at descriptors")]

RUNNING = {"painted": 1, "streamed": 1, "tasks": 2, "edited": 1, "sent": 1}
"""The calls that the first test kills, and how many pictures each has asked for."""
PARTS = 3
KILLS = 2
CALLERS = 12
LOAD_S = (0.05, 0.25)
IMAGE = draw()


def site(*ups: dict[str, Any]) -> dict[str, Any]:
    """A configuration for a process; one caller with money, and models that take a call a picture."""
    return {
        "channel": list(ups),
        "model": [{"name": "tasks", "max_n": 1}, {"name": "parts", "max_n": 1}],
        "price": [{**PRICE, "model": "*"}],
        "account": [{"name": "acme", "quota_usd": 1_000_000}],
        "key": [{"name": "test", "secret": KEY, "account": "acme"}],
    }


async def paint(caller: aiohttp.ClientSession, url: str, mark: str, **body: Any) -> Any:
    """A picture from nothing; None where the gateway went away before it was there whole."""
    sent = {"model": "m", "prompt": f"<{mark}>", "response_format": "b64_json", **body}
    return await ask(caller.post(url + IMAGES, json=sent, headers={"X-Request-Id": mark}))


async def repaint(caller: aiohttp.ClientSession, url: str, mark: str, data: bytes, model: str = "m") -> Any:
    """A picture from another."""
    pieces = uploads.write_form(1, data, part("user", f"<{mark}>".encode()), model=model)
    reported = {"X-Request-Id": mark, "Content-Type": TYPE}
    return await ask(caller.post(url + EDITS, data=io.BytesIO(b"".join(pieces)), headers=reported))


async def ask(asking: Any) -> Any:
    with suppress(aiohttp.ClientError):
        async with asking as response:
            return (await response.json())["data"] if response.status == 200 else response.status
    return None


async def read_by_mark(gateway: GatewayProcess) -> dict[str, RequestRecord]:
    """Every row; fails where a call has two."""
    rows, _ = await gateway.read_rows()
    assert len({row.client_request_id for row in rows}) == len(rows)
    return {str(row.client_request_id): row for row in rows}


async def check_rest(gateway: GatewayProcess, spent: int) -> None:
    """After a restart: the books agree, so much was spent, nothing is held and no upload is left."""
    report = await gateway.check_books()
    assert report["waiting_rows"] == 0, report
    account = await gateway.ask("accounts/acme")
    assert (round(account["spent_usd"] * 10**9), account["held_usd"]) == (spent, 0)
    assert uploads.list_named(gateway.data) == set()
    assert count_open(gateway.data / "uploads", gateway.pid) == 0


async def test_whatever_painting_is_killed_has_its_row_and_leaves_no_hold(tmp_path: Path) -> None:
    """Painted whole, as a stream, as two tasks, from an upload that has been sent on, and from one that is being."""
    async with AsyncExitStack() as stack:
        up = await stack.enter_async_context(uploads.UploadProvider())
        slow = await stack.enter_async_context(uploads.UploadProvider(uploads.Mode(reads=uploads.MB, then="stall")))
        tasks = await stack.enter_async_context(ReplicateImages(endless=True))
        up.held = []
        channels = (
            uploads.lead(up),
            uploads.lead(slow, "slow", models=["slow"]),
            tasks.channel("tasks", models=["tasks"], model_map={"tasks": tasks.model}, fan_out=True),
        )
        gateway = await stack.enter_async_context(GatewayProcess(tmp_path / "data", site(*channels)))
        caller = await stack.enter_async_context(open_caller())
        half = await stack.enter_async_context(uploads.dial(gateway.url))
        data, url = uploads.BLOCK[: 8 * uploads.MB], gateway.url
        pieces = uploads.write_form(1, data)
        await uploads.send(
            half, [uploads.write_head(sum(map(len, pieces)), "X-Request-Id: half"), *pieces], most=2 * uploads.MB
        )
        asking = [
            paint(caller, url, "painted"),
            paint(caller, url, "streamed", stream=True),
            paint(caller, url, "tasks", model="tasks", n=2),
            repaint(caller, url, "edited", data),
            repaint(caller, url, "sent", data, "slow"),
        ]
        crowd = [asyncio.create_task(one) for one in asking]
        await until(lambda: len(up.held or ()) == 3)
        await until(lambda: slow.taken and slow.taken[0].size >= uploads.MB)
        await until(lambda: len(tasks.requests) >= 4)
        await until(lambda: count_open(gateway.data / "uploads", gateway.pid) == 3)
        report = await gateway.ask("audit")
        assert (report["open_holds"], report["held_usd"]) == (len(RUNNING), sum(RUNNING.values()))
        await gateway.kill()
        assert await asyncio.gather(*crowd) == [None] * len(crowd)
        assert uploads.list_named(gateway.data) == set()
        up.held = None

        await gateway.start()
        rows = await read_by_mark(gateway)
        assert rows.keys() == RUNNING.keys()
        for mark, row in rows.items():
            reserved = RUNNING[mark] * A_IMAGE
            assert (row.outcome, row.status, row.attempts, row.reserved_nanos) == ("interrupted", 500, 1, reserved)
            assert (row.cost_nanos, row.images, row.usage_source) == (0, 0, "none")
        logged = {line["request_id"] for line in gateway.read_log("request_interrupted")}
        assert logged == {row.id for row in rows.values()}
        await check_rest(gateway, 0)
        assert (await uploads.edit(gateway.url, 1, data)).status == 200
        await eventually(lambda: is_stored(gateway, len(RUNNING) + 1), 30)
        await check_rest(gateway, A_IMAGE)
        await gateway.kill()
        check_offline(gateway)


async def is_stored(gateway: GatewayProcess, count: int) -> bool:
    return len((await gateway.read_rows())[0]) == count


@attrs.define
class Memory:
    """What the test knows of its calls, by their marks.

    Attributes:
        reached: how often the provider has heard of each.
        whole: what callers have been given.
    """

    reached: Counter[str] = attrs.Factory(Counter)
    whole: dict[str, Any] = attrs.Factory(dict)


def open_up(memory: Memory, rng: random.Random) -> ScriptedUpstream:
    """A provider that takes its time, and tells ``memory`` what reached it."""

    async def note(received: Received) -> None:
        found = re.search(rb"<(call[0-9.]+)>", received.body)
        assert found is not None
        memory.reached[found[1].decode()] += 1
        await asyncio.sleep(rng.uniform(0, 0.05))

    return ScriptedUpstream([note, PAINTED])


async def keep_painting(url: str, name: str, memory: Memory, rng: random.Random) -> None:
    """Call after call, in every form, until the gateway is gone."""
    async with open_caller() as caller:
        for number in range(1000):
            mark = f"{name}.{number}"
            if rng.random() < 0.5:
                got = await repaint(caller, url, mark, uploads.BLOCK[: rng.randrange(uploads.MB // 2)])
            else:
                form, model = rng.choice(["url", "b64_json"]), rng.choice(["m", "parts"])
                got = await paint(caller, url, mark, response_format=form, model=model, n=PARTS if model != "m" else 1)
            if got is None:
                return
            memory.whole[mark] = got


async def check_link(caller: aiohttp.ClientSession, url: str, message: str) -> None:
    """What was given as an address is there, wherever the gateway listens by now."""
    async with caller.get(f"{url}/media/{message.partition('/media/')[2]}") as response:
        assert (response.status, await response.read()) == (200, IMAGE)


async def check_round(gateway: GatewayProcess, memory: Memory) -> Counter[str]:
    """What must be true of the next gateway over the same folder; how its calls have ended."""
    rows = await read_by_mark(gateway)
    assert set(memory.reached.values()) <= set(range(1, PARTS + 1))
    assert memory.reached.keys() <= rows.keys()
    for row in rows.values():
        assert row.outcome in {"completed", "interrupted"}, row
        assert row.cost_nanos == (row.images * A_IMAGE if row.outcome == "completed" else 0), row
    async with open_caller() as caller:
        for mark, items in memory.whole.items():
            assert rows[mark].outcome == "completed"
            for item in items:
                if "url" in item:
                    await check_link(caller, gateway.url, item["url"])
    await check_rest(gateway, sum(row.cost_nanos for row in rows.values()))
    for path in (gateway.data / "media").glob("??/*"):
        assert path.read_bytes() == IMAGE
    return Counter(row.outcome for row in rows.values())


def has_link(memory: Memory) -> bool:
    """Whether an image was given as an address."""
    return any("url" in item for items in memory.whole.values() for item in items)


async def test_kills_under_painting_leave_books_that_agree_and_images_that_are_there(tmp_path: Path) -> None:
    seed, rng = roll()
    memory = Memory()
    with telling(seed):
        async with (
            open_up(memory, rng) as up,
            GatewayProcess(
                tmp_path / "data", site(channel(up.base_url, models=["m", "parts"], fan_out=True))
            ) as gateway,
        ):
            ended = Counter[str]()
            for number in range(3 * KILLS):
                if number >= KILLS and has_link(memory):  # on a busy machine few images are whole before a kill
                    break
                names = (f"call{number}.{index}" for index in range(CALLERS))
                crowd = [asyncio.create_task(keep_painting(gateway.url, name, memory, rng)) for name in names]
                whole = len(memory.whole)
                await until(lambda whole=whole: len(memory.whole) > whole)  # type: ignore[misc]
                await asyncio.sleep(rng.uniform(*LOAD_S))
                await gateway.kill()
                await asyncio.gather(*crowd)
                await gateway.start()
                ended = await check_round(gateway, memory)
            print(f"kills: {dict(ended)}, {len(memory.whole)} whole")  # noqa: T201
        assert ended["interrupted"] >= KILLS
        assert ended["completed"] >= KILLS
        assert has_link(memory)
