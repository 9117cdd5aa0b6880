"""Which channels may serve a model."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.channel import Channel
from gateway.domain.selection import rank


def make(name: str, *models: str, alias: tuple[tuple[str, str], ...] = ()) -> Channel:
    return Channel(name, "custom", f"http://{name}", models=models, model_map=alias)


def names(channels: list[Channel]) -> list[str]:
    return [channel.name for channel in channels]


def test_channels_that_offer_the_model_come_in_file_order() -> None:
    channels = [make("c"), make("a"), make("b")]
    assert names(rank(channels, {"a": {"m": 1}, "b": {"x": 1}, "c": {"m": 1}}, "m")) == ["c", "a"]


def test_a_channel_whose_list_is_not_known_yet_comes_last() -> None:
    channels = [make("unknown"), make("sure")]
    assert names(rank(channels, {"unknown": None, "sure": {"m": 1}}, "m")) == ["sure", "unknown"]


def test_an_unknown_list_is_trusted_only_as_far_as_the_filter() -> None:
    channels = [make("gpt", "gpt-*"), make("all")]
    assert names(rank(channels, {"gpt": None, "all": None}, "claude")) == ["all"]


def test_an_alias_counts_even_while_the_list_is_not_known() -> None:
    channels = [make("up", "nothing", alias=(("ours", "theirs"),))]
    assert names(rank(channels, {"up": None}, "ours")) == ["up"]
    assert names(rank(channels, {"up": {}}, "ours")) == ["up"]
    assert rank(channels, {"up": {}}, "theirs") == []


def test_a_channel_nobody_asked_serves_nothing() -> None:
    assert rank([make("up")], {}, "m") == []


OFFERS = st.none() | st.dictionaries(st.sampled_from("mxy"), st.just(1))


@given(st.lists(OFFERS, max_size=6))
def test_a_ranking_is_a_selection_in_file_order_with_the_unknown_last(offers: list[dict[str, object] | None]) -> None:
    channels = [make(str(index)) for index in range(len(offers))]
    ranked = rank(channels, {str(index): offer for index, offer in enumerate(offers)}, "m")
    sure = [channels[index] for index, offer in enumerate(offers) if offer is not None and "m" in offer]
    unknown = [channels[index] for index, offer in enumerate(offers) if offer is None]
    assert ranked == sure + unknown
