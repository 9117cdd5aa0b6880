"""The tree of the configuration: what each section becomes, and what it refuses."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.price_spec import GroupSpec, PriceSpec
from gateway.config.loader import ConfigError, read_config
from gateway.config.schema import (
    FORMS,
    BillingSection,
    Config,
    EgressSection,
    LedgerSection,
    MediaSection,
    ModelSection,
    RoutingSection,
    SafetySection,
)
from gateway.config.server_schema import ClusterSection, RateLimitsSection, ServerSection, StoreSection
from gateway.domain.account_spec import AccountSpec, KeySpec
from gateway.domain.capability import UNKNOWN_CAPABILITY, Capability
from gateway.domain.channel import Channel, QueueSettings, Timeouts
from gateway.domain.circuit_breaker import BreakerSettings
from gateway.domain.media import MediaRules, check_link, sign_link
from gateway.domain.model_description import ModelDescription
from gateway.domain.price import Price
from gateway.parsing import ValidationErrors, parse_table
from gateway.routing.channel_spec import ChannelSpec
from gateway.routing.load_balancer import DEFAULT_SETTINGS, RetrySettings
from tests.support.table_rows import table_rows

CHANNEL = {"name": "up", "provider": "openai", "sync": True}
ACCOUNT = {"name": "acme"}
KEY = {"name": "laptop", "account": "acme", "secret": "sk-" + "a" * 20}


def problems(**tables: Any) -> dict[str, str]:
    with pytest.raises(ValidationErrors) as caught:
        parse_table(tables, Config)
    return dict(caught.value.problems)


def channel_problems(**extra: Any) -> dict[str, str]:
    found = problems(channel=[CHANNEL | extra])
    return {path.removeprefix("channel[0]").removeprefix("."): what for path, what in found.items()}


def test_nothing_said_is_the_public_defaults() -> None:
    config = parse_table({}, Config)
    assert (config.server.host, config.server.port, config.server.max_body_mb) == ("127.0.0.1", 8080, 16)
    assert (config.server.trusted_proxies, config.ledger.on_crash, config.billing.unpriced) == (
        (),
        "release",
        "refuse_limited",
    )
    sections = (
        ServerSection(),
        StoreSection(),
        ClusterSection(),
        RateLimitsSection(),
        LedgerSection(),
        BillingSection(),
        RoutingSection(),
    )
    assert config == Config() == Config(*sections)


@table_rows(
    ("key", "value"),
    [("port", -1), ("port", 65_536), ("port", "8080"), ("base_url", "example.com"), ("base_url", "http://u:p@x"),
     ("drain_timeout_s", -1), ("max_body_mb", 0), ("max_body_mb", 1025), ("log_format", "xml"), ("hots", "x"),
     ("max_upload_mb", 0), ("max_upload_mb", 4097), ("max_upload_mb", 1.5), ("max_upload_mb", "128"),
     ("max_upload_mb", True), ("max_file_mb", 0), ("max_file_mb", -1), ("max_file_mb", 4097), ("max_files_mb", 1),
     ("trusted_proxies", ["10.0.0.0/33"]), ("trusted_proxies", ["10.0.0.1", "proxy"]), ("trusted_proxies", [""]),
     ("trusted_proxies", "10.0.0.1"), ("trusted_proxies", ["*"])],
)  # fmt: skip
def test_a_bad_setting_of_the_server_is_refused(key: str, value: object) -> None:
    assert set(problems(server={key: value})) == {f"server.{key}"}


def test_proxies_are_trusted_by_address_or_network() -> None:
    proxies = ["127.0.0.1", "10.1.2.3/8", "2001:db8::/32", "::1"]
    assert parse_table({"server": {"trusted_proxies": proxies}}, Config).server.trusted_proxies == tuple(proxies)


@table_rows("policy", ["release", "charge"])
def test_a_crash_releases_or_charges(policy: str) -> None:
    assert parse_table({"ledger": {"on_crash": policy}}, Config).ledger.on_crash == policy


@table_rows(
    ("tables", "path"),
    [
        ({"ledger": {"on_crash": "refund"}}, "ledger.on_crash"),
        ({"ledger": {"on_crash": True}}, "ledger.on_crash"),
        ({"ledger": {"on_cash": "charge"}}, "ledger.on_cash"),
        ({"billing": {"require_price": "yes"}}, "billing.require_price"),
        ({"billing": {"require_price": 1}}, "billing.require_price"),
        ({"group": [{}]}, "group[0].name"),
        ({"group": [{"name": ""}]}, "group[0].name"),
        ({"group": [{"name": "vip", "price_multiplier": -1}]}, "group[0].price_multiplier"),
        ({"group": [{"name": "vip", "price_multiplier": 101}]}, "group[0].price_multiplier"),
        ({"group": [{"name": "vip", "price_multiplier": "1"}]}, "group[0].price_multiplier"),
        ({"group": [{"name": "a"}, {"name": "vip", "prise_multiplier": 1}]}, "group[1].prise_multiplier"),
    ],
)
def test_a_bad_setting_about_money_is_refused_under_its_path(tables: dict[str, Any], path: str) -> None:
    assert set(problems(**tables)) == {path}


def test_a_price_may_be_required() -> None:
    assert parse_table({"billing": {"unpriced": "refuse"}}, Config).billing.unpriced == "refuse"


def test_a_group_pays_the_price_or_its_own_part_of_it() -> None:
    tables = {"group": [{"name": "all"}, {"name": "vip", "price_multiplier": Decimal("0.8")}]}
    assert parse_table(tables, Config).group == (GroupSpec("all", Decimal(1)), GroupSpec("vip", Decimal("0.8")))


@table_rows(("what", "expected"), [({"quota_status": 403}, 403), ({"quota_status": 429}, 429), ({}, None)])
def test_an_account_and_a_key_may_choose_the_status_of_their_cap(what: dict[str, int], expected: int | None) -> None:
    config = parse_table({"account": [ACCOUNT | what], "key": [KEY | what]}, Config)
    specs: list[AccountSpec | KeySpec] = [*config.account, *config.key]
    assert [spec.quota_status for spec in specs] == [expected, expected]


@table_rows("status", [402, 200, "429", True])
def test_any_other_status_of_a_cap_is_refused(status: object) -> None:
    what = {"quota_status": status}
    found = problems(account=[ACCOUNT | what], key=[KEY | what])
    assert set(found) == {"account[0].quota_status", "key[0].quota_status"}


@table_rows(
    "url", ["", "sqlite:////var/lib/gateway.db", "sqlite:///relative.db", "postgresql://me:hidden@host/gateway"]
)
def test_the_store_is_a_file_of_sqlite_or_on_a_server(url: str) -> None:
    store = parse_table({"store": {"url": url}}, Config).store
    assert (store.url, store.is_postgres) == (url, url.startswith("postgresql:"))
    assert "hidden" not in repr(store)


@table_rows("url", ["postgres://x/y", "/var/lib/gateway.db", "sqlite://", "sqlite:///", "postgresql://"])
def test_any_other_store_is_refused(url: str) -> None:
    assert set(problems(store={"url": url})) == {"store.url"}


@table_rows("key", ["", "0" * 64, "0123456789abcdefABCDEF" + "0" * 42])
def test_a_master_key_is_64_hexadecimal_digits_or_the_data_folders(key: str) -> None:
    store = parse_table({"store": {"master_key": key}}, Config).store
    assert store.master_key == key
    assert not key or key not in repr(store)


@table_rows("key", ["0" * 63, "0" * 65, "g" * 64, " " + "0" * 63, "0" * 64 + "\n", 5])
def test_any_other_master_key_is_refused_and_not_shown(key: object) -> None:
    found = problems(store={"master_key": key})
    assert set(found) == {"store.master_key"}
    assert str(key) not in str(found)


# routing


def test_what_is_said_of_routing_is_how_calls_are_spread() -> None:
    table = {
        "max_attempts": 5,
        "retry_ratio": 0.5,
        "trip_failures": 4,
        "trip_ratio": 0.75,
        "cooldown_s": 2,
        "max_cooldown_s": 60,
        "warm_up_s": 0,
        "sync_interval_s": 30,
    }
    section = parse_table({"routing": table}, Config).routing
    rules = BreakerSettings(failures=4, ratio=0.75, cooldown_s=2.0, max_cooldown_s=60.0, ramp_s=0.0)
    assert section.settings() == RetrySettings(rules, max_attempts=5, retry_ratio=0.5)
    assert section.sync_interval_s == 30.0


def test_nothing_said_of_routing_is_the_switchboards_own_defaults() -> None:
    assert RoutingSection().settings() == DEFAULT_SETTINGS
    assert RoutingSection().sync_interval_s == 600.0


@table_rows(
    ("key", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", 11),
        ("max_attempts", 1.5),
        ("max_attempts", True),
        ("retry_ratio", -0.1),
        ("retry_ratio", 1.1),
        ("retry_ratio", "0.2"),
        ("trip_failures", 0),
        ("trip_failures", 1_001),
        ("trip_ratio", 0),
        ("trip_ratio", 1.01),
        ("trip_ratio", float("nan")),
        ("cooldown_s", 0),
        ("cooldown_s", -1),
        ("cooldown_s", float("inf")),
        ("max_cooldown_s", 0),
        ("max_cooldown_s", 4.9),  # below cooldown_s
        ("warm_up_s", -0.1),
        ("sync_interval_s", 0),
        ("sync_interval_s", -600),
        ("max_attemps", 3),
        ("settings", {}),
    ],
)
def test_a_bad_setting_of_routing_is_refused_under_its_key(key: str, value: object) -> None:
    assert set(problems(routing={key: value})) == {f"routing.{key}"}


@table_rows(
    ("key", "value"),
    [("max_attempts", 1), ("max_attempts", 10), ("retry_ratio", 0), ("retry_ratio", 1), ("trip_failures", 1_000),
     ("trip_ratio", 1), ("trip_ratio", 0.001), ("max_cooldown_s", 5), ("warm_up_s", 0)],
)  # fmt: skip
def test_the_bounds_of_routing_are_within_them(key: str, value: float) -> None:
    assert getattr(parse_table({"routing": {key: value}}, Config).routing, key) == value


def test_a_longest_cooldown_under_the_first_one_is_no_cooldown() -> None:
    assert set(problems(routing={"cooldown_s": 400})) == {"routing.max_cooldown_s"}


# channels


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
        "queue": {"length": 5, "wait_s": 6, "one_model": True, "switch_after_s": 0.5},
        "rpm": 4,
        "connect_timeout_s": 1,
        "first_byte_timeout_s": 2,
        "idle_timeout_s": 3,
        "total_timeout_s": 4.5,
        "proxy": "http://p:1",
        "headers": {"X-Title": "us"},
        "price_multiplier": Decimal("1.2"),
        "fan_out": True,
        "pass_urls": True,
        "owned_by": "us",
        "allow_fields": ["service_tier", "tools.web_search*"],
        "status": "disabled",
    }
    assert parse_table(table, ChannelSpec).channel() == Channel(
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
        queue=QueueSettings(5, 6.0, True, 0.5),
        rpm=4,
        timeouts=Timeouts(1, 2, 3, 4.5),
        proxy="http://p:1",
        headers=(("X-Title", "us"),),
        multiplier_ppm=1_200_000,
        fan_out=True,
        pass_urls=True,
        owned_by="us",
        allow_fields=("service_tier", "tools.web_search*"),
        status="disabled",
    )


def test_a_short_channel_has_its_vendors_address_and_the_defaults() -> None:
    channel = parse_table(CHANNEL | {"api_key": "k"}, ChannelSpec).channel()
    assert channel == Channel("up", "openai", "https://api.openai.com/v1", ("k",), sync=True)


@table_rows(
    ("extra", "key"),
    [
        ({"name": ""}, "name"),
        ({"provider": "opanai"}, "provider"),
        ({"provider": "demo"}, "provider"),
        ({"provider": "custom"}, "base_url"),
        ({"base_url": "host:80"}, "base_url"),
        ({"api_key": "a", "api_keys": ["b"]}, "api_keys"),
        ({"api_keys": ["a", "b", "a"]}, "api_keys"),
        ({"api_keys": ["a b"]}, "api_keys"),
        ({"api_keys": [""]}, "api_keys"),
        ({"api_keys": ["a\nb"]}, "api_keys"),
        ({"api_key": "a b"}, "api_key"),
        ({"api_key": "a\r\nX-Evil: b"}, "api_key"),
        ({"api_key": "schlüssel"}, "api_key"),
        ({"api_key": "a" * 4_097}, "api_key"),
        ({"sync": False}, "models"),
        ({"provider": "azure_openai", "base_url": "https://x.openai.azure.com/openai/v1"}, "sync"),
        ({"provider": "azure_openai"}, "base_url"),
        ({"priority": 1_000_001}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"weight": 10_001}, "weight"),
        ({"status": "off"}, "status"),
        ({"proxy": "http://["}, "proxy"),
        ({"proxy": "http://user:p w@proxy"}, "proxy"),
        ({"proxy": "http://"}, "proxy"),
        ({"proxy": "http://proxy:70000"}, "proxy"),
        ({"models": [""]}, "models"),
        ({"models": ["m", "a\nb"]}, "models"),
        ({"models": ["m" * 257]}, "models"),
        ({"groups": [""]}, "groups"),
        ({"model_map": {"": "theirs"}}, "model_map"),
        ({"model_map": {"ours": ""}}, "model_map"),
        ({"model_map": {"ours": "a\x00"}}, "model_map"),
        ({"weight": 0}, "weight"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"rpm": -1}, "rpm"),
        ({"connect_timeout_s": 0}, "connect_timeout_s"),
        ({"idle_timeout_s": -1}, "idle_timeout_s"),
        ({"proxy": "socks4://x"}, "proxy"),
        ({"proxy": "https://proxy:3128"}, "proxy"),
        ({"proxy": "socks5://"}, "proxy"),
        ({"headers": {"X": 5}}, "headers"),
        ({"model_map": {"a": ["b"]}}, "model_map"),
        ({"price_multiplier": -1}, "price_multiplier"),
        ({"modles": ["x"]}, "modles"),
        ({"fan_out": "yes"}, "fan_out"),
        ({"pass_urls": 1}, "pass_urls"),
        ({"pass_url": True}, "pass_url"),
    ],
)
def test_a_bad_channel_is_refused_under_its_key(extra: dict[str, Any], key: str) -> None:
    assert key in channel_problems(**extra)


@table_rows("scheme", ["http", "socks5", "socks5h", "SOCKS5"])
@table_rows("rest", ["proxy:1080", "me:hidden@proxy:1080", "[::1]:1080"])
def test_a_proxy_is_of_http_or_of_socks_and_may_have_credentials(scheme: str, rest: str) -> None:
    proxy = f"{scheme}://{rest}"
    config = parse_table({"channel": [CHANNEL | {"proxy": proxy}]}, Config)
    assert config.channel[0].channel().proxy == proxy


@table_rows(
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


@table_rows(
    "extra",
    [
        {"api_key": ["hunter2"]},
        {"api_keys": "hunter2"},
        {"api_keys": [{"hunter2": 1}]},
        {"proxy": "socks4://user:hunter2@x"},
        {"headers": {"Authorization": ["hunter2"]}},
        {"api_kye": "hunter2"},
        {"base_url": "http://user:hunter2@host/v1"},
        {"base_url": "http://user:p@ss/hunter2@host/v1"},
        {"base_url": "http://user:a?#/hunter2@host/v1"},
        {"base_url": "https://generativelanguage.googleapis.com/v1beta?key=hunter2"},
        {"base_url": "https://host/v1#hunter2"},
    ],
)
def test_a_problem_never_shows_a_secret(extra: dict[str, Any]) -> None:
    assert "hunter2" not in str(channel_problems(**extra))


def test_a_configuration_never_shows_its_secrets() -> None:
    channel = CHANNEL | {"api_key": "hunter2", "proxy": "http://hunter2@x", "headers": {"X": "hunter2"}}
    second = CHANNEL | {"name": "two", "api_keys": ["hunter2"]}
    key = KEY | {"secret": "sk-hunter2-hunter2-hunter2"}
    config = parse_table({"channel": [channel, second], "account": [ACCOUNT], "key": [key]}, Config)
    assert "hunter2" not in repr(config)
    assert "hunter2" not in repr([section.channel() for section in config.channel])


@table_rows(
    ("tables", "paths"),
    [
        ({"channel": [CHANNEL, CHANNEL]}, {"channel[1].name"}),
        ({"account": [ACCOUNT, {"name": "b"}, ACCOUNT]}, {"account[2].name"}),
        ({"group": [{"name": "vip"}, {"name": "lab"}, {"name": "vip", "price_multiplier": 2}]}, {"group[2].name"}),
        ({"price": [{"model": "m", "free": True}, {"model": "m", "free": True}]}, {"price[1].model"}),
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
    assert len(parse_table({"account": [ACCOUNT, {"name": "b"}], "key": keys}, Config).key) == 2


# pictures and sound


def test_nothing_said_of_images_is_a_day_for_links_two_for_files_and_nothing_private() -> None:
    config = parse_table({}, Config)
    assert (config.media, config.safety, config.egress) == (MediaSection(), SafetySection(), EgressSection())
    assert config.media == MediaSection(link_hours=24.0, keep_hours=48.0, max_gb=10.0)
    assert (config.safety.words_file, config.egress.allow, config.model) == ("", (), ())
    assert (config.server.max_upload_mb, config.server.max_file_mb) == (128, 64)
    assert all(getattr(UNKNOWN_CAPABILITY, field.name) is None for field in attrs.fields(Capability)[1:])


@table_rows("key", ["max_upload_mb", "max_file_mb"])
@table_rows("value", [1, 4096])
def test_the_bounds_of_uploads_are_within_them(key: str, value: int) -> None:
    assert getattr(parse_table({"server": {key: value}}, Config).server, key) == value


def test_what_is_said_of_media_is_the_sweeps_rules_in_seconds_and_bytes() -> None:
    section = parse_table({"media": {"link_hours": 1, "keep_hours": 1.5, "max_gb": 0.5}}, Config).media
    assert section.rules() == MediaRules(max_age_s=5_400.0, max_bytes=512 * 1024**2)


def test_the_longest_link_that_may_be_asked_for_works_and_the_largest_store_can_be_counted() -> None:
    section = parse_table({"media": {"link_hours": 876_000, "keep_hours": 876_000, "max_gb": 1_000_000}}, Config).media
    expires, media_id = 4_000_000_000 + int(section.link_hours * 3_600), "0" * 32 + ".png"
    signature = sign_link(b"key", media_id, expires)
    assert check_link(b"key", media_id, expires=str(expires), signature=signature, now_s=4_000_000_000.0)
    assert section.rules().max_bytes == 1_000_000 * 1024**3


BAD: list[tuple[str, str, object]] = [
    ("media", "link_hours", 0),
    ("media", "link_hours", -24),
    ("media", "link_hours", "24"),
    ("media", "link_hours", True),
    ("media", "link_hours", float("nan")),
    ("media", "link_hours", float("inf")),
    ("media", "link_hours", 876_001),
    ("media", "keep_hours", 0),
    ("media", "keep_hours", [48]),
    ("media", "keep_hours", 23.9),  # below link_hours
    ("media", "keep_hours", 1e300),
    ("media", "max_gb", 0),
    ("media", "max_gb", -0.1),
    ("media", "max_gb", 1e300),
    ("media", "max_gb", "ten"),
    ("media", "max_mb", 10),
    ("media", "rules", {}),
    ("safety", "words_file", 5),
    ("safety", "words_file", ["words.txt"]),
    ("safety", "words_file", True),
    ("safety", "word_file", "words.txt"),
    ("egress", "allow", "10.0.0.0/8"),
    ("egress", "allow", ["10.0.0.0/33"]),
    ("egress", "allow", ["10.0.0.1", "intranet"]),
    ("egress", "allow", ["*"]),
    ("egress", "allow", [""]),
    ("egress", "deny", ["10.0.0.0/8"]),
    ("videos", "store", "discard"),
    ("videos", "keep_days", 0),
    ("videos", "keep_days", 36_501),
    ("videos", "max_gb", 0),
    ("videos", "deadline_h", 0),
    ("videos", "deadline_h", "24"),
    ("videos", "status_words", "mine"),
    ("videos", "polls_per_channel", 0),
    ("videos", "polls_per_channel", 1_001),
    ("videos", "polls_per_channel", 1.5),
    ("videos", "webhook_hosts", "example.com"),
    ("videos", "webhook_hosts", [""]),
    ("videos", "webhook_hosts", ["a\nb"]),
    ("videos", "webhooks", []),
]


@table_rows(("section", "key", "value"), BAD)
def test_a_bad_setting_of_media_safety_egress_or_videos_is_refused_under_its_key(
    section: str, key: str, value: object
) -> None:
    assert set(problems(**{section: {key: value}})) == {f"{section}.{key}"}


def test_an_item_that_is_no_text_is_refused_under_its_place() -> None:
    assert set(problems(egress={"allow": ["10.0.0.0/8", 5]})) == {"egress.allow[1]"}


def test_a_link_that_would_outlive_its_image_says_so() -> None:
    assert "a link must not outlive its image" in problems(media={"link_hours": 49})["media.keep_hours"]


def test_private_networks_are_allowed_by_address_or_network() -> None:
    networks = ["10.1.0.0/16", "192.168.1.7", "fd00::/8", "::1"]
    assert parse_table({"egress": {"allow": networks}}, Config).egress.allow == tuple(networks)


def model_problems(**extra: Any) -> dict[str, str]:
    found = problems(model=[{"name": "fine"}, {"name": "m", **extra}])
    return {path.removeprefix("model[1]."): what for path, what in found.items()}


BAD_MODELS: list[tuple[str, object]] = [
    ("name", ""),
    ("name", "a\nb"),
    ("name", "m" * 257),
    ("name", 5),
    ("name", "fine"),
    ("sizes", "1024x1024"),
    ("sizes", ["1024*1024"]),
    ("sizes", ["1024x1024", "large"]),
    ("sizes", ["auto"]),
    ("sizes", ["1024X1024"]),
    ("sizes", ["0x1024"]),
    ("sizes", ["1024x1024\n"]),
    ("sizes", [" 1024x1024"]),
    ("sizes", ["123456x10"]),
    ("sizes", ["\u0661\u0660x\u0661\u0660"]),
    ("max_n", 0),
    ("max_n", 11),
    ("max_n", 1.0),
    ("max_n", "1"),
    ("max_n", True),
    ("response_formats", ["png"]),
    ("response_formats", ["url", "b64"]),
    ("response_formats", "url"),
    ("response_formats", ["URL"]),
    ("edits", "yes"),
    ("edits", 1),
    ("masks", 0),
    ("streams", "no"),
    ("seconds", 4),
    ("seconds", [0]),
    ("seconds", [4, 601]),
    ("references", "no"),
    ("remixes", 1),
    ("voices", "anna"),
    ("voices", [""]),
    ("voices", ["a\nb"]),
    ("n", 1),
    ("kind", "poem"),
    ("context_window", 0),
    ("max_output_tokens", "1024"),
    ("input_modalities", "text"),
    ("output_modalities", 1),
    ("features", "tools"),
    ("deprecated_at", "soon"),
    ("deprecated_at", "2027-01-31T00:00:00Z"),
    ("max_sources", 1),
    ("capability", {}),
]


@table_rows(("key", "value"), BAD_MODELS)
def test_a_bad_setting_of_a_model_is_refused_under_its_key(key: str, value: object) -> None:
    assert set(model_problems(**{key: value})) == {key}


def test_an_item_of_a_model_is_refused_under_its_place() -> None:
    assert set(model_problems(sizes=["1024x1024", 5], seconds=[1, "2"])) == {"sizes[1]", "seconds[1]"}


def test_a_model_without_a_name_and_one_that_is_named_twice_are_refused() -> None:
    assert set(problems(model=[{"max_n": 1}])) == {"model[0].name"}
    assert problems(model=[{"name": "m"}, {"name": "*"}, {"name": "m", "max_n": 1}]) == {
        "model[2].name": "expected a name of its own; model[0] has it"
    }


DESCRIPTION = {
    "kind": "chat",
    "context_window": 8_192,
    "max_output_tokens": 1_024,
    "input_modalities": ["image", "text"],
    "output_modalities": ["text"],
    "features": ["tools"],
    "deprecated_at": "2027-01-31",
}
FULL_MODEL = {
    "name": "my-*",
    "sizes": ["1024x1024", "99999x10"],
    "max_n": 10,
    "response_formats": ["b64_json", "url"],
    "edits": True,
    "masks": False,
    "streams": False,
    "seconds": [1, 600],
    "references": True,
    "remixes": False,
    "voices": ["anna", "otto"],
    **DESCRIPTION,
}


def test_a_model_becomes_what_routing_knows_of_it() -> None:
    (section,) = parse_table({"model": [FULL_MODEL]}, Config).model
    assert section.capability() == Capability(
        "my-*",
        sizes=("1024x1024", "99999x10"),
        max_n=10,
        response_formats=("url", "b64_json"),
        edits=True,
        masks=False,
        streams=False,
        seconds=(1, 600),
        references=True,
        remixes=False,
        voices=("anna", "otto"),
    )


def test_every_key_of_a_model_is_tried_above() -> None:
    assert {field.name for field in attrs.fields(ModelSection)} == FULL_MODEL.keys() <= {key for key, _ in BAD_MODELS}
    capability = FULL_MODEL.keys() - DESCRIPTION.keys() | {"max_sources"}
    assert capability == {field.name for field in attrs.fields(Capability)}
    assert [field.name for field in attrs.fields(ModelDescription)] == [*DESCRIPTION]


@table_rows("key", sorted(FULL_MODEL.keys() - {"name"}))
def test_what_is_left_out_of_a_model_is_as_known(key: str) -> None:
    table = {name: value for name, value in FULL_MODEL.items() if name != key}
    section = parse_table(table, ModelSection)
    known = {**attrs.asdict(section.capability()), **attrs.asdict(section.description())}
    assert [name for name in FULL_MODEL if known[name] is None] == [key]
    assert parse_table({"name": "m"}, ModelSection).capability() == Capability("m")


@given(st.lists(st.sampled_from(FORMS), max_size=5))
def test_forms_are_those_that_were_said_each_once(forms: list[str]) -> None:
    capability = parse_table({"name": "m", "response_formats": forms}, ModelSection).capability()
    assert capability.response_formats is not None
    assert sorted(capability.response_formats) == sorted(set(forms))


def test_every_problem_of_a_file_names_the_file_and_its_key_and_shows_what_stood_there(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text("""
        server = { max_upload_mb = 0, max_file_mb = 9999 }
        media = { link_hours = -3, keep_hours = 0, max_gb = 0 }
        safety = { words_file = 7 }
        egress = { allow = ["everywhere"] }
        model = [{ name = "a" }, { name = "b", max_n = 12, sizes = ["huge"], edits = "no" }]
    """)
    with pytest.raises(ConfigError) as caught:
        read_config(path, {"GATEWAY_MEDIA__MAX_GB": "-1"})
    reported = {}
    for problem in caught.value.problems:
        source, where, what = problem.split(": ", 2)
        assert source == ("environment variable GATEWAY_MEDIA__MAX_GB" if where == "media.max_gb" else str(path))
        reported[where] = what
    assert reported == {
        "server.max_upload_mb": "expected a number from 1 to 4096, not '0'",
        "server.max_file_mb": "expected a number from 1 to 4096, not '9999'",
        "media.link_hours": "expected a number of hours above 0 and up to 876000, not '-3'",
        "media.keep_hours": "expected a number of hours above 0 and up to 876000, not '0'",
        "media.max_gb": "expected a number above 0 and up to 1000000, not '-1'",
        "safety.words_file": "expected a string, not '7'",
        "egress.allow": reported["egress.allow"],
        "model[1].max_n": "expected a number from 1 to 10, not '12'",
        "model[1].sizes": "expected sizes such as 1024x1024, not 'huge'",
        "model[1].edits": "expected true or false, not 'no'",
    }
    assert reported["egress.allow"].endswith("not 'everywhere'")


def test_what_is_said_in_the_environment_counts_for_the_new_sections_too(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("one\ntwo\n")
    environ = {
        "GATEWAY_SERVER__MAX_UPLOAD_MB": "256",
        "GATEWAY_MEDIA__LINK_HOURS": "0.5",
        "GATEWAY_SAFETY__WORDS_FILE": str(words),
        "GATEWAY_EGRESS__ALLOW": "10.1.0.0/16, fd00::/8",
    }
    config = read_config(None, environ)
    assert (config.server.max_upload_mb, config.media.link_hours) == (256, 0.5)
    assert config.safety.words_file == str(words)
    assert config.egress.allow == ("10.1.0.0/16", "fd00::/8")
    with pytest.raises(ConfigError, match=r"GATEWAY_MODEL__NAME: model: expected one of the sections .*media"):
        read_config(None, {"GATEWAY_MODEL__NAME": "m"})


@pytest.mark.parametrize(
    ("raw", "message"),
    [(None, "No such file"), (b"fine\n\xff\n", "line 2 is not UTF-8"), (b"x" * (2 * 1024**2 + 1), "larger than 2 MB")],
    ids=["gone", "no text", "too large"],
)
def test_a_file_of_words_that_cannot_be_read_is_a_problem_of_its_key(
    tmp_path: Path, raw: bytes | None, message: str
) -> None:
    words = tmp_path / "words.txt"
    if raw is not None:
        words.write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        read_config(None, {"GATEWAY_SAFETY__WORDS_FILE": str(words)})
    (problem,) = caught.value.problems
    assert problem.startswith(f"safety.words_file: {words}: ")
    assert message in problem


# prices


def test_a_price_becomes_integers() -> None:
    table = {
        "model": "m",
        "input_usd_per_million": Decimal("0.15"),
        "cached_input_usd_per_million": Decimal("0.075"),
        "output_usd_per_million": 1,
        "usd_per_image": Decimal("0.04"),
        "usd_per_second": Decimal("0.1"),
        "usd_per_million_characters": 15,
        "sizes": [{"size": "*x1080", "usd_per_second": Decimal("0.5")}, {"size": "640x360", "usd_per_second": 0}],
    }
    expected = Price("m", 150_000_000, 75_000_000, 10**9, 40_000_000, 100_000_000, 15 * 10**9)
    expected = attrs.evolve(expected, sizes=(("*x1080", 500_000_000), ("640x360", 0)))
    assert parse_table(table, PriceSpec).price() == expected
    assert parse_table({"model": "m", "free": True}, PriceSpec).price() == Price("m")


@table_rows(
    ("size", "path"),
    [
        ({"usd_per_second": 1}, "size"),
        ({"size": "", "usd_per_second": 1}, "size"),
        ({"size": "*x1080"}, "usd_per_second"),
        ({"size": "*x1080", "usd_per_second": -1}, "usd_per_second"),
        ({"size": "*x1080", "usd_per_second": 11}, "usd_per_second"),
        ({"size": "*x1080", "usd_per_second": 1, "usd": 1}, "usd"),
    ],
)
def test_a_bad_size_of_a_price_is_refused_under_its_place(size: dict[str, object], path: str) -> None:
    assert set(problems(price=[{"model": "m", "sizes": [size]}])) == {f"price[0].sizes[0].{path}"}


@table_rows(
    "url", ["", "example.com", "ftp://example.com", "https://u:p@example.com", "https://a b", f"https://{'a' * 2048}"]
)
def test_a_key_is_told_of_its_videos_at_an_http_url_only(url: str) -> None:
    assert set(problems(account=[ACCOUNT], key=[KEY | {"webhook_url": url}])) == {"key[0].webhook_url"}


def test_the_tree_cannot_be_changed() -> None:
    config = Config()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        config.server.port = 1  # type: ignore[misc]


@table_rows(
    ("limits", "problem"),
    [
        ({"store": "valkey"}, "rate_limits.url: expected a URL such as"),
        ({"store": "valkey", "url": "postgresql://db/x"}, "rate_limits.url: expected valkey://..."),
        ({"store": "memory", "url": "valkey://host"}, "rate_limits.url: expected no URL for store = 'memory'"),
        ({"url": "valkey+cluster://host"}, "rate_limits.url: expected a URL such as"),
        ({"url": "valkey+sentinel://host"}, "rate_limits.url: expected a URL such as"),
        ({"store": "postgresql"}, "rate_limits.url: expected postgresql://...: store.url names no PostgreSQL database"),
        ({"store": "valkey", "url": "valkey://host", "prefix": "a b"}, "rate_limits.prefix: expected 1 to 40 letters"),
    ],
)
def test_limits_of_a_server_need_its_url(limits: dict[str, str], problem: str) -> None:
    assert [f"{path}: {what}"[: len(problem)] for path, what in problems(rate_limits=limits).items()] == [problem]


@table_rows(
    ("limits", "cluster", "store"),
    [
        ({}, False, "memory"),
        ({}, True, "postgresql"),
        ({"store": "memory"}, True, "memory"),
        ({"url": "rediss://host/1"}, True, "valkey"),
        ({"url": "valkey+sentinel://host/gateway"}, False, "valkey"),
        ({"url": "postgresql://host/limits"}, False, "postgresql"),
    ],
)
def test_limits_are_counted_where_a_cluster_needs_them(limits: dict[str, str], cluster: bool, store: str) -> None:
    config = Config(rate_limits=RateLimitsSection(**limits), cluster=ClusterSection(enabled=cluster))  # type: ignore[arg-type]
    assert config.limits_store == store
