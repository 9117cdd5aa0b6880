"""Models described for callers: from the configuration, a provider's list or the gateway's tables, at their price."""

from typing import Any

import attrs
import orjson
import pytest

from gateway.domain.account import Caller
from gateway.domain.model_description import ModelDescription, NamedDescription
from gateway.domain.model_info import ModelInfo
from gateway.domain.price import Price, PriceList
from gateway.domain.route import ModelShare, Route, RouteStep
from gateway.routing.model_describer import build_list_tag
from gateway.routing.pricing_policy import PricingPolicy
from tests.support.routing_calls import CALLER, RouterScenario, channel

VIP = Caller(CALLER.account, attrs.evolve(CALLER.key, group="vip"))


def own(*names: str) -> Any:
    return channel("up", *names)


async def look(router: RouterScenario, model: str, caller: Caller = CALLER) -> dict[str, Any]:
    """A model's object, without the fields that every list of models has."""
    (described,) = await router.describe_models(caller, [router.get_model(caller, model)])
    value: dict[str, Any] = orjson.loads(described.body)
    assert (value.pop("id"), value.pop("object")) == (model, "model")
    del value["created"], value["owned_by"]
    return value


def configure(router: RouterScenario, *entries: NamedDescription) -> None:
    router.descriptions = entries


async def test_of_an_unknown_model_nothing_is_said() -> None:
    assert await look(RouterScenario(own("m")), "m") == {}


async def test_the_configuration_precedes_the_providers_list_and_that_the_tables() -> None:
    up = channel("up", sync=True)
    router = RouterScenario(up)
    listed = ModelDescription(context_window=2_000, max_output_tokens=200, features=("tools",))
    router.catalog.apply_listing(up, [ModelInfo("gpt-4o", 5, "v", description=listed)])
    configure(router, ("gpt-4*", ModelDescription(context_window=1_000)))
    assert await look(router, "gpt-4o") == {
        "kind": "chat",
        "context_window": 1_000,
        "max_output_tokens": 200,
        "input_modalities": ["text", "image"],
        "output_modalities": ["text"],
        "features": ["tools"],
    }


async def test_an_alias_is_described_as_what_it_stands_for() -> None:
    router = RouterScenario(channel("up", model_map=(("fast", "gpt-4o"), ("gpt-5", "deployment-7"))))
    assert (await look(router, "fast"))["max_output_tokens"] == 16_384
    assert (await look(router, "gpt-5"))["max_output_tokens"] == 128_000
    configure(router, ("deployment-7", ModelDescription(max_output_tokens=9)))
    assert (await look(router, "gpt-5"))["max_output_tokens"] == 9


async def test_on_several_channels_the_least_holds() -> None:
    large, small = channel("large", sync=True, priority=1), channel("small", sync=True)
    router = RouterScenario(large, small)
    for up, window in ((large, 100_000), (small, 8_000)):
        router.catalog.apply_listing(up, [ModelInfo("m", 5, "v", description=ModelDescription(context_window=window))])
    assert await look(router, "m") == {"context_window": 8_000}
    vips = channel("vips", "m", groups=("vip",), provider="fal")
    router.use(large, vips)
    assert await look(router, "m") == {"context_window": 100_000}
    assert (await look(router, "m", VIP))["kind"] == "image"


async def test_a_server_of_ones_own_has_no_limits_from_a_table() -> None:
    hosted, local = channel("hosted", "qwen3-8b"), channel("local", "qwen3-8b", provider="ollama")
    assert "context_window" in await look(RouterScenario(hosted), "qwen3-8b")
    assert "context_window" not in await look(RouterScenario(local), "qwen3-8b")


async def test_a_provider_or_a_price_may_tell_the_kind() -> None:
    assert await look(RouterScenario(channel("up", "m", provider="elevenlabs")), "m") == {}
    assert await look(RouterScenario(channel("up", "m", provider="luma")), "m") == {}
    assert await look(RouterScenario(channel("up", "m", provider="fal")), "m") == {
        "kind": "image", "output_modalities": ["image"]
    }  # fmt: skip
    chat, piece = Price("m", 5, output_nanos_per_million=7), Price("m", image_nanos=5)
    assert (await look(RouterScenario(own("m"), prices=[chat]), "m"))["kind"] == "chat"
    assert (await look(RouterScenario(own("m"), prices=[piece]), "m"))["kind"] == "image"
    assert "kind" not in await look(RouterScenario(own("m"), prices=[Price("m", 5)]), "m")


async def test_the_price_is_what_the_group_of_the_key_pays() -> None:
    best, other = channel("best", "m", multiplier_ppm=2_000_000, priority=1, provider="openai"), own("m")
    prices = [Price("m", 10**9, provider="openai"), Price("m", 9 * 10**9)]
    router = RouterScenario(other, best, prices=prices, groups={"vip": 250_000})
    assert (await look(router, "m"))["pricing"] == {"prompt": "0.000002", "completion": "0"}
    assert (await look(router, "m", VIP))["pricing"] == {"prompt": "0.0000005", "completion": "0"}


async def test_a_free_model_has_a_price_and_an_unpriced_one_has_none() -> None:
    router = RouterScenario(own("free", "unknown"), prices=[Price("free")])
    assert (await look(router, "free"))["pricing"] == {"prompt": "0", "completion": "0"}
    assert "pricing" not in await look(router, "unknown")


def make_route(*steps: RouteStep) -> Route:
    return Route("fast", steps)


def make_step(*models: str, **more: Any) -> RouteStep:
    return RouteStep(tuple(map(ModelShare, models)), **more)


async def test_a_route_can_the_least_and_costs_the_most_of_its_steps() -> None:
    route = make_route(make_step("gpt-5", "gpt-4o"), make_step("claude-sonnet-4-5"))
    prices = [Price("gpt-5", 5 * 10**9, 10**9), Price("gpt-4o", 10**9, output_nanos_per_million=2 * 10**9)]
    router = RouterScenario(own("gpt-5", "gpt-4o", "claude-sonnet-4-5"), prices=prices, routes=[route])
    described = await look(router, "fast")
    assert described == {
        "kind": "chat",
        "context_window": 128_000,
        "max_output_tokens": 16_384,
        "input_modalities": ["text", "image"],
        "output_modalities": ["text"],
        "features": ["tools", "structured_output", "caching"],
        "pricing": {"prompt": "0.000005", "completion": "0.000002", "input_cache_read": "0.000001"},
    }


async def test_a_route_says_nothing_that_one_of_its_models_does_not_say() -> None:
    route = make_route(make_step("gpt-5"), make_step("mine"))
    router = RouterScenario(own("gpt-5", "mine"), routes=[route])
    assert await look(router, "fast") == {}
    configure(router, ("mine", ModelDescription("chat", 4_096)))
    assert await look(router, "fast") == {"kind": "chat", "context_window": 4_096}


async def test_only_the_channels_of_a_step_count_and_only_steps_that_the_key_can_reach() -> None:
    lab = channel("lab", "mine", groups=("lab",))
    router = RouterScenario(own("gpt-5"), lab, routes=[make_route(make_step("gpt-5"), make_step("mine"))])
    assert (await look(router, "fast"))["max_output_tokens"] == 128_000
    router.routes = {"fast": make_route(make_step("gpt-5", channels=("other-*",)))}
    assert await look(router, "fast") == {}


@pytest.mark.parametrize("what", ["models", "prices", "configuration", "routes"])
async def test_a_change_is_seen_at_once(what: str) -> None:
    router = RouterScenario(own("m"))
    models = router.list_models(CALLER)
    before = await router.describe_models(CALLER, models)
    if what == "models":
        router.use(own("m", "n"), channel("images", "m", provider="fal"))
    elif what == "prices":
        router.pricing = PricingPolicy(PriceList([Price("m", 7)]))
    elif what == "configuration":
        configure(router, ("m", ModelDescription(context_window=5)))
    else:
        router.routes = {"m": Route("m", (make_step("gpt-4o"),))}
        router.use(own("m", "gpt-4o"))
    after = await router.describe_models(CALLER, models)
    assert before[0].body != after[0].body
    assert build_list_tag(before) != build_list_tag(after)


async def test_a_second_list_describes_nothing_anew() -> None:
    names = [f"model-{number}" for number in range(200)]
    up = channel("up", sync=True)
    router = RouterScenario(up)
    listing = [ModelInfo(name, 5, "v") for name in names]
    router.catalog.apply_listing(up, listing)
    before = await router.describe_models(CALLER, router.list_models(CALLER))
    assert [model.listed.id for model in before] == sorted(names)
    router.catalog.apply_listing(up, listing)  # the provider says the same again
    after = await router.describe_models(CALLER, router.list_models(CALLER))
    assert all(one is other for one, other in zip(before, after, strict=True))


async def test_the_entity_tag_follows_the_list_and_its_order() -> None:
    router = RouterScenario(own("a", "b"))
    one, two = await router.describe_models(CALLER, router.list_models(CALLER))
    tags = {build_list_tag(models) for models in ([one], [two], [one, two], [two, one], [])}
    assert len(tags) == 5
    assert all(tag.startswith('"') and tag.endswith('"') and tag[1:-1].isalnum() for tag in tags)
