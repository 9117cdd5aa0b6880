"""Settings, groups and prices over the admin API: what is set is in force at once, whole or not at all."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import attrs
import orjson
import pytest
import structlog

from gateway.auth.sessions import ClientInfo
from gateway.config.live_settings import SettingsService
from gateway.config.merge import EDITABLE, list_sections
from gateway.config.schema import Config
from gateway.domain.audit_log import OPERATOR
from gateway.domain.member import Credential, Member
from gateway.errors import StoreUnavailable
from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from gateway.storage.settings import SettingRepository
from tests.support.admin_calls import AdminApi
from tests.support.gateway import RunningGateway, channel, furnish
from tests.support.repositories import LazyDatabase
from tests.support.started_gateways import StartGateway

NOWHERE = "http://127.0.0.1:9/v1"
FILE = {
    "channel": [channel(NOWHERE, models=["m", "n", "gpt-5"], groups=["vip", "lab"], price_multiplier=2)],
    "media": {"link_hours": 12},
    "group": [{"name": "vip", "price_multiplier": 0.5}],
    "price": [
        {"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 2},
        {"model": "filed-*", "free": True},
    ],
}
FREE = {"free": True}
TELLING = "/settings/routing/max_attempts"


StartAdminApi = Callable[..., Awaitable[AdminApi]]


@pytest.fixture
def admin_with(gateway_with: StartGateway) -> StartAdminApi:
    async def start(config: dict[str, Any] | None = None, **more: Any) -> AdminApi:
        return AdminApi(await gateway_with(FILE if config is None else config, **more))

    return start


async def test_every_setting_is_told_with_what_it_is_for_and_no_secret_is(admin_with: StartAdminApi) -> None:
    admin = await admin_with({**FILE, "store": {"master_key": "ab" * 32}, "server": {"max_body_mb": 7}})
    sections = (await admin("GET", "/settings"))["sections"]
    assert "ab" * 32 not in str(sections)
    known = {
        section: shown
        for section, part in list_sections(Config())
        if (shown := {field.name for field in attrs.fields(type(part)) if field.repr})
    }
    assert {section: set(keys) for section, keys in sections.items()} == known
    reported = {f"{section}.{key}": reported for section, keys in sections.items() for key, reported in keys.items()}
    assert all(one["about"] for one in reported.values())
    assert {name.partition(".")[0] for name, one in reported.items() if one["editable"]} == EDITABLE & known.keys()
    assert reported["server.max_body_mb"]["source"] == "file"
    assert (reported["media.link_hours"]["value"], reported["media.link_hours"]["default"]) == (12, 24)
    assert {one["source"] for one in reported.values()} == {"default", "file"}
    assert [
        reported[name]["type"] for name in ("server.host", "server.port", "routing.retry_ratio", "egress.allow")
    ] == ["text", "integer", "number", "list"]
    assert reported["billing.require_price"]["type"] == "boolean"
    assert (reported["videos.store"]["type"], reported["videos.store"]["choices"]) == ("choice", ["keep", "proxy"])
    assert reported["routing.max_attempts"]["expected"] == "a number from 1 to 10"


async def test_a_setting_is_in_force_when_its_change_returns_until_it_is_taken_back(admin_with: StartAdminApi) -> None:
    admin = await admin_with()
    load_balancer = admin.gateway.app[SERVICES].routing.load_balancer
    before = await admin.tell(TELLING)
    assert before == {**before, "value": 3, "default": 3, "source": "default", "editable": True}
    reported = await admin("PUT", TELLING, {"value": 5})
    assert reported == {**before, "value": 5, "source": "console"} == await admin.tell(TELLING)
    assert await admin("PUT", TELLING, {"value": 5}) == reported, "which is no change"
    assert load_balancer.settings.max_attempts == 5
    await admin("PUT", "/settings/videos/webhook_hosts", {"value": ["*.example.com"]})
    assert admin.gateway.app[SERVICES].live_config.find_webhook_hosts() == ("*.example.com",)
    assert load_balancer.settings.max_attempts == 5, "one change keeps those before it"
    assert await admin("DELETE", TELLING) == before
    assert await admin("DELETE", TELLING) == before, "and again is no fault"
    assert load_balancer.settings.max_attempts == 3
    assert await admin.list_stored() == {"videos.webhook_hosts": ["*.example.com"]}
    assert await admin.list_trail() == [
        ("setting.changed", "routing.max_attempts", {"max_attempts": [3, 5]}),
        ("setting.changed", "videos.webhook_hosts", {"webhook_hosts": [[], ["*.example.com"]]}),
        ("setting.removed", "routing.max_attempts", {"max_attempts": [5, 3]}),
    ]


REFUSED: tuple[tuple[str, Any, int, str], ...] = (
    (TELLING, {"value": 0}, 400, "routing.max_attempts: expected a number from 1 to 10, not '0'"),
    (TELLING, {"value": "3"}, 400, "expected a whole number"),
    (TELLING, {"value": 2**70}, 400, ""),
    ("/settings/routing/cooldown_s", {"value": 2**63}, 400, ""),
    ("/settings/egress/allow", {"value": [[[]]]}, 400, "expected a string"),
    (TELLING, {"value": None}, 400, "expected a value"),
    (TELLING, {}, 400, "value: expected a value"),
    (TELLING, {"value": 3, "colour": "blue"}, 400, "colour: unknown key"),
    ("/settings/media/keep_hours", {"value": 11}, 400, "expected no less than link_hours"),
    ("/settings/egress/allow", {"value": ["everywhere"]}, 400, "expected addresses or networks"),
    ("/settings/media/link_hours", {"value": 3}, 409, "media.link_hours is set in the configuration file"),
    ("/settings/server/port", {"value": 3}, 409, "server.port is only read at start"),
    ("/settings/safety/words_file", {"value": "/etc/passwd"}, 409, "safety.words_file is only read at start"),
    ("/settings/store/master_key", {"value": "ab" * 32}, 404, "no setting 'store.master_key'"),
    ("/settings/routing/colour", {"value": 1}, 404, "no setting"),
    ("/settings/channel/name", {"value": 1}, 404, "no setting"),
)


async def test_what_cannot_be_set_changes_nothing_and_says_why(admin: AdminApi) -> None:
    before = admin.settled
    for path, body, status, message in REFUSED:
        refused = await admin("PUT", path, body, status)
        assert message in refused["error"]["message"]
    assert admin.settled is before
    assert (await admin.list_stored(), await admin.list_trail()) == ({}, [])


@pytest.fixture
async def admin(admin_with: StartAdminApi) -> AdminApi:
    return await admin_with()


async def test_what_the_rest_then_would_not_go_with_is_refused_also_where_it_is_taken_back(
    admin_with: StartAdminApi,
) -> None:
    admin = await admin_with({"channel": FILE["channel"]})
    await admin("PUT", "/settings/media/keep_hours", {"value": 200})
    await admin("PUT", "/settings/media/link_hours", {"value": 100})
    refused = await admin("DELETE", "/settings/media/keep_hours", status=400)
    assert "media.link_hours: keep_hours: expected no less than link_hours" in refused["error"]["message"]
    assert await admin.list_stored() == {"media.keep_hours": 200, "media.link_hours": 100}
    await admin("DELETE", "/settings/media/link_hours")
    await admin("DELETE", "/settings/media/keep_hours")
    assert await admin.list_stored() == {}


async def test_changes_at_the_same_time_all_count(admin_with: StartAdminApi) -> None:
    admin = await admin_with()
    keys = {"max_attempts": 5, "trip_ratio": 0.7, "cooldown_s": 2, "max_cooldown_s": 60, "warm_up_s": 1}
    await asyncio.gather(*(admin("PUT", f"/settings/routing/{key}", {"value": value}) for key, value in keys.items()))
    sections = (await admin("GET", "/settings"))["sections"]
    assert {key: sections["routing"][key]["value"] for key in keys} == keys


STORED = {
    "routing.max_attempts": 5,
    "billing.unpriced": "refuse",
    "group/lab": {"price_multiplier": 3},
    "price/n": {"model": "n", "input_usd_per_million": 7},
}
HIDDEN = {"media.link_hours": 3, "group/vip": {"price_multiplier": 9}, "price/m": {"model": "m", "free": True}}
UNKNOWN = {"media.keep_hours": 1, "routing.colour": "blue", "routing.retry_ratio": 7, "group/odd": 5, "group/x": None}


async def test_what_is_stored_is_in_force_after_a_start_and_what_is_no_longer_known_stops_none(
    admin_with: StartAdminApi, tmp_path: Path, template_path: Path
) -> None:
    path = tmp_path / "data0"
    path.mkdir()
    await furnish(path, template_path, declared=False)
    with contextlib.closing(sqlite3.connect(path / "gateway.db")) as database:
        rows = [(name, orjson.dumps(value).decode(), 1) for name, value in (STORED | HIDDEN | UNKNOWN).items()]
        database.executemany("INSERT INTO settings VALUES (?, ?, ?)", rows)
        database.commit()
    with structlog.testing.capture_logs() as log:
        admin = await admin_with()
    assert {line["path"] for line in log if line["event"] == "setting_ignored"} == set(UNKNOWN)
    services = admin.gateway.app[SERVICES]
    pricing = services.routing.router.pricing
    assert services.routing.load_balancer.settings.max_attempts == 5
    assert (pricing.unpriced, pricing.groups) == ("refuse", {"vip": 500_000, "lab": 3_000_000})
    assert pricing.find_price("n", "n", "custom").input_nanos_per_million == 7 * 10**9
    assert [(await admin.tell(f"/settings/media/{key}"))["value"] for key in ("link_hours", "keep_hours")] == [12, 48]
    await admin("PUT", TELLING, {"value": 6})
    await admin("DELETE", "/settings/media/keep_hours")
    await admin("PUT", "/settings/routing/retry_ratio", {"value": 0.5})
    reported = (await admin("GET", "/prices?model=m"))["data"]
    assert [(price["source"], price["in_force"]) for price in reported] == [("file", True), ("console", False)]
    assert (await admin("DELETE", "/settings/media/link_hours"))["value"] == 12
    await admin("PUT", "/groups/odd", {"price_multiplier": 2})
    for address in ("/groups/vip", "/groups/odd", "/groups/x", "/prices/m"):
        await admin("DELETE", address)
    assert services.routing.router.pricing.groups == {"vip": 500_000, "lab": 3_000_000}
    assert await admin.list_stored() == {
        **STORED,
        "routing.max_attempts": 6,
        "routing.retry_ratio": 0.5,
        "routing.colour": "blue",
    }


class FullStore(SettingRepository):
    """A disk that is full."""

    async def change_settings(self, *_: object) -> None:
        raise StoreUnavailable("The gateway's store cannot be written to")


async def test_a_store_that_refuses_leaves_everything_as_it_was(admin: AdminApi) -> None:
    await admin("PUT", "/groups/lab", {"price_multiplier": 3})
    settings, before = admin.settings, admin.settled
    pricing = admin.gateway.app[SERVICES].routing.router.pricing
    full = SettingsService(settings._live, settings._reloader, FullStore(LazyDatabase()), clock=time.time)
    for change in (
        full.put_setting("routing", "max_attempts", 5, OPERATOR),
        full.put_group("other", {}, OPERATOR),
        full.put_price("other", FREE, OPERATOR),
        full.delete_group("lab", OPERATOR),
    ):
        with pytest.raises(StoreUnavailable):
            await change
    assert admin.settled is before
    assert admin.gateway.app[SERVICES].routing.router.pricing is pricing
    assert admin.gateway.app[SERVICES].routing.load_balancer.settings.max_attempts == 3


async def test_groups_are_those_that_are_used_and_those_that_pay_something(admin: AdminApi) -> None:
    await admin("PATCH", "/keys/1", {"group": "lab"}, 409)
    await admin("POST", "/keys", {"name": "two", "account": "acme", "group": "lab"}, 201)
    groups = (await admin("GET", "/groups"))["data"]
    assert groups == [
        {"name": "lab", "price_multiplier": 1, "source": "default", "keys": 1, "channels": 1},
        {"name": "vip", "price_multiplier": 0.5, "source": "file", "keys": 0, "channels": 1},
    ]
    made = await admin("PUT", "/groups/lab", {"price_multiplier": 0.8})
    assert made == {**groups[0], "price_multiplier": 0.8, "source": "console"}
    assert admin.gateway.app[SERVICES].routing.router.pricing.groups == {"vip": 500_000, "lab": 800_000}
    other = await admin("PUT", f"/groups/{quote('a/b c', safe='')}", {"price_multiplier": 0})
    assert other == {"name": "a/b c", "price_multiplier": 0, "source": "console", "keys": 0, "channels": 0}
    await admin("PUT", "/groups/vip", {"price_multiplier": 1}, 409)
    for name, body in (("lab", {"price_multiplier": -1}), ("lab", {"name": "other"}), (quote("é"), {})):
        assert (await admin("PUT", f"/groups/{name}", body, 400))["error"]["param"]
    for name in ("lab", quote("a/b c", safe="")):
        await admin("DELETE", f"/groups/{name}")
    await admin("DELETE", "/groups/lab", status=404)
    await admin("DELETE", "/groups/vip", status=409)
    assert (await admin("GET", "/groups"))["data"] == groups
    assert await admin.list_trail("group") == [
        ("group.changed", "lab", {"price_multiplier": [None, 0.8]}),
        ("group.changed", "a/b c", {"price_multiplier": [None, 0]}),
        ("group.removed", "lab", {"price_multiplier": [0.8, None]}),
        ("group.removed", "a/b c", {"price_multiplier": [0, None]}),
    ]


async def test_a_price_of_the_console_goes_before_those_that_ship_and_after_the_files(admin: AdminApi) -> None:
    find = admin.gateway.app[SERVICES].routing.router.pricing.find_price
    shipped = find("gpt-4o-mini", "gpt-4o-mini", "custom")

    def rate() -> int:
        pricing = admin.gateway.app[SERVICES].routing.router.pricing
        return int(pricing.find_price("gpt-4o-mini", "gpt-4o-mini", "custom").input_nanos_per_million)

    reported = await admin("PUT", "/prices/gpt-4o-mini", {"input_usd_per_million": 7, "tiers": [{"above_tokens": 5}]})
    assert reported == {**reported, "model": "gpt-4o-mini", "provider": None, "source": "console", "in_force": True}
    assert (reported["input_usd_per_million"], reported["tiers"][0]["input_usd_per_million"]) == (7, 7)
    assert rate() == 7 * 10**9
    rest = {name: value for name, value in reported.items() if name not in {"source", "in_force"}}
    assert await admin("PUT", "/prices/gpt-4o-mini", rest) == reported, "an answer can be sent back"
    await admin("PUT", "/prices/gpt-4o-mini", {"provider": "openai", "usd_per_image": 0.5})
    assert rate() == 7 * 10**9
    listed = (await admin("GET", "/prices?model=gpt-4o-mini"))["data"]
    assert [(price["provider"], price["source"]) for price in listed] == [(None, "console"), ("openai", "console")]
    await admin("DELETE", "/prices/gpt-4o-mini?provider=openai")
    await admin("DELETE", "/prices/gpt-4o-mini")
    assert rate() == shipped.input_nanos_per_million
    (back,) = (await admin("GET", "/prices?model=gpt-4o-mini"))["data"]
    assert back["source"] == "shipped"
    for path, status in (("gpt-4o-mini", 404), ("m", 409), ("m?provider=openai", 404)):
        await admin("DELETE", f"/prices/{path}", status=status)
    assert [row[:2] for row in await admin.list_trail("price")] == [
        ("price.changed", "gpt-4o-mini"),
        ("price.changed", "gpt-4o-mini"),
        ("price.changed", "gpt-4o-mini at openai"),
        ("price.removed", "gpt-4o-mini at openai"),
        ("price.removed", "gpt-4o-mini"),
    ]
    trail = await admin.list_trail("price")
    assert trail[0][2]["input_usd_per_million"] == [0.15, 7]
    assert trail[0][2]["output_usd_per_million"] == [0.6, 0]
    assert trail[-1][2]["output_usd_per_million"] == [0, 0.6]


async def test_the_audit_log_says_that_a_price_was_made_free_and_what_it_was(admin: AdminApi) -> None:
    answer = await admin("PUT", "/prices/gpt-5-mini", FREE)
    assert answer["free"] is True
    await admin("DELETE", "/prices/gpt-5-mini")
    await admin("PUT", "/prices/a-model-of-ours", {"usd_per_call": 0.25})
    made, reset, new = [row[2] for row in await admin.list_trail("price")]
    assert (made["input_usd_per_million"], made["output_usd_per_million"]) == ([0.25, 0], [2, 0])
    assert (made["free"], reset["free"], reset["output_usd_per_million"]) == ([False, True], [True, False], [0, 2])
    assert new["usd_per_call"] == [None, 0.25]


async def test_a_price_that_would_not_be_asked_for_or_that_is_none_is_refused(admin: AdminApi) -> None:
    for model, body, status in [
        ("m", FREE, 409),
        ("m", {"provider": "openai", **FREE}, 409),
        ("filed-one", FREE, 409),
        ("filed-*", FREE, 409),
        ("filed-o*", FREE, 409),
        ("x", {"model": "y", **FREE}, 400),
        ("x", {"model": None, **FREE}, 400),
        ("x", {"provider": "nobody", **FREE}, 400),
        ("x", {"input_usd_per_million": -1}, 400),
        ("x", {"input_usd_per_million": "1"}, 400),
        ("x", {"tiers": [{"above_tokens": 0}]}, 400),
        ("x", {"colour": "blue"}, 400),
        ("gpt-5-mini", {}, 400),
        ("gpt-5-mini", {"provider": "openai"}, 400),
        ("gpt-5-mini", {"input_usd_per_million": None, "free": False}, 400),
        ("gpt-5-mini", {"input_usd_per_million": 1, **FREE}, 400),
        ("x" * 200, FREE, 400),
        (quote("a\x00b"), FREE, 400),
    ]:
        await admin("PUT", f"/prices/{model}", body, status)
    assert await admin.list_stored() == {}


async def test_prices_are_listed_with_where_they_are_said(admin: AdminApi) -> None:
    for glob in ("gpt-5*", "org%2Fmodel:1"):
        await admin("PUT", f"/prices/{glob}", {"output_usd_per_million": 3})
    prices = (await admin("GET", "/prices"))["data"]
    assert {price["source"] for price in prices} == {"file", "console", "shipped"}
    assert all(price["in_force"] for price in prices)
    assert [price["model"] for price in prices if price["source"] == "console"] == ["gpt-5*", "org/model:1"]
    assert not [price for price in prices if price["source"] == "shipped" and price["model"].startswith("gpt-5")]
    assert (await admin("GET", "/prices?source=file"))["data"] == [each for each in prices if each["source"] == "file"]
    assert [each["model"] for each in (await admin("GET", "/prices?model=gpt-5-mini"))["data"]] == ["gpt-5*"]
    assert (await admin("GET", "/prices?source=nowhere", status=400))["error"]["param"] == "source"


async def look(gateway: RunningGateway, reference: str, path: str, status: int = 200) -> Any:
    """What a page is told that is signed in by that."""
    async with (
        aiohttp.ClientSession(cookies={"gateway_session": reference}) as session,
        session.get(gateway.url + PREFIX + path) as response,
    ):
        assert response.status == status
        return await response.json()


async def sign_in(gateway: RunningGateway) -> str:
    """A viewer of the account ``acme``."""
    sessions, accounts = gateway.app[SERVICES].auth.sessions, gateway.app[SERVICES].auth.accounts
    account = await accounts.get_stored_account("acme")
    member = await sessions._members.add_member(Member(0, account.id, "eve", "viewer"))
    return str((await sessions.open(member, Credential(member.passphrase, is_known=True), ClientInfo())).reference)


async def test_models_have_the_price_that_who_looks_would_pay(admin_with: StartAdminApi) -> None:
    channels = [
        channel(NOWHERE, models=["m", "n"], groups=["vip"], price_multiplier=2),
        channel(NOWHERE, "first", models=["m"], groups=["other"], priority=1),
        channel(NOWHERE, "free", models=["free"]),
    ]
    accounts = {"account": [{"name": "acme", "groups": ["vip"]}], "key": []}
    admin = await admin_with({**FILE, **accounts, "channel": channels})
    by_id = {model["id"]: model for model in (await admin("GET", "/models"))["data"]}
    assert {name: model["channels"] for name, model in by_id.items()} == {
        "free": ["free"],
        "m": ["first", "up"],
        "n": ["up"],
    }
    assert (by_id["m"]["price"]["input_usd_per_million"], by_id["n"]["price"], by_id["free"]["price"]) == (
        1,
        None,
        None,
    )
    viewer = await sign_in(admin.gateway)
    theirs = {model["id"]: model for model in (await look(admin.gateway, viewer, "/models"))["data"]}
    assert [model["channels"] for model in theirs.values()] == [[], [], []]
    assert theirs["m"]["price"]["output_usd_per_million"] == 2 * 2 * 0.5
    for path in ("/settings", "/groups", "/prices"):
        await look(admin.gateway, viewer, path, 403)
    await admin("PUT", "/settings/billing/unpriced", {"value": "refuse"})
    assert [model["id"] for model in (await look(admin.gateway, viewer, "/models"))["data"]] == ["m"]


async def test_several_settings_change_together_or_not_at_all(admin: AdminApi) -> None:
    changes = {"routing.max_attempts": 5, "videos.webhook_hosts": ["a.example.com"], "cache.ttl_s": 60}
    answer = await admin("PATCH", "/settings", {"settings": changes})
    assert {
        f"{section}.{key}": (setting["value"], setting["source"])
        for section, keys in answer["sections"].items()
        for key, setting in keys.items()
    } == {path: (value, "console") for path, value in changes.items()}
    stored, rows = await admin.list_stored(), (await admin("GET", "/audit-trail?limit=10"))["data"]
    assert {row["subject"] for row in rows if row["action"] == "setting.changed"} == set(changes)
    for wrong, param, status in (
        ({"routing.max_attempts": 99, "cache.ttl_s": 90}, "routing.max_attempts", 400),
        ({"cache.ttl_s": 90, "routing.max_atempts": 4}, None, 404),
        ({"cache.ttl_s": 90, "media.link_hours": 3}, None, 409),  # the file sets it
        ({"cache.ttl_s": 90, "server.port": 9000}, None, 409),
    ):
        error = (await admin("PATCH", "/settings", {"settings": wrong}, status))["error"]
        assert error["param"] == param, error
    assert (await admin("PATCH", "/settings", {"settings": [1]}, 400))["error"]["param"] == "settings"
    assert await admin.list_stored() == stored
    back = await admin("PATCH", "/settings", {"settings": {"routing.max_attempts": None, "routing.retry_ratio": None}})
    assert back["sections"]["routing"]["max_attempts"]["source"] == "default"
    assert await admin.list_stored() == {
        path: value for path, value in stored.items() if path != "routing.max_attempts"
    }
    await admin("PATCH", "/settings", {"settings": {}})
    stale = {"settings": {"cache.ttl_s": 90, "routing.retry_ratio": 0.3}, "former": {"cache.ttl_s": 0}}
    error = (await admin("PATCH", "/settings", stale, 409))["error"]
    assert error["param"] == "cache.ttl_s"
    assert "routing.retry_ratio" not in await admin.list_stored()
    await admin("PATCH", "/settings", {**stale, "former": {"cache.ttl_s": 60}})
