"""The model list follows providers that add models, take them away, fail and come back, through a whole gateway.

Listings are asked for by the admin API, one after the other: nothing here waits for the clock.
"""

import asyncio
from typing import Any

import aiohttp
import attrs
import pytest
from openai import NotFoundError

from gateway.config.schema import Config
from tests.support.gateway import HELLO, KEY, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, FIN, RST, Received, Script, ScriptedUpstream, Step, answer
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

NOW = 1_750_000_000
OTHER_KEY = "sk-the-key-of-another-caller"

Model = dict[str, Any]


def listing(*ids: str, **extra: Any) -> list[Step]:
    """A provider's answer to ``GET /models``."""
    return [answer({"object": "list", "data": [{"id": name, "object": "model", **extra} for name in ids]})]


def synced(up: ScriptedUpstream, name: str = "up", **more: Any) -> dict[str, Any]:
    return channel(up.base_url, name, **{"models": [], "sync": True, **more})


@attrs.frozen
class Seen:
    """The gateway as its operator asks it, and as a caller sees its list."""

    gateway: RunningGateway

    async def sync(self, name: str = "up") -> Any:
        """Have a channel's provider asked now; what is known of the channel then."""
        return await self._ask("POST", f"channels/{name}/sync")

    async def wait_for_start(self, *names: str) -> None:
        """Until the start has asked the providers of these channels, whatever came of it."""
        async with asyncio.timeout(10):
            for name in names or ("up",):
                while not ((found := await self.channel(name))["synced_at"] or found["sync_error"]):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

    async def channel(self, name: str = "up") -> Any:
        return await self._ask("GET", f"channels/{name}")

    async def channels_of(self) -> dict[str, list[str]]:
        return {item["id"]: item["channels"] for item in (await self._ask("GET", "models"))["data"]}

    async def _ask(self, method: str, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.gateway.admin_token}"}
        url = f"{self.gateway.url}/admin/v1/{path}"
        async with self.gateway.client.request(method, url, headers=headers) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def get(self, path: str = "", key: str = KEY, **headers: str) -> tuple[int, Any, str]:
        """``GET /v1/models…``: status, JSON where there is any, entity tag."""
        sent = {"Authorization": f"Bearer {key}", **headers}
        async with self.gateway.client.get(f"{self.gateway.url}/v1/models{path}", headers=sent) as response:
            known = response.headers.get("ETag", "")
            return response.status, (await response.json() if response.status != 304 else None), known

    async def models(self, key: str = KEY) -> list[Model]:
        return list((await self.get(key=key))[1]["data"])

    async def names(self, key: str = KEY) -> str:
        return " ".join(model["id"] for model in await self.models(key))

    async def etag(self, key: str = KEY) -> str:
        return (await self.get(key=key))[2]

    async def call(self, model: str) -> int:
        async with self.gateway.post({**HELLO, "model": model}) as response:
            return int(response.status)


FAILURES: dict[str, list[Step]] = {
    "500": [answer({"error": {"message": "no"}}, 500)],
    "401": [answer({"error": {"message": "no"}}, 401)],
    "429": [answer({"error": {"message": "no"}}, 429)],
    "error with 200": [answer({"error": {"message": "no"}})],
    "HTML": [answer(b"<html>")],
    "no list": [answer({"data": None})],
    "cut": [answer({"data": []})[:-3], FIN],
    "reset": [answer({"data": []})[:-3], RST],
}


async def test_models_come_at_once_and_go_after_two_absences_in_a_row(gateway_with: StartGateway) -> None:
    down = FAILURES["500"]
    steps: list[tuple[list[Step], str]] = [
        (listing("a", "b"), "a b"),
        (listing("a", "b", "c"), "a b c"),
        (listing("b", "c"), "a b c"),  # once is not twice
        (down, "a b c"),
        (down, "a b c"),
        (listing("a", "b"), "a b c"),  # "a" is back, and "c" away for the first time
        (listing("b"), "a b"),  # "c" for the second
        (down, "a b"),
        (listing("b"), "b"),
        (listing(), "b"),
        (listing("z"), "z"),
        (listing("a", "z"), "a z"),
    ]
    async with ScriptedUpstream(*(script for script, _ in steps)) as up:
        seen = Seen(await gateway_with({"channel": [synced(up)]}))
        await seen.wait_for_start()
        assert await seen.names() == steps[0][1]
        for number, (script, expected) in enumerate(steps[1:], 1):
            known = await seen.sync()
            assert await seen.names() == expected, number
            assert bool(known["sync_error"]) == (script is down), number
        assert (known["came"], known["went"], known["offers"]) == (["a"], [], 2)


async def test_a_model_that_has_gone_is_not_found_by_a_call_either(gateway_with: StartGateway) -> None:
    scripts: list[Script] = [listing("a", "b"), [answer(COMPLETION)], listing("a"), [answer(COMPLETION)], listing("a")]
    async with ScriptedUpstream(*scripts) as up:
        seen = Seen(await gateway_with({"channel": [synced(up)]}))
        await seen.wait_for_start()
        assert await seen.call("b") == 200
        await seen.sync()
        assert await seen.call("b") == 200
        assert (await seen.sync())["went"] == ["b"]
        assert await seen.call("b") == 404
        assert [request.method for request in up.received] == ["GET", "POST", "GET", "POST", "GET"]
        await seen.gateway.rows(3)


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failed_listing_removes_nothing_and_is_no_absence(gateway_with: StartGateway, failure: str) -> None:
    failed = FAILURES[failure]
    async with ScriptedUpstream(listing("a"), failed, listing(), failed, failed, listing()) as up:
        seen = Seen(await gateway_with({"channel": [synced(up)]}))
        await seen.wait_for_start()
        etag = await seen.etag()
        before = (await seen.channel())["synced_at"]
        for expected in (True, False, True, True):
            known = await seen.sync()
            assert bool(known["sync_error"]) == expected
            assert known["synced_at"] >= before
            assert (await seen.names(), await seen.etag()) == ("a", etag)
            assert "provider-key" not in str(known)
        known = await seen.sync()
        assert (known["sync_error"], known["went"], await seen.names()) == (None, ["a"], "")


async def test_a_provider_that_is_away_at_the_start_may_serve_anything_until_it_says_what(
    gateway_with: StartGateway,
) -> None:
    async with ScriptedUpstream(FAILURES["500"], [answer(COMPLETION)], listing("a"), [answer(COMPLETION)]) as up:
        seen = Seen(await gateway_with({"channel": [synced(up, models=["a", "b*"], model_map={"alias": "a"})]}))
        await seen.wait_for_start()
        assert await seen.names() == "alias"
        assert await seen.call("b1") == 200  # nobody knows better yet
        assert await seen.call("c") == 404  # the channel's own filter does
        assert (await seen.sync())["came"] == ["a"]
        assert await seen.names() == "a alias"
        assert await seen.call("b1") == 404
        assert await seen.call("alias") == 200
        assert up.received[-1].json["model"] == "a"
        await seen.gateway.rows(4)


async def test_the_filter_and_the_aliases_of_a_channel_shape_what_its_provider_lists(
    gateway_with: StartGateway,
) -> None:
    aliases = {"fast": "gpt-mini", "gone": "gpt-old", "hidden": "tts-1"}
    scripts: list[Script] = [
        listing("gpt-big", "gpt-mini", "gpt-old", "tts-1"),
        listing("gpt-mini"),
        listing("gpt-mini"),
    ]
    async with ScriptedUpstream(*scripts, [answer(COMPLETION)]) as up:
        seen = Seen(await gateway_with({"channel": [synced(up, models=["gpt-*"], model_map=aliases)]}))
        await seen.wait_for_start()
        assert await seen.names() == "fast gone gpt-big gpt-mini gpt-old hidden"
        await seen.sync()
        assert (await seen.sync())["went"] == ["gpt-big", "gpt-old"]
        assert await seen.names() == "fast gone gpt-mini hidden"  # an alias is the operator's word, not the provider's
        assert await seen.call("fast") == 200
        assert up.received[-1].json["model"] == "gpt-mini"
        assert await seen.call("tts-1") == 404
        await seen.gateway.rows(2)


async def test_the_owner_of_models_is_whom_the_channel_says_and_never_the_providers_account(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    async with ScriptedUpstream(listing("theirs", owned_by="user-8hd3jdkw")) as up:
        more = {"model_map": {"ours": "theirs"}, "owned_by": "acme"}
        plain = {**synced(up), "name": "plain", "models": ["elsewhere"], "sync": False}
        gateway = await gateway_with({"channel": [{**synced(up), **more}, plain]})
        await Seen(gateway).wait_for_start()
        listed = {model.id: model.owned_by async for model in sdk(gateway).models.list()}
        assert listed == {"ours": "acme", "theirs": "acme", "elsewhere": "system"}


async def test_what_a_provider_says_of_a_model_is_kept_and_what_it_leaves_out_is_filled_in(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    now = [NOW]
    first = listing("org/known:tag", created=7, owned_by="them")
    both = [answer({"data": [{"id": "org/known:tag", "created": 9}, {"id": "bare"}, {"id": "odd", "created": "soon"}]})]
    async with ScriptedUpstream(first, both, both) as up:
        gateway = await gateway_with({"channel": [synced(up)]}, clock=lambda: now[0])
        seen = Seen(gateway)
        await seen.wait_for_start()
        now[0] += 100
        await seen.sync()
        now[0] += 100
        await seen.sync()
        client = sdk(gateway)
        listed = {model.id: model async for model in client.models.list()}
        assert {name: model.created for name, model in listed.items()} == {
            "bare": NOW + 100,
            "odd": NOW + 100,
            "org/known:tag": 7,
        }
        assert {(model.object, model.owned_by) for model in listed.values()} == {("model", "system")}
        for name, model in listed.items():
            assert await client.models.retrieve(name) == model


async def test_one_model_comes_from_the_same_source_as_the_list(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream(listing("a", "b"), listing("b"), listing("b")) as up:
        gateway = await gateway_with({"channel": [synced(up, model_map={"alias": "a"})]})
        seen, client = Seen(gateway), sdk(gateway)
        await seen.wait_for_start()
        for _ in range(3):
            models = await seen.models()
            for model in models:
                assert (await seen.get(f"/{model['id']}"))[1] == model
            await seen.sync()
        assert [model["id"] for model in models] == ["alias", "b"]
        with pytest.raises(NotFoundError) as caught:
            await client.models.retrieve("a")
        assert caught.value.code == "model_not_found"


async def test_the_entity_tag_changes_with_the_list_and_with_nothing_else(gateway_with: StartGateway) -> None:
    scripts: list[Script] = [
        listing("a", "b"),
        listing("b", "a"),
        FAILURES["500"],
        listing("a", "b", "c"),
        listing("a", "b", "c"),
    ]
    async with ScriptedUpstream(*scripts) as up:
        seen = Seen(await gateway_with({"channel": [synced(up)]}))
        await seen.wait_for_start()
        first = await seen.etag()
        assert await seen.get(**{"If-None-Match": first}) == (304, None, first)
        for _ in range(2):
            await seen.sync()
            assert await seen.get(**{"If-None-Match": f'"other", W/{first}'}) == (304, None, first)
        await seen.sync()
        status, body, second = await seen.get(**{"If-None-Match": first})
        assert (status, len(body["data"])) == (200, 3)
        assert second != first
        await seen.sync()
        assert await seen.get(**{"If-None-Match": second}) == (304, None, second)


async def test_an_alias_of_a_model_that_is_not_listed_keeps_its_birthday(gateway_with: StartGateway) -> None:
    now = [NOW]
    config = {"channel": [channel("http://127.0.0.1:9/v1", model_map={"alias": "provider/own-name"})]}
    seen = Seen(await gateway_with(config, clock=lambda: now[0]))
    etag, models = await seen.etag(), await seen.models()
    assert [model["id"] for model in models] == ["alias", "m"]
    now[0] += 3600
    assert await seen.models() == models
    assert (await seen.get(**{"If-None-Match": etag}))[0] == 304


async def test_a_key_sees_what_it_may_use_and_has_a_tag_of_its_own(gateway_with: StartGateway) -> None:
    scripts: list[Script] = [listing("open/a", "open/b", "closed/c"), listing("open/d", "open/a")]
    async with ScriptedUpstream(*scripts) as up, ScriptedUpstream(listing("vip/v")) as vip:
        config: dict[str, Any] = {
            "channel": [synced(up), synced(vip, "vip", groups=["vip"])],
            "account": [{"name": "acme"}, {"name": "blue", "groups": ["vip"]}],
            "key": [
                {"name": "narrow", "account": "acme", "secret": KEY, "models": ["open/*"]},
                {"name": "wide", "account": "blue", "secret": OTHER_KEY, "group": "vip"},
            ],
        }
        seen = Seen(await gateway_with(config))
        await seen.wait_for_start("up", "vip")
        assert await seen.names(KEY) == "open/a open/b"
        assert await seen.names(OTHER_KEY) == "closed/c open/a open/b vip/v"
        tags = [await seen.etag(key) for key in (KEY, OTHER_KEY)]
        assert tags[0] != tags[1]
        assert [(await seen.get("/vip%2Fv", key))[0] for key in (KEY, OTHER_KEY)] == [404, 200]
        assert (await seen.get("/closed%2Fc", KEY))[0] == 404
        for _ in range(2):
            await seen.sync()
        assert await seen.names(KEY) == "open/a open/d"
        assert await seen.names(OTHER_KEY) == "open/a open/d vip/v"


async def test_a_model_of_two_channels_stays_until_the_last_of_them_is_without_it(gateway_with: StartGateway) -> None:
    ones: list[Script] = [listing("m", "x"), listing("x"), listing("x"), [answer(COMPLETION)]]
    async with ScriptedUpstream(*ones) as one, ScriptedUpstream(listing("m"), [answer(COMPLETION)], listing()) as two:
        seen = Seen(await gateway_with({"channel": [synced(one, "one", priority=1), synced(two, "two")]}))
        await seen.wait_for_start("one", "two")
        assert await seen.channels_of() == {"m": ["one", "two"], "x": ["one"]}
        for _ in range(2):
            await seen.sync("one")
        assert await seen.names() == "m x"
        assert await seen.channels_of() == {"m": ["two"], "x": ["one"]}
        assert await seen.call("m") == 200
        assert two.received[-1].method == "POST"
        for _ in range(2):
            await seen.sync("two")
        assert await seen.names() == "x"
        assert await seen.call("m") == 404
        await seen.gateway.rows(2)


async def test_a_fixed_channel_and_a_synchronized_one_may_offer_the_same(gateway_with: StartGateway) -> None:
    async with (
        ScriptedUpstream(listing("m"), listing("n"), listing("n")) as up,
        ScriptedUpstream([answer(COMPLETION)]) as fixed,
    ):
        seen = Seen(await gateway_with({"channel": [synced(up, priority=1), channel(fixed.base_url, "fixed")]}))
        await seen.wait_for_start()
        assert await seen.names() == "m"
        for _ in range(2):
            await seen.sync()
        assert await seen.names() == "m n"
        assert await seen.call("m") == 200
        assert len(fixed.received) == 1
        await seen.gateway.rows(1)


async def test_a_fixed_channel_cannot_be_synchronized(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"channel": [channel("http://127.0.0.1:9/v1")]})
    headers = {"Authorization": f"Bearer {gateway.admin_token}"}
    url = f"{gateway.url}/admin/v1/channels"
    async with gateway.client.post(f"{url}/up/sync", headers=headers) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "sync")
    async with gateway.client.post(f"{url}/nobody/sync", headers=headers) as response:
        assert response.status == 404


async def test_the_list_is_answered_while_a_provider_takes_its_time(gateway_with: StartGateway) -> None:
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    async with ScriptedUpstream(listing("a"), [wait, *listing("a", "b")]) as up:
        seen = Seen(await gateway_with({"channel": [synced(up)]}))
        await seen.wait_for_start()
        syncing = asyncio.create_task(seen.sync())
        while len(up.received) < 2:  # noqa: ASYNC110 - the other end of a socket has no event to tend
            await asyncio.sleep(0.005)
        assert await seen.names() == "a"
        go_on.set()
        await syncing
        assert await seen.names() == "a b"


async def test_a_vendors_own_list_in_its_own_shape_is_followed_too(gateway_with: StartGateway) -> None:
    def models(*ids: str) -> list[Step]:
        return [
            answer(
                {
                    "models": [
                        {"name": f"models/{name}", "supportedGenerationMethods": ["generateContent"]} for name in ids
                    ]
                }
            )
        ]

    async with ScriptedUpstream(models("gemini-a", "gemini-b"), models("gemini-b"), models("gemini-b")) as up:
        seen = Seen(await gateway_with({"channel": [synced(up, provider="gemini")]}))
        await seen.wait_for_start()
        assert await seen.names() == "gemini-a gemini-b"
        assert (await seen.models())[0]["owned_by"]
        for _ in range(2):
            await seen.sync()
        assert await seen.names() == "gemini-b"
        assert up.received[0].headers["x-goog-api-key"] == "provider-key"


async def test_without_being_asked_every_channel_is_asked_again(gateway_with: StartGateway) -> None:
    """Every ``sync_interval_s``, of which the default is ten minutes."""
    assert Config().routing.sync_interval_s == 600
    async with ScriptedUpstream(listing("a"), listing("a", "b")) as up:
        seen = Seen(await gateway_with({"channel": [synced(up)], "routing": {"sync_interval_s": 0.05}}))
        async with asyncio.timeout(10):
            while await seen.names() != "a b":  # noqa: ASYNC110 - a clock has no event to tend
                await asyncio.sleep(0.01)


async def test_a_caller_without_a_key_sees_no_list(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"channel": [channel("http://127.0.0.1:9/v1")]})
    async with aiohttp.ClientSession() as stranger:
        for path in ("", "/m"):
            async with stranger.get(f"{gateway.url}/v1/models{path}") as response:
                assert response.status == 401
                assert "ETag" not in response.headers
