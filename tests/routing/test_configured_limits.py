"""``context_window`` and ``max_output_tokens`` of ``[[model]]`` bound what requests may cost, and where they go."""

from typing import Any

import attrs
import pytest

from gateway.domain.context_windows import find_context_window
from gateway.domain.model_description import ModelDescription
from gateway.domain.model_limits import ModelLimits, find_limits
from gateway.domain.output_limits import find_longest_answer
from gateway.domain.route import ModelShare, Route, RouteStep
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.routing.step_list import find_too_long_steps
from gateway.routing.target import Target
from tests.support.admin_calls import ask_office
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.routing_calls import CALLER, RouterScenario
from tests.support.routing_calls import channel as make_channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

KNOWN = "gpt-5-mini"
WINDOW, LONGEST = 5_000, 50
PRICE = 10
DOCUMENT = {"type": "file", "file": {"file_data": "data:application/pdf;base64,QUJD"}}
"""What the provider reads of it is bounded by the context window alone."""


@pytest.mark.parametrize(
    ("model", "configured", "expected"),
    [
        ("unknown", ModelDescription(), ModelLimits()),
        ("unknown", ModelDescription(context_window=5, max_output_tokens=3), ModelLimits(5, 3, 5, 3)),
        (KNOWN, ModelDescription(), ModelLimits(find_context_window(KNOWN), find_longest_answer(KNOWN))),
        (KNOWN, ModelDescription(context_window=5), ModelLimits(5, find_longest_answer(KNOWN), 5)),
        (KNOWN, ModelDescription(max_output_tokens=10**6), ModelLimits(find_context_window(KNOWN), 10**6, 0, 10**6)),
    ],
)
def test_the_operators_figures_precede_the_tables(
    model: str, configured: ModelDescription, expected: ModelLimits
) -> None:
    assert find_limits(model, configured) == expected


def find_target(router: RouterScenario, model: str) -> Target:
    inference = parse_chat_inference({"model": model, "messages": [{"role": "user", "content": "hi"}]})
    return router.route(CALLER, inference).targets[0]


def test_targets_have_the_limits_of_the_entry_in_force() -> None:
    router = RouterScenario(make_channel("up", KNOWN, "m", model_map=(("m", "theirs"),)))
    assert find_target(router, KNOWN).limits == find_limits(KNOWN)
    router.descriptions = (("gpt-*", ModelDescription(context_window=7)), ("theirs", ModelDescription("chat", 9)))
    assert find_target(router, KNOWN).limits.context_window == 7
    assert find_target(router, "m").limits.configured_window == 9
    router.descriptions = ()
    assert find_target(router, KNOWN).limits == find_limits(KNOWN)


def make_config(base_url: str, **more: Any) -> dict[str, Any]:
    return {
        "channel": [channel(base_url)],
        "account": [{"name": "acme"}],
        "key": [{"name": "test", "account": "acme", "secret": KEY, "quota_usd": 100}],
        "price": [{"model": "m", "input_usd_per_million": PRICE, "output_usd_per_million": PRICE}],
        "model": [{"name": "m", "context_window": WINDOW, "max_output_tokens": LONGEST}],
        **more,
    }


def ask(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts) or "hi"}], **more}


async def send(gateway: RunningGateway, body: dict[str, Any]) -> dict[str, Any]:
    async with gateway.post(body) as response:
        assert response.status == 200, await response.text()
        return dict(await response.json())


async def test_they_bound_what_is_reserved_and_charged(gateway_with: StartGateway) -> None:
    reported = COMPLETION | {"usage": {"prompt_tokens": 9_000_000, "completion_tokens": 9_000}}
    async with ScriptedUpstream([answer(reported)]) as up:
        gateway = await gateway_with(make_config(up.base_url))
        await send(gateway, ask({"type": "text", "text": "hi"}, DOCUMENT))
        (row,) = await gateway.rows(1)
    assert row.prompt_tokens == WINDOW
    assert LONGEST <= row.completion_tokens <= LONGEST + 16
    assert row.usage_source == "bound"
    assert row.reserved_nanos >= row.cost_nanos - 16 * PRICE * 1_000
    assert row.reserved_nanos <= PRICE * 1_000 * (WINDOW + 300_000)
    assert row.overrun_nanos == 0


@pytest.mark.parametrize(
    ("field", "asked", "sent"),
    [("max_tokens", 4_000, LONGEST), ("max_completion_tokens", 51, LONGEST), ("max_tokens", 7, 7)],
)
async def test_a_longer_answer_is_not_asked_for(gateway_with: StartGateway, field: str, asked: int, sent: int) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(make_config(up.base_url))
        for _ in range(2):
            await send(gateway, ask(**{field: asked}))
        assert [request.json[field] for request in up.received] == [sent, sent]
        await gateway.rows(2)


def make_step(model: str, **more: Any) -> RouteStep:
    return RouteStep((ModelShare(model),), **more)


@pytest.mark.parametrize(
    ("windows", "later", "expected"),
    [
        ((100, 0), {}, {0}),
        ((100, 5_000), {}, {0}),
        ((100, 100), {}, set()),
        ((0, 100), {}, set()),
        ((1_000, 0), {}, set()),
        ((100, 0), {"causes": ("budget",)}, set()),
    ],
)
def test_a_step_counts_as_too_short_only_if_a_later_one_takes_that(
    windows: tuple[int, int], later: dict[str, Any], expected: set[int]
) -> None:
    router = RouterScenario(make_channel("up", "a", "b"))
    targets = [
        [attrs.evolve(find_target(router, model), limits=ModelLimits(configured_window=window))]
        for model, window in zip("ab", windows, strict=True)
    ]
    route = Route("fast", (make_step("a"), make_step("b", **later)))
    assert find_too_long_steps(route, targets, 1_000) == expected


async def test_a_route_passes_over_a_model_for_a_longer_prompt(gateway_with: StartGateway) -> None:
    """A local server would cut the prompt without an error. ``explain`` says the same."""
    steps = [{"models": ["m"]}, {"models": ["large"]}]
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        site = make_config(up.base_url, route=[{"name": "fast", "step": steps}])
        site["channel"] = [channel(up.base_url, models=["m", "large"])]
        site["price"].append({**site["price"][0], "model": "large"})
        gateway = await gateway_with(site)
        for prompt, model in (("hi", "m"), ("word " * WINDOW, "large")):
            await send(gateway, ask({"type": "text", "text": prompt}) | {"model": "fast"})
            assert up.received[-1].json["model"] == model
        short, long = sorted(await gateway.rows(2), key=lambda row: row.prompt_tokens)
        assert (short.served_model, long.served_model) == ("m", "large")
        assert ":context:1:" in long.tried
        _, found = await ask_office(gateway, "GET", f"/explain?model=fast&prompt_tokens={WINDOW + 1}")
    first, second = found["steps"]
    assert (first["verdict"], second["verdict"]) == ("skipped", "first")
    assert first["reason"] == f"the prompt has about {WINDOW + 1} tokens, but the context window has {WINDOW}"
