"""P1 and P2 at length: ``kill -9`` a thousand times under load of every kind; nothing is lost or paid twice.

``make soak ARGS=tests/faults/test_kill_soak.py`` runs it; ``GATEWAY_TEST_KILLS=20`` makes it short.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest

from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import RequestRecord
from tests.support import image_scene as studio
from tests.support import video_scene as film_set
from tests.support.fault_scene import PRICE
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.kill_runs import (
    ANSWER_COST,
    KEYS,
    REFILL,
    STREAM_COST,
    Memory,
    check_offline,
    keep_calling,
    open_up,
    roll,
    telling,
)
from tests.support.kill_runs import site as chat_site
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.scripted_upstream import Received, ScriptedUpstream

KILLS = int(os.environ.get("GATEWAY_TEST_KILLS") or 1_000)
CHAT_CLIENTS = 2
"""Of each key; each calls without a pause."""
LOAD_S = (0.05, 0.4)
START_S = (0.0, 0.25)
KILLED_AT_START = 0.2
"""Share of the starts that are killed, too."""
JOBS_END_S = 300
ATTEMPTS = 10
SECRET = next(iter(KEYS))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]


@attrs.define
class Known(Memory):
    """What the test knows besides chat: what was acknowledged to clients and to the administrator.

    Attributes:
        images: marks of the image requests that were answered whole.
        videos: ids of the jobs whose submission was answered, by their prompts.
        keys: the status that was last acknowledged of every key made, by its id.
        doubtful: keys whose last change was not acknowledged.
        credits: references of the credits that were acknowledged.
        posted: every credit that was seen in the store, by its reference, in dollars.
        spent: nano-USD that all rows cost, by account and by ``key:<id>``.
        sums: of all rows, what the sums of traffic must be.
    """

    images: set[str] = attrs.Factory(set)
    videos: dict[str, str] = attrs.Factory(dict)
    keys: dict[int, str] = attrs.Factory(dict)
    doubtful: set[int] = attrs.Factory(set)
    credits: set[str] = attrs.Factory(set)
    posted: dict[str, float] = attrs.Factory(dict)
    spent: Counter[str] = attrs.Factory(Counter)
    sums: Counter[str] = attrs.Factory(Counter)
    outcomes: Counter[str] = attrs.Factory(Counter)

    def add(self, row: RequestRecord) -> None:
        """Take a stored row into account; fails on a second row of one request."""
        mark = row.client_request_id
        assert mark is not None
        assert mark not in self.rows, ("two rows of one request", row, self.rows[mark])
        self.rows[mark] = row
        self.outcomes[row.outcome] += 1
        self.spent.update({row.account: row.cost_nanos, f"key:{row.key_id}": row.cost_nanos})
        self.sums["requests"] += 1
        for name in ("prompt_tokens", "completion_tokens", "cost_nanos", "total_ms"):
            self.sums[name] += getattr(row, name)


def build_site(
    chat: ScriptedUpstream, streams: ScriptedUpstream, images: ScriptedUpstream, videos: OpenAiVideos
) -> Any:
    """Four models, one for each kind of load, and an account whose credits the administrator grants."""
    site = chat_site(chat, streams, "release")
    return {
        **site,
        "egress": {"allow": ["127.0.0.1"]},
        "channel": [*site["channel"], channel(images.base_url, "images", models=["i"]), videos.channel(models=["v"])],
        "price": [PRICE, {**PRICE, "model": "s"}, {**studio.PRICE, "model": "i"}, {**film_set.PRICE, "model": "v"}],
        "account": [*site["account"], {"name": "fund", "quota_usd": 0.0, "quota_period": "lifetime"}],
    }


def open_image_provider(known: Known, rng: random.Random) -> ScriptedUpstream:
    """A provider of images that tells ``known`` what reached it."""

    async def note(received: Received) -> None:
        known.reached[received.json["user"]] += 1
        await asyncio.sleep(rng.uniform(0, 0.05))

    return ScriptedUpstream([note, studio.PAINTED])


async def until_gone(step: Callable[[str], Awaitable[None]], name: str) -> None:
    """Do ``step`` again and again, each time under a mark of its own, until the gateway is gone."""
    for number in range(10_000):
        try:
            await step(f"{name}-{number}")
        except (aiohttp.ClientError, TimeoutError):
            return


async def ask_image(client: aiohttp.ClientSession, url: str, known: Known, mark: str) -> None:
    body = {"model": "i", "prompt": mark, "user": mark, "response_format": "b64_json"}
    async with client.post(url + studio.IMAGES, json=body, headers={"X-Request-Id": mark}) as response:
        await response.read()
        if response.status == 200:
            known.images.add(mark)


async def submit_video(client: aiohttp.ClientSession, url: str, known: Known, mark: str) -> None:
    body = {"model": "v", "prompt": mark, "seconds": str(film_set.SECONDS)}
    headers = {"X-Request-Id": mark, "Idempotency-Key": mark}
    async with client.post(url + film_set.VIDEOS, json=body, headers=headers) as response:
        answer = await response.json()
        if response.status == 200:
            known.videos[mark] = answer["id"]
    await asyncio.sleep(0.1)


async def administer(client: aiohttp.ClientSession, url: str, known: Known, mark: str) -> None:
    """Make a key, disable it, grant a credit: whatever is acknowledged is noted."""
    admin = f"{url}/admin/v1"
    async with client.post(f"{admin}/keys", json={"name": mark, "account": "open"}) as response:
        key_id = (await response.json())["id"]
        assert response.status == 201
    known.keys[key_id] = "active"
    known.doubtful.add(key_id)
    async with client.patch(f"{admin}/keys/{key_id}", json={"status": "disabled"}) as response:
        assert response.status == 200
        await response.read()
    known.keys[key_id] = "disabled"
    known.doubtful.discard(key_id)
    credit = {"kind": "top_up", "amount_usd": 1, "reference": mark}
    async with client.post(f"{admin}/accounts/fund/credits", json=credit) as response:
        assert response.status == 201
        await response.read()
    known.credits.add(mark)


async def load_and_kill(gateway: GatewayProcess, known: Known, rng: random.Random, number: int) -> None:
    """One kill: clients of every kind, then ``kill -9``. Some starts after it are killed as well."""
    for path, usd in REFILL.items():
        await gateway.ask(path, {"kind": "set", "amount_usd": usd})
    async with open_caller(SECRET) as client, open_caller(gateway.token) as admin:
        crowd = [
            asyncio.create_task(keep_calling(gateway.url, secret, f"{number}.{index}.{place}", known, rng))
            for place, secret in enumerate(KEYS)
            for index in range(CHAT_CLIENTS)
        ]
        steps: dict[str, Callable[[str], Awaitable[None]]] = {
            "image": lambda mark: ask_image(client, gateway.url, known, mark),
            "video": lambda mark: submit_video(client, gateway.url, known, mark),
            "admin": lambda mark: administer(admin, gateway.url, known, mark),
        }
        crowd += [asyncio.create_task(until_gone(step, f"{number}.{name}")) for name, step in steps.items()]
        await asyncio.sleep(rng.uniform(*LOAD_S))
        await gateway.kill()
        await asyncio.gather(*crowd)
    while rng.random() < KILLED_AT_START:
        gateway.launch()
        await asyncio.sleep(rng.uniform(*START_S))
        await gateway.kill()


async def check_restart(gateway: GatewayProcess, known: Known, videos: OpenAiVideos) -> None:
    """What must be true of the gateway that was started over what the killed one left."""
    await check_sums(gateway, known)
    missing = known.reached.keys() - known.rows.keys()
    assert not missing, f"reached the provider and left no row: {missing}"
    for mark, stream in known.whole.items():
        check_paid(known.rows[mark], STREAM_COST if stream else ANSWER_COST)
    for mark in known.images:
        check_paid(known.rows[mark], studio.A_IMAGE)
    known.whole.clear()
    known.images.clear()
    assert not any(known.rows[mark].cost_nanos for mark in known.refused & known.rows.keys())
    known.refused.clear()
    submitted = Counter(one.prompt for one in videos.submits)
    assert not [prompt for prompt, count in submitted.items() if count > 1], "a video was submitted twice"
    await check_administration(gateway, known)


def check_paid(row: RequestRecord, cost_nanos: int) -> None:
    assert (row.outcome, row.cost_nanos) == ("completed", cost_nanos), row


async def check_sums(gateway: GatewayProcess, known: Known) -> None:
    """The books agree, and the sums of traffic are those of the rows. Jobs end meanwhile: some attempts see them."""
    for attempt in range(ATTEMPTS):
        report = await gateway.ask("audit")
        assert report["ok"], report["problems"]
        assert report["open_holds"] == 0, report
        rows, known.last = await gateway.read_rows(known.last)
        for row in rows:
            known.add(row)
        found = {by: (await gateway.ask(f"usage?by={by}"))["total"] for by in ("hour", "day")}
        if all(found[by][name] == value for by in found for name, value in known.sums.items()):
            break
        assert attempt < ATTEMPTS - 1, (found, known.sums)
    await eventually(lambda: have_spent(gateway, known), 10)


async def have_spent(gateway: GatewayProcess, known: Known) -> bool:
    """Whether every account and key has spent what its rows cost, once those of jobs that just ended are read."""
    accounts, keys = (await gateway.ask("accounts"))["data"], (await gateway.ask("keys"))["data"]
    rows, known.last = await gateway.read_rows(known.last)
    for row in rows:
        known.add(row)
    spent = {one["name"]: one["spent_usd"] for one in accounts} | {f"key:{one['id']}": one["spent_usd"] for one in keys}
    return all(round(usd * NANOS_PER_USD) == known.spent[name] for name, usd in spent.items())


async def check_administration(gateway: GatewayProcess, known: Known) -> None:
    """Every change that was acknowledged is there, and no credit was posted twice."""
    keys = {one["id"]: one["status"] for one in (await gateway.ask("keys"))["data"]}
    for key_id, status in known.keys.items():
        assert keys[key_id] == status or key_id in known.doubtful, (key_id, status, keys[key_id])
        known.keys[key_id] = keys[key_id]
    known.doubtful.clear()
    for credit in (await gateway.ask("accounts/fund/credits?limit=1000"))["data"]:
        known.posted[credit["reference"]] = credit["amount_usd"]
    assert known.credits <= known.posted.keys(), "an acknowledged credit is lost"
    assert (await gateway.ask("accounts/fund"))["credit_usd"] == sum(known.posted.values())
    for key_id in [key_id for key_id in known.keys if key_id not in list(known.keys)[-50:]]:
        del known.keys[key_id]
        await delete_key(gateway, key_id)


async def delete_key(gateway: GatewayProcess, key_id: int) -> None:
    """Keep the number of keys small: a thousand rounds make thousands."""
    async with open_caller(gateway.token) as admin, admin.delete(f"{gateway.url}/admin/v1/keys/{key_id}") as response:
        assert response.status == 200


async def check_videos(gateway: GatewayProcess, known: Known, videos: OpenAiVideos) -> None:
    """Once every job has ended: each that was acknowledged is there and has one row, paid if it is completed."""
    async with open_caller(SECRET) as client:
        await eventually(lambda: have_ended(client, gateway.url, known), JOBS_END_S)
        await check_sums(gateway, known)
        report = await gateway.check_books()
        assert report["video_holds"] == 0
        for prompt, video_id in known.videos.items():
            async with client.get(f"{gateway.url}{film_set.VIDEOS}/{video_id}") as response:
                job = await response.json()
            completed = job["status"] == "completed"
            assert known.rows[prompt].cost_nanos == (film_set.A_VIDEO if completed else 0), (job, known.rows[prompt])
    assert {one.prompt for one in videos.submits} <= known.rows.keys()


async def have_ended(client: aiohttp.ClientSession, url: str, known: Known) -> bool:
    for video_id in known.videos.values():
        async with client.get(f"{url}{film_set.VIDEOS}/{video_id}") as response:
            job = await response.json()
            assert response.status == 200, "an acknowledged job is lost"
        if job["status"] not in {"completed", "failed"}:
            return False
    return True


async def test_a_thousand_kills_under_mixed_load_lose_nothing(tmp_path: Path) -> None:
    seed, rng = roll()
    known = Known()
    with telling(seed):
        async with (
            open_up(known, rng, stream=False) as chat,
            open_up(known, rng, stream=True) as streams,
            open_image_provider(known, rng) as images,
            OpenAiVideos(Play(hint_ms=100, size=2_000)) as videos,
            GatewayProcess(tmp_path / "data", build_site(chat, streams, images, videos)) as gateway,
        ):
            for number in range(KILLS):
                await load_and_kill(gateway, known, rng, number)
                await gateway.start()
                await check_restart(gateway, known, videos)
                if number % 50 == 49:
                    print(f"{number + 1} kills: {dict(known.outcomes)}, {len(known.videos)} videos", flush=True)  # noqa: T201
            await check_videos(gateway, known, videos)
            await gateway.kill()
            check_offline(gateway)
        print(f"{KILLS} kills: {dict(known.outcomes)}, {len(known.videos)} videos, {len(known.credits)} credits")  # noqa: T201
        assert known.outcomes["interrupted"]
        assert known.outcomes["completed"]
        assert known.videos
        assert known.credits
