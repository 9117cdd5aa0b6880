"""Who would serve a call, who would not and why: what is told is what routing does, and telling it changes nothing."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from gateway.billing.accounting import AccountingService
from gateway.billing.balances import Balances
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.balance import Quota
from gateway.domain.capability import Capability
from gateway.domain.channel import Channel
from gateway.domain.circuit_breaker import BreakerSettings
from gateway.domain.image import ImageRequest
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import Operation
from gateway.domain.price import ONE_PPM, Price, PriceList, Tier
from gateway.domain.rate_limit import Limits
from gateway.errors import GatewayError, ProviderAuthError
from gateway.routing.channel_state import ChannelSlot
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer, RetrySettings
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.pricing_policy import PricingPolicy, Unpriced
from gateway.routing.router import Router
from gateway.server.admin.route_explain import RouteExplainer
from tests.support.answers import to_json
from tests.support.repositories import Repositories
from tests.support.table_rows import table_rows

RULES = BreakerSettings(cooldown_s=10, max_cooldown_s=300, ramp_s=10)
PRICE = Price(
    "m",
    250_000_000,
    cached_input_nanos_per_million=25_000_000,
    output_nanos_per_million=2_000_000_000,
    character_nanos_per_million=15_000_000_000,
    tiers=(Tier(200_000, 500_000_000),),
)
CALLER = Caller(
    Account(1, "acme", quota=Quota(5_000_000_000, "lifetime"), limits=Limits(rpm=60)),
    ApiKey(7, 1, "laptop", b"", "", limits=Limits(tpm=1_000)),
)


def channel(name: str, *models: str, **more: Any) -> Channel:
    return Channel(name, more.pop("provider", "custom"), f"http://{name}/v1", ("k",), models or ("m",), **more)


class RouteScenario:
    """An explainer with the parts it looks at; the clock is turned by hand."""

    def __init__(self, *channels: Channel, prices: Sequence[Price] = (), unpriced: Unpriced = "free") -> None:
        self.time = 1_000.0
        self.board = LoadBalancer(lambda: self.time, lambda: 0.5, settings=DEFAULT_SETTINGS, shared=None)
        self.board.settings = RetrySettings(RULES)
        self.catalog = ModelCatalog(clock=lambda: 0.0)
        self.catalog.set_channels(channels)
        self.board.set_channels(channels)
        self.router = Router(
            self.catalog, self.board, PricingPolicy(PriceList(prices), {"vip": 500_000}, unpriced), models=(), routes={}
        )
        accounting = AccountingService(
            Balances(lambda: 0.0), Repositories(), WriteQueue(), clock=lambda: 0.0, jobs=None, check_leases=None
        )
        self.explainer = RouteExplainer(self.catalog, self.board, self.router, accounting, lambda: 0.0)

    def ask(self, model: str = "m", operation: Operation = "chat", caller: Caller | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = to_json(self.explainer.explain(caller, model, operation))
        return answer

    def lines(self, *args: Any, **more: Any) -> dict[str, dict[str, Any]]:
        return {line["channel"]: line for line in self.ask(*args, **more)["channels"]}

    def reason(self, name: str, *args: Any, **more: Any) -> str | None:
        line = self.lines(*args, **more)[name]
        assert (line["rank"], line["chance"]) == (None, 0.0)
        return line["reason"]  # type: ignore[no-any-return]

    def call(self, name: str) -> ChannelSlot:
        return self.board.acquire(self.board.channels[name], ("openai_chat", "m"), 1, retry=False)

    def trip(self, name: str) -> None:
        self.board.channels[name].breaker.trip(self.time, RULES, reason="it broke", rng=0.5)


ALL_THE_SAME = "; a few requests are sent all the same, because no other channel serves the model"


def caller_of(group: str | None = None, models: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> Caller:
    key = attrs.evolve(CALLER.key, group=group, models=models)
    return Caller(attrs.evolve(CALLER.account, groups=groups), key)


# Who would serve it


def test_channels_are_ranked_as_they_would_be_tried() -> None:
    scenario = RouteScenario(
        channel("last", priority=-1),
        channel("early", sync=True, priority=9),
        channel("busy"),
        channel("idle"),
        channel("first", priority=5),
    )
    scenario.call("busy")
    lines = scenario.ask()["channels"]
    assert [(line["channel"], line["rank"]) for line in lines] == [
        ("first", 1),
        ("idle", 2),
        ("busy", 3),
        ("last", 4),
        ("early", 5),
    ]
    assert [line["running"] for line in lines] == [0, 0, 1, 0, 0]
    assert lines[-1]["reason"] == "untested: its list of models is not known yet"


def test_equals_get_the_calls_by_their_weight() -> None:
    scenario = RouteScenario(channel("light"), channel("heavy", weight=3), channel("spare", priority=-1))
    assert {name: line["chance"] for name, line in scenario.lines().items()} == {
        "heavy": 0.75,
        "light": 0.25,
        "spare": 0,
    }
    taken = []
    for number in range(40):
        throws = iter([number / 40, 0.5])
        scenario.board._rng = throws.__next__
        taken.append(scenario.router.route(CALLER, InferenceRequest("chat", "m", {})).rank()[0].channel.name)
    assert taken.count("heavy") / len(taken) == 0.75


def test_one_that_has_just_come_up_gets_a_small_share() -> None:
    scenario = RouteScenario(channel("old"), channel("new"))
    scenario.trip("new")
    scenario.board.channels["new"].breaker.recover(scenario.time)
    lines = scenario.lines()
    assert (lines["new"]["share"], lines["new"]["chance"], lines["old"]["chance"]) == (0.1, 0.091, 0.909)


def test_a_line_tells_the_language_and_the_providers_name_of_the_model() -> None:
    scenario = RouteScenario(
        channel("chat", model_map=(("m", "theirs"),)),
        channel("claude", provider="anthropic"),
        channel("google", provider="gemini"),
    )
    reported = {
        name: (line["api_format"], line["translated"], line["upstream_model"])
        for name, line in scenario.lines().items()
    }
    assert reported == {
        "chat": ("openai_chat", False, "theirs"),
        "claude": ("anthropic_messages", True, "m"),
        "google": ("gemini_generate", True, "m"),
    }
    reported = {
        name: (line["api_format"], line["translated"], "") for name, line in scenario.lines("m", "messages").items()
    }
    assert reported == {
        "chat": ("openai_chat", True, ""),
        "claude": ("anthropic_messages", False, ""),
        "google": ("gemini_generate", True, ""),
    }
    counts = scenario.lines("m", "count_tokens")
    assert (counts["google"]["translated"], counts["claude"]["translated"]) == (True, False)


def test_a_price_is_in_dollars_and_with_its_multiplier() -> None:
    scenario = RouteScenario(channel("up", multiplier_ppm=2 * ONE_PPM), prices=[PRICE])
    line = scenario.lines(caller=caller_of("vip"))["up"]
    assert line["price_multiplier"] == 1.0
    assert line["price"] == {
        "model": "m",
        "input_usd_per_million": 0.25,
        "cached_input_usd_per_million": 0.025,
        "cache_write_usd_per_million": None,
        "cache_write_long_usd_per_million": None,
        "output_usd_per_million": 2.0,
        "audio_input_usd_per_million": None,
        "cached_audio_input_usd_per_million": None,
        "audio_output_usd_per_million": None,
        "usd_per_image": 0.0,
        "usd_per_second": 0.0,
        "usd_per_million_characters": 15.0,
        "tiers": 1,
    }
    assert RouteScenario(channel("up")).lines()["up"]["price"] is None


# Who would not, and why


def test_a_channel_that_is_out_of_the_question_says_why() -> None:
    scenario = RouteScenario(
        channel("off", status="disabled"),
        channel("closed", groups=("vip", "lab")),
        channel("other", "x"),
        channel("claude", provider="anthropic"),
    )
    assert scenario.reason("off") == "disabled"
    assert scenario.reason("closed") == "allowed groups: vip, lab"
    assert scenario.reason("other") == "does not offer the model"
    assert scenario.reason("claude", "m", "embeddings") == "does not support embeddings"
    assert scenario.lines(caller=caller_of("lab"))["closed"]["rank"] == 1


def test_a_channel_without_a_price_says_so_where_one_is_required() -> None:
    scenario = RouteScenario(
        channel("up"), channel("paid", provider="openai"), unpriced="refuse", prices=[Price("m", 1, provider="openai")]
    )
    assert scenario.reason("up") == 'has no price for this request (billing.unpriced is "refuse")'
    assert scenario.lines()["paid"]["rank"] == 1


def test_a_channel_that_is_down_says_until_when_and_after_what() -> None:
    scenario = RouteScenario(channel("up"))
    scenario.trip("up")
    scenario.time += 2.5
    line = scenario.lines()["up"]
    assert (line["state"], line["wait_s"]) == ("open", 7.5)
    assert line["reason"] == f"cooling down after failures (it broke){ALL_THE_SAME}"
    scenario.time += 7.5
    assert scenario.lines()["up"]["rank"] == 1
    slot = scenario.call("up")
    assert scenario.reason("up") == f"recovering: one request is testing it (it broke){ALL_THE_SAME}"
    scenario.board.release(slot)


def test_what_is_not_after_failures_does_not_tell_of_one() -> None:
    scenario = RouteScenario(channel("up", max_concurrency=1), channel("slow", rpm=1), channel("keys"))
    for name in ("up", "slow", "keys"):
        scenario.board.channels[name].breaker.record_failure(0, scenario.time, RULES, reason="once it broke", rng=0.5)
        slot = scenario.call(name)
        if name != "up":
            scenario.board.record_failure(slot, ProviderAuthError("no"))
            scenario.board.release(slot)
    scenario.board.channels["slow"].keys[0].circuits.clear()
    assert scenario.reason("up") == "at its maximum number of concurrent requests"
    assert scenario.reason("slow") == "at its maximum number of requests per minute"
    assert scenario.reason("keys") == f"failing: the provider refused its keys{ALL_THE_SAME}"


# Pictures


def image_backend(name: str, theirs: str = "org/painter", provider: str = "custom", **more: Any) -> Channel:
    return channel(name, provider=provider, model_map=(("m", theirs),), **more)


def gallery(**more: Any) -> RouteScenario:
    """One who paints and edits, one who only paints, one who only talks, and one of whom nobody knows anything."""
    return RouteScenario(
        image_backend("gemini", "gemini-2.5-flash-image", "gemini"),
        image_backend("wan", "wan2.2-t2i-flash", "dashscope"),
        image_backend("claude", "claude-x", "anthropic"),
        image_backend("unknown"),
        **more,
    )


def test_whoever_paints_is_told_with_what_it_can_be_asked_for() -> None:
    lines = gallery().lines("m", "images")
    assert {name: line.get("api_format") for name, line in lines.items()} == {
        "gemini": "gemini_images",
        "wan": "dashscope_images",
        "claude": None,
        "unknown": "openai_images",
    }
    assert lines["gemini"]["capability"].pop("sizes")[0] == "1024x1024"
    assert {name: line.get("capability") for name, line in lines.items()} == {
        "gemini": {
            "max_n": 1,
            "response_formats": [],
            "edits": True,
            "masks": False,
            "max_sources": 3,
            "streams": False,
        },
        "wan": {"max_n": 4, "response_formats": [], "edits": False, "masks": False, "streams": False},
        "claude": None,
        "unknown": None,
    }
    assert lines["claude"]["reason"] == "does not support images"


def test_what_the_configuration_says_of_a_model_is_told() -> None:
    scenario = gallery()
    scenario.router.models = (Capability("m", max_n=2, sizes=()),)
    reported = {name: line.get("capability", {}) for name, line in scenario.lines("m", "images").items()}
    assert {name: (able.get("max_n"), able.get("sizes")) for name, able in reported.items()} == {
        "gemini": (2, []),
        "wan": (2, []),
        "claude": (None, None),
        "unknown": (2, []),
    }


def test_a_channel_that_paints_and_does_not_edit_is_none_for_edits() -> None:
    scenario = gallery()
    lines = scenario.lines("m", "image_edits")
    assert {name: line["rank"] for name, line in lines.items()} == {
        "gemini": 1,
        "unknown": 2,
        "wan": None,
        "claude": None,
    }
    assert scenario.reason("wan", "m", "image_edits") == "does not edit images"
    assert scenario.reason("claude", "m", "image_edits") == "does not support image_edits"
    assert lines["gemini"]["chance"] + lines["unknown"]["chance"] == 1
    assert scenario.lines("m", "images")["wan"]["chance"] == round(1 / 3, 3)


def test_where_nobody_edits_it_is_refused_as_routing_refuses_it() -> None:
    scenario = RouteScenario(image_backend("wan", "wan2.2-t2i-flash", "dashscope"), image_backend("unknown"))
    assert scenario.ask("m", "image_edits")["served"]
    scenario.router.models = (Capability("org/*", edits=False),)
    found = scenario.ask("m", "image_edits")
    assert (found["served"], found["refused"]["code"]) == (False, "invalid_request")
    assert [line["reason"] for line in found["channels"]] == ["does not edit images"] * 2
    with pytest.raises(GatewayError) as caught:
        scenario.router.route(CALLER, InferenceRequest("image_edits", "m", {}, image=ImageRequest("a cat", sources=1)))
    assert found["refused"]["message"] == caught.value.message
    assert scenario.ask("m", "images")["served"]


def test_what_else_a_model_lacks_is_no_reason_before_it_is_asked_for() -> None:
    scenario = RouteScenario(image_backend("small"))
    scenario.router.models = (Capability("m", sizes=(), max_n=1, masks=False, max_sources=1, response_formats=()),)
    for operation in ("images", "image_edits"):
        found = scenario.ask("m", operation)
        assert (found["served"], found["refused"], found["channels"][0]["rank"]) == (True, None, 1)


def test_one_that_edits_and_is_down_is_waited_for_and_not_refused() -> None:
    scenario = RouteScenario(image_backend("wan", "wan2.2-t2i-flash", "dashscope"), image_backend("edits"))
    scenario.trip("edits")
    found = scenario.ask("m", "image_edits")
    assert (found["served"], found["refused"]) == (True, None)
    assert scenario.reason("edits", "m", "image_edits") == f"cooling down after failures (it broke){ALL_THE_SAME}"


def test_a_channel_without_a_price_is_none_for_images_either() -> None:
    scenario = gallery(unpriced="refuse", prices=[Price("m", image_nanos=40_000_000, provider="gemini")])
    lines = scenario.lines("m", "image_edits")
    assert lines["gemini"]["price"]["usd_per_image"] == 0.04
    assert {lines[name]["reason"] for name in ("wan", "unknown")} == {
        'has no price for this request (billing.unpriced is "refuse")'
    }


@table_rows("operation", ["chat", "speech", "transcriptions", "translations"])
def test_who_does_not_paint_is_not_told_with_images(operation: Operation) -> None:
    scenario = RouteScenario(image_backend("up"))
    scenario.router.models = (Capability("*", edits=False, max_n=1),)
    assert scenario.lines("m", operation)["up"]["capability"] is None
    assert scenario.ask("m", operation)["served"]


# What a caller would be told


@table_rows(
    ("caller", "model", "operation", "code"),
    [
        (None, "m", "chat", None),
        (CALLER, "m", "chat", None),
        (None, "nope", "chat", "model_not_found"),
        (caller_of(models=("x",)), "m", "chat", "model_not_allowed"),
        (caller_of("lab", groups=("vip",)), "m", "chat", "group_not_allowed"),
        (caller_of("lab"), "vips", "chat", "group_not_allowed"),
        (None, "claude", "embeddings", "unsupported_operation"),
        (None, "free", "chat", "model_not_priced"),
        (None, "claude", "count_tokens", None),
        (None, "m", "count_tokens", None),  # nobody counts: the gateway estimates
        (None, "nope", "count_tokens", "model_not_found"),
    ],
)
def test_what_is_refused_is_what_routing_refuses(
    caller: Caller | None, model: str, operation: Operation, code: str | None
) -> None:
    scenario = RouteScenario(
        channel("up"),
        channel("vip", "vips", groups=("vip",)),
        channel("claude", "claude", provider="anthropic"),
        channel("free", "free"),
        prices=[Price("m", 1), Price("vips", 1), Price("claude", 1)],
        unpriced="refuse",
    )
    found = scenario.ask(model, operation, caller)
    assert (found["refused"] and found["refused"]["code"]) == code
    assert found["served"] == (code is None)
    assert (found["model"], found["operation"]) == (model, operation)
    try:
        scenario.router.route(caller or caller_of(), InferenceRequest(operation, model, {}))
    except GatewayError as fault:
        assert found["refused"]["message"] == fault.message  # noqa: PT017 - both ways are looked at
    else:
        assert found["refused"] is None


def test_where_everybody_is_down_a_few_calls_are_served_and_nothing_is_refused() -> None:
    scenario = RouteScenario(channel("up"))
    scenario.trip("up")
    assert scenario.ask()["served"]


def test_where_everybody_is_full_nobody_serves_and_nothing_is_refused() -> None:
    scenario = RouteScenario(channel("up", max_concurrency=1))
    scenario.call("up")
    found = scenario.ask()
    assert (found["served"], found["refused"]) == (False, None)


def test_what_a_caller_has_left_is_told_for_a_caller() -> None:
    found = RouteScenario(channel("up")).ask(caller=CALLER)
    assert found["key"] == {"id": 7, "name": "laptop", "account": "acme"}
    assert found["room"] == {
        "key": {
            "left_usd": None,
            "held_usd": 0.0,
            "resets_at": None,
            "rpm": None,
            "tpm": 1_000,
            "max_concurrency": None,
            "burst": None,
        },
        "account": {
            "left_usd": 5.0,
            "held_usd": 0.0,
            "resets_at": None,
            "rpm": 60,
            "tpm": None,
            "max_concurrency": None,
            "burst": None,
        },
    }
    anonymous = RouteScenario(channel("up")).ask()
    assert (anonymous["key"], anonymous["room"]) == (None, None)


def test_asking_changes_nothing() -> None:
    scenario = RouteScenario(channel("up", rpm=1), channel("down"), channel("full", max_concurrency=1))
    scenario.trip("down")
    before = [
        attrs.asdict(line, filter=lambda field, _: field.name != "channel") for line in scenario.board.channels.values()
    ]
    first = scenario.ask(caller=CALLER)
    assert all(scenario.ask(caller=CALLER) == first for _ in range(5))
    after = [
        attrs.asdict(line, filter=lambda field, _: field.name != "channel") for line in scenario.board.channels.values()
    ]
    assert after == before
    assert scenario.board.running == 0
