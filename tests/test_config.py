"""The tree of the configuration: what each section becomes, and what it refuses."""

from decimal import Decimal
from typing import Any

import attrs
import pytest

from gateway.config import ChannelSection, Config, PriceSection, ServerSection, StoreSection
from gateway.domain.channel import Channel, Timeouts
from gateway.domain.price import Price
from gateway.domain.reading import Problems, read_table

CHANNEL = {"name": "up", "provider": "openai", "sync": True}
ACCOUNT = {"name": "acme"}
KEY = {"name": "laptop", "account": "acme", "secret": "sk-" + "a" * 20}


def problems(**tables: Any) -> dict[str, str]:
    with pytest.raises(Problems) as caught:
        read_table(tables, Config)
    return dict(caught.value.problems)


def channel_problems(**extra: Any) -> dict[str, str]:
    found = problems(channel=[CHANNEL | extra])
    return {path.removeprefix("channel[0]").removeprefix("."): what for path, what in found.items()}


def test_nothing_said_is_the_public_defaults() -> None:
    config = read_table({}, Config)
    assert (config.server.host, config.server.port, config.server.max_body_mb) == ("127.0.0.1", 8080, 32)
    assert config == Config() == Config(ServerSection(), StoreSection())


@pytest.mark.parametrize(
    ("key", "value"),
    [("port", -1), ("port", 65_536), ("port", "8080"), ("base_url", "example.com"), ("base_url", "http://u:p@x"),
     ("drain_timeout_s", -1), ("max_body_mb", 0), ("max_body_mb", 1025), ("log_format", "xml"), ("hots", "x")],
)  # fmt: skip
def test_a_bad_setting_of_the_server_is_refused(key: str, value: object) -> None:
    assert set(problems(server={key: value})) == {f"server.{key}"}


@pytest.mark.parametrize("url", ["", "sqlite:////var/lib/gateway.db", "sqlite:///relative.db"])
def test_the_store_is_a_file_of_sqlite(url: str) -> None:
    assert read_table({"store": {"url": url}}, Config).store.url == url


@pytest.mark.parametrize("url", ["postgres://x/y", "/var/lib/gateway.db", "sqlite://", "sqlite:///"])
def test_any_other_store_is_refused(url: str) -> None:
    assert set(problems(store={"url": url})) == {"store.url"}


def test_a_channel_becomes_what_it_declares() -> None:
    table = {
        "name": "up",
        "provider": "custom",
        "base_url": "http://host:1/v1/",
        "api_keys": ["one", "two"],
        "models": ["a", "b"],
        "model_map": {"ours": "theirs"},
        "groups": ["g"],
        "priority": -5,
        "weight": 7,
        "max_concurrency": 3,
        "rpm": 4,
        "connect_timeout_s": 1,
        "first_byte_timeout_s": 2,
        "idle_timeout_s": 3,
        "total_timeout_s": 4.5,
        "proxy": "http://p:1",
        "headers": {"X-Title": "us"},
        "price_multiplier": Decimal("1.2"),
    }
    assert read_table(table, ChannelSection).channel() == Channel(
        name="up",
        provider="custom",
        base_url="http://host:1/v1",
        api_keys=("one", "two"),
        models=("a", "b"),
        model_map=(("ours", "theirs"),),
        groups=("g",),
        priority=-5,
        weight=7,
        max_concurrency=3,
        rpm=4,
        timeouts=Timeouts(1, 2, 3, 4.5),
        proxy="http://p:1",
        headers=(("X-Title", "us"),),
        multiplier_ppm=1_200_000,
    )


def test_a_short_channel_has_its_vendors_address_and_the_defaults() -> None:
    channel = read_table(CHANNEL | {"api_key": "k"}, ChannelSection).channel()
    assert channel == Channel("up", "openai", "https://api.openai.com/v1", ("k",), sync=True)


@pytest.mark.parametrize(
    ("extra", "key"),
    [
        ({"name": ""}, "name"),
        ({"provider": "opanai"}, "provider"),
        ({"provider": "demo"}, "provider"),
        ({"provider": "custom"}, "base_url"),
        ({"base_url": "host:80"}, "base_url"),
        ({"api_key": "a", "api_keys": ["b"]}, "api_keys"),
        ({"sync": False}, "models"),
        ({"weight": 0}, "weight"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"rpm": -1}, "rpm"),
        ({"connect_timeout_s": 0}, "connect_timeout_s"),
        ({"idle_timeout_s": -1}, "idle_timeout_s"),
        ({"proxy": "socks5://x"}, "proxy"),
        ({"headers": {"X": 5}}, "headers"),
        ({"model_map": {"a": ["b"]}}, "model_map"),
        ({"price_multiplier": -1}, "price_multiplier"),
        ({"modles": ["x"]}, "modles"),
    ],
)
def test_a_bad_channel_is_refused_under_its_key(extra: dict[str, Any], key: str) -> None:
    assert key in channel_problems(**extra)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X Title", "a"),
        ("X-Title:", "a"),
        ("", "a"),
        ("X-Title", "a\r\nX-Evil: b"),
        ("X-Title", "a\nb"),
        ("X", "a\x00"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(name: str, value: str) -> None:
    assert "headers" in channel_problems(headers={name: value})


@pytest.mark.parametrize(
    "extra",
    [
        {"api_key": ["hunter2"]},
        {"api_keys": "hunter2"},
        {"api_keys": [{"hunter2": 1}]},
        {"proxy": "socks5://user:hunter2@x"},
        {"headers": {"Authorization": ["hunter2"]}},
        {"api_kye": "hunter2"},
        {"base_url": "http://user:hunter2@host/v1"},
    ],
)
def test_a_problem_never_shows_a_secret(extra: dict[str, Any]) -> None:
    assert "hunter2" not in str(channel_problems(**extra))


def test_a_configuration_never_shows_its_secrets() -> None:
    channel = CHANNEL | {"api_key": "hunter2", "proxy": "http://hunter2@x", "headers": {"X": "hunter2"}}
    second = CHANNEL | {"name": "two", "api_keys": ["hunter2"]}
    key = KEY | {"secret": "sk-hunter2-hunter2-hunter2"}
    config = read_table({"channel": [channel, second], "account": [ACCOUNT], "key": [key]}, Config)
    assert "hunter2" not in repr(config)
    assert "hunter2" not in repr([section.channel() for section in config.channel])


@pytest.mark.parametrize(
    ("tables", "paths"),
    [
        ({"channel": [CHANNEL, CHANNEL]}, {"channel[1].name"}),
        ({"account": [ACCOUNT, {"name": "b"}, ACCOUNT]}, {"account[2].name"}),
        ({"price": [{"model": "m"}, {"model": "m"}]}, {"price[1].model"}),
        ({"key": [KEY]}, {"key[0].account"}),
        ({"account": [ACCOUNT], "key": [KEY, KEY | {"secret": "sk-" + "b" * 20}]}, {"key[1].name"}),
        ({"account": [ACCOUNT], "key": [KEY, KEY | {"name": "b"}]}, {"key[1].secret"}),
        ({"account": [ACCOUNT], "key": [{"name": "a", "account": "acme"}]}, {"key[0].secret"}),
    ],
)
def test_tables_must_agree_with_each_other(tables: dict[str, Any], paths: set[str]) -> None:
    assert set(problems(**tables)) == paths


def test_the_same_name_under_two_accounts_is_no_problem() -> None:
    keys = [KEY, KEY | {"account": "b", "secret": "sk-" + "b" * 20}]
    assert len(read_table({"account": [ACCOUNT, {"name": "b"}], "key": keys}, Config).key) == 2


def test_a_price_becomes_integers() -> None:
    table = {
        "model": "m",
        "input_usd_per_million": Decimal("0.15"),
        "cached_input_usd_per_million": Decimal("0.075"),
        "output_usd_per_million": 1,
        "usd_per_image": Decimal("0.04"),
        "usd_per_second": Decimal("0.1"),
    }
    expected = Price("m", 150_000_000, 75_000_000, 10**9, 40_000_000, 100_000_000)
    assert read_table(table, PriceSection).price() == expected
    assert read_table({"model": "m"}, PriceSection).price() == Price("m")


def test_the_tree_cannot_be_changed() -> None:
    config = Config()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        config.server.port = 1  # type: ignore[misc]
