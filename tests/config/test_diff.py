"""What a new configuration changes is said in words, and nothing secret is among them."""

from decimal import Decimal
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.price_spec import GroupSpec
from gateway.config.diff import describe_channels, describe_items, describe_section
from gateway.config.observability_schema import MetricsSection
from gateway.config.schema import (
    BillingSection,
    EgressSection,
    MediaSection,
    ModelSection,
    RoutingSection,
    SafetySection,
)
from gateway.config.server_schema import ServerSection, StoreSection
from gateway.domain.account_spec import AccountSpec, KeySpec
from gateway.domain.channel import Channel, QueueSettings, Timeouts
from tests.support.table_rows import table_rows

UP = Channel("up", "custom", "http://up/v1", ("hunter2-key",), models=("m",))
OTHER = attrs.evolve(UP, name="other")


def test_nothing_changed_is_nothing_said() -> None:
    assert describe_channels([UP, OTHER], [attrs.evolve(UP), attrs.evolve(OTHER)]) == []
    assert describe_channels([], []) == []
    assert describe_items("group", [GroupSpec("vip")], [GroupSpec("vip")]) == []
    assert describe_section("routing", RoutingSection(), RoutingSection()) == []


def test_channels_that_come_go_and_change_are_told_with_what_changed() -> None:
    after = attrs.evolve(UP, weight=2, models=("m", "n"))
    assert describe_channels([UP, OTHER], [after, attrs.evolve(UP, name="new")]) == [
        "channel 'other' removed",
        "channel 'up' changed: models, weight",
        "channel 'new' added",
    ]


def test_a_channel_that_is_renamed_is_one_that_went_and_one_that_came() -> None:
    assert describe_channels([UP], [OTHER]) == ["channel 'up' removed", "channel 'other' added"]


def test_another_order_is_told_where_nothing_else_changed() -> None:
    assert describe_channels([UP, OTHER], [OTHER, UP]) == ["channel order changed"]
    reported = describe_channels([UP, OTHER], [attrs.evolve(OTHER, weight=2), UP])
    assert reported == ["channel 'other' changed: weight"]


CHANGES: dict[str, Any] = {
    "provider": "vllm",
    "base_url": "http://elsewhere/v1",
    "api_keys": ("hunter2-new", "hunter2-newer"),
    "key_names": (("hunter2-new", "the shop"),),
    "disabled_keys": ("hunter2-new",),
    "models": ("x",),
    "sync": True,
    "model_map": (("ours", "theirs"),),
    "groups": ("vip",),
    "priority": 5,
    "weight": 5,
    "max_concurrency": 5,
    "queue": QueueSettings(),
    "rpm": 5,
    "timeouts": Timeouts(total_s=5.0),
    "proxy": "http://user:hunter2-proxy@p",
    "headers": (("X-Token", "hunter2-header"),),
    "multiplier_ppm": 5,
    "status": "disabled",
    "origin": "stored",
    "id": 5,
    "created_ms": 5,
    "fan_out": True,
    "pass_urls": True,
    "owned_by": "us",
    "allow_fields": ("service_tier",),
    "held": True,
    "held_reason": "It did not answer",
}


def test_every_field_of_a_channel_is_tried_below() -> None:
    assert {field.name for field in attrs.fields(Channel)} - {"name", "patterns"} == CHANGES.keys()


@table_rows("field", CHANGES)
def test_a_change_names_its_field_and_not_what_is_in_it(field: str) -> None:
    (line,) = describe_channels([UP], [attrs.evolve(UP, **{field: CHANGES[field]})])
    assert line == f"channel 'up' changed: {field}"


@given(st.lists(st.sampled_from("abc"), unique=True), st.lists(st.sampled_from("abc"), unique=True))
def test_every_difference_of_names_is_told_once(before: list[str], after: list[str]) -> None:
    reported = describe_channels(
        [attrs.evolve(UP, name=name) for name in before], [attrs.evolve(UP, name=name) for name in after]
    )
    assert len(reported) == len(set(before) ^ set(after)) or reported == ["channel order changed"]
    assert bool(reported) is (before != after)


# other things that are declared


def test_items_of_a_kind_are_told_apart_by_their_name() -> None:
    before = [GroupSpec("vip", Decimal(1)), GroupSpec("lab"), GroupSpec("same")]
    after = [GroupSpec("new"), GroupSpec("same"), GroupSpec("vip", Decimal("0.8"))]
    assert describe_items("group", before, after) == [
        "group 'lab' removed",
        "group 'new' added",
        "group 'vip' changed: price_multiplier",
    ]


def test_what_models_can_do_is_told_by_the_glob_they_are_named_by() -> None:
    before = [ModelSection("m-*", max_n=2), ModelSection("n")]
    after = [ModelSection("m-*", max_n=4, sizes=("512x512",)), ModelSection("n")]
    assert describe_items("model", before, after) == ["model 'm-*' changed: sizes, max_n"]


def test_a_key_with_a_new_secret_is_told_without_it() -> None:
    before = KeySpec("laptop", "acme", secret="sk-hunter2-hunter2-1")
    after = attrs.evolve(before, secret="sk-hunter2-hunter2-2", rpm=5)
    assert describe_items("key", [before], [after]) == ["key 'laptop' changed: secret, rpm"]


def test_accounts_are_told_like_everything_else() -> None:
    assert describe_items("account", [AccountSpec("acme")], [AccountSpec("acme", rpm=5)]) == [
        "account 'acme' changed: rpm"
    ]


# sections


def test_a_section_is_told_by_its_keys_and_not_by_their_values() -> None:
    assert describe_section("routing", RoutingSection(), RoutingSection(cooldown_s=7.0, max_attempts=1)) == [
        "routing.max_attempts",
        "routing.cooldown_s",
    ]
    assert describe_section("billing", BillingSection(), BillingSection(unpriced="refuse")) == ["billing.unpriced"]
    assert describe_section("metrics", MetricsSection(), MetricsSection("t" * 16)) == ["metrics.token"]
    (message,) = describe_section("store", StoreSection(), StoreSection(master_key="ab" * 32))
    assert message == "store.master_key"


@table_rows(
    ("name", "before", "after", "reported"),
    [
        ("media", MediaSection(), MediaSection(link_hours=1.0, max_gb=2.0), ["media.link_hours", "media.max_gb"]),
        ("media", MediaSection(), MediaSection(keep_hours=96.0), ["media.keep_hours"]),
        ("safety", SafetySection(), SafetySection("/hunter2/words.txt"), ["safety.words_file"]),
        ("safety", SafetySection("/hunter2/words.txt"), SafetySection(), ["safety.words_file"]),
        ("egress", EgressSection(), EgressSection(("10.1.0.0/16",)), ["egress.allow"]),
        ("egress", EgressSection(("::1", "10.0.0.1")), EgressSection(("10.0.0.1", "::1")), ["egress.allow"]),
        ("server", ServerSection(), ServerSection(max_upload_mb=1, max_file_mb=1),
         ["server.max_upload_mb", "server.max_file_mb"]),
    ],
)  # fmt: skip
def test_what_is_said_of_images_and_uploads_is_told_by_its_keys(
    name: str, before: object, after: object, reported: list[str]
) -> None:
    assert describe_section(name, before, after) == reported
    assert describe_section(name, after, after) == []


MODEL_CHANGES: dict[str, Any] = {
    "sizes": ("64x64",),
    "max_n": 5,
    "response_formats": (),
    "edits": False,
    "masks": True,
    "streams": True,
    "seconds": (4,),
    "references": True,
    "remixes": False,
    "kind": "chat",
    "context_window": 5,
    "max_output_tokens": 4,
    "input_modalities": ("text",),
    "output_modalities": (),
    "features": ("tools",),
    "deprecated_at": "2027-01-31",
    "voices": ("alloy",),
}


def test_every_field_of_a_model_is_tried_below() -> None:
    assert {field.name for field in attrs.fields(ModelSection)} - {"name"} == MODEL_CHANGES.keys()


@table_rows("field", MODEL_CHANGES)
def test_a_change_of_what_a_model_can_do_names_its_field(field: str) -> None:
    changed = ModelSection("m", **{field: MODEL_CHANGES[field]})
    assert describe_items("model", [ModelSection("m")], [changed]) == [f"model 'm' changed: {field}"]
    assert describe_items("model", [changed], []) == ["model 'm' removed"]
