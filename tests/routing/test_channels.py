"""Which channels there are: declared, stored, found; and every change in force when it returns."""

import asyncio
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo
from gateway.errors import Conflict, InvalidRequest, NotFound, ProviderBadResponse, StoreUnavailable
from gateway.parsing import parse_spec
from gateway.routing.channel_spec import ChannelSpec, build_channel_fields, build_secrets
from gateway.routing.channel_tester import RequestTestResult
from tests.support.answers import to_json
from tests.support.channel_services import BARE, DECLARED, NOW, ChannelServices, Disk, Vendors, declare_channels
from tests.support.table_rows import table_rows

SYNCED: dict[str, Any] = {"name": "up", "provider": "custom", "base_url": "http://127.0.0.1:9/v1", "sync": True}
SECRETS: dict[str, Any] = {
    "api_keys": ["key-one-canary-0001", "key-two-canary-0002"],
    "headers": {"X-Team": "header-canary"},
    "proxy": "http://user:proxy-canary@127.0.0.1:3128",
}
FULL: dict[str, Any] = {
    **BARE,
    **SECRETS,
    "models": ["m", "g*"],
    "model_map": {"ours": "m"},
    "groups": ["gold"],
    "priority": 4,
    "weight": 3,
    "max_concurrency": 5,
    "queue": {"length": 7, "wait_s": 1.5, "one_model": True, "switch_after_s": 0.5},
    "rpm": 60,
    "connect_timeout_s": 1.5,
    "first_byte_timeout_s": 2.5,
    "idle_timeout_s": 3.5,
    "total_timeout_s": 4.5,
    "price_multiplier": 1.25,
    "fan_out": True,
    "pass_urls": True,
    "owned_by": "us",
    "allow_fields": ["service_tier"],
    "status": "disabled",
}
DEMO = Channel("demo", "demo", "http://127.0.0.1:9/v1", models=("demo-chat",), origin="demo")
LOCAL = Channel("ollama", "ollama", "http://127.0.0.1:9/v1", sync=True, origin="local")


async def test_a_channel_that_is_added_is_offered_stored_and_has_a_line() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add(BARE)
    made = services.show()
    assert (made["name"], made["origin"], made["declared"], made["status"]) == ("up", "stored", False, "active")
    assert (made["offers"], made["state"], made["running"]) == (1, "closed", 0)
    assert made["created_at"] == "2025-06-15T15:06:40Z"
    assert services.names == ["filed", "up"]
    assert [channel.name for channel in await services.store.list_channels()] == ["up"]
    assert services.vendors.asked == []


async def test_a_synchronized_channel_has_its_models_when_it_has_been_added() -> None:
    services = await declare_channels(DECLARED, vendors=Vendors({"up": ["b", "a"]}))
    await services.channel_service.add(SYNCED)
    made = services.show()
    assert (made["offers"], made["sync_error"], made["synced_at"], made["came"]) == (
        2,
        None,
        "2025-06-15T15:06:40Z",
        ["a", "b"],
    )
    assert services.offers("up") == ["a", "b"]


async def test_a_channel_whose_provider_does_not_answer_is_added_all_the_same_and_says_so() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add(SYNCED)
    made = services.show()
    assert (made["offers"], made["sync_error"]) == (None, "nobody there")
    assert services.names == ["filed", "up"]


async def test_a_disabled_channel_is_not_asked_for_its_models_until_it_is_enabled() -> None:
    services = await declare_channels(DECLARED, vendors=Vendors({"up": ["a"]}))
    await services.channel_service.add({**SYNCED, "status": "disabled"})
    assert services.vendors.asked == []
    await services.channel_service.edit("up", {"status": "active"})
    enabled = services.show()
    assert (enabled["status"], enabled["offers"]) == ("active", 1)


async def test_what_is_stored_is_offered_after_what_the_file_declares() -> None:
    services = await declare_channels(found=[(DEMO, None)])
    for name in ("b", "a"):
        await services.channel_service.add({**BARE, "name": name})
    again = ChannelServices(store=services.store)
    await again.channel_service.declare([DECLARED])
    assert again.names == ["filed", "b", "a"]
    assert again.looked == 0


async def test_a_name_of_the_file_hides_a_stored_channel_until_the_file_lets_go_of_it() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add(BARE)
    await services.channel_service.declare([attrs.evolve(DECLARED, name="up", base_url="http://127.0.0.1:8/v1")])
    assert services.names == ["up"]
    assert services.channel_service.get("up").origin == "file"
    await services.channel_service.declare([DECLARED])
    assert services.names == ["filed", "up"]
    assert services.channel_service.get("up").origin == "stored"


@pytest.mark.parametrize("name", ["filed", "up"])
async def test_a_name_is_taken_once(name: str) -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add(BARE)
    await services.channel_service.add({**BARE, "name": "other"})
    with pytest.raises(Conflict) as adding:
        await services.channel_service.add({**BARE, "name": name})
    with pytest.raises(Conflict) as renaming:
        await services.channel_service.edit("other", {"name": name})
    for caught in (adding, renaming):
        assert caught.value.param == "name"
        assert repr(name) in caught.value.message
    assert services.names == ["filed", "up", "other"]


async def test_of_two_that_add_one_name_at_once_one_is_told_that_it_is_taken() -> None:
    services = await declare_channels(DECLARED)
    found = await asyncio.gather(*(services.channel_service.add(BARE) for _ in range(2)), return_exceptions=True)
    assert [isinstance(one, Conflict) for one in found] == [False, True]
    assert services.names == ["filed", "up"]


async def test_a_channel_that_is_renamed_goes_by_its_new_name_alone() -> None:
    services = await declare_channels(DECLARED, vendors=Vendors({"new": ["a"]}))
    await services.channel_service.add(SYNCED)
    await services.channel_service.edit("up", {"name": "new"})
    shown = services.show("new")
    assert (shown["name"], shown["offers"]) == ("new", 1)
    assert services.names == ["filed", "new"]
    with pytest.raises(NotFound):
        services.channel_service.get("up")


async def test_an_unknown_channel_cannot_be_changed_or_removed() -> None:
    services = await declare_channels(DECLARED)
    with pytest.raises(NotFound):
        await services.channel_service.edit("nobody", {})
    with pytest.raises(NotFound):
        await services.channel_service.delete("nobody")


@pytest.mark.parametrize(
    ("channel", "sentence"),
    [
        (DECLARED, "The channel 'filed' is declared in the configuration file; change it there"),
        (DEMO, 'The demo is built in; set routing.demo to "off" to turn it off'),
        (LOCAL, "The channel 'ollama' was found, not made; add one of your own and it gives way"),
    ],
)
async def test_what_was_not_added_here_is_read_only(channel: Channel, sentence: str) -> None:
    services = (
        await declare_channels(channel) if channel.origin == "file" else await declare_channels(found=[(channel, None)])
    )
    with pytest.raises(Conflict) as editing:
        await services.channel_service.edit(channel.name, {"weight": 2})
    with pytest.raises(Conflict) as deleting:
        await services.channel_service.delete(channel.name)
    assert editing.value.message == deleting.value.message == sentence
    assert services.channel_service.get(channel.name) == channel


async def test_what_was_found_gives_way_to_what_is_added_and_comes_back_after_the_last_of_it() -> None:
    services = await declare_channels(found=[(DEMO, None), (LOCAL, [ModelInfo("llama", NOW, "ollama")])])
    assert services.names == ["demo", "ollama"]
    assert services.offers("ollama") == ["llama"]
    await services.channel_service.add({**BARE, "name": "demo"})
    assert services.names == ["demo"]
    assert services.channel_service.get("demo").origin == "stored"
    await services.channel_service.add(BARE)
    await services.channel_service.delete("demo")
    assert services.names == ["up"]
    services.vendors.lists["ollama"] = ["llama", "qwen"]
    await services.channel_service.delete("up")
    assert services.names == ["ollama"], "the demo goes: a discovered provider has answered"
    assert services.offers("ollama") == ["llama", "qwen"]  # asked anew: nobody waits ten minutes for its models
    assert services.looked == 1


async def test_nothing_is_looked_for_while_there_is_a_channel() -> None:
    services = await declare_channels(DECLARED, found=[(DEMO, None)])
    assert services.looked == 0
    await services.channel_service.declare([])
    assert (services.names, services.looked) == (["demo"], 1)
    services.vendors.lists["filed"] = ["m"]
    await services.channel_service.declare([DECLARED])
    assert services.names == ["filed"]
    await services.channel_service.declare([])
    assert (services.names, services.looked) == (["demo"], 1)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, {"api_keys", "headers", "proxy"}),
        ({"weight": 2}, {"api_keys", "headers", "proxy"}),
        ({"name": "renamed"}, {"api_keys", "headers", "proxy"}),
        ({"api_keys": ["new-key"]}, {"headers", "proxy"}),
        ({"api_key": "new-key"}, {"headers", "proxy"}),
        ({"api_key": None}, {"headers", "proxy"}),
        ({"api_keys": None}, {"headers", "proxy"}),
        ({"api_keys": []}, {"headers", "proxy"}),
        ({"headers": {}}, {"api_keys", "proxy"}),
        ({"headers": None}, {"api_keys", "proxy"}),
        ({"proxy": None}, {"api_keys", "headers"}),
        ({"proxy": None, "headers": None, "api_key": None}, set()),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_a_change_keeps_every_secret_that_it_does_not_name(change: dict[str, Any], kept: set[str]) -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add(FULL)
    after = build_secrets(await services.channel_service.edit("up", change))
    assert {name for name, value in after.items() if value == SECRETS[name]} == kept
    for name in SECRETS.keys() - kept:
        if name == "api_keys":
            new = change.get("api_key") or next(iter(change.get("api_keys") or ()), None)
            assert after[name] == ([new] if new else [])
        else:
            assert not after[name]
    stored = next(iter(await services.store.list_channels()))
    assert build_secrets(stored) == after


async def test_one_key_takes_the_place_of_several_and_several_that_of_one() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add({**BARE, "api_key": "one"})
    for change, expected in (
        ({"api_keys": ["two", "three"]}, ("two", "three")),
        ({"api_key": "four"}, ("four",)),
        ({"api_key": "four", "api_keys": None}, ("four",)),
        ({"api_key": None, "api_keys": ["five"]}, ("five",)),
        ({"api_keys": None}, ()),
        ({"api_key": "six"}, ("six",)),
    ):
        await services.channel_service.edit("up", change)
        assert services.channel_service.get("up").api_keys == expected
    with pytest.raises(InvalidRequest) as caught:
        await services.channel_service.edit("up", {"api_key": "a", "api_keys": ["b"]})
    assert caught.value.param == "api_keys"
    assert services.channel_service.get("up").api_keys == ("six",)


OPTIONAL = [
    field.name
    for field in attrs.fields(ChannelSpec)
    if field.name not in {"name", "provider", "base_url", "models", "sync", "api_key", "max_concurrency"}
]
"""All but what a channel needs; a queue needs ``max_concurrency``."""


@pytest.mark.parametrize("name", OPTIONAL)
async def test_null_takes_a_setting_back(name: str) -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add(FULL)
    await services.channel_service.edit("up", {name: None})
    without = {key: value for key, value in FULL.items() if key != name}
    assert await describe_new(without) == comparable(services, "up")
    assert await describe_new(FULL) != comparable(services, "up")


async def describe_new(fields: dict[str, Any]) -> dict[str, Any]:
    services = await declare_channels(DECLARED)
    await services.channel_service.add(fields)
    return comparable(services, fields["name"])


def comparable(services: ChannelServices, name: str) -> dict[str, Any]:
    """All of a channel that its specification says."""
    channel = services.channel_service.get(name)
    return build_channel_fields(channel) | build_secrets(channel)


async def test_null_takes_back_what_a_channel_of_its_own_address_can_do_without() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add({**BARE, "provider": "openai", "sync": True})
    assert (await services.channel_service.edit("up", {"base_url": None})).base_url == "https://api.openai.com/v1"
    assert (await services.channel_service.edit("up", {"models": None})).models == ()
    for change, param in (
        ({"sync": None}, "models"),
        ({"name": None}, "name"),
        ({"provider": None}, "provider"),
        ({"no_such_field": None}, "no_such_field"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            await services.channel_service.edit("up", change)
        assert caught.value.param == param


async def test_a_channel_of_another_provider_goes_to_that_providers_address() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add({**BARE, "provider": "openai"})
    changed = await services.channel_service.edit("up", {"provider": "anthropic"})
    assert (changed.provider, changed.base_url) == ("anthropic", "https://api.anthropic.com/v1")
    with pytest.raises(InvalidRequest) as caught:
        await services.channel_service.edit("up", {"provider": "custom"})
    assert caught.value.param == "base_url"
    assert services.channel_service.get("up").provider == "anthropic"


async def test_what_is_shown_can_be_read_back_and_has_no_secret_in_it() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add(FULL)
    shown = services.show()
    assert "canary" not in orjson.dumps(shown).decode()
    assert (shown["key_count"], shown["header_names"], shown["has_proxy"]) == (2, ["X-Team"], True)
    assert [key["last4"] for key in shown["keys"]] == ["0001", "0002"]
    names = {field.name for field in attrs.fields(ChannelSpec)} - SECRETS.keys()
    assert {name: value for name, value in shown.items() if name in names} == {
        name: value for name, value in (FULL | {"sync": False}).items() if name not in SECRETS
    }


async def test_the_end_of_a_short_key_is_not_shown() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add({**BARE, "api_key": "fifteen-letters"})
    assert [key["last4"] for key in services.show()["keys"]] == [""]


async def test_a_change_that_cannot_be_stored_is_not_in_force() -> None:
    store = Disk()
    services = await declare_channels(DECLARED, store=store)
    await services.channel_service.add(BARE)
    before = services.catalog.channels
    store.broken = True
    for change in (
        services.channel_service.add({**BARE, "name": "new"}),
        services.channel_service.edit("up", {"weight": 2}),
        services.channel_service.delete("up"),
    ):
        with pytest.raises(StoreUnavailable):
            await change
    assert services.catalog.channels == before
    assert services.names == ["filed", "up"]


async def test_a_held_channel_that_another_node_has_deleted_hinders_no_other_at_the_next_retry() -> None:
    vendors = Vendors()
    services = await declare_channels(DECLARED, vendors=vendors)
    gone, other = [
        await services.channel_service.add({**BARE, "name": name}, check="hold") for name in ("gone", "other")
    ]
    assert gone.held
    assert other.held
    assert gone.id is not None
    await services.store.delete_channel(gone.id)
    vendors.lists |= {"gone": ["m"], "other": ["m"]}
    await services.channel_service.retry()
    await services.channel_service.retry()
    assert not services.channel_service.get("other").held
    assert services.names == ["filed", "other"]


async def test_two_channels_that_are_added_at_once_both_have_their_models() -> None:
    """The first one's provider is still asked while the second is added."""
    meet = asyncio.Barrier(2)

    async def wait_for_the_other(_channel: Channel) -> None:
        await meet.wait()

    services = await declare_channels(DECLARED, vendors=Vendors({"a": ["x"], "b": ["y"]}, before=wait_for_the_other))
    async with asyncio.timeout(5):
        await asyncio.gather(*(services.channel_service.add({**SYNCED, "name": name}) for name in ("a", "b")))
    assert (services.offers("a"), services.offers("b")) == (["x"], ["y"])


async def test_a_list_of_models_that_arrives_after_a_reload_of_the_same_channels_counts() -> None:
    services = await declare_channels(attrs.evolve(DECLARED, sync=True, models=()))

    async def reload(channel: Channel) -> None:
        await services.channel_service.declare([attrs.evolve(channel)])

    services.vendors.before, services.vendors.lists = reload, {"filed": ["x"]}
    assert await services.channel_service.sync(services.channel_service.get("filed")) is None
    assert services.offers("filed") == ["x"]


async def test_a_list_of_models_that_arrives_after_its_channel_leads_elsewhere_is_of_no_use() -> None:
    services = await declare_channels(DECLARED, vendors=Vendors({"up": ["old"]}))
    await services.channel_service.add({**SYNCED, "status": "disabled"})

    async def move(channel: Channel) -> None:
        services.vendors.before = None
        services.vendors.lists["up"] = ["new"]
        await services.channel_service.edit(channel.name, {"base_url": "http://127.0.0.1:8/v1"})

    services.vendors.before = move
    await services.channel_service.edit("up", {"status": "active"})
    assert [channel.base_url[-4:] for channel in services.vendors.asked] == ["9/v1", "8/v1"]
    assert services.offers("up") == ["new"]


@pytest.mark.parametrize(
    ("secrets", "change", "param"),
    [
        ({"api_keys": ["one", "two"]}, {"base_url": "http://127.0.0.1:8/v1"}, "api_keys"),
        ({"api_key": "one"}, {"base_url": "https://127.0.0.1:9/v1"}, "api_keys"),
        ({"api_key": "one"}, {"provider": "openai"}, "api_keys"),
        ({"headers": {"X-Key": "one"}}, {"base_url": "http://localhost:9/v1"}, "headers"),
        ({"api_key": "one", "headers": {"X-Key": "one"}}, {"base_url": "http://b/v1", "api_key": "two"}, "headers"),
        ({"api_key": "one"}, {"base_url": "http://b/v1", "api_key": None}, None),
        ({"api_key": "one"}, {"base_url": "http://b/v1", "api_keys": None}, None),
        ({"headers": {"X-Key": "one"}}, {"base_url": "http://b/v1", "headers": {}}, None),
        ({"api_key": "one"}, {"base_url": "http://127.0.0.1:9/v2"}, None),
        ({}, {"base_url": "http://b/v1"}, None),
    ],
)
async def test_a_secret_goes_to_another_server_only_where_it_is_said_anew(
    secrets: dict[str, Any], change: dict[str, Any], param: str | None
) -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add({**BARE, **secrets})
    before = services.channel_service.get("up")
    if param is None:
        changed = await services.channel_service.edit("up", change)
        kept = "v2" in changed.base_url
        assert (len(changed.api_keys) == 1, changed.headers) == (kept, ())
        return
    with pytest.raises(InvalidRequest) as caught:
        await services.channel_service.edit("up", change)
    assert caught.value.param == param
    assert services.channel_service.get("up") == before


async def test_a_channel_keeps_how_it_stands_through_a_change_and_not_through_a_move() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add({**BARE, "api_keys": ["one", "two"]})
    line = services.load_balancer.channels["up"]
    slot = services.load_balancer.acquire(line, ("openai_chat", "m"), 1, retry=False)
    await services.channel_service.edit("up", {"weight": 5, "api_keys": ["two", "three"]})
    assert services.load_balancer.channels["up"] is line
    assert (line.channel.weight, line.running, len(line.keys)) == (5, 1, 2)
    await services.channel_service.edit("up", {"base_url": "http://127.0.0.1:8/v1", "api_key": "four"})
    assert services.load_balancer.channels["up"].running == 0
    services.load_balancer.release(slot)
    assert (line.running, services.load_balancer.running) == (0, 0)


async def test_testing_a_channel_asks_with_every_key_and_says_what_each_was_answered() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add(FULL)

    async def refuse_the_second(channel: Channel) -> None:
        if channel.api_keys == (SECRETS["api_keys"][1],):
            raise ProviderBadResponse("not this one")

    services.vendors.lists["up"] = ["a", "b", "c"]
    services.vendors.before = refuse_the_second
    assert to_json(await services.channel_service.test(services.channel_service.get("up"))) == {
        "name": "up",
        "ok": False,
        "error": "not this one",
        "models": 3,
        "request": None,
        "keys": [
            {"last4": "0001", "ok": True, "error": None, "models": 3},
            {"last4": "0002", "ok": False, "error": "not this one", "models": None},
        ],
    }


@pytest.mark.parametrize("keys", [[], ["only-one"]])
async def test_testing_a_channel_of_one_key_or_none_says_it_once(keys: list[str]) -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add({**BARE, "api_keys": keys})
    services.vendors.lists["up"] = []
    assert to_json(await services.channel_service.test(services.channel_service.get("up"))) == {
        "name": "up",
        "ok": True,
        "error": None,
        "models": 0,
        "request": None,
        "keys": [],
    }
    assert [channel.api_keys for channel in services.vendors.asked] == [tuple(keys)]


@pytest.mark.parametrize(
    ("models", "asked", "sent"),
    [
        (["m"], None, {"model": "m", "ok": True, "error": None, "ms": 7}),
        (["m-*"], None, {"model": "a", "ok": True, "error": None, "ms": 7}),
        (["m"], "other", {"model": "other", "ok": True, "error": None, "ms": 7}),
    ],
)
async def test_a_real_request_is_for_the_model_that_is_named_else_one_of_the_channel(
    models: list[str], asked: str | None, sent: dict[str, Any]
) -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add({**BARE, "models": models})
    services.vendors.lists["up"] = ["a", "b"]
    tested = await services.channel_service.test(services.channel_service.get("up"), request=True, model=asked)
    assert (tested.ok, to_json(tested.request)) == (True, sent)


async def test_without_a_model_there_is_no_real_request() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.add({**BARE, "models": ["m-*"]})
    services.vendors.lists["up"] = []
    with pytest.raises(InvalidRequest, match="no model for a chat request"):
        await services.channel_service.test(services.channel_service.get("up"), request=True)


async def test_a_channel_that_lists_and_refuses_a_real_request_is_not_added() -> None:
    services = await declare_channels(DECLARED)
    services.vendors.lists["up"] = ["m"]
    services.vendors.refused = ProviderBadResponse("not for this model")
    with pytest.raises(InvalidRequest, match="not for this model"):
        await services.channel_service.add(BARE, check="refuse", request=True)
    await services.channel_service.add(BARE, check="refuse")
    tested = await services.channel_service.test(services.channel_service.get("up"), request=True)
    assert (tested.ok, tested.error, tested.models) == (False, "not for this model", 1)
    assert tested.request == RequestTestResult("m", ok=False, error="not for this model", ms=None)
    assert services.show()["health"] == "failing"


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(["http://", "http://u:p@[::1", "http://h:0/", "//x", "ftp://x", "a\r\nb", "x" * 300, "custom"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [field.name for field in attrs.fields(ChannelSpec)]


def read_or_refuse(fields: dict[str, Any]) -> Channel | InvalidRequest:
    try:
        return parse_spec(fields, ChannelSpec).channel()
    except InvalidRequest as refused:
        return refused


@settings(max_examples=80)
@given(st.sampled_from(FIELDS), ANY_JSON)
def test_any_value_of_any_field_makes_a_channel_or_is_refused_by_the_name_of_a_field(name: str, value: Any) -> None:
    made = read_or_refuse({**BARE, name: value})
    if isinstance(made, InvalidRequest):
        assert made.message
        assert (made.param or "").split("[")[0].split(".")[0] in FIELDS  # such as "queue.depth"
        return
    # Whatever was taken can be shown, kept secret, and read back.
    assert isinstance(made.secrets, tuple)
    shown = orjson.loads(orjson.dumps(build_channel_fields(made) | build_secrets(made)))
    reported = {key: shown[key] for key in FIELDS if shown.get(key) is not None}
    assert build_channel_fields(parse_spec(reported, ChannelSpec).channel()) == build_channel_fields(made)


@given(st.dictionaries(st.text(max_size=8).filter(lambda name: name not in FIELDS), ANY_JSON, min_size=1, max_size=2))
def test_any_other_field_is_refused_by_its_name(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_spec({**BARE, **more}, ChannelSpec)
    assert caught.value.param in more


@table_rows(
    "secret",
    [
        {"api_key": "canary with a space"},
        {"api_key": ["canary"]},
        {"api_keys": "canary"},
        {"api_keys": ["canary", "canary"]},
        {"api_keys": ["can\nary canary"]},
        {"headers": {"X-Team": "canary\r\n"}},
        {"headers": {"X-Team": ["canary"]}},
        {"headers": "canary"},
        {"proxy": "socks4://user:canary@h"},
        {"proxy": "http://user:canary@[::1"},
        {"proxy": "http://user:canary@"},
        {"proxy": "http://user:canary@h:0"},
        {"base_url": "http://user:canary@h/v1"},
    ],
    ids=str,
)
def test_a_refusal_does_not_repeat_a_secret(secret: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_spec({**BARE, **secret}, ChannelSpec)
    (name,) = secret
    assert caught.value.param == name
    assert "canary" not in caught.value.message


async def test_a_local_server_that_starts_later_is_found_and_the_demo_goes() -> None:
    demo = Channel("demo", "demo", "http://127.0.0.1:9/v1", models=("demo-chat",), origin="demo")
    local = Channel("ollama", "ollama", "http://127.0.0.1:11434/v1", sync=True, origin="local")
    services = await declare_channels(found=[(demo, None)])
    assert services.names == ["demo"]
    services.found = [(local, [ModelInfo("llama", NOW, "system")])]
    await services.channel_service.retry()
    assert (services.names, services.offers("ollama")) == (["ollama"], ["llama"])
    services.found = [(demo, None)]  # the local server is slow once: it stays
    await services.channel_service.retry()
    assert services.names == ["ollama"]


@pytest.mark.parametrize("sync", [False, True])
async def test_the_demo_stays_until_a_channel_of_the_file_has_answered(sync: bool) -> None:
    demo = Channel("demo", "demo", "http://127.0.0.1:9/v1", models=("demo-chat",), origin="demo")
    services = await declare_channels(found=[(demo, None)])
    assert services.names == ["demo"]
    await services.channel_service.declare([attrs.evolve(DECLARED, sync=sync)])
    await services.channel_service.retry()
    assert services.names == ["filed", "demo"], "nobody has answered"
    services.vendors.lists["filed"] = ["m"]
    await services.channel_service.retry()
    assert services.names == ["filed"]
    services.vendors.lists.clear()
    await services.channel_service.declare([attrs.evolve(DECLARED, sync=sync, priority=3)])
    assert services.names == ["filed"], "it does not come back"


async def test_a_demo_is_not_started_for_a_file_with_a_channel() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.retry()
    assert (services.names, services.looked) == (["filed"], 0)


async def test_nothing_is_looked_for_while_a_configured_channel_serves() -> None:
    services = await declare_channels(DECLARED)
    await services.channel_service.retry()
    assert services.looked == 0
