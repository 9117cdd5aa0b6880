"""A call becomes attempts."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai_chat import read_chat_call
from gateway.dialects.openai_embeddings import read_embeddings_call
from gateway.domain.call import Call
from gateway.domain.catalog import Listed
from gateway.domain.channel import Channel
from gateway.domain.fault import ModelNotFound
from gateway.domain.selection import MAX_ATTEMPTS
from gateway.flow.models import Catalog
from gateway.flow.routing import route


def call_of(model: str = "m", **more: Any) -> Call:
    return read_chat_call({"model": model, "messages": [{"role": "user", "content": "hi"}], **more})


def channel(name: str, *models: str, **more: Any) -> Channel:
    return Channel(name, "custom", f"http://{name}/v1", (f"key-of-{name}",), models, **more)


def names(catalog: Catalog, model: str = "m") -> list[str]:
    return [attempt.channel.name for attempt in route(call_of(model), catalog)]


def catalog_of(*channels: Channel) -> Catalog:
    catalog = Catalog(clock=lambda: 0.0)
    catalog.add_channels(channels)
    return catalog


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
