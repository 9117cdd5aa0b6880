"""What can be called now, and by whom."""

from typing import Any

import attrs
import pytest

from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo
from gateway.errors import ModelNotFound
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer
from gateway.routing.model_catalog import ModelCatalog, SyncStatus
from gateway.routing.pricing_policy import PricingPolicy
from gateway.routing.router import Router
from tests.support.table_rows import table_rows

NOW = 1_000


def catalog_of(*channels: Channel) -> ModelCatalog:
    catalog = ModelCatalog(clock=lambda: float(NOW))
    catalog.set_channels(channels)
    return catalog


def channel(name: str = "up", *models: str, sync: bool = False, **aliases: str) -> Channel:
    return Channel(name, "custom", "http://x/v1", models=models, sync=sync, model_map=tuple(aliases.items()))


def caller_of(*globs: str) -> Caller:
    return Caller(Account(1, "acme"), ApiKey(1, 1, "k", b"", "", models=globs))


def ids(catalog: ModelCatalog, *globs: str) -> list[str]:
    return [listed.id for listed in catalog.list_models(caller_of(*globs))]


def serving(catalog: ModelCatalog, model: str, caller: Caller | None = None) -> dict[str, bool]:
    """Who serves ``model``, each with whether that is sure."""
    return {found.name: sure for found, sure in catalog.list_serving_channels(model, caller)}


def test_models_are_listed_once_and_sorted() -> None:
    assert ids(catalog_of(channel("one", "b", "a"), channel("two", "c", "a"))) == ["a", "b", "c"]


@table_rows(
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
    catalog.apply_listing(up, [ModelInfo("theirs", 5, "vendor")])
    found = {listed.id: listed.created_s for listed in catalog.list_models()}
    assert found == {"ours": 5, "theirs": 5, "other": NOW}


def test_an_alias_of_what_is_not_listed_is_as_old_as_its_channel_and_grows_no_younger() -> None:
    """A list that changes with every look would never have the same entity tag, which is that of its content."""
    now = [1_000.0]
    catalog, up = ModelCatalog(clock=lambda: now[0]), channel("up", "m", ours="unlisted")
    catalog.set_channels([up])
    models = catalog.list_models()
    now[0] += 60
    assert catalog.list_models() == models
    catalog.set_channels([attrs.evolve(up, weight=2)])
    assert catalog.list_models() == models


def test_one_model_is_found_or_not_by_what_the_list_shows() -> None:
    router = Router(
        catalog_of(channel("up", "a", "b")),
        LoadBalancer(lambda: 0.0, settings=DEFAULT_SETTINGS, shared=None),
        PricingPolicy(),
        models=(),
        routes={},
    )
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
    assert serving(catalog, "a", caller_of()) == {"all": True}
    assert serving(catalog, "a", vip) == serving(catalog, "a") == {"vips": True, "all": True}


def test_a_synchronized_channel_offers_nothing_until_it_has_answered() -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    assert (ids(catalog), catalog.find_offer(up)) == ([], None)
    added, removed = catalog.apply_listing(up, [ModelInfo("b", 1, "v"), ModelInfo("a", 1, "v")])
    assert (added, removed) == ({"a", "b"}, set())
    assert [listed.id for listed in catalog.find_offer(up) or ()] == ["a", "b"]


def test_a_model_goes_after_two_listings_without_it_in_a_row() -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    a, b = ModelInfo("a", 1, "v"), ModelInfo("b", 1, "v")
    catalog.apply_listing(up, [a, b])
    assert catalog.apply_listing(up, [b]) == (set(), set())
    assert catalog.apply_listing(up, [a, b]) == (set(), set())
    assert catalog.apply_listing(up, [b]) == (set(), set())
    assert ids(catalog) == ["a", "b"]
    assert catalog.apply_listing(up, [b]) == (set(), {"a"})
    assert ids(catalog) == ["b"]


def test_a_synchronized_channel_keeps_what_passes_its_globs() -> None:
    up = channel("up", "gpt-*", sync=True)
    catalog = catalog_of(up)
    catalog.apply_listing(up, [ModelInfo("gpt-1", 1, "v"), ModelInfo("tts-1", 1, "v")])
    assert ids(catalog) == ["gpt-1"]


# who serves a model


def test_who_serves_a_model_is_told_in_the_order_of_the_channels() -> None:
    catalog = catalog_of(channel("b", "m"), channel("c", "n"), channel("a", "m"))
    assert list(serving(catalog, "m")) == ["b", "a"]
    assert serving(catalog, "x") == {}


def test_a_channel_that_has_never_answered_may_serve_what_it_would_keep() -> None:
    catalog = catalog_of(channel("all", sync=True), channel("some", "gpt-*", sync=True), channel("still", "m"))
    assert serving(catalog, "m") == {"all": False, "still": True}
    assert serving(catalog, "gpt-1") == {"all": False, "some": False}


def test_a_channel_that_has_answered_serves_what_it_listed_and_nothing_else() -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    catalog.apply_listing(up, [ModelInfo("a", 1, "v")])
    assert (serving(catalog, "a"), serving(catalog, "b")) == ({"up": True}, {})
    catalog.apply_listing(up, [])
    catalog.apply_listing(up, [])
    assert serving(catalog, "a") == {}
    assert catalog.find_offer(up) == []  # an empty list is an answer


def test_an_alias_is_served_whatever_is_listed() -> None:
    up = channel("up", "gpt-*", sync=True, ours="theirs")
    catalog = catalog_of(up)
    assert serving(catalog, "ours") == {"up": False}, "its provider has not answered"
    catalog.apply_listing(up, [])
    assert (serving(catalog, "ours"), serving(catalog, "theirs")) == ({"up": True}, {})


@table_rows(
    ("models", "before", "after"),
    [((), ["gpt-5", "ours", "other"], ["ours"]), (("gpt-*",), ["gpt-5", "ours"], ["gpt-5", "ours"])],
)
def test_a_channel_whose_list_cannot_be_fetched_serves_only_what_an_operator_names(
    models: tuple[str, ...], before: list[str], after: list[str]
) -> None:
    up = channel("up", *models, sync=True, ours="theirs")
    catalog = catalog_of(up)
    state = catalog.state
    assert [name for name in ("gpt-5", "ours", "other") if serving(catalog, name)] == before
    catalog.note_failure(up, "nobody there")
    assert [name for name in ("gpt-5", "ours", "other") if serving(catalog, name)] == after
    assert catalog.state is not state, "routes that are remembered are made anew"
    catalog.apply_listing(up, [ModelInfo("gpt-5", 1, "v"), ModelInfo("other", 1, "v")])
    catalog.note_failure(up, "nobody there")
    assert serving(catalog, "gpt-5") == {"up": True}, "a list that was fetched once stays"


def test_a_glob_of_a_channel_that_is_not_synchronized_is_served_and_not_listed() -> None:
    up = channel("up", "local-?", "m")
    catalog = catalog_of(up)
    assert ids(catalog) == ["m"]
    assert [listed.id for listed in catalog.find_offer(up) or ()] == ["m"]
    assert serving(catalog, "local-1") == serving(catalog, "m") == {"up": True}
    assert serving(catalog, "local-10") == serving(catalog, "local-") == {}


def test_a_glob_of_a_synchronized_channel_serves_only_what_was_listed() -> None:
    up = channel("up", "gpt-*", sync=True)
    catalog = catalog_of(up)
    catalog.apply_listing(up, [ModelInfo("gpt-1", 1, "v")])
    assert (serving(catalog, "gpt-1"), serving(catalog, "gpt-2")) == ({"up": True}, {})


@table_rows("sync", [False, True])
def test_a_disabled_channel_serves_and_lists_nothing_and_is_still_there(sync: bool) -> None:
    off = attrs.evolve(channel("off", "m", "g*", sync=sync, ours="theirs"), status="disabled")
    catalog = catalog_of(off, channel("on", "n"))
    catalog.apply_listing(off, [ModelInfo("m", 1, "v")])
    assert [found.name for found in catalog.channels] == ["off", "on"]
    assert catalog.find_channel("off") is off
    assert ids(catalog) == ["n"]
    for model in ("m", "gx", "ours", "theirs"):
        assert serving(catalog, model) == {}


def test_a_channel_is_found_by_its_name_alone() -> None:
    catalog = catalog_of(channel("up", "m"))
    assert (catalog.find_channel("up"), catalog.find_channel("Up")) == (catalog.channels[0], None)


# other channels


def listed(*names: str) -> list[ModelInfo]:
    return [ModelInfo(name, 5, "v") for name in names]


def offers(catalog: ModelCatalog, name: str = "up") -> list[str] | None:
    """What the channel of that name offers; None where it has never said."""
    found = catalog.find_channel(name)
    offer = catalog.find_offer(found) if found else ()
    return None if offer is None else [model.id for model in offer]


@table_rows(
    "change",
    [
        {},
        {"api_keys": ("new",)},
        {"priority": 7, "weight": 3, "rpm": 1, "max_concurrency": 1, "groups": ("vip",)},
        {"headers": (("x", "y"),), "proxy": "http://p:1", "multiplier_ppm": 5},
        {"model_map": (("ours", "a"),), "models": ("a", "b*")},
        {"status": "disabled"},
    ],
)
def test_a_change_that_leads_to_the_same_server_keeps_what_is_known_of_its_models(change: dict[str, Any]) -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    catalog.apply_listing(up, listed("a", "b"))
    catalog.note_failure(up, "not now")
    known = catalog.find_sync_status(up)
    after = attrs.evolve(up, **change)
    catalog.set_channels([after])
    assert catalog.channels == (after,)
    assert offers(catalog) == ["a", "b"]
    assert catalog.find_sync_status(after) == known
    assert (known.at_s, known.error, known.added) == (NOW, "not now", ("a", "b"))


@table_rows(
    "change", [{"base_url": "http://y/v1"}, {"provider": "vllm"}, {"sync": False, "models": ("a",)}, {"name": "other"}]
)
def test_a_change_that_leads_elsewhere_forgets_what_is_known_of_its_models(change: dict[str, Any]) -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    catalog.apply_listing(up, listed("a", "b"))
    after = attrs.evolve(up, **change)
    catalog.set_channels([after])
    assert offers(catalog, after.name) == (None if after.sync else ["a"])
    assert catalog.find_sync_status(after) == SyncStatus()


def test_a_narrower_filter_holds_at_once_and_a_wider_one_from_the_next_listing_on() -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    catalog.apply_listing(up, listed("gpt-1", "gpt-2", "tts-1"))
    narrow = attrs.evolve(up, models=("gpt-*",))
    catalog.set_channels([narrow])
    assert (ids(catalog), serving(catalog, "tts-1")) == (["gpt-1", "gpt-2"], {})
    catalog.set_channels([up])
    assert ids(catalog) == ["gpt-1", "gpt-2"]
    catalog.apply_listing(up, listed("gpt-1", "gpt-2", "tts-1"))
    assert ids(catalog) == ["gpt-1", "gpt-2", "tts-1"]


def test_a_changed_list_of_declared_models_holds_at_once() -> None:
    up = channel("up", "a", "b")
    catalog = catalog_of(up)
    catalog.set_channels([attrs.evolve(up, models=("b", "c"))])
    assert ids(catalog) == ["b", "c"]


def test_absences_are_counted_over_a_change() -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    catalog.apply_listing(up, listed("a", "b"))
    catalog.apply_listing(up, listed("b"))
    after = attrs.evolve(up, weight=5)
    catalog.set_channels([after])
    assert catalog.apply_listing(after, listed("b")) == (set(), {"a"})


def test_a_declared_model_keeps_its_age_over_a_change_of_something_else() -> None:
    now = [1_000.0]
    catalog = ModelCatalog(clock=lambda: now[0])
    up = channel("up", "m")
    catalog.set_channels([up])
    now[0] = 2_000.0
    catalog.set_channels([attrs.evolve(up, weight=2), channel("new", "n")])
    assert {model.id: model.created_s for model in catalog.list_models()} == {"m": 1_000, "n": 2_000}


def test_a_channel_that_went_is_forgotten_even_if_it_comes_again() -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    catalog.apply_listing(up, listed("a"))
    catalog.set_channels([])
    assert (catalog.channels, ids(catalog), catalog.find_channel("up")) == ((), [], None)
    assert catalog.find_sync_status(up) == SyncStatus()
    catalog.set_channels([up])
    assert offers(catalog) is None


def test_channels_in_another_order_are_offered_in_it_and_keep_their_models() -> None:
    one, two = channel("one", sync=True), channel("two", sync=True)
    catalog = catalog_of(one, two)
    catalog.apply_listing(one, listed("a"))
    catalog.set_channels(iter([two, one]))
    assert (catalog.channels, offers(catalog, "one"), offers(catalog, "two")) == ((two, one), ["a"], None)


def test_a_listing_of_a_channel_that_was_changed_meanwhile_is_not_taken_in() -> None:
    """It was asked for with another filter, another key, or of another server."""
    up = channel(sync=True)
    after = attrs.evolve(up, models=("gpt-*",))
    catalog = catalog_of(after)
    assert catalog.apply_listing(up, listed("a")) == (set(), set())
    catalog.note_failure(up, "not now")
    assert (offers(catalog), catalog.find_sync_status(after)) == (None, SyncStatus())
    catalog.set_channels([])
    assert catalog.apply_listing(up, listed("a")) == (set(), set())
    catalog.note_failure(up, "not now")


def test_a_listing_of_a_channel_that_was_only_read_anew_meanwhile_is_taken_in() -> None:
    """As a stored one is whenever another is added or changed."""
    up = channel(sync=True)
    catalog = catalog_of(up)
    catalog.set_channels([attrs.evolve(up), channel("other", "m")])
    catalog.note_failure(up, "not now")
    assert catalog.find_sync_status(up).error == "not now"
    assert catalog.apply_listing(up, listed("a")) == ({"a"}, set())
    assert offers(catalog) == ["a"]


# what is known of listings


def test_of_a_channel_that_was_never_asked_nothing_is_known() -> None:
    up = channel(sync=True)
    assert catalog_of(up).find_sync_status(up) == SyncStatus(None, None, (), (), None)


def test_what_the_last_change_was_stays_known_over_listings_that_change_nothing() -> None:
    now = [1_000.0]
    catalog, up = ModelCatalog(clock=lambda: now[0]), channel(sync=True)
    catalog.set_channels([up])
    reported = []
    for names in (["b", "a"], ["b", "a"], ["b", "c"], ["b", "c"], ["b", "c"]):
        catalog.apply_listing(up, listed(*names))
        reported.append(attrs.astuple(catalog.find_sync_status(up)))
        now[0] += 600.7
    assert reported == [
        (1_000, None, ("a", "b"), (), 1_000),
        (1_600, None, ("a", "b"), (), 1_000),
        (2_201, None, ("c",), (), 2_201),
        (2_802, None, (), ("a",), 2_802),
        (3_402, None, (), ("a",), 2_802),
    ]


def test_a_failure_is_known_until_a_listing_succeeds_and_changes_nothing_else() -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    catalog.note_failure(up, "refused")
    assert (catalog.find_sync_status(up), offers(catalog)) == (SyncStatus(error="refused"), None)
    catalog.apply_listing(up, listed("a"))
    catalog.note_failure(up, "not now")
    assert catalog.find_sync_status(up) == SyncStatus(NOW, "not now", ("a",), (), NOW)
    assert offers(catalog) == ["a"]
    catalog.apply_listing(up, listed("a"))
    assert catalog.find_sync_status(up).error is None


def test_a_failure_between_two_absences_is_no_absence() -> None:
    up = channel(sync=True)
    catalog = catalog_of(up)
    catalog.apply_listing(up, listed("a", "b"))
    for _ in range(3):
        catalog.note_failure(up, "not now")
    catalog.apply_listing(up, listed("b"))
    catalog.note_failure(up, "not now")
    assert offers(catalog) == ["a", "b"]
    catalog.apply_listing(up, listed("b"))
    assert offers(catalog) == ["b"]
