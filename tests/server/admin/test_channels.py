"""Channels over the admin API: what is changed is in force when the change returns, and what runs is left alone."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
import pytest

from gateway.app import open_runner
from gateway.config.schema import Config
from gateway.domain.audit_log import AuditFilter
from gateway.options import AppOptions
from gateway.parsing import parse_table
from gateway.server.context import SERVICES
from gateway.storage.data_folder import SECRETS, DataFolder, DataFolderDamaged
from tests.support.admin_calls import Ask, ask_office
from tests.support.capped_calls import FIRST, stream_until
from tests.support.fault_scene import PRICE, until
from tests.support.gateway import HELLO, KEY, RunningGateway, channel, make_template, start_gateway
from tests.support.raw_client import connect
from tests.support.scripted_upstream import COMPLETION, DONE, ScriptedUpstream, Step, answer, delta, event
from tests.support.started_gateways import StartGateway

STREAM = {**HELLO, "stream": True}
ELSEWHERE = channel("http://127.0.0.1:9/v1", "filed", models=["other"])
"""What the file declares: so that nothing is looked for, and nothing serves ``m``."""
PROVIDER_KEYS = ["provider-key-number-0001", "provider-key-number-0002"]


def listing(*models: str) -> bytes:
    return answer({"object": "list", "data": [{"id": model, "object": "model", "created": 7} for model in models]})


def office_of(gateway: RunningGateway) -> Ask:
    """``status, value = await office("GET", "/channels")`` with the admin token."""
    return partial(ask_office, gateway)


def added(up: ScriptedUpstream, name: str = "new", **more: Any) -> dict[str, Any]:
    """What is posted to make a channel to ``up``."""
    return channel(up.base_url, name, **more)


async def say(gateway: RunningGateway, **more: Any) -> int:
    """The status of a small call."""
    async with gateway.post({**HELLO, **more}) as response:
        await response.read()
        return int(response.status)


async def list_models(gateway: RunningGateway) -> list[str]:
    async with gateway.client.get(f"{gateway.url}/v1/models") as response:
        return [model["id"] for model in (await response.json())["data"]]


@pytest.mark.parametrize("sync", [False, True])
async def test_a_channel_that_was_added_serves_the_very_next_call(gateway_with: StartGateway, sync: bool) -> None:
    scripts = [[listing("m")]] if sync else []
    async with ScriptedUpstream(*scripts, [answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        office = office_of(gateway)
        assert await say(gateway) == 404
        more: dict[str, Any] = {"models": [], "sync": True} if sync else {}
        status, made = await office("POST", "/channels?check=none", added(up, **more))
        assert (status, made["name"], made["origin"], made["offers"]) == (201, "new", "stored", 1)
        assert await say(gateway) == 200
        assert await list_models(gateway) == ["m", "other"]
        _, shown = await office("GET", "/channels/new")
        keys = [{**key, "health": "healthy"} for key in made["keys"]]
        figures = {
            "health": "healthy",
            "calls": 1,
            "success_ratio": 1.0,
            "latency_ms": shown["latency_ms"],
            "keys": keys,
        }
        assert shown == {**made, "offered": ["m"], **figures}
        assert [row.channel for row in await gateway.rows(2)] == [None, "new"]


async def test_a_change_keeps_the_secrets_it_does_not_name_and_the_next_call_is_made_with_what_it_does(
    gateway_with: StartGateway,
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        office = office_of(gateway)
        await office("POST", "/channels?check=none", added(up, api_key=PROVIDER_KEYS[0], headers={"X-Team": "blue"}))

        async def change(**fields: Any) -> dict[str, str]:
            status, _ = await office("PATCH", "/channels/new", fields)
            assert status == 200
            assert await say(gateway) == 200
            return up.received[-1].headers

        first, second = (f"Bearer {key}" for key in PROVIDER_KEYS)
        sent = await change(weight=7, price_multiplier=2)
        assert (sent["authorization"], sent["x-team"]) == (first, "blue")
        sent = await change(api_keys=PROVIDER_KEYS[1:])
        assert (sent["authorization"], sent["x-team"]) == (second, "blue")
        sent = await change(headers=None)
        assert sent["authorization"] == second
        assert "x-team" not in sent
        assert "authorization" not in await change(api_key=None)
        assert (await change(api_key=PROVIDER_KEYS[0]))["authorization"] == first


async def test_channels_are_listed_by_the_model_that_they_serve_or_have_an_alias_for(
    gateway_with: StartGateway,
) -> None:
    nowhere = "http://127.0.0.1:9/v1"
    channels = [
        channel(nowhere, "lists", models=["m", "n"]),
        channel(nowhere, "renames", models=["x"], model_map={"alias": "m"}),
        channel(nowhere, "matches", models=["m*"]),
        channel(nowhere, "other", models=["n"]),
    ]
    office = office_of(await gateway_with({"channel": channels}))
    _, everything = await office("GET", "/channels")
    for model, names in (("m", {"lists", "renames", "matches"}), ("alias", {"renames"}), ("none", set[str]())):
        _, found = await office("GET", f"/channels?model={model}")
        assert found["data"] == [view for view in everything["data"] if view["name"] in names], model
    assert (await office("GET", "/channels?model=m&health=disabled"))[1]["data"] == []


async def test_several_keys_take_turns(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        channel_of_two = {**added(up, api_key=None, api_keys=PROVIDER_KEYS)}
        del channel_of_two["api_key"]
        await office_of(gateway)("POST", "/channels?check=none", channel_of_two)
        assert [await say(gateway) for _ in range(4)] == [200] * 4
        assert [sent.headers["authorization"].removeprefix("Bearer ") for sent in up.received] == PROVIDER_KEYS * 2


@pytest.mark.parametrize("name", ["a/b", "a b", "x.y@z-1", "n"])
async def test_a_channel_can_be_renamed_and_is_found_under_any_name_it_may_have(
    gateway_with: StartGateway, name: str
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        office, path = office_of(gateway), f"/channels/{quote(name, safe='')}"
        await office("POST", "/channels?check=none", added(up))
        status, shown = await office("PATCH", "/channels/new", {"name": name})
        assert (status, shown["name"]) == (200, name)
        assert (await office("GET", "/channels/new"))[0] == 404
        assert (await office("GET", path))[1]["name"] == name
        assert await say(gateway) == 200
        assert await office("DELETE", path) == (200, {"name": name, "deleted": True})
        assert await say(gateway) == 404
        assert [row.channel for row in await gateway.rows(2)] == [name, None]


async def test_a_disabled_channel_serves_nobody_until_it_is_enabled(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        office = office_of(gateway)
        await office("POST", "/channels?check=none", added(up))
        for status, expected, models in (("disabled", 404, ["other"]), ("active", 200, ["m", "other"])):
            _, shown = await office("PATCH", "/channels/new", {"status": status})
            assert shown["status"] == status
            assert await say(gateway) == expected
            assert await list_models(gateway) == models
        assert len(up.received) == 1


CHANGES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "deleted": ("DELETE", None),
    "disabled": ("PATCH", {"status": "disabled"}),
    "moved": ("PATCH", {"base_url": "http://127.0.0.1:9/v1", "api_key": "another-key"}),
    "renamed": ("PATCH", {"name": "renamed"}),
    "with another key": ("PATCH", {"api_key": "another-key"}),
    "dearer": ("PATCH", {"price_multiplier": 9}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", CHANGES)
async def test_a_call_whose_channel_is_changed_under_it_finishes_untouched_and_is_charged(
    gateway_with: StartGateway, what: str, stream: bool
) -> None:
    go = asyncio.Event()
    method, fields = CHANGES[what]

    async def wait(_received: object) -> None:
        await go.wait()

    script: list[Step] = stream_until(go) if stream else [wait, answer(COMPLETION)]
    async with ScriptedUpstream(script) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE], "price": [PRICE]})
        office = office_of(gateway)
        await office("POST", "/channels?check=none", added(up, max_concurrency=1))
        task = asyncio.create_task(read_call(gateway, stream=stream))
        await until(lambda: up.received)
        status, _ = await office(method, "/channels/new", fields)
        assert status == 200
        assert gateway.running == 1
        go.set()
        assert await task == (FIRST + event(delta(" words", "stop")) + DONE if stream else orjson.dumps(COMPLETION))
        (row,) = await gateway.rows(1)
        assert (row.channel, row.outcome, row.status, row.cost_nanos) == ("new", "completed", 200, 19_000)
        books = await gateway.check_books()
        assert books["charged_nanos"] == 19_000
        if what in {"deleted", "disabled"}:
            assert await say(gateway) == 404
        for shown in (await office("GET", "/channels"))[1]["data"]:
            assert shown["running"] == 0


async def read_call(gateway: RunningGateway, *, stream: bool) -> bytes:
    async with gateway.post(STREAM if stream else HELLO) as response:
        assert response.status == 200
        return bytes(await response.read())


async def test_a_name_is_taken_once_and_what_the_file_declares_is_changed_there(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        office = office_of(gateway)
        assert (await office("POST", "/channels?check=none", added(up)))[0] == 201
        for method, path, body, param, words in (
            ("POST", "/channels?check=none", added(up), "name", "exists already"),
            ("POST", "/channels?check=none", added(up, "filed"), "name", "configuration file"),
            ("PATCH", "/channels/new", {"name": "filed"}, "name", "configuration file"),
            ("PATCH", "/channels/filed", {"weight": 2}, None, "declared in the configuration file"),
            ("DELETE", "/channels/filed", None, None, "declared in the configuration file"),
        ):
            status, value = await office(method, path, body)
            assert (status, value["error"]["code"], value["error"]["param"]) == (409, "conflict", param)
            assert words in value["error"]["message"]
        _, listed = await office("GET", "/channels")
        assert [(one["name"], one["declared"], one["origin"]) for one in listed["data"]] == [
            ("filed", True, "file"),
            ("new", False, "stored"),
        ]


async def test_the_demo_is_read_only_gives_way_to_the_first_channel_and_comes_back_after_the_last(
    gateway_with: StartGateway,
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({})
        office = office_of(gateway)
        for method, body in (("PATCH", {"weight": 2}), ("DELETE", None)):
            status, value = await office(method, "/channels/demo", body)
            assert (status, value["error"]["code"]) == (409, "conflict")
            assert 'The demo is built in; set routing.demo to "off"' in value["error"]["message"]
        await office("POST", "/channels?check=none", added(up))
        assert await list_models(gateway) == ["m"]
        assert (await say(gateway, model="demo-chat"), await say(gateway)) == (404, 200)
        await office("DELETE", "/channels/new")
        assert "demo-chat" in await list_models(gateway)
        assert (await say(gateway, model="demo-chat"), await say(gateway)) == (200, 404)
        assert [one["origin"] for one in (await office("GET", "/channels"))[1]["data"]] == ["demo"]


@pytest.fixture
async def home(tmp_path: Path, template_path: Path) -> Path:
    """A data folder with an empty database, whose gateways the test starts and closes itself."""
    if not template_path.exists():
        await make_template(template_path)
    return tmp_path / "home"


async def test_channels_and_their_secrets_outlive_the_gateway(home: Path, template_path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        full = {
            **added(up, api_key=PROVIDER_KEYS[0], headers={"X-Team": "blue"}),
            "model_map": {"ours": "m"},
            "groups": [],
            "priority": 3,
            "weight": 2,
            "price_multiplier": 1.5,
        }
        gateway = await start_gateway(home, template_path, {})
        _, made = await ask_office(gateway, "POST", "/channels?check=none", full)
        await ask_office(gateway, "POST", "/channels?check=none", {**full, "name": "off", "status": "disabled"})
        await ask_office(gateway, "POST", "/channels?check=none", {**full, "name": "gone"})
        await ask_office(gateway, "DELETE", "/channels/gone")
        await gateway.close()

        again = await start_gateway(home, template_path, {})
        _, shown = await ask_office(again, "GET", "/channels")
        assert shown["data"][0] == made
        assert [(one["name"], one["status"]) for one in shown["data"]] == [("new", "active"), ("off", "disabled")]
        assert not again.welcome.demo
        assert await say(again, model="ours") == 200
        sent = up.received[-1]
        assert (sent.headers["authorization"], sent.headers["x-team"]) == (f"Bearer {PROVIDER_KEYS[0]}", "blue")
        assert sent.json["model"] == "m"
        await again.close()

        last = await start_gateway(home, template_path, {"channel": [{**added(up), "weight": 9}]})
        _, shown = await ask_office(last, "GET", "/channels")
        assert [(one["name"], one["origin"], one["weight"]) for one in shown["data"]] == [
            ("new", "file", 9),
            ("off", "stored", 2),
        ]
        await last.close()


MASTER = "00112233445566778899aabbccddeeff" * 2


@pytest.mark.parametrize("how", ["another file", "no file", "another setting", "a setting beside the file"])
async def test_a_gateway_with_another_master_key_does_not_start_and_says_why(
    home: Path, template_path: Path, how: str
) -> None:
    """And nothing is lost: with the right one it starts as before."""
    before = {"store": {"master_key": MASTER}} if how == "another setting" else {}
    gateway = await start_gateway(home, template_path, before)
    assert (await ask_office(gateway, "POST", "/channels?check=none", {**ELSEWHERE, "name": "new"}))[0] == 201
    await gateway.close()
    master = None if how == "another setting" else (home / "master.key").read_bytes()

    after: dict[str, Any] = {}
    if how == "another file":
        (home / "master.key").write_bytes(b"x" * 32)
    elif how == "no file":
        (home / "master.key").unlink()
    else:
        after = {"store": {"master_key": MASTER.replace("0", "f")}}
    refusal = await start_and_fail(home, after)
    named = "the setting store.master_key is not what it knows" if after else str(home / "master.key")
    assert named in refusal
    assert SECRETS["master.key"] in refusal
    assert MASTER not in refusal
    if master is not None:
        (home / "master.key").write_bytes(master)
    again = await start_gateway(home, template_path, before)
    assert (await ask_office(again, "GET", "/channels/new"))[1]["key_count"] == 1
    await again.close()


async def start_and_fail(home: Path, config: dict[str, Any]) -> str:
    """Why a gateway over the data folder does not start."""
    folder = DataFolder(home)
    site = AppOptions(parse_table(config, Config), folder, {}, discover=False)
    try:
        with pytest.raises(DataFolderDamaged) as caught:
            async with open_runner(site):
                pass
    finally:
        folder.close()
    return str(caught.value)


async def test_a_test_asks_with_every_key_and_says_which_of_them_will_not_do(gateway_with: StartGateway) -> None:
    refusal = answer({"error": {"message": f"bad key {PROVIDER_KEYS[1]}"}}, 401)
    async with ScriptedUpstream([listing("m", "n")], [refusal]) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        office = office_of(gateway)
        fields = added(up, api_key=None, api_keys=PROVIDER_KEYS)
        del fields["api_key"]
        await office("POST", "/channels?check=none", fields)
        status, found = await office("POST", "/channels/new/test")
        assert (status, found["ok"], found["models"]) == (200, False, 2)
        assert [(key["last4"], key["ok"], key["models"]) for key in found["keys"]] == [
            ("0001", True, 2),
            ("0002", False, None),
        ]
        assert (
            found["error"]
            == found["keys"][1]["error"]
            == "The provider refused the gateway's credentials (401 Unauthorized): bad key [masked]"
        )
        assert [sent.headers["authorization"] for sent in up.received] == [f"Bearer {key}" for key in PROVIDER_KEYS]
        assert {sent.path for sent in up.received} == {"/v1/models"}


async def test_a_channel_takes_in_its_providers_models_on_demand(gateway_with: StartGateway) -> None:
    lists = [[listing("a", "b")], [listing("b", "c")], [listing("b", "c")], [answer({"error": {"message": "no"}}, 500)]]
    async with ScriptedUpstream(*lists) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        office = office_of(gateway)
        await office("POST", "/channels?check=none", {**added(up, models=[]), "sync": True})
        for models, came, went in (
            (["a", "b", "c"], ["c"], []),  # what is absent once may be a slip
            (["b", "c"], [], ["a"]),
        ):
            status, shown = await office("POST", "/channels/new/sync")
            assert (status, shown["came"], shown["went"], shown["sync_error"]) == (200, came, went, None)
            assert await list_models(gateway) == [*models, "other"]
        status, shown = await office("POST", "/channels/new/sync")
        assert (status, shown["sync_error"]) == (200, "The provider failed with status 500: no")
        assert await list_models(gateway) == ["b", "c", "other"]

        assert await office_error(gateway, "POST", "/channels/filed/sync") == (400, "invalid_request", "sync")
        await office("PATCH", "/channels/new", {"status": "disabled"})
        assert await office_error(gateway, "POST", "/channels/new/sync") == (409, "conflict", None)
        assert len(up.received) == 4


async def office_error(gateway: RunningGateway, method: str, path: str, body: Any = None) -> tuple[int, str, Any]:
    status, value = await ask_office(gateway, method, path, body)
    error = value["error"]
    assert error.keys() - {"doc_url"} == {"message", "type", "param", "code"}
    assert "(request id: req_" in error["message"]
    return status, error["code"], error["param"]


async def test_a_reload_without_a_file_is_a_conflict(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"channel": [ELSEWHERE]})
    assert await office_error(gateway, "POST", "/reload") == (409, "conflict", None)


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"name": None}, "name"),
    ({"name": ""}, "name"),
    ({"name": "a\nb"}, "name"),
    ({"name": "-a"}, "name"),
    ({"name": "a" * 65}, "name"),
    ({"provider": None}, "provider"),
    ({"provider": "opnai"}, "provider"),
    ({"provider": "demo"}, "provider"),
    ({"provider": ["custom"]}, "provider"),
    ({"base_url": None}, "base_url"),
    ({"base_url": ""}, "base_url"),
    ({"base_url": "127.0.0.1"}, "base_url"),
    ({"base_url": "file:///etc/passwd"}, "base_url"),
    ({"base_url": "http://h/v1?key=x"}, "base_url"),
    ({"base_url": "http://u:p@h/v1"}, "base_url"),
    ({"base_url": "http://[::1/v1"}, "base_url"),
    ({"base_url": "http://h:99999/v1"}, "base_url"),
    ({"base_url": "http://h/\r\nX: y"}, "base_url"),
    ({"api_key": "two words"}, "api_key"),
    ({"api_key": 5}, "api_key"),
    ({"api_keys": "k"}, "api_keys"),
    ({"api_keys": ["a", "a"]}, "api_keys"),
    ({"api_keys": [["a"]]}, "api_keys[0]"),
    ({"api_key": "a", "api_keys": ["b"]}, "api_keys"),
    ({"models": []}, "models"),
    ({"models": None}, "models"),
    ({"models": "m"}, "models"),
    ({"models": [""]}, "models"),
    ({"models": ["m\n"]}, "models"),
    ({"models": ["m" * 257]}, "models"),
    ({"models": ["m", 1]}, "models[1]"),
    ({"sync": "yes"}, "sync"),
    ({"sync": True, "provider": "azure_openai", "base_url": "http://h"}, "sync"),
    ({"model_map": ["a"]}, "model_map"),
    ({"model_map": {"a": 1}}, "model_map"),
    ({"model_map": {"": "b"}}, "model_map"),
    ({"model_map": {"a": ""}}, "model_map"),
    ({"groups": "gold"}, "groups"),
    ({"groups": [""]}, "groups"),
    ({"priority": 1.5}, "priority"),
    ({"priority": 2_000_000}, "priority"),
    ({"priority": 2**70}, "priority"),
    ({"weight": 0}, "weight"),
    ({"weight": True}, "weight"),
    ({"weight": "1"}, "weight"),
    ({"max_concurrency": 0}, "max_concurrency"),
    ({"queue": {}}, "queue"),
    ({"max_concurrency": 1, "queue": {"length": 0}}, "queue.length"),
    ({"max_concurrency": 1, "queue": {"length": 1_001}}, "queue.length"),
    ({"max_concurrency": 1, "queue": {"wait_s": 0}}, "queue.wait_s"),
    ({"max_concurrency": 1, "queue": {"one_model": 1}}, "queue.one_model"),
    ({"max_concurrency": 1, "queue": {"switch_after_s": -1}}, "queue.switch_after_s"),
    ({"max_concurrency": 1, "queue": {"lenght": 1}}, "queue.lenght"),
    ({"max_concurrency": 1, "queue": 5}, "queue"),
    ({"rpm": -1}, "rpm"),
    ({"rpm": 2**40}, "rpm"),
    ({"connect_timeout_s": 0}, "connect_timeout_s"),
    ({"first_byte_timeout_s": -1}, "first_byte_timeout_s"),
    ({"idle_timeout_s": "5"}, "idle_timeout_s"),
    ({"total_timeout_s": True}, "total_timeout_s"),
    ({"proxy": "socks4://h:1"}, "proxy"),
    ({"proxy": "http://"}, "proxy"),
    ({"proxy": "http://u:p@[::1"}, "proxy"),
    ({"headers": {"X Y": "z"}}, "headers"),
    ({"headers": {"": "z"}}, "headers"),
    ({"headers": {"X": "a\r\nB: c"}}, "headers"),
    ({"headers": {"X": "\u00e9"}}, "headers"),
    ({"headers": [["X", "y"]]}, "headers"),
    ({"price_multiplier": -1}, "price_multiplier"),
    ({"price_multiplier": 101}, "price_multiplier"),
    ({"price_multiplier": "1"}, "price_multiplier"),
    ({"status": "off"}, "status"),
    ({"status": None, "stauts": "active"}, "stauts"),
    ({"origin": "file"}, "origin"),
    ({"id": 7}, "id"),
]


async def test_whatever_is_wrong_with_a_channel_is_a_400_that_names_the_field(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"channel": [ELSEWHERE]})
    good = {**channel("http://127.0.0.1:9/v1", "new")}
    found = {}
    for fields, param in BAD_FIELDS:
        body = {name: value for name, value in {**good, **fields}.items() if value is not None}
        found[str(fields)] = (await office_error(gateway, "POST", "/channels?check=none", body), param)
    assert {key: pair for key, pair in found.items() if pair[0] != (400, "invalid_request", pair[1])} == {}
    office = office_of(gateway)
    assert (await office("POST", "/channels?check=none", good))[0] == 201
    _, before = await office("GET", "/channels")
    for fields, param in BAD_FIELDS:
        found[str(fields)] = (await office_error(gateway, "PATCH", "/channels/new", fields), param)
    assert {key: pair for key, pair in found.items() if pair[0] != (400, "invalid_request", pair[1])} == {}
    assert (await office("GET", "/channels"))[1] == before


REFUSALS: list[tuple[str, str, Any, tuple[int, str, str | None]]] = [
    ("GET", "/channels/nobody", None, (404, "not_found", None)),
    ("PATCH", "/channels/nobody", {}, (404, "not_found", None)),
    ("DELETE", "/channels/nobody", None, (404, "not_found", None)),
    ("POST", "/channels/nobody/test", None, (404, "not_found", None)),
    ("POST", "/channels/nobody/sync", None, (404, "not_found", None)),
    ("GET", "/channels/..%2f..%2fetc", None, (404, "not_found", None)),
    ("GET", f"/channels/{'x' * 500}", None, (404, "not_found", None)),
    ("PUT", "/channels", {}, (405, "method_not_allowed", None)),
    ("GET", "/channels/filed/test", None, (405, "method_not_allowed", None)),
    ("GET", "/reload", None, (405, "method_not_allowed", None)),
    ("POST", "/explain", {}, (405, "method_not_allowed", None)),
    ("POST", "/channels?check=none", None, (415, "unsupported_media_type", None)),
    ("POST", "/channels?check=none", [], (400, "invalid_request", None)),
    ("PATCH", "/channels/filed", "x", (400, "invalid_request", None)),
    ("GET", "/explain", None, (400, "invalid_request", "model")),
    ("GET", "/explain?model=", None, (400, "invalid_request", "model")),
    ("GET", f"/explain?model={'m' * 257}", None, (400, "invalid_request", "model")),
    ("GET", "/explain?model=m&operation=paint", None, (400, "invalid_request", "operation")),
    ("GET", "/explain?model=m&key=x", None, (400, "invalid_request", "key")),
    ("GET", "/explain?model=m&key=-1", None, (400, "invalid_request", "key")),
    ("GET", "/explain?model=m&key=999", None, (404, "not_found", "key")),
]


async def test_a_refusal_has_the_one_shape(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"channel": [ELSEWHERE]})
    for method, path, body, expected in REFUSALS:
        assert await office_error(gateway, method, path, body) == expected, (method, path)


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": f"Bearer {KEY}"}, {"x-api-key": "TOKEN"}, {"Authorization": "Basic TOKEN"}],
    ids=["nobody", "a caller", "the token as a key", "the token in another scheme"],
)
async def test_nobody_but_the_bearer_of_the_token_changes_a_channel(
    gateway_with: StartGateway, headers: dict[str, str]
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        office = office_of(gateway)
        await office("POST", "/channels?check=none", added(up))
        _, before = await office("GET", "/channels")
        lines = {name: value.replace("TOKEN", gateway.admin_token) for name, value in headers.items()}
        async with aiohttp.ClientSession(headers=lines) as session:
            for method, path, body in (
                ("POST", "", added(up, "another")),
                ("PATCH", "/new", {"weight": 2}),
                ("DELETE", "/new", None),
                ("POST", "/new/test", None),
                ("POST", "/new/sync", None),
                ("GET", "", None),
            ):
                url = f"{gateway.url}/admin/v1/channels{path}"
                async with session.request(method, url, json=body) as response:
                    assert response.status == 401
                    code = "invalid_api_key" if "Authorization" in headers else "signed_out"
                    assert (await response.json())["error"]["code"] == code
        assert (await office("GET", "/channels"))[1] == before
        assert not up.received


async def test_a_change_that_was_begun_comes_into_force_though_its_caller_does_not_wait(
    gateway_with: StartGateway,
) -> None:
    """Its provider is being asked for its models when the caller breaks the connection."""
    go = asyncio.Event()

    async def wait(_received: object) -> None:
        await go.wait()

    async with ScriptedUpstream([wait, listing("m")], [answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        body = orjson.dumps({**added(up, models=[]), "sync": True})
        lines = f"Host: x\r\nAuthorization: Bearer {gateway.admin_token}\r\nContent-Type: application/json"
        head = f"POST /admin/v1/channels HTTP/1.1\r\n{lines}\r\nContent-Length: {len(body)}\r\n\r\n"
        _, writer = await connect(gateway.url)
        writer.write(head.encode() + body)
        await until(lambda: up.received)
        writer.transport.abort()
        await asyncio.sleep(0.05)
        go.set()
        services = gateway.app[SERVICES]
        await until(lambda: not services.admin.changes)
        assert await list_models(gateway) == ["m", "other"]
        assert await say(gateway) == 200


async def test_a_disabled_key_is_never_sent_and_stays_disabled_over_a_restart(home: Path, template_path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], [answer(COMPLETION)], [answer(COMPLETION)]) as up:
        gateway = await start_gateway(home, template_path, {"channel": [ELSEWHERE]})
        try:
            office = office_of(gateway)
            await office("POST", "/channels?check=none", added(up, api_key=None, api_keys=PROVIDER_KEYS))
            status, edited = await office(
                "PATCH", "/channels/new/keys/1?last4=0001", {"status": "disabled", "name": "team"}
            )
            assert (status, edited["keys"][0]["health"], edited["keys"][0]["name"]) == (200, "disabled", "team")
            assert [await say(gateway), await say(gateway)] == [200, 200]
            assert (await office("PATCH", "/channels/new/keys/2", {"status": "disabled"}))[0] == 409
            assert (await office("DELETE", "/channels/new/keys/2?last4=0001"))[0] == 409
        finally:
            await gateway.close()
        gateway = await start_gateway(home, template_path, {"channel": [ELSEWHERE]})
        try:
            assert await say(gateway) == 200
            _, shown = await office_of(gateway)("GET", "/channels/new")
            assert [(key["name"], key["status"]) for key in shown["keys"]] == [("team", "disabled"), (None, "active")]
            rows = await gateway.app[SERVICES].admin.audit_log.list_audit(AuditFilter(action="channel.key_edited"), 9)
            assert len(rows) == 1
            assert not any(key in rows[0].detail for key in PROVIDER_KEYS)
        finally:
            await gateway.close()
        assert {request.headers["authorization"] for request in up.received} == {f"Bearer {PROVIDER_KEYS[1]}"}


async def test_the_state_of_a_channel_and_of_its_keys_is_one_word_and_its_error_has_a_time(
    gateway_with: StartGateway,
) -> None:
    refusal = answer({"error": {"message": "no such key", "code": "invalid_api_key"}}, 401)
    async with ScriptedUpstream([refusal], [refusal], [refusal]) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        office = office_of(gateway)
        await office("POST", "/channels?check=none", added(up, api_key=None, api_keys=PROVIDER_KEYS[:1]))
        assert await say(gateway) in {401, 502, 503}
        _, shown = await office("GET", "/channels/new")
        (key,) = shown["keys"]
        assert (shown["health"], key["health"]) == ("failing", "failing")
        assert "no such key" in shown["last_error"]
        assert shown["last_error"] == key["last_error"]
        assert shown["last_error_at"] == key["last_error_at"] is not None
        _, disabled = await office("PATCH", "/channels/new", {"status": "disabled"})
        assert (disabled["health"], disabled["keys"][0]["health"]) == ("disabled", "disabled")


async def test_weights_are_set_together_or_not_at_all(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream() as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        office = office_of(gateway)
        for name in ("a", "b"):
            await office("POST", "/channels?check=none", added(up, name))
        for weights, refused in (({"a": 2, "filed": 3}, 409), ({"a": 2, "b": 0}, 400), ({"a": 2, "none": 1}, 404)):
            assert (await office("POST", "/channels/weights", {"weights": weights}))[0] == refused
        _, listed = await office("GET", "/channels")
        assert [one["weight"] for one in listed["data"] if one["name"] in {"a", "b"}] == [1, 1]
        status, listed = await office("POST", "/channels/weights", {"weights": {"a": 2, "b": 5}})
        assert status == 200
        assert [one["weight"] for one in listed["data"] if one["name"] in {"a", "b"}] == [2, 5]


async def test_a_check_stores_nothing_and_gives_prices_beside_the_models(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([listing("gpt-4o-mini", "home-made")]) as up:
        gateway = await gateway_with({"channel": [ELSEWHERE]})
        office = office_of(gateway)
        status, checked = await office("POST", "/channels/check", added(up, models=[], sync=True))
        assert (status, checked["ok"], checked["asked"], checked["error"]) == (200, True, True, None)
        priced = {one["id"]: one["price"] is not None for one in checked["models"]}
        assert priced == {"gpt-4o-mini": True, "home-made": False}
        assert [one["name"] for one in (await office("GET", "/channels"))[1]["data"]] == ["filed"]
