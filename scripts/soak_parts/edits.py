"""The operator of a soak: edits keys, accounts, channels, prices and settings, exports and reloads, while calls run."""

import asyncio
import collections
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from typing import Any

import aiohttp
import attrs

from gateway.billing.price_spec import PriceSpec
from gateway.domain.price import Price
from scripts.soak_parts.calls import Site

PRICES: Mapping[str, Mapping[str, float]] = {
    "m": {"input_usd_per_million": 2.5, "output_usd_per_million": 10},
    "nonsense": {"input_usd_per_million": 1, "output_usd_per_million": 1},
    "demo-embedding": {"input_usd_per_million": 0.1},
    "demo-image": {"usd_per_image": 0.04},
    "demo-speech": {"usd_per_million_characters": 15},
    "demo-transcribe": {"usd_per_second": 0.0001},
    "demo-video": {"usd_per_second": 0.1},
    "demo-realtime": {"input_usd_per_million": 4, "output_usd_per_million": 16},
}
ACCOUNTS, KEYS_EACH = 8, 3
FIRST_QUOTA_USD = 1000


def build_price(model: str, rates: Mapping[str, float]) -> Price:
    """A price as the gateway makes one from the same dollars."""
    spec: dict[str, Any] = {name: Decimal(str(rate)) for name, rate in rates.items()}
    return PriceSpec(model=model, **spec).price()


@attrs.define
class Operator:
    """One administrator, who makes one edit after the other.

    Attributes:
        token: of the admin API.
        channel: fields of a channel that comes and goes.
        prices: of each model, all that it has had.
        keys: name -> id.
    """

    site: Site
    token: str
    channel: dict[str, Any]
    prices: dict[str, list[Price | None]]
    keys: dict[str, int] = attrs.Factory(dict)
    done: collections.Counter[str] = attrs.Factory(collections.Counter)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer. Raises ``AssertionError`` if it is an error."""
        headers = {"Authorization": f"Bearer {self.token}"}
        timeout = aiohttp.ClientTimeout(total=60)
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.request(method, f"{self.site.url}/admin/v1/{path}", json=body) as response,
        ):
            text = await response.text()
            if response.status >= 400:
                raise AssertionError(f"{method} {path} {body}: {response.status} {text[:300]}")
            return await response.json() if response.content_type == "application/json" and text else text

    async def found(self) -> None:
        """Set up accounts, keys and prices."""
        for model in PRICES:
            await self.set_price(model, 1)
        for number in range(ACCOUNTS):
            account = {"name": f"a{number}", "quota_usd": FIRST_QUOTA_USD, "quota_period": "monthly"}
            await self.ask("POST", "accounts", account)
            for each in range(KEYS_EACH):
                name = f"a{number}-{each}"
                made = await self.ask("POST", "keys", {"name": name, "account": account["name"]})
                self.keys[name] = made["id"]
                self.site.secrets.append(made["secret"])

    async def run(self, until: float, pause_s: float) -> None:
        """Edit until the monotonic time ``until``; an edit that the kill breaks is let go."""
        while time.monotonic() < until:
            edit = random.choice(EDITS)
            restarted = self.site.restarting
            try:
                await edit(self)
                self.done[edit.__name__] += 1
            except (AssertionError, aiohttp.ClientError, TimeoutError) as error:
                if not restarted and not self.site.restarting:
                    self.site.failed[f"{edit.__name__}: {error}"] += 1
            await asyncio.sleep(random.uniform(0, 2 * pause_s))

    async def set_price(self, model: str, factor: float) -> None:
        """Known before it is in force: a row may be charged by it at once."""
        rates = {name: round(rate * factor, 6) for name, rate in PRICES[model].items()}
        self.prices.setdefault(model, []).append(build_price(model, rates))
        await self.ask("PUT", f"prices/{model}", rates)


async def edit_price(operator: Operator) -> None:
    """A model costs more or less from now on."""
    await operator.set_price(random.choice([*PRICES]), random.choice([0.5, 1, 2, 3]))


async def edit_key(operator: Operator) -> None:
    """For a moment a key is limited, or must not be used, or has a little money."""
    number = random.choice([*operator.keys.values()])
    change, back = random.choice(
        [
            ({"rpm": 5}, {"rpm": None}),
            ({"status": "disabled"}, {"status": "active"}),
            ({"quota_usd": 0.001}, {"quota_usd": None}),
        ]
    )
    await operator.ask("PATCH", f"keys/{number}", change)
    await asyncio.sleep(0.5)
    await operator.ask("PATCH", f"keys/{number}", back)


async def edit_account(operator: Operator) -> None:
    """More or less money, and fewer requests."""
    name = f"a{random.randrange(ACCOUNTS)}"
    await operator.ask("POST", f"accounts/{name}/credits", {"amount_usd": random.choice([1, 5, 20])})
    await operator.ask("PATCH", f"accounts/{name}", {"max_concurrency": random.choice([5, 50, None])})


async def make_key(operator: Operator) -> None:
    """A key is made, its secret replaced, and deleted while it may be in use."""
    made = await operator.ask("POST", "keys", {"name": f"k{time.monotonic_ns()}", "account": "a0", "rpm": 100})
    secret = (await operator.ask("POST", f"keys/{made['id']}/rotate"))["secret"]
    operator.site.secrets.append(secret)
    await asyncio.sleep(1)
    operator.site.secrets.remove(secret)
    await operator.ask("DELETE", f"keys/{made['id']}")


async def edit_channel(operator: Operator) -> None:
    """A channel comes, changes, and goes while it may be in use."""
    name = f"c{time.monotonic_ns()}"
    await operator.ask("POST", "channels?check=hold", {**operator.channel, "name": name})
    await operator.ask("PATCH", f"channels/{name}", {"weight": random.randint(1, 9)})
    await asyncio.sleep(1)
    await operator.ask("DELETE", f"channels/{name}")


async def edit_settings(operator: Operator) -> None:
    """A setting is changed while requests use it, and put back."""
    key, value = random.choice([("max_attempts", 3), ("max_attempts", 4), ("warm_up_s", 1), ("warm_up_s", 3)])
    await operator.ask("PUT", f"settings/routing/{key}", {"value": value})
    await operator.ask("DELETE", f"settings/routing/{key}")


async def reload(operator: Operator) -> None:
    """The configuration file is read again."""
    await operator.ask("POST", "reload")


async def export(operator: Operator) -> None:
    """The rows of the last minute, and what an operator looks at."""
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60))
    for path in (
        *(f"requests/export?since={since}&format={kind}" for kind in ("csv", "jsonl")),
        *("usage?by=key", "usage?by=model", "requests?limit=100", "requests/facets", "keys", "channels", "running"),
        *("audit-trail", "accounts", "videos", "batches", "status"),
    ):
        await operator.ask("GET", path)


Edit = Callable[[Operator], Awaitable[None]]
EDITS: list[Edit] = [
    edit_price, edit_key, edit_account, make_key, edit_channel, edit_settings, reload, export
]  # fmt: skip
