"""What can be called now, and by whom."""

import attrs
import pytest

from gateway.domain.caller import Account, ApiKey, Caller
from gateway.domain.catalog import Listed
from gateway.domain.channel import Channel
from gateway.domain.fault import ModelNotFound
from gateway.domain.price import PriceList
from gateway.flow.models import Catalog, write_etag
from gateway.flow.routing import Router

NOW = 1_000


def catalog_of(*channels: Channel) -> Catalog:
    catalog = Catalog(clock=lambda: float(NOW))
    catalog.add_channels(channels)
    return catalog


def channel(name: str = "up", *models: str, sync: bool = False, **aliases: str) -> Channel:
    return Channel(name, "custom", "http://x/v1", models=models, sync=sync, model_map=tuple(aliases.items()))


def caller_of(*globs: str) -> Caller:
    return Caller(Account(1, "acme"), ApiKey(1, 1, "k", b"", "", models=globs))


def ids(catalog: Catalog, *globs: str) -> list[str]:
    return [listed.id for listed in catalog.list_models(caller_of(*globs))]


def test_models_are_listed_once_and_sorted() -> None:
    assert ids(catalog_of(channel("one", "b", "a"), channel("two", "c", "a"))) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        ((), ["a/one", "a/two", "b"]),
        (("a/*",), ["a/one", "a/two"]),
        (("b", "a/t*"), ["a/two", "b"]),
        (("A/*",), []),
        (("?",), ["b"]),
        (("nothing",), []),
    ],
)
def test_a_key_sees_what_its_globs_let_through(globs: tuple[str, ...], expected: list[str]) -> None:
    assert ids(catalog_of(channel("up", "a/one", "a/two", "b")), *globs) == expected


def test_the_restriction_is_of_the_name_the_caller_uses() -> None:
    catalog = catalog_of(channel("up", "theirs", ours="theirs"))
    assert ids(catalog, "ours") == ["ours"]
    assert ids(catalog, "theirs") == ["theirs"]


def test_an_alias_is_a_model_with_the_age_of_what_it_stands_for() -> None:
    up = channel(sync=True, ours="theirs", other="unlisted")
    catalog = catalog_of(up)
    catalog.apply_listing(up, [Listed("theirs", 5, "vendor")])
    found = {listed.id: listed.created_s for listed in catalog.list_models()}
    assert found == {"ours": 5, "theirs": 5, "other": NOW}


def test_one_model_is_found_or_not_by_what_the_list_shows() -> None:
    router = Router(catalog_of(channel("up", "a", "b")), PriceList([]))
    assert router.get_model(caller_of("a"), "a").id == "a"
    for model in ("b", "c", "A", ""):
        with pytest.raises(ModelNotFound) as caught:
            router.get_model(caller_of("a"), model)
        assert caught.value.param == "model"


def test_a_key_sees_the_models_of_the_channels_that_serve_its_group() -> None:
    vips = attrs.evolve(channel("vips", "a", "c", ours="a"), groups=("vip",))
    catalog = catalog_of(vips, channel("all", "a", "b"))
    vip = attrs.evolve(caller_of(), key=attrs.evolve(caller_of().key, group="vip"))
    assert [listed.id for listed in catalog.list_models(caller_of())] == ["a", "b"]
    assert [listed.id for listed in catalog.list_models(vip)] == ["a", "b", "c", "ours"]
    assert [listed.id for listed in catalog.list_models()] == ["a", "b", "c", "ours"]
    assert [found.name for found in catalog.rank("a", caller_of())] == ["all"]
    assert [found.name for found in catalog.rank("a", vip)] == ["vips", "all"]
    assert [found.name for found in catalog.rank("a")] == ["vips", "all"]


def test_a_synchronised_channel_offers_nothing_until_it_has_answered() -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    assert (ids(catalog), catalog.find_offer(up)) == ([], None)
    came, went = catalog.apply_listing(up, [Listed("b", 1, "v"), Listed("a", 1, "v")])
    assert (came, went) == ({"a", "b"}, set())
    assert [listed.id for listed in catalog.find_offer(up) or ()] == ["a", "b"]


def test_a_model_goes_after_two_listings_without_it_in_a_row() -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    a, b = Listed("a", 1, "v"), Listed("b", 1, "v")
    catalog.apply_listing(up, [a, b])
    assert catalog.apply_listing(up, [b]) == (set(), set())
    assert catalog.apply_listing(up, [a, b]) == (set(), set())
    assert catalog.apply_listing(up, [b]) == (set(), set())
    assert ids(catalog) == ["a", "b"]
    assert catalog.apply_listing(up, [b]) == (set(), {"a"})
    assert ids(catalog) == ["b"]


def test_a_synchronised_channel_keeps_what_passes_its_globs() -> None:
    up = channel("up", "gpt-*", sync=True)
    catalog = catalog_of(up)
    catalog.apply_listing(up, [Listed("gpt-1", 1, "v"), Listed("tts-1", 1, "v")])
    assert ids(catalog) == ["gpt-1"]


def test_the_entity_tag_changes_with_the_list_and_not_otherwise() -> None:
    one, two = Listed("a", 1, "v"), Listed("b", 1, "v")
    tags = {write_etag([one]), write_etag([two]), write_etag([one, two]), write_etag([]), write_etag([two, one])}
    assert len(tags) == 5
    assert write_etag([one, two]) == write_etag(iter([one, two]))
    assert all(tag.startswith('"') and tag.endswith('"') and tag[1:-1].isalnum() for tag in tags)
    assert write_etag([Listed("a", 1, "v", absences=1)]) == write_etag([one])
