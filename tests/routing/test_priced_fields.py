"""What changes what is bought is refused by name, or let through on channels that allow it, to who may have it."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from gateway.domain.account import Caller
from gateway.domain.balance import Quota
from gateway.domain.channel import Channel
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.model_info import ModelInfo
from gateway.domain.operation import Operation
from gateway.domain.price import Price
from gateway.domain.route import ModelShare, Route, RouteStep
from gateway.domain.usage import Usage
from gateway.errors import GatewayError, InvalidRequest, ModelNotAllowed, ModelNotFound, ModelNotPriced
from gateway.formats.chat.anthropic.request import parse_count_inference, parse_messages_inference
from gateway.providers.hosted_tools import remove_tools
from gateway.providers.priced_fields import list_priced_fields
from gateway.routing.target import Target, find_answering_model
from tests.support.routing_calls import CALLER, MESSAGES, RouterScenario, call_of, caller_of, channel, priced
from tests.support.table_rows import table_rows

CHEAP, EXPENSIVE = "openai/cheap", "openai/dear"
PRICES = (priced(CHEAP, 1), priced(EXPENSIVE, 50))
USED = Usage(10, 10, source="upstream")


def router(name: str = "router", *fields: str, **more: Any) -> Channel:
    return channel(name, CHEAP, EXPENSIVE, provider="openrouter", allow_fields=fields, **more)


def ask(floor: RouterScenario, caller: Caller = CALLER, model: str = CHEAP, **body: Any) -> Sequence[Target]:
    return floor.options(call_of(model, **body), caller)


@table_rows("name", ["service_tier", "models", "provider", "preset", "route", "plugins", "speed"])
def test_a_field_that_changes_what_is_bought_is_refused_by_name(name: str) -> None:
    fields: dict[str, Any] = {name: [EXPENSIVE] if name == "models" else "priority"}
    with pytest.raises(InvalidRequest, match=f"'{name}' changes what is billed") as caught:
        ask(RouterScenario(router(), prices=PRICES), **fields)
    assert (caught.value.status, caught.value.param) == (400, name)


OFFERED: dict[str, Any] = {"tools": [{"type": "function"}, {"type": "web_search"}]}


def test_a_hosted_tool_is_left_out_if_it_is_only_offered_and_no_channel_allows_it() -> None:
    (target,) = ask(RouterScenario(router()), **OFFERED)
    assert target.left_out_tools == ("tools.web_search",)
    (target,) = ask(RouterScenario(router("strict", priority=9), router("open", "tools.web_*")), **OFFERED)
    assert (target.channel.name, target.left_out_tools) == ("open", ())


def test_a_step_that_leaves_a_hosted_tool_out_does_not_give_way_to_a_later_step() -> None:
    """The channel of the second step takes the request as it is."""
    steps = (RouteStep((ModelShare(CHEAP),)), RouteStep((ModelShare("local"),)))
    scenario = RouterScenario(router(), channel("up", "local", provider="anthropic"), routes=[Route("fast", steps)])
    left_out = {target.channel.name: target.left_out_tools for target in ask(scenario, model="fast", **OFFERED)}
    assert left_out == {"router": ("tools.web_search",), "up": ()}


def test_a_hosted_tool_that_must_be_called_is_refused_by_its_type() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(RouterScenario(router()), **OFFERED, tool_choice={"type": "web_search"})
    assert caught.value.param == "tools.web_search"


@table_rows("name", ["Tools", "TOOLS", "tool\u017f", "\uff54ools"])
def test_tools_of_an_item_in_another_spelling_are_refused(name: str) -> None:
    """A server that takes names in any case would run what no rule has seen."""
    with pytest.raises(InvalidRequest, match="did you mean 'tools'") as caught:
        list_priced_fields(
            {"input": [{"type": "additional_tools", name: [{"type": "web_search"}]}]}, frozenset({"tools"})
        )
    assert caught.value.param == f"input[0].{name}"


def test_other_fields_are_refused_beside_a_tool_that_is_left_out() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(RouterScenario(router()), **OFFERED, service_tier="priority")
    assert caught.value.param == "service_tier"


@table_rows("allowed", ["service_tier", "service_*", "*"])
def test_what_the_channel_allows_is_let_through(allowed: str) -> None:
    (target,) = ask(RouterScenario(router("router", allowed)), service_tier="priority")
    assert target.channel.name == "router"


def test_only_channels_that_allow_it_are_asked() -> None:
    floor = RouterScenario(router("strict", priority=9), router("open", "service_tier"))
    assert [target.channel.name for target in ask(floor, service_tier="priority")] == ["open"]
    assert len(ask(floor, service_tier="auto")) == 2


def test_a_field_that_is_not_sent_is_not_refused() -> None:
    """Between two languages it is left out, as ever; and counting buys nothing."""
    floor = RouterScenario(channel("google", "m", provider="gemini"))
    assert len(floor.options(call_of("m", service_tier="priority"))) == 1
    claude = RouterScenario(channel("claude", "m", provider="anthropic"))
    body = {"model": "m", "messages": MESSAGES, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}
    assert len(claude.options(parse_count_inference(body))) == 1
    (target,) = claude.options(parse_messages_inference(body | {"max_tokens": 5}))
    assert target.left_out_tools == ("tools.web_search_20250305",)


def test_nothing_is_bought_on_ones_own_machine() -> None:
    floor = RouterScenario(channel("own", "m", provider="vllm"))
    assert len(floor.options(call_of("m", service_tier="priority", tools=[{"type": "web_search"}]))) == 1


def test_what_is_held_covers_the_most_expensive_model_that_is_named() -> None:
    (target,) = ask(RouterScenario(router("router", "models"), prices=PRICES), models=[EXPENSIVE])
    (plain,) = ask(RouterScenario(router("router", "models"), prices=PRICES))
    assert (plain.cost(USED), plain.find_most(USED)) == (10, 10)
    assert (target.cost(USED), target.find_most(USED)) == (10, 500)


def test_the_charge_follows_the_model_that_answered_where_that_is_dearer() -> None:
    (target,) = ask(RouterScenario(router("router", "models"), prices=PRICES), models=[EXPENSIVE])
    cheap, expensive = target.cost(USED), target.find_most(USED)
    assert expensive > cheap
    for answered, cost in (
        (CHEAP, cheap), (EXPENSIVE, expensive), (f"{CHEAP}-2025-08-07", cheap), (f"{CHEAP}:free", cheap),
        ("who/knows", cheap), ("", expensive),
    ):  # fmt: skip
        assert target.find_cost(answered, USED) == cost
    (other,) = ask(RouterScenario(router(), prices=PRICES), model=EXPENSIVE)
    assert other.find_cost(CHEAP, USED) == other.cost(USED) == expensive


def test_a_router_may_answer_with_another_model_unasked() -> None:
    """An automatic choice, or a fallback of the provider's own: nobody has named the model, and it is paid for."""
    (target,) = ask(RouterScenario(router(), prices=PRICES))
    assert target.find_price is not None
    assert target.find_cost(EXPENSIVE, USED) > target.cost(USED) == target.find_cost("", USED)


def test_elsewhere_the_model_that_was_asked_for_is_paid() -> None:
    (target,) = RouterScenario(channel("a", "m"), prices=PRICES).options()
    assert target.find_price is None


NAMED = [
    (caller_of(models=(CHEAP,)), [EXPENSIVE], ModelNotAllowed, "models[0]"),
    (caller_of(models=("openai/c*",)), [CHEAP, EXPENSIVE], ModelNotAllowed, "models[1]"),
    (CALLER, ["vendor/hidden"], ModelNotFound, "models[0]"),
    (CALLER, [5], InvalidRequest, "models[0]"),
]


@table_rows(("caller", "models", "kind", "param"), NAMED)
def test_a_named_model_is_one_that_the_key_may_use_and_the_channel_offers(
    caller: Caller, models: list[Any], kind: type[GatewayError], param: str
) -> None:
    with pytest.raises(kind) as caught:
        ask(RouterScenario(router("router", "models"), prices=PRICES), caller, models=models)
    assert caught.value.param == param


def test_a_variant_may_not_be_named_where_it_may_not_be_asked_for() -> None:
    every = channel("router", "openai/*", provider="openrouter", allow_fields=("models",))
    with pytest.raises(InvalidRequest, match=":online") as caught:
        ask(RouterScenario(every, prices=PRICES), models=[f"{EXPENSIVE}:online"])
    assert caught.value.param == "models[0]"


def test_a_named_model_may_go_by_the_name_that_callers_know() -> None:
    """A key that may use an alias may name what stands behind it."""
    mapped = channel("router", CHEAP, provider="openrouter", allow_fields=("models",), model_map=(("best", EXPENSIVE),))
    (target,) = ask(RouterScenario(mapped, prices=PRICES), caller_of(models=(CHEAP, "best")), models=[EXPENSIVE])
    assert EXPENSIVE in target.named
    with pytest.raises(ModelNotFound):
        ask(RouterScenario(mapped, prices=PRICES), caller_of(models=(CHEAP, EXPENSIVE)), models=[EXPENSIVE])
    with pytest.raises(ModelNotAllowed):
        ask(RouterScenario(mapped, prices=PRICES), caller_of(models=(CHEAP,)), models=[EXPENSIVE])


@table_rows("owner", ["key", "account"])
def test_who_has_a_limit_may_name_only_what_has_a_price(owner: str) -> None:
    floor = RouterScenario(router("router", "models"), prices=PRICES[:1])
    assert len(ask(floor, models=[EXPENSIVE])) == 1
    capped = attrs.evolve(getattr(CALLER, owner), quota=Quota(10**9, "lifetime"))
    with pytest.raises(ModelNotPriced, match="no price"):
        ask(floor, attrs.evolve(CALLER, **{owner: capped}), models=[EXPENSIVE])


def test_where_only_one_channel_offers_what_is_named_that_one_is_asked() -> None:
    some = channel("some", CHEAP, provider="openrouter", allow_fields=("models",))
    floor = RouterScenario(some, router("all", "models"), prices=PRICES)
    assert [target.channel.name for target in ask(floor, models=[EXPENSIVE])] == ["all"]


VARIANT = "openai/gpt-6:online"


@table_rows("variant", [VARIANT, "openai/gpt-6:nitro", "openai/gpt-6:floor", "openai/gpt-6@preset/x"])
def test_a_variant_that_changes_what_is_bought_is_refused(variant: str) -> None:
    floor = RouterScenario(channel("router", "openai/*", provider="openrouter"))
    with pytest.raises(InvalidRequest, match="changes what is billed") as caught:
        floor.options(call_of(variant))
    assert caught.value.param == "model"
    assert len(floor.options(call_of("openai/gpt-6:free"))) == 1


def test_a_variant_that_an_operator_names_or_allows_is_served() -> None:
    for more in (
        {"models": ("openai/*", VARIANT)}, {"model_map": (("search", VARIANT),)}, {"allow_fields": ("model:online",)},
    ):  # fmt: skip
        made = attrs.evolve(channel("router", "openai/*", provider="openrouter"), **more)
        assert len(RouterScenario(made).options(call_of("search" if "model_map" in more else VARIANT))) == 1


def test_a_channel_that_has_never_listed_its_models_serves_no_variant() -> None:
    early = channel("early", sync=True, provider="openrouter")
    floor = RouterScenario(early)
    with pytest.raises(InvalidRequest, match=":online"):
        floor.options(call_of(VARIANT))
    floor.catalog.apply_listing(early, [ModelInfo("openai/gpt-6", 1, "x")])
    with pytest.raises(ModelNotFound):
        floor.options(call_of(VARIANT))


@table_rows(
    ("reported", "model"),
    [
        (b'{"id":"x","model":"a/b","choices":[]}', "a/b"),
        (b': hi\n\ndata: {"id":"x", "model" : "a/b:free"}\n\n', "a/b:free"),
        (rb'{"choices":[{"message":{"content":"\"model\":\"a/cheap\""}}],"model":"a/dear"}', "a/dear"),
        (rb'{"model":"a\/b\u0041"}', "a/bA"),
        (b'{"model":null}', ""), (b'{"model":""}', ""), (b"", ""), (b'{"model":"\\q"}', ""),
    ],
)  # fmt: skip
def test_the_model_that_answered_is_found_in_what_was_told(reported: bytes, model: str) -> None:
    assert find_answering_model(reported) == model


def test_a_price_of_nothing_is_not_followed() -> None:
    (target,) = ask(RouterScenario(router("router", "models"), prices=(priced(CHEAP, 1),)), models=[EXPENSIVE])
    assert target.named == {EXPENSIVE: None}
    assert target.find_cost(EXPENSIVE, USED) == target.cost(USED)
    assert isinstance(target.price, Price)


BETA = "files-api-2025-04-14"


@table_rows(("provider", "refused"), [("anthropic", True), ("deepseek", False), ("openai", False)])
def test_a_feature_that_is_not_known_to_be_harmless_needs_the_channel(provider: str, refused: bool) -> None:
    """Vendors of the same format have none of Anthropic's features, and a translated request has no such header."""
    inference = parse_messages_inference(
        {"model": "m", "max_tokens": 5, "messages": MESSAGES}, f"pdfs-2024-09-25,{BETA}"
    )
    open_floor = RouterScenario(channel("open", "m", provider=provider, allow_fields=("anthropic-beta.files-*",)))
    strict = RouterScenario(channel("strict", "m", provider=provider))
    assert len(open_floor.options(inference)) == 1
    if not refused:
        assert len(strict.options(inference)) == 1
        return
    with pytest.raises(InvalidRequest, match=rf"allow_fields = \['anthropic-beta\.{BETA}'\]") as caught:
        strict.options(inference)
    assert caught.value.param == "anthropic-beta"


@table_rows(
    ("name", "meant"),
    [
        ("Service_Tier", "service_tier"), ("MODELS", "models"), ("\u017fervice_tier", "service_tier"),
        ("\uff53ervice_tier", "service_tier"), ("ServiceTier", "service"), ("service-tier", "service"),
        ("Max_Tokens", "max_tokens"), ("maxTokens", "max_tokens"), ("Stream", "stream"),
        ("anthropic_beta", "anthropic-beta"),
    ],
)  # fmt: skip
@table_rows("allowed", ["*", "nothing"])
def test_a_field_that_a_tolerant_server_takes_for_another_is_refused_by_name(
    name: str, meant: str, allowed: str
) -> None:
    fields: dict[str, Any] = {name: "priority"}
    with pytest.raises(InvalidRequest, match=f"did you mean '{meant}") as caught:
        ask(RouterScenario(router("router", allowed), prices=PRICES), **fields)
    assert caught.value.param == name


def test_no_priced_field_hides_in_extra_body() -> None:
    for inner in ("service_tier", "Models", "max_tokens", "extra_body"):
        with pytest.raises(InvalidRequest) as caught:
            ask(RouterScenario(router("router", "*"), prices=PRICES), extra_body={inner: {}})
        assert caught.value.param == f"extra_body.{inner}"
    assert ask(RouterScenario(router(), prices=PRICES), extra_body={"google": {"thinking_config": {}}})


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOOLS = [
    ({"name": "x", "google_search": {}}, "tools.google_search"),
    ({"google_search": {}}, "tools.google_search"),
    (FUNCTION | {"web_search": {}}, "tools.web_search"),
    (FUNCTION | {"web_search": {"enable": True}, "strict": True}, "tools.web_search"),
    ({"type": "custom", "name": "c", "Google_Search": {}}, "tools.Google_Search"),
    ({"type": "Web_Search"}, "tools.Web_Search"),
    ({"type": "namespace", "name": "n", "tools": [FUNCTION, {"type": "web_search"}]}, "tools.web_search"),
    ({"type": ["web_search"]}, "tools[0].type"),
    ({"type": {"web_search": {}}}, "tools[0].type"),
    ("web_search", "tools[0]"),
]


@table_rows(("tool", "param"), TOOLS)
@table_rows("operation", ["chat", "messages", "responses", "generate_content"])
def test_a_tool_is_the_clients_own_only_if_all_its_fields_are_known(tool: Any, param: str, operation: Any) -> None:
    provider = {"chat": "openai", "messages": "anthropic", "responses": "openai", "generate_content": "gemini"}
    floor = RouterScenario(channel("a", "m", provider=provider[operation]))
    inference = InferenceRequest(operation, "m", {"model": "m", "tools": [tool]})
    if param.startswith("tools["):
        with pytest.raises(InvalidRequest) as caught:
            floor.options(inference)
        assert caught.value.param == param
        return
    (target,) = floor.options(inference)
    assert param in target.left_out_tools
    left = remove_tools({"tools": [tool]}, target.left_out_tools)
    assert list_priced_fields(left, frozenset({"tools"})) == []


@table_rows(
    "tool",
    [
        FUNCTION, FUNCTION | {"strict": True, "cache_control": {"type": "ephemeral"}, "web_search": None},
        {"name": "f", "description": "d", "input_schema": {}, "cache_control": None, "eager_input_streaming": True},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}, {"type": "local_shell"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 1, "display_height_px": 1},
        {"type": "mcp", "server_label": "s", "server_url": "https://a.example", "require_approval": "never"},
        {"functionDeclarations": [{"name": "f"}], "urlContext": {}, "codeExecution": {}},
        {"type": "namespace", "name": "n", "tools": [FUNCTION]},
    ],
)  # fmt: skip
def test_tools_of_clients_pass(tool: Any) -> None:
    operations: dict[Operation, str] = {"chat": "openai", "messages": "anthropic", "generate_content": "gemini"}
    for operation, provider in operations.items():
        floor = RouterScenario(channel("a", "m", provider=provider))
        assert floor.options(InferenceRequest(operation, "m", {"model": "m", "tools": [tool]}))


def test_items_of_the_responses_api_bring_tools_too() -> None:
    item = {"type": "additional_tools", "tools": [FUNCTION, {"type": "web_search"}]}
    floor = RouterScenario(channel("a", "m", provider="openai"))
    (target,) = floor.options(InferenceRequest("responses", "m", {"model": "m", "input": [{"role": "user"}, item]}))
    assert target.left_out_tools == ("tools.web_search",)
    item["tools"] = [FUNCTION]
    assert floor.options(InferenceRequest("responses", "m", {"model": "m", "input": [item]}))
