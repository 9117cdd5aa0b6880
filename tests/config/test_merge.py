"""One layer over the other: what was set in the console, under the file and the environment."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.price_spec import GroupSpec, PriceSpec
from gateway.config.loader import read_declared_config
from gateway.config.merge import (
    EDITABLE,
    FileConfig,
    find_sources,
    list_sections,
    merge_stored_settings,
    parse_stored_settings,
)
from gateway.config.schema import Config, MediaSection, RoutingSection
from gateway.domain.setting import Setting, name_group, name_price, name_setting
from gateway.parsing import parse_table
from tests.support.table_rows import table_rows

NOTHING = FileConfig(Config())


def declare(**tables: Any) -> FileConfig:
    """What a file with these tables says; its other keys nobody says."""
    config = parse_table(tables, Config)
    answer = {
        name_setting(section, key) for section, table in tables.items() if isinstance(table, dict) for key in table
    }
    return FileConfig(config, dict.fromkeys(answer, "file"))


def test_nothing_stored_changes_nothing() -> None:
    declared = declare(routing={"max_attempts": 4}, group=[{"name": "vip"}])
    effective = merge_stored_settings(declared)
    assert effective.config == declared.config
    assert (effective.sources, effective.prices, effective.ignored) == (declared.sources, (), {})


def test_what_is_stored_counts_where_the_file_says_nothing() -> None:
    declared = declare(routing={"retry_ratio": 0.2})
    effective = merge_stored_settings(
        declared, {"routing.max_attempts": 5, "routing.retry_ratio": 0.9, "billing.unpriced": "refuse"}
    )
    assert effective.config.routing == RoutingSection(max_attempts=5)
    assert effective.config.billing.unpriced == "refuse"
    assert effective.sources == {
        "routing.retry_ratio": "file",
        "routing.max_attempts": "console",
        "billing.unpriced": "console",
    }
    assert effective.ignored == {}


def test_default_console_file_and_environment_in_this_order(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text("[routing]\nmax_attempts = 4\ntrip_failures = 4\n")
    declared = read_declared_config(path, {"GATEWAY_ROUTING__TRIP_FAILURES": "6", "GATEWAY_ROUTING__COOLDOWN_S": "7"})
    keys = ("max_attempts", "trip_failures", "cooldown_s", "warm_up_s", "retry_ratio")
    stored = {f"routing.{key}": 1 for key in keys if key != "retry_ratio"}
    effective = merge_stored_settings(declared, stored)
    assert [getattr(effective.config.routing, key) for key in keys] == [4, 6, 7.0, 1.0, 0.2]
    assert [effective.sources.get(f"routing.{key}", "default") for key in keys] == [
        "file",
        "environment",
        "environment",
        "console",
        "default",
    ]


@table_rows(
    ("path", "value"),
    [
        ("routing.max_attempts", 0),
        ("routing.max_attempts", "4"),
        ("routing.max_attempts", None),
        ("routing.colour", "blue"),
        ("routing.", 1),
        ("routing.max_attempts[0]", 1),
        ("videos.webhook_hosts", ["fine", 5]),
        ("videos.store", "burn"),
        ("egress.allow", ["10.0.0.0/40"]),
        ("server.port", 9),
        ("store.master_key", "ab" * 32),
        ("safety.words_file", "/etc/passwd"),
        ("channel.name", "up"),
        ("nothing.at_all", 1),
        ("nothing", 1),
        ("", 1),
        ("group/", {}),
        ("group/vip", 5),
        ("group/vip", {"price_multiplier": -1}),
        ("group/vip", {"colour": "blue"}),
        ("price/m", None),
        ("price/m", {"model": "n", "free": True}),
        ("price/m", {"model": "m", "provider": "openai", "free": True}),
        ("price@openai/m", {"model": "m", "free": True}),
        ("price/m", {"model": "m", "input_usd_per_million": -1}),
    ],
)
def test_what_is_not_known_or_accepted_is_left_out_and_nothing_else(path: str, value: object) -> None:
    others = {"routing.cooldown_s": 7, "videos.keep_days": 3, "egress.allow": ["10.1.0.0/16"], "group/ok": {}}
    others.pop(path, None)
    others["price/ok"] = {"model": "ok", "free": True}
    effective, plain = merge_stored_settings(NOTHING, {**others, path: value}), merge_stored_settings(NOTHING, others)
    assert set(effective.ignored) == {path}
    assert effective.ignored[path]
    assert attrs.evolve(effective, ignored={}, stored={}) == attrs.evolve(plain, stored={})


def test_a_value_that_the_file_no_longer_goes_with_is_left_out() -> None:
    """The file wins, whichever of the two keys the problem names."""
    longer = declare(media={"link_hours": 60, "keep_hours": 100})
    assert merge_stored_settings(longer, {"media.max_gb": 1}).config.media == MediaSection(60, 100, 1)
    effective = merge_stored_settings(declare(media={"link_hours": 40}), {"media.keep_hours": 30, "media.max_gb": 1})
    assert effective.config.media == MediaSection(link_hours=40, max_gb=1)
    assert list(effective.ignored) == ["media.keep_hours"]
    effective = merge_stored_settings(NOTHING, {"media.link_hours": 100, "media.max_gb": 1})
    assert effective.config.media == MediaSection()
    assert set(effective.ignored) == {"media.link_hours", "media.max_gb"}
    assert effective.ignored["media.link_hours"].startswith("keep_hours: expected no less than link_hours")


def test_what_is_hidden_is_not_ignored() -> None:
    """It may even be wrong: nobody asks it."""
    declared = declare(routing={"max_attempts": 4}, group=[{"name": "vip", "price_multiplier": 2}])
    effective = merge_stored_settings(
        declared, {"routing.max_attempts": "many", "group/vip": {"price_multiplier": 0.5}}
    )
    assert (effective.config, effective.ignored) == (declared.config, {})


def test_groups_and_prices_of_the_console_come_after_the_files() -> None:
    declared = declare(group=[{"name": "vip", "price_multiplier": 2}], price=[{"model": "m", "free": True}])
    stored = {
        name_group("lab"): {"price_multiplier": 0.8},
        name_price("gpt-*", None): {"model": "gpt-*", "usd_per_image": 0.04},
        name_price("gpt-*", "openai"): {"model": "gpt-*", "provider": "openai", "free": True},
    }
    effective = merge_stored_settings(declared, stored)
    assert effective.config.group == (GroupSpec("vip", Decimal(2)), GroupSpec("lab", Decimal("0.8")))
    assert effective.config.price == declared.config.price
    assert effective.prices == (
        PriceSpec("gpt-*", usd_per_image=Decimal("0.04")),
        PriceSpec("gpt-*", "openai", free=True),
    )


def test_paths_of_prices_are_of_one_model_and_provider_each() -> None:
    pairs = [("a", None), ("a/b", None), ("b", "a"), ("@a/b", None), ("price/a", None), ("b", None), ("group/a", None)]
    assert len({name_price(*pair) for pair in pairs} | {name_group("a")}) == len(pairs) + 1


def test_without_a_file_whatever_is_not_as_by_default_is_said() -> None:
    config = parse_table({"routing": {"max_attempts": 4, "retry_ratio": 0.2}, "server": {"port": 0}}, Config)
    assert find_sources(config) == {"routing.max_attempts": "file", "server.port": "file"}
    assert find_sources(Config()) == {}


def test_rows_become_what_is_stored() -> None:
    assert parse_stored_settings([Setting("a.b", 1, 5), Setting("group/x", {})]) == {"a.b": 1, "group/x": {}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PATHS = [name_setting(section, field.name) for section, part in list_sections(Config())
         for field in attrs.fields(type(part))]  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from([*PATHS, "group/x", "price/x", "price@y/x"]) | st.text("acegioprux./@[]0", max_size=12),
        JSON,
        max_size=8,
    )
)
def test_whatever_lies_in_the_store_a_gateway_starts_with_what_is_good_of_it(stored: dict[str, Any]) -> None:
    declared = declare(routing={"max_attempts": 4}, media={"link_hours": 3})
    effective = merge_stored_settings(declared, stored)
    assert effective.ignored.keys() <= stored.keys()
    assert effective.sources.items() >= declared.sources.items()
    for path in effective.sources.keys() - declared.sources.keys():
        assert path in stored
        assert path.partition(".")[0] in EDITABLE
    assert merge_stored_settings(
        declared, {path: stored[path] for path in stored.keys() - effective.ignored.keys()}
    ).config.media == (effective.config.media)
