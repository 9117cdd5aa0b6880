"""What a gateway looks like after a week of use, or three months: people, keys, money, channels, calls, videos."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import orjson

from gateway.domain.member import Role
from tests.browser.gateways import WAIT_LIMIT_S, Guests, OperatedGateway, VisitedGateway, open_site, open_studio
from tests.browser.history import make_history, store_history
from tests.browser.provider import Provider
from tests.support.gateway import CHAT, KEY, make_template, start_gateway
from tests.support.openai_videos import OpenAiVideos, Play

DAYS = 6
CONFIG: dict[str, Any] = {
    "account": [{"name": "acme", "quota_usd": 250, "quota_period": "monthly"}],
    "key": [{"name": "test", "account": "acme", "secret": KEY}],
    "billing": {"unpriced": "free"},
    "price": [
        {"model": "m", "input_usd_per_million": 2.5, "output_usd_per_million": 15},
        {"model": "demo-chat", "input_usd_per_million": 100, "output_usd_per_million": 400},
        {"model": "film", "usd_per_second": 0.1},
    ],
}


@attrs.define
class Clock:
    """The time, some of it ago."""

    behind_s: float = DAYS * 86_400

    def __call__(self) -> float:
        return time.time() - self.behind_s


@asynccontextmanager
async def open_used_gateway(
    guests: Guests, folder: Path, template: Path, *, has_history: bool = False
) -> AsyncIterator[VisitedGateway]:
    """A site as after a week, with ``has_history`` as after three months, in which no page and no chart is empty.

    It was started anew meanwhile: a clock that jumps is nothing to go by.
    """
    films = OpenAiVideos(Play(polls=("in_progress",)), broken=Play(polls=("failed",)))
    if not template.exists():
        await make_template(template)
    async with open_studio() as studio, Provider() as provider, films:
        config = {**CONFIG, "channel": [studio, {**films.channel("films"), "models": ["film"]}]}
        clock = Clock()
        desk = OperatedGateway(await start_gateway(folder, template, config, clock=clock))
        await furnish(desk, provider)
        await live_a_week(desk, clock)
        rows = await make_history(desk, time.time()) if has_history else []
        await desk.gateway.close()
        if rows:
            desk.known["past"] += len(rows)
            await store_history(folder / "gateway.db", rows)
        async with open_site(guests, folder, template, config) as site:
            site.known |= {**desk.known, "provider": provider, "films": films}
            await use_today(site)
            if has_history:
                await keep_a_body(site)
            yield site


async def live_a_week(desk: OperatedGateway, clock: Clock) -> None:
    """All but the last day of it."""
    count = 0
    for day in range(DAYS, 0, -1):
        clock.behind_s = day * 86_400
        secret = desk.known["laptop_secret" if day % 2 else "app_secret"]
        models = ["m", "demo-chat"][: 1 + day % 2]
        await asyncio.gather(*(_ask(desk, secret, model) for model in models))
        count += len(models)
    desk.known["past"] = len(await desk.wait_for_rows(count))


async def furnish(desk: OperatedGateway, provider: Provider) -> None:
    """What an operator sets up."""
    operate, known = desk.operate, desk.known
    await operate("POST", "/channels?check=none", provider.channel("relay", priority=10, groups=["partners"]))
    await operate(
        "POST", "/channels?check=none", provider.channel("spare", priority=5, models=["m", "broken", "endless"])
    )
    await operate("POST", "/channels?check=none", {**provider.channel("beta", priority=1), "status": "disabled"})
    await operate("POST", "/accounts", {"name": "north", "quota_usd": 20, "quota_period": "lifetime"})
    credit = {"amount_usd": 30, "reference": "invoice 12", "note": "paid by transfer"}
    await operate("POST", "/accounts/north/credits", credit)
    limits = {"quota_usd": 5, "quota_period": "monthly", "models": ["demo-*", "m", "film"], "rpm": 600}
    laptop = await operate("POST", "/keys", {"name": "laptop", "account": "acme", **limits})
    app = await operate("POST", "/keys", {"name": "app", "account": "north", "group": "partners"})
    batch = await operate("POST", "/keys", {"name": "batch", "account": "acme", "status": "disabled"})
    known.update(laptop=laptop["id"], app=app["id"], batch=batch["id"])
    known["file_key"] = next(key["id"] for key in (await operate("GET", "/keys"))["data"] if key["declared"])
    known.update(laptop_secret=laptop["secret"], app_secret=app["secret"])
    await operate("PUT", "/groups/partners", {"price_multiplier": 0.5})
    await operate("PUT", "/prices/endless", {"input_usd_per_million": 1, "output_usd_per_million": 2})
    await operate("PUT", "/settings/routing/max_attempts", {"value": 4})
    small = {"models": ["endless"], "on": ["unavailable", "budget"], "if": {"max_prompt_tokens": 1000}}
    steps = [{"models": [{"model": "m", "weight": 9}, "broken"]}, small, {"models": ["gone"], "channels": ["azure-*"]}]
    await operate("PUT", "/routes/fast", {"about": "Quick answers", "step": steps})
    each_user = {"of": "user", "usd": 1, "window": "day", "timezone": "Europe/Berlin", "keys": ["laptop"], "soft": 0.8}
    await operate("PUT", "/limits/each%20user%20of%20the%20app", {**each_user, "rpm": 20})
    await operate("PUT", "/limits/fair", {"raises": "each user of the app", "usd": 4, "until": "2100-01-01"})
    await operate("PUT", "/limits/large%20models", {"of": "model:gpt-5*", "usd": 200, "keys": ["laptop"]})
    await operate("PUT", "/limits/pace", {"of": "session", "rpm": 60, "tpm": 90_000})


async def use_today(site: VisitedGateway) -> None:
    """What goes well, what fails, and videos of every kind."""
    asked = ((None, "broken"), (None, "nothing-of-that-name"), (site.known["laptop_secret"], "m"))
    for secret, model in asked:
        await _ask(site, secret, model, user="u-17", **{"x-gateway-budget": "0.50; session=run 42 of the agent"})
    rows = await site.wait_for_rows(site.known["past"] + len(asked))
    site.known["answered"] = next(row["id"] for row in rows if row["status"] == 200 and row["account"] == "acme")
    site.known["failed"] = next(row["id"] for row in rows if row["status"] >= 500)
    site.known["session"] = (await site.operate("GET", "/request-sessions?account=acme"))["data"][0]["id"]
    await _film(site)
    await _send_batches(site)
    await site.operate("POST", "/links", {"account": "north", "role": "viewer"})
    roles: dict[str, Role] = {"ada": "administrator", "ben": "member", "vera": "viewer"}
    for name, role in roles.items():
        await site.know(name, role, "acme")
    await site.know("nora", "member", "north")


async def keep_a_body(site: VisitedGateway) -> None:
    """A request whose prompt and answer are kept, and a route whose first step has copies made."""
    await site.operate("PUT", "/settings/requests/keep_bodies", {"value": "all"})
    body = {"model": "m", "messages": [{"role": "user", "content": "How is the sea?"}], "temperature": 0.3}
    answer = await site.call(CHAT, body)
    site.known["kept"] = answer.headers["X-Request-Id"]
    await site.operate("PUT", "/settings/requests/keep_bodies", {"value": "none"})
    route = await site.operate("GET", "/routes/fast")
    steps = [{**route["step"][0], "shadow": {"models": ["demo-chat"], "share": 0.05}}, *route["step"][1:]]
    await site.operate("PUT", "/routes/fast", {"about": route["about"], "step": steps})


async def _ask(desk: OperatedGateway, secret: str | None, model: str, user: str = "", **headers: str) -> None:
    body = {"model": model, "user": user, "messages": [{"role": "user", "content": "How is the sea?"}], "stream": True}
    await desk.call(CHAT, body, secret, **headers)


async def _send_batches(site: VisitedGateway) -> None:
    """A batch that is done, and one whose input is wrong."""
    body = {"model": "demo-chat", "messages": [{"role": "user", "content": "How is the sea?"}]}
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": body}
    for name, data in (("batch", orjson.dumps(line)), ("bad_batch", b"{")):
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", data, filename="lines.jsonl")
        async with site.gateway.client.post(f"{site.url}/v1/files", data=form) as answer:
            file = await answer.json()
        new = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
        answered = await site.call("/v1/batches", new)
        site.known[name] = (await answered.json())["id"]
        async with asyncio.timeout(WAIT_LIMIT_S):
            while (await site.operate("GET", f"/batches/{site.known[name]}"))["live"]:  # noqa: ASYNC110 - it ends by itself
                await asyncio.sleep(0.05)


async def _film(site: VisitedGateway) -> None:
    """A video that is done, one that has failed, and one that goes on."""
    for name, model, prompt in (("done", "demo-video", "a calm sea"), ("bad", "film", "broken"), ("on", "film", "on")):
        body = {"model": model, "prompt": prompt, **({"size": "640x360"} if name == "done" else {})}
        answer = await site.call("/v1/videos", body)
        site.known[name] = (await answer.json())["id"]
    await site.wait_for_video(site.known["done"], "completed")
    await site.wait_for_video(site.known["bad"], "failed")
