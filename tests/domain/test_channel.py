"""A channel: its names of models, its filter, and what it never shows."""

import pytest

from gateway.domain.channel import Channel

CHANNEL = Channel(
    "up",
    "custom",
    "http://x/v1",
    api_keys=("secret-key",),
    model_map=(("ours", "theirs"), ("ours", "late"), ("same", "same")),
    proxy="http://user:secret-proxy@p",
    headers=(("x-token", "secret-header"),),
)


@pytest.mark.parametrize(
    ("model", "alias", "theirs"),
    [("ours", "theirs", "theirs"), ("same", "same", "same"), ("other", None, "other"), ("theirs", None, "theirs")],
)
def test_an_alias_is_the_first_that_maps(model: str, alias: str | None, theirs: str) -> None:
    assert CHANNEL.find_alias(model) == alias
    assert CHANNEL.upstream_model(model) == theirs


@pytest.mark.parametrize(
    ("globs", "model", "kept"),
    [((), "x", True), (("gpt-*", "o[13]"), "o3", True), (("gpt-*", "o[13]"), "o2", False), (("m",), "m2", False)],
)
def test_the_filter_keeps_what_a_glob_matches_and_everything_without_one(
    globs: tuple[str, ...], model: str, kept: bool
) -> None:
    assert Channel("up", "custom", "http://x", models=globs).keeps(model) is kept


@pytest.mark.parametrize(
    ("groups", "group", "served"),
    [
        ((), None, True),
        ((), "vip", True),
        (("vip", "lab"), "lab", True),
        (("vip",), "lab", False),
        (("vip",), None, False),
        (("vip",), "VIP", False),
        (("vip*",), "vip1", False),
    ],
)
def test_a_channel_with_groups_serves_their_keys_alone(
    groups: tuple[str, ...], group: str | None, served: bool
) -> None:
    assert Channel("up", "custom", "http://x", groups=groups).serves(group) is served


def test_a_channel_never_shows_its_secrets() -> None:
    assert "secret" not in repr(CHANNEL)
    assert "secret" not in str(CHANNEL)
