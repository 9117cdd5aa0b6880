"""A channel: its names of models, its filter, and what it never shows."""

import attrs

from gateway.domain.channel import Channel
from gateway.domain.model_name import is_glob
from gateway.formats.errors.openai import mask
from tests.support.table_rows import table_rows

CHANNEL = Channel(
    "up",
    "custom",
    "http://x/v1",
    api_keys=("secret-key",),
    model_map=(("ours", "theirs"), ("ours", "late"), ("same", "same")),
    proxy="http://user:secret-proxy@p",
    headers=(("x-token", "secret-header"),),
)


@table_rows(
    ("model", "alias", "theirs"),
    [("ours", "theirs", "theirs"), ("same", "same", "same"), ("other", None, "other"), ("theirs", None, "theirs")],
)
def test_an_alias_is_the_first_that_maps(model: str, alias: str | None, theirs: str) -> None:
    assert CHANNEL.find_alias(model) == alias
    assert CHANNEL.upstream_model(model) == theirs


@table_rows(
    ("globs", "model", "kept"),
    [((), "x", True), (("gpt-*", "o[13]"), "o3", True), (("gpt-*", "o[13]"), "o2", False), (("m",), "m2", False)],
)
def test_the_filter_keeps_what_a_glob_matches_and_everything_without_one(
    globs: tuple[str, ...], model: str, kept: bool
) -> None:
    assert Channel("up", "custom", "http://x", models=globs).keeps(model) is kept


@table_rows(
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


@table_rows(
    ("name", "glob"),
    [("gpt-4", False), ("gpt-*", True), ("o?", True), ("o[13]", True), ("a]b", False), ("org/name:tag", False),
     ("", False)],
)  # fmt: skip
def test_a_name_with_a_mark_stands_for_every_name_that_matches_it(name: str, glob: bool) -> None:
    assert is_glob(name) is glob


def test_the_globs_among_its_models_are_its_patterns() -> None:
    channel = Channel("up", "custom", "http://x", models=("m", "gpt-*", "n", "o[13]"))
    assert channel.patterns == ("gpt-*", "o[13]")
    assert CHANNEL.patterns == ()


def test_the_patterns_follow_the_models_of_a_changed_channel() -> None:
    channel = attrs.evolve(Channel("up", "custom", "http://x", models=("gpt-*",)), models=("o?", "m"))
    assert channel.patterns == ("o?",)
    assert channel == Channel("up", "custom", "http://x", models=("o?", "m"))


@table_rows(
    ("models", "sync", "model", "matches"),
    [
        (("gpt-*",), False, "gpt-4", True),
        (("gpt-*",), False, "gpt-", True),
        (("gpt-*",), False, "GPT-4", False),
        (("m",), False, "m", False),  # it is offered by its name; nothing has to match
        (("m", "o?"), False, "o1", True),
        (("m", "o?"), False, "o10", False),
        ((), False, "m", False),
        (("gpt-*",), True, "gpt-4", False),  # there a glob only filters what is listed
    ],
)
def test_a_channel_that_is_not_synchronized_serves_whatever_matches(
    models: tuple[str, ...], sync: bool, model: str, matches: bool
) -> None:
    assert Channel("up", "custom", "http://x", models=models, sync=sync).matches(model) is matches


@table_rows(
    ("proxy", "password"),
    [
        (None, []),
        ("http://proxy:3128", []),
        ("http://user@proxy:3128", []),
        ("http://user:@proxy:3128", []),
        ("http://user:hunter2-hunter2@proxy:3128", ["hunter2-hunter2"]),
        ("http://:hunter2-hunter2@proxy", ["hunter2-hunter2"]),
    ],
)
def test_the_password_of_its_proxy_is_among_its_secrets(proxy: str | None, password: list[str]) -> None:
    channel = Channel("up", "custom", "http://x", ("k1", "k2"), proxy=proxy, headers=(("a", "v1"), ("b", "v2")))
    own = {"k1", "k2", "v1", "v2"}
    assert {*own, *password} <= set(channel.secrets)
    assert ("hunter2-hunter2" in channel.secrets) is bool(password)


@table_rows(
    "form",
    [
        "sk/secret+key=&1",
        "sk%2Fsecret%2Bkey%3D%261",
        "c2svc2VjcmV0K2tleT0mMQ==",
        "Bearer header-secret",
        "header-secret",
        "pass/word",
        "pass%2Fword",
        "dXNlcjpwYXNzL3dvcmQ=",
    ],
)
def test_a_secret_is_masked_in_every_form_that_an_echo_may_give_it(form: str) -> None:
    """In a URL, in base64, and without the scheme before it."""
    channel = Channel(
        "up",
        "custom",
        "http://x",
        ("sk/secret+key=&1",),
        proxy="http://user:pass%2Fword@proxy:3128",
        headers=(("Authorization", "Bearer header-secret"),),
    )
    assert form.rstrip("=") not in mask(f"sent {form} here", channel.secrets)


def test_words_of_an_ordinary_header_are_not_masked_one_by_one() -> None:
    channel = Channel("up", "custom", "http://x", headers=(("X-Title", "our little gateway"),))
    assert mask("this gateway is little known", channel.secrets) == "this gateway is little known"


def test_a_key_that_is_no_text_is_a_secret_like_any_other() -> None:
    """As an environment variable with bytes that are no UTF-8 arrives."""
    assert "abcdef\udcff" in Channel("up", "custom", "http://x", ("abcdef\udcff",)).secrets


def test_a_channel_without_secrets_has_none() -> None:
    assert Channel("up", "custom", "http://x").secrets == ()


@table_rows("hidden", [*CHANNEL.secrets])
def test_no_secret_of_a_channel_is_shown_and_all_are_masked(hidden: str) -> None:
    assert hidden not in repr(CHANNEL)
    assert hidden not in mask(f"I was sent {hidden}, which is wrong", CHANNEL.secrets)


def test_a_channel_never_shows_its_secrets() -> None:
    assert "secret" not in repr(CHANNEL)
    assert "secret" not in str(CHANNEL)
