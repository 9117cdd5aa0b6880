"""Models as they are offered to people: who may call what, and at what price."""

import pytest

from gateway.domain.account import Account
from gateway.domain.channel import Channel
from gateway.domain.price import Price, PriceList
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.model_offers import list_offers
from gateway.routing.pricing_policy import PricingPolicy

OPEN = Channel("open", "custom", "http://up/v1", models=("m", "n"), multiplier_ppm=2_000_000)
LAB = Channel("lab", "openai", "http://up/v1", models=("m", "x"), groups=("lab",), priority=1)
CLOSED = Channel("closed", "openai", "http://up/v1", models=("y",), groups=("vip",))
OFF = Channel("off", "openai", "http://up/v1", models=("z",), status="disabled")
CHEAP = Price("m", 10, provider="openai")
EXPENSIVE = Price("m", 20)
ALIAS = Price("theirs", 30)


@pytest.fixture
def catalog() -> ModelCatalog:
    made = ModelCatalog(clock=lambda: 7.0)
    made.set_channels([OPEN, LAB, CLOSED, OFF])
    return made


PRICING = PricingPolicy(PriceList([CHEAP, EXPENSIVE]), {"lab": 500_000, "vip": 3})


def account(*groups: str) -> Account:
    return Account(1, "acme", groups=groups)


def see(
    catalog: ModelCatalog, pricing: PricingPolicy, whose: Account | None
) -> dict[str, tuple[list[str], Price | None, int]]:
    return {
        offer.listed.id: ([channel.name for channel in offer.channels], offer.price, offer.multiplier_ppm)
        for offer in list_offers(catalog, pricing, whose)
    }


def test_an_operator_sees_every_model_with_its_channels_best_first(catalog: ModelCatalog) -> None:
    assert see(catalog, PRICING, None) == {
        "m": (["lab", "open"], CHEAP, 1_000_000),
        "n": (["open"], None, 1_000_000),
        "x": (["lab"], None, 1_000_000),
        "y": (["closed"], None, 1_000_000),
    }


def test_some_names_have_the_offers_that_they_have_among_all(catalog: ModelCatalog) -> None:
    for whose in (None, account("lab", "other"), account("vip")):
        offers = list_offers(catalog, PRICING, whose)
        for names in ({"m"}, {"x", "y", "unknown"}, set[str]()):
            expected = [offer for offer in offers if offer.listed.id in names]
            assert list_offers(catalog, PRICING, whose, names) == expected


def test_an_account_sees_what_a_key_of_it_could_call_at_what_its_first_group_pays(catalog: ModelCatalog) -> None:
    assert see(catalog, PRICING, account("lab", "other")) == {
        "m": (["lab", "open"], CHEAP, 500_000),
        "n": (["open"], None, 1_000_000),
        "x": (["lab"], None, 1_000_000),
    }
    assert see(catalog, PRICING, account("other")) == {
        "m": (["open"], EXPENSIVE, 2_000_000),
        "n": (["open"], None, 1_000_000),
    }


def test_an_account_that_may_use_any_group_sees_everything_at_the_plain_price(catalog: ModelCatalog) -> None:
    assert see(catalog, PRICING, account()) == see(catalog, PRICING, None)


def test_what_is_not_served_without_a_price_is_offered_to_operators_only(catalog: ModelCatalog) -> None:
    strict = PricingPolicy(PRICING.prices, PRICING.groups, unpriced="refuse")
    assert list(see(catalog, strict, account("lab"))) == ["m"]
    assert list(see(catalog, strict, None)) == ["m", "n", "x", "y"]


def test_a_price_is_found_by_the_callers_name_or_the_providers() -> None:
    catalog = ModelCatalog(clock=lambda: 7.0)
    catalog.set_channels([Channel("up", "custom", "http://up/v1", models=("theirs",), model_map=(("ours", "theirs"),))])
    assert see(catalog, PricingPolicy(PriceList([ALIAS])), None)["ours"] == (["up"], ALIAS, 1_000_000)
