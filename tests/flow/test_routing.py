"""A call becomes attempts, each at the price of its moment."""

from collections.abc import Sequence
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai_chat import read_chat_call
from gateway.dialects.openai_embeddings import read_embeddings_call
from gateway.domain.call import Call
from gateway.domain.caller import Account, ApiKey, Caller
from gateway.domain.catalog import Listed
from gateway.domain.channel import Channel
from gateway.domain.fault import GroupNotAllowed, ModelNotAllowed, ModelNotFound
from gateway.domain.price import ONE_PPM, Price, PriceList
from gateway.domain.selection import MAX_ATTEMPTS
from gateway.domain.usage import Usage
from gateway.flow.models import Catalog
from gateway.flow.routing import Attempt, Router

CALLER = Caller(Account(1, "acme"), ApiKey(1, 1, "k", b"", ""))


def call_of(model: str = "m", **more: Any) -> Call:
    return read_chat_call({"model": model, "messages": [{"role": "user", "content": "hi"}], **more})


def channel(name: str, *models: str, **more: Any) -> Channel:
    return Channel(name, "custom", f"http://{name}/v1", (f"key-of-{name}",), models, **more)


def catalog_of(*channels: Channel) -> Catalog:
    catalog = Catalog(clock=lambda: 0.0)
    catalog.add_channels(channels)
    return catalog


def router_of(*channels: Channel, prices: Sequence[Price] = (), **more: Any) -> Router:
    return Router(catalog_of(*channels), PriceList(prices), **more)


def caller_of(group: str | None = None, *groups: str, models: tuple[str, ...] = ()) -> Caller:
    """A caller whose key is of ``group``, and whose account may use ``groups``."""
    key = attrs.evolve(CALLER.key, group=group, models=models)
    return Caller(attrs.evolve(CALLER.account, groups=groups), key)


def route(call: Call, catalog: Catalog, caller: Caller = CALLER) -> list[Attempt]:
    """The attempts of a gateway where nothing has a price."""
    return Router(catalog, PriceList([])).route(caller, call)


def names(catalog: Catalog, model: str = "m", caller: Caller = CALLER) -> list[str]:
    return [attempt.channel.name for attempt in route(call_of(model), catalog, caller)]


def priced(model: str, nanos_a_token: int, provider: str | None = None) -> Price:
    return Price(model, nanos_a_token * ONE_PPM, provider=provider)


def test_channels_are_tried_in_the_order_of_the_file() -> None:
    assert names(catalog_of(channel("b", "m"), channel("x", "other"), channel("a", "m"))) == ["b", "a"]


def test_a_channel_whose_list_is_not_known_yet_comes_last() -> None:
    early = channel("early", sync=True)
    catalog = catalog_of(early, channel("sure", "m"))
    assert names(catalog) == ["sure", "early"]
    catalog.apply_listing(early, [Listed("m", 1, "v")])
    assert names(catalog) == ["early", "sure"]
    catalog.apply_listing(early, [])
    catalog.apply_listing(early, [])
    assert names(catalog) == ["sure"]


def test_a_channel_whose_list_is_not_known_yet_is_not_asked_for_what_it_would_not_keep() -> None:
    with pytest.raises(ModelNotFound):
        route(call_of("m"), catalog_of(channel("early", "gpt-*", sync=True)))


def test_no_more_channels_are_tried_than_the_limit() -> None:
    many = [channel(f"c{number}", "m") for number in range(MAX_ATTEMPTS + 3)]
    assert names(catalog_of(*many)) == [f"c{number}" for number in range(MAX_ATTEMPTS)]


def test_a_model_nobody_serves_is_not_found_and_the_message_says_where_to_look() -> None:
    with pytest.raises(ModelNotFound, match="GET /v1/models") as caught:
        route(call_of("nope"), catalog_of(channel("a", "m")))
    assert caught.value.should_retry is False


def test_an_alias_reaches_the_provider_under_its_own_name() -> None:
    (attempt,) = route(call_of("ours"), catalog_of(channel("a", model_map=(("ours", "theirs"),))))
    plan = attempt.plan(call_of("ours"))
    assert plan.url == "http://a/v1/chat/completions"
    assert plan.headers["Authorization"] == "Bearer key-of-a"
    assert plan.body is not None
    assert orjson.loads(plan.body)["model"] == "theirs"


def test_embeddings_go_to_their_own_path() -> None:
    call = read_embeddings_call({"model": "m", "input": "a"})
    (attempt,) = route(call, catalog_of(channel("a", "m")))
    assert attempt.plan(call).url == "http://a/v1/embeddings"


def test_a_channel_without_a_key_sends_none() -> None:
    (attempt,) = route(call_of(), catalog_of(Channel("a", "custom", "http://a/v1", models=("m",))))
    assert "Authorization" not in attempt.plan(call_of()).headers


@given(st.lists(st.sampled_from(["declared", "other", "alias", "unknown"]), max_size=8))
def test_whoever_surely_serves_the_model_comes_before_whoever_may(kinds: list[str]) -> None:
    made = {"declared": ("m",), "other": ("x",), "alias": (), "unknown": ()}
    channels = [
        channel(
            f"{kind}{index}",
            *made[kind],
            sync=kind == "unknown",
            model_map=(("m", "x"),) if kind == "alias" else (),
        )
        for index, kind in enumerate(kinds)
    ]
    ranked = [found.name for found in catalog_of(*channels).rank("m")]
    sure = [found.name for found in channels if found.name.startswith(("declared", "alias"))]
    assert ranked == sure + [found.name for found in channels if found.name.startswith("unknown")]


# prices


@pytest.mark.parametrize(
    ("prices", "nanos"),
    [
        ([], None),
        ([priced("ours", 1)], 1),
        ([priced("theirs", 2)], 2),
        ([priced("ours", 1), priced("theirs", 2)], 1),
        ([priced("o*", 1), priced("theirs", 2)], 1),
        ([priced("ours", 1), priced("ours", 3, "custom")], 3),
        ([priced("ours", 1, "openai"), priced("theirs", 2)], 2),
        ([priced("ours", 1, "openai"), priced("theirs", 2, "custom")], 2),
        ([priced("ours", 1, "openai"), priced("theirs", 2, "openai")], None),
        ([priced("other", 1)], None),
    ],
)
def test_a_price_is_found_by_the_callers_name_and_else_by_the_providers(prices: list[Price], nanos: int | None) -> None:
    router = router_of(channel("a", model_map=(("ours", "theirs"),)), prices=prices)
    (attempt,) = router.route(CALLER, call_of("ours"))
    assert attempt.price == (None if nanos is None else next(price for price in prices if cost(price) == nanos))
    assert attempt.cost(Usage(10)) == 10 * (nanos or 0)


def cost(price: Price) -> int:
    """Nano-USD a token."""
    return price.input_nanos_per_million // ONE_PPM


def test_every_channel_has_its_own_price_of_a_model() -> None:
    channels = [channel("a", "m"), attrs.evolve(channel("b", "m"), provider="openai"), channel("c", "m")]
    router = router_of(*channels, prices=[priced("m", 1), priced("m", 5, "openai")])
    assert [attempt.cost(Usage(1)) for attempt in router.route(CALLER, call_of())] == [1, 5, 1]


@pytest.mark.parametrize(
    ("channel_ppm", "groups", "group", "ppm"),
    [
        (ONE_PPM, {}, None, ONE_PPM),
        (ONE_PPM, {"vip": 800_000}, None, ONE_PPM),
        (ONE_PPM, {"vip": 800_000}, "vip", 800_000),
        (ONE_PPM, {"vip": 800_000}, "lab", ONE_PPM),
        (1_200_000, {"vip": 800_000}, "vip", 960_000),
        (1_200_000, {}, "vip", 1_200_000),
        (1_500_000, {"vip": 0}, "vip", 0),
        (0, {"vip": 5_000_000}, "vip", 0),
        (1, {"vip": 1}, "vip", 1),  # a part in a million of it, rounded up: no charge is lost
        (333_333, {"vip": 333_333}, "vip", 111_111),
        (100 * ONE_PPM, {"vip": 100 * ONE_PPM}, "vip", 10_000 * ONE_PPM),
    ],
)
def test_the_multipliers_of_channel_and_group_count_both(
    channel_ppm: int, groups: dict[str, int], group: str | None, ppm: int
) -> None:
    router = router_of(channel("a", "m", multiplier_ppm=channel_ppm), prices=[priced("m", 7)], groups=groups)
    (attempt,) = router.route(caller_of(group), call_of())
    assert attempt.multiplier_ppm == ppm
    assert attempt.cost(Usage(1_000)) == -(-7_000 * ppm // ONE_PPM)


def test_a_price_that_changes_is_for_later_calls() -> None:
    catalog = catalog_of(channel("a", "m"))
    (early,) = Router(catalog, PriceList([priced("m", 1)])).route(CALLER, call_of())
    (late,) = Router(catalog, PriceList([priced("m", 9)])).route(CALLER, call_of())
    assert (early.cost(Usage(1)), late.cost(Usage(1))) == (1, 9)


# models without a price


def test_a_model_without_a_price_costs_nothing_where_none_is_required() -> None:
    (attempt,) = router_of(channel("a", "m")).route(CALLER, call_of())
    assert (attempt.price, attempt.cost(Usage(10**6, 10**6))) == (None, 0)


def test_where_a_price_is_required_a_model_without_one_is_hidden_and_refused() -> None:
    router = router_of(channel("a", "m", "free"), prices=[priced("m", 0)], require_price=True)
    assert [listed.id for listed in router.list_models(CALLER)] == ["m"]
    assert router.get_model(CALLER, "m").id == "m"
    assert [attempt.channel.name for attempt in router.route(CALLER, call_of())] == ["a"]
    with pytest.raises(ModelNotFound):
        router.get_model(CALLER, "free")
    with pytest.raises(ModelNotAllowed) as caught:
        router.route(CALLER, call_of("free"))
    assert (caught.value.status, caught.value.param, caught.value.should_retry) == (403, "model", False)
    assert "has no price" in caught.value.message


def test_where_a_price_is_required_only_channels_with_one_are_tried() -> None:
    channels = [channel("a", "m"), attrs.evolve(channel("b", "m"), provider="openai")]
    router = router_of(*channels, prices=[priced("m", 1, "openai")], require_price=True)
    assert [attempt.channel.name for attempt in router.route(CALLER, call_of())] == ["b"]
    assert [listed.id for listed in router.list_models(CALLER)] == ["m"]


def test_where_a_price_is_required_that_of_the_providers_name_will_do() -> None:
    up = channel("a", "other", model_map=(("ours", "theirs"),))
    router = router_of(up, prices=[priced("theirs", 1)], require_price=True)
    assert [listed.id for listed in router.list_models(CALLER)] == ["ours"]
    assert len(router.route(CALLER, call_of("ours"))) == 1


def test_channels_without_a_price_are_no_attempts_that_were_made() -> None:
    free = [channel(f"c{number}", "m") for number in range(MAX_ATTEMPTS)]
    paid = attrs.evolve(channel("paid", "m"), provider="openai")
    router = router_of(*free, paid, prices=[priced("m", 1, "openai")], require_price=True)
    assert [listed.id for listed in router.list_models(CALLER)] == ["m"]
    assert [attempt.channel.name for attempt in router.route(CALLER, call_of())] == ["paid"]


# restrictions


def test_a_key_reaches_the_channels_of_its_group_and_those_for_everyone() -> None:
    catalog = catalog_of(
        channel("vips", "m", groups=("vip",)), channel("all", "m"), channel("lab", "m", groups=("lab",))
    )
    assert names(catalog) == ["all"]
    assert names(catalog, caller=caller_of("vip")) == ["vips", "all"]
    assert names(catalog, caller=caller_of("lab", "vip", "lab")) == ["all", "lab"]


@pytest.mark.parametrize("group", [None, "lab"])
def test_a_model_that_only_others_may_use_is_refused_for_its_group_and_not_unknown(group: str | None) -> None:
    router = router_of(channel("vips", "m", groups=("vip",)), channel("all", "x"))
    with pytest.raises(GroupNotAllowed) as caught:
        router.route(caller_of(group), call_of())
    assert (caught.value.status, caught.value.param, caught.value.should_retry) == (403, "model", False)
    assert ("without a group" if group is None else "'lab'") in caught.value.message
    assert [listed.id for listed in router.list_models(caller_of(group))] == ["x"]
    with pytest.raises(ModelNotFound):
        router.get_model(caller_of(group), "m")
    with pytest.raises(ModelNotFound):
        router.route(caller_of(group), call_of("nobody's"))


def test_a_group_that_the_account_may_not_use_reaches_nothing() -> None:
    router = router_of(channel("all", "m"))
    with pytest.raises(GroupNotAllowed) as caught:
        router.route(caller_of("lab", "vip"), call_of())
    assert "'lab'" in caught.value.message


def test_a_group_that_the_account_may_not_use_sees_nothing() -> None:
    assert router_of(channel("all", "m")).list_models(caller_of("lab", "vip")) == []


def test_a_key_is_refused_models_it_may_not_use_whether_or_not_there_are_any() -> None:
    router = router_of(channel("a", "m", "n"))
    only = caller_of(models=("m*",))
    assert len(router.route(only, call_of())) == 1
    for model in ("n", "nobody's"):
        with pytest.raises(ModelNotAllowed):
            router.route(only, call_of(model))
    with pytest.raises(ModelNotFound):
        router.route(only, call_of("m2"))


def test_the_list_is_what_routing_finds_attempts_for() -> None:
    channels = [
        channel("a", "m", "free"),
        channel("vips", "m", "x", groups=("vip",)),
        channel("alias", "y", model_map=(("ours", "y"),)),
    ]
    prices = [priced("m", 1), priced("x", 1), priced("y", 1)]
    for require_price in (False, True):
        router = router_of(*channels, prices=prices, require_price=require_price)
        for caller in (CALLER, caller_of("vip"), caller_of("lab"), caller_of(None, models=("m", "o*"))):
            listed = {found.id for found in router.list_models(caller)}
            assert listed == {
                model for model in ("m", "free", "x", "y", "ours", "z") if has_attempts(router, caller, model)
            }


def has_attempts(router: Router, caller: Caller, model: str) -> bool:
    try:
        return bool(router.route(caller, call_of(model)))
    except (ModelNotFound, ModelNotAllowed, GroupNotAllowed):
        return False
