"""Nobody gets an answer from the cache that it could not have had now, at random, beside a gateway without a cache.

Both gateways get the same requests and the same changes: keys, groups, channels, names of models, routes, prices and
limits. What the one refuses the other must refuse, for the same reason. A hit costs the whole price here, so that the
money left is the same. ``GATEWAY_TEST_STEPS=3000`` makes longer runs.
"""

import os
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs
import orjson
import pytest

from gateway.domain.account_spec import build_time
from gateway.domain.request_log import RequestFilter
from gateway.server.context import SERVICES
from tests.support.admin_calls import AdminApi
from tests.support.gateway import CHAT, RunningGateway
from tests.support.openai_provider import OpenAIProvider
from tests.support.providers import Fails, Says
from tests.support.started_gateways import StartGateway

STEPS = int(os.environ.get("GATEWAY_TEST_STEPS", "150"))
MODELS = ("a", "b", "c", "fast")
"""``fast`` is a route."""
KEYS = {"k0": "acme", "k1": "acme", "k2": "other", "k3": "other"}
PRICE = {"input_usd_per_million": 1.0, "output_usd_per_million": 2.0}
CHANNELS = ("one", "two")


class NamedProvider(OpenAIProvider):
    """Says which channel and model answer, and how often it was asked."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def give(self) -> Says | Fails:
        text = f"{self.name} {self.received[-1].json['model']} {len(self.received)}"
        return Says(text, prompt=20, cached=0, completion=10, reasoning=0)


@attrs.define
class World:
    """What is in force, as the test knows it."""

    groups: dict[str, list[str]] = attrs.Factory(lambda: {name: [] for name in CHANNELS})
    names: dict[str, dict[str, str]] = attrs.Factory(lambda: {name: {} for name in CHANNELS})
    is_active: dict[str, bool] = attrs.Factory(lambda: dict.fromkeys(CHANNELS, True))
    key_group: dict[str, str | None] = attrs.Factory(lambda: dict.fromkeys(KEYS))
    steps: list[str] = attrs.Factory(lambda: ["a", "b"])

    def list_sources(self, key: str, model: str) -> set[tuple[str, str]]:
        """The channels, with their names of the model, that may answer this key."""
        models = self.steps if model == "fast" else [model]
        return {
            (name, self.names[name].get(one, one))
            for one in models
            for name in CHANNELS
            if self.is_active[name] and (not self.groups[name] or self.key_group[key] in self.groups[name])
        }


@attrs.define
class Clock:
    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Twins:
    """The same world twice; only the first has a cache."""

    def __init__(self, gateways: list[RunningGateway], scope: str, secrets: list[dict[str, str]], clock: Clock) -> None:
        self.clock = clock
        self.admins = [AdminApi(gateway) for gateway in gateways]
        self.gateways = gateways
        self.scope = scope
        self.secrets = secrets
        self.world = World()
        self.buyers: dict[str, str] = {}
        self.given = 0

    async def change(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        for admin in self.admins:
            await admin(method, path, dict(body))

    async def change_something(self, rng: random.Random, key_ids: list[dict[str, int]]) -> None:
        world, key, channel = self.world, rng.choice(list(KEYS)), rng.choice(CHANNELS)
        kind = rng.randrange(8)
        if kind == 0:
            await self._edit_key(key_ids, key, {"models": rng.sample(MODELS, rng.randint(1, 4))})
        elif kind == 1:
            world.key_group[key] = rng.choice([None, "vip", "low"])
            await self._edit_key(key_ids, key, {"group": world.key_group[key]})
        elif kind == 2:
            await self._edit_key(key_ids, key, {"status": rng.choice(["active", "active", "disabled"])})
        elif kind == 3:
            expires_at = None if rng.random() < 0.5 else build_time(int(self.clock.now_s) + rng.randint(1, 60))
            await self._edit_key(key_ids, key, {"expires_at": expires_at})
        elif kind == 4:
            world.groups[channel] = rng.choice([[], ["vip"], ["low", "vip"]])
            await self.change("PATCH", f"/channels/{channel}", {"groups": world.groups[channel]})
        elif kind == 5:
            world.names[channel] = rng.choice([{}, {"a": "a-new"}, {"b": "b-old"}])
            await self.change("PATCH", f"/channels/{channel}", {"model_map": world.names[channel]})
        elif kind == 6:
            world.is_active[channel] = rng.random() < 0.7
            status = "active" if world.is_active[channel] else "disabled"
            await self.change("PATCH", f"/channels/{channel}", {"status": status})
        else:
            world.steps = rng.choice([["a"], ["b"], ["a", "b"], ["c", "a"]])
            await self.change("PUT", "/routes/fast", {"step": [{"models": [model]} for model in world.steps]})

    async def _edit_key(self, key_ids: list[dict[str, int]], key: str, fields: Mapping[str, Any]) -> None:
        for admin, ids in zip(self.admins, key_ids, strict=True):
            await admin("PATCH", f"/keys/{ids[key]}", dict(fields))

    async def ask_both(self, rng: random.Random) -> None:
        key, model, question = rng.choice(list(KEYS)), rng.choice(MODELS), rng.randrange(2)
        stream = rng.random() < 0.3
        body = {"model": model, "messages": [{"role": "user", "content": f"question {question}"}], "max_tokens": 16}
        cached, plain = [
            await self._ask(gateway, secrets[key], body | {"stream": stream})
            for gateway, secrets in zip(self.gateways, self.secrets, strict=True)
        ]
        assert cached[:2] == plain[:2], (cached, plain)
        status, _, text, result = cached
        if status != 200:
            return
        channel, name, _ = text.split(" ")
        assert (channel, name) in self.world.list_sources(key, model)
        if result == "miss":
            self.buyers[text] = key
        else:
            self.given += 1
            assert result == "hit"
            assert self._may_share(self.buyers[text], key)

    def _may_share(self, buyer: str, key: str) -> bool:
        return self.scope == "all" or buyer == key or (self.scope == "account" and KEYS[buyer] == KEYS[key])

    async def _ask(self, gateway: RunningGateway, secret: str, body: Any) -> tuple[int, str, str, str]:
        """Status, code of the error, text, and where it came from."""
        # The other gateway may take so long that this one would close a kept connection in the middle of a request.
        headers = {"Authorization": f"Bearer {secret}", "Connection": "close"}
        async with gateway.client.post(gateway.url + CHAT, json=body, headers=headers) as response:
            result = response.headers.get("x-gateway-cache", "")
            content = await response.read()
            if response.status != 200:
                return response.status, (await response.json())["error"]["code"], "", result
            if not body["stream"]:
                return 200, "", (await response.json())["choices"][0]["message"]["content"], result
            return 200, "", _join_texts(content), result


def _join_texts(content: bytes) -> str:
    events = [line.removeprefix(b"data: ") for line in content.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in orjson.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def _furnish(admin: AdminApi, ups: list[NamedProvider]) -> tuple[dict[str, int], dict[str, str]]:
    """Accounts, keys, channels and a route; the ids and the secrets of the keys."""
    for account in ("acme", "other"):
        if account != "acme":
            await admin("POST", "/accounts", {"name": account}, status=201)
    for up in ups:
        fields = up.channel(up.name, models=["a", "b", "c"], model_map={})
        await admin("POST", "/channels", fields, status=201)
    for group in ("vip", "low"):
        await admin("PUT", f"/groups/{group}", {"price_multiplier": 1.0})
    for model in ("a", "b", "c", "a-new", "b-old"):
        await admin("PUT", f"/prices/{model}", PRICE)
    await admin("PUT", "/routes/fast", {"step": [{"models": ["a"]}, {"models": ["b"]}]})
    ids, secrets = {}, {}
    for name, account in KEYS.items():
        quota = {"quota_usd": 0.002, "quota_period": "lifetime"} if name in {"k1", "k3"} else {}
        key = await admin("POST", "/keys", {"name": name, "account": account, **quota}, status=201)
        ids[name], secrets[name] = key["id"], key["secret"]
    return ids, secrets


@pytest.mark.parametrize("scope", ["key", "account", "all"])
async def test_nobody_gets_what_it_could_not_have_now(gateway_with: StartGateway, scope: str) -> None:
    rng = random.Random(f"cache {scope}")  # noqa: S311 - a test's own order
    async with NamedProvider("one") as one, NamedProvider("two") as two:
        cache = {"ttl_s": 3_600, "scope": scope, "hit_price": 1.0}
        base: dict[str, Any] = {"routing": {"trip_failures": 1000}}
        clock = Clock()
        plain_gateway = await gateway_with(base, clock=clock)
        gateways = [await gateway_with(base | {"cache": cache}, clock=clock), plain_gateway]
        furnished = [await _furnish(AdminApi(gateway), [one, two]) for gateway in gateways]
        twins = Twins(gateways, scope, [secrets for _, secrets in furnished], clock)
        for _ in range(STEPS):
            clock.now_s += rng.random() * 5
            if rng.random() < 0.2:
                await twins.change_something(rng, [ids for ids, _ in furnished])
            else:
                await twins.ask_both(rng)
        assert twins.given > min(STEPS, 150) // 20  # in longer runs fewer: two of four keys have spent their money
        costs = [await _sum_costs(gateway) for gateway in gateways]
        assert costs[0] == costs[1]
        await plain_gateway.client.close()  # its connections are no tasks that the other one has left


async def _sum_costs(gateway: RunningGateway) -> Counter[str]:
    """What each key has spent, in nano-USD."""
    await gateway.check_books()
    await gateway.app[SERVICES].billing.flusher.store_waiting()
    costs: Counter[str] = Counter()
    for stored in await gateway.app[SERVICES].admin.request_log.list_requests(RequestFilter(), 1000):
        costs[stored.row.key_name] += stored.row.cost_nanos
    return costs
