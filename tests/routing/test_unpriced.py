"""Models without a price: refused to callers with a spending limit before any provider is called."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.loader import read_prices
from gateway.config.schema import Config
from gateway.domain.account import Caller
from gateway.domain.balance import Quota
from gateway.domain.image import ImageRequest
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.price import Price, PriceList
from gateway.domain.usage import Usage
from gateway.domain.video import VideoRequest
from gateway.errors import GatewayError, ModelNotFound, ModelNotPriced
from gateway.providers.registry import PROVIDERS
from gateway.routing.pricing_policy import PricingPolicy, Unpriced, pays_for
from tests.support.routing_calls import CALLER, RouterScenario, call_of, channel, priced
from tests.support.table_rows import table_rows

CAP = Quota(10**9, "lifetime")
CAPPED_KEY = attrs.evolve(CALLER, key=attrs.evolve(CALLER.key, quota=CAP))
CAPPED_ACCOUNT = attrs.evolve(CALLER, account=attrs.evolve(CALLER.account, quota=CAP))
UNCAPPED = attrs.evolve(
    CALLER, key=attrs.evolve(CALLER.key, quota=Quota()), account=attrs.evolve(CALLER.account, quota=Quota())
)


@table_rows(
    ("unpriced", "caller", "served"),
    [
        ("refuse_limited", UNCAPPED, True),
        ("refuse_limited", CAPPED_KEY, False),
        ("refuse_limited", CAPPED_ACCOUNT, False),
        ("free", CAPPED_KEY, True),
        ("refuse", UNCAPPED, False),
        ("refuse", CAPPED_KEY, False),
    ],
)
def test_a_model_without_a_price_is_served_listed_or_refused_by_the_setting(
    unpriced: Unpriced, caller: Caller, served: bool
) -> None:
    floor = RouterScenario(channel("a", "m"), unpriced=unpriced)
    assert bool(floor.list_models(caller)) == served
    for _ in range(2):  # the second time from the cache
        if served:
            (target,) = floor.options(caller=caller)
            assert target.unpriced
        else:
            with pytest.raises(ModelNotPriced) as caught:
                floor.options(caller=caller)
            assert (caught.value.status, caught.value.param, caught.value.should_retry) == (403, "model", False)
            assert "[[price]]" in caught.value.message


def test_one_callers_refusal_is_not_anothers() -> None:
    floor = RouterScenario(channel("a", "m"))
    assert floor.names(caller=UNCAPPED) == ["a"]
    with pytest.raises(ModelNotPriced):
        floor.names(caller=CAPPED_KEY)
    assert floor.names(caller=UNCAPPED) == ["a"]


def test_only_channels_with_a_price_are_tried_for_who_has_a_limit() -> None:
    floor = RouterScenario(
        channel("free", "m", priority=9), channel("paid", "m", provider="openai"), prices=[priced("m", 1, "openai")]
    )
    assert sorted(floor.names(caller=UNCAPPED)) == ["free", "paid"]
    assert floor.names(caller=CAPPED_KEY) == ["paid"]


def test_a_price_of_nothing_is_a_price() -> None:
    floor = RouterScenario(channel("a", "m"), prices=[Price("m")])
    (target,) = floor.options(caller=CAPPED_KEY)
    assert not target.unpriced


def test_tokens_are_counted_for_nothing() -> None:
    floor = RouterScenario(channel("a", "claude", provider="anthropic"))
    inference = InferenceRequest("count_tokens", "claude", {})
    assert floor.route(CAPPED_KEY, inference).targets
    floor.pricing = PricingPolicy(unpriced="refuse")
    with pytest.raises(ModelNotPriced):
        floor.route(CAPPED_KEY, inference)


@table_rows(
    ("price", "paid", "unpaid"),
    [
        (Price("m", 1), ("chat", "embeddings", "images", "transcriptions", "speech"), ("videos",)),
        (Price("m", image_nanos=1), ("images", "image_edits", "chat"), ("speech", "videos", "translations")),
        (Price("m", second_nanos=1), ("videos", "transcriptions", "speech"), ("chat", "rerank", "images")),
        (Price("m", sizes=(("*", 1),)), ("videos", "video_remixes"), ("chat", "moderations")),
        (Price("m", character_nanos_per_million=1), ("speech",), ("chat", "images", "transcriptions", "videos")),
        (Price("m"), ("chat", "images", "speech", "videos"), ()),
        (None, (), ("chat", "images", "speech", "videos", "responses", "completions")),
    ],
)
def test_a_price_is_for_what_it_has_an_amount_of(
    price: Price | None, paid: tuple[Operation, ...], unpaid: tuple[Operation, ...]
) -> None:
    assert [pays_for(price, operation) for operation in (*paid, *unpaid)] == [True] * len(paid) + [False] * len(unpaid)


def test_who_has_nothing_left_may_call_what_costs_nothing() -> None:
    floor = RouterScenario(channel("a", "m"), prices=[priced("m", 1)])
    assert not floor.may_be_free(CAPPED_KEY)
    floor.pricing = PricingPolicy(PriceList([priced("m", 1), Price("*", provider="ollama")]))
    assert not floor.may_be_free(CAPPED_KEY)
    floor.use(channel("a", "m"), channel("own", "m", provider="ollama"))
    assert floor.may_be_free(CAPPED_KEY)
    floor.pricing = PricingPolicy(unpriced="free")
    assert floor.may_be_free(CAPPED_KEY)


SHIPPED = read_prices(Config())
KNOWN = sorted(price.model for price in SHIPPED.list_prices() if "*" not in price.model)
MODELS = st.sampled_from(KNOWN) | st.sampled_from(["mystery-1", "gpt-9.9-secret", "claude-next", "llama3:8b"])
SPELLINGS = st.sampled_from(["{}", "x-ai/{}", "openai/{}", "nobody/{}", "{}-20260101", "{}@20260101", "{}:free"])
NAMES = st.builds(str.format, SPELLINGS, MODELS)
ASKED = st.sampled_from(sorted(OPERATIONS))
SLUGS = st.lists(st.sampled_from(sorted(PROVIDERS)), min_size=1, max_size=4, unique=True)


def ask_for(operation: Operation, model: str) -> InferenceRequest:
    inference = call_of(model)
    image = ImageRequest("a cat", sources=int(operation == "image_edits")) if operation.startswith("image") else None
    video = VideoRequest("a cat") if operation.startswith("video") else None
    return attrs.evolve(
        inference, operation=operation, image=image, video=video, max_prompt_tokens=9, max_output_tokens=9
    )


@given(NAMES, st.none() | MODELS, ASKED, SLUGS, st.sampled_from([CAPPED_KEY, CAPPED_ACCOUNT]))
def test_nobody_with_a_limit_reaches_a_provider_at_no_price(
    model: str, theirs: str | None, operation: Operation, slugs: list[str], caller: Caller
) -> None:
    """Whatever is asked for, however it is spelled and routed: a target has a price, which the whole request is held
    by, or costs nothing on purpose."""
    named = {"model_map": ((model, theirs),)} if theirs else {}
    floor = RouterScenario(*(channel(slug, model, provider=slug, **named) for slug in slugs))
    floor.pricing = PricingPolicy(SHIPPED)
    inference = ask_for(operation, model)
    try:
        targets = floor.route(caller, inference).targets
    except GatewayError:
        return
    for target in targets:
        assert OPERATIONS[operation].counts_only or target.price is not None
        if target.price is not None and target.price.units and not OPERATIONS[operation].counts_only:
            most = attrs.evolve(target.bound(inference), images=1, characters=9, duration_ms=9_000)
            assert target.cost(most) > 0
            assert target.cost(Usage()) == 0


@given(NAMES, ASKED, SLUGS)
def test_who_has_no_limit_is_served_as_before(model: str, operation: Operation, slugs: list[str]) -> None:
    floor = RouterScenario(*(channel(slug, model, provider=slug) for slug in slugs))
    inference, names = ask_for(operation, model), []
    for policy in (PricingPolicy(SHIPPED), PricingPolicy(SHIPPED, unpriced="free")):
        floor.pricing = policy
        try:
            names.append([target.channel.name for target in floor.route(UNCAPPED, inference).targets])
        except ModelNotPriced:
            raise
        except (GatewayError, ModelNotFound) as refused:
            names.append([refused.code])
    assert names[0] == names[1]
