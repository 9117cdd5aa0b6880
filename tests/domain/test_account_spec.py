"""Accounts and keys as people write them."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.account import Account, ApiKey
from gateway.domain.account_spec import AccountSpec, CreditSpec, KeySpec, build_account_fields, build_key_fields
from gateway.domain.balance import Quota
from gateway.domain.price import NANOS_PER_USD
from gateway.parsing import ValidationErrors, parse_table
from tests.support.table_rows import table_rows

NEW_ACCOUNT = Account(7, "", created_ms=1_750_000_000_123)
NEW_KEY = ApiKey(9, 7, "", digest=b"\x01" * 32, last4="wxyz", created_ms=1_750_000_000_123)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,63}", fullmatch=True)
COUNTS = st.none() | st.integers(1, 2**31 - 1)
AMOUNTS = st.none() | st.integers(0, 10**15).map(lambda amount: Decimal(amount) / NANOS_PER_USD)
WORD = st.text(min_size=1, max_size=5).filter(str.isprintable)
WORDS = st.lists(WORD, max_size=3).map(tuple)
PERIODS = st.sampled_from([None, "none", "lifetime", "daily", "monthly"])
BOUNDS: dict[str, st.SearchStrategy[Any]] = {
    "name": NAMES, "quota_usd": AMOUNTS, "quota_period": PERIODS, "rpm": COUNTS, "tpm": COUNTS,
    "max_concurrency": COUNTS, "status": st.sampled_from(["active", "disabled"]),
    "quota_status": st.sampled_from([None, 403, 429]),
}  # fmt: skip
ACCOUNTS = st.builds(AccountSpec, **BOUNDS, groups=WORDS)
KEYS = st.builds(
    KeySpec,
    **BOUNDS,
    account=st.just("acme"),
    models=WORDS,
    group=st.none() | NAMES,
    expires_at=st.none() | st.integers(0, 4 * 10**9).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    allow_ips=st.lists(st.ip_addresses().map(str) | st.just("10.0.0.0/8"), max_size=3).map(tuple),
)


def read_back(written: dict[str, Any], kind: type[Any]) -> Any:
    """What was written, read under the keys that can be read."""
    names = {field.name for field in attrs.fields(kind)}
    return parse_table({name: value for name, value in written.items() if name in names}, kind)


@given(ACCOUNTS)
def test_an_account_that_was_written_is_read_back_as_it_was(spec: AccountSpec) -> None:
    account = spec.apply(NEW_ACCOUNT)
    assert read_back(build_account_fields(account), AccountSpec).apply(NEW_ACCOUNT) == account


@given(KEYS)
def test_a_key_that_was_written_is_read_back_as_it_was(spec: KeySpec) -> None:
    key = spec.apply(NEW_KEY)
    assert read_back(build_key_fields(key, "acme"), KeySpec).apply(NEW_KEY) == key


@given(KEYS)
def test_a_written_key_shows_neither_secret_nor_digest(spec: KeySpec) -> None:
    written = build_key_fields(attrs.evolve(spec, secret="sk-" + "z" * 20).apply(NEW_KEY), "acme")
    assert "z" * 20 not in str(written)
    assert "\\x01" not in str(written)
    assert written["key"] == "sk-…wxyz"


def test_applying_keeps_what_a_declaration_does_not_say() -> None:
    key = KeySpec("laptop", "acme").apply(NEW_KEY)
    assert (key.id, key.account_id, key.digest, key.last4, key.created_ms) == (
        9,
        7,
        b"\x01" * 32,
        "wxyz",
        NEW_KEY.created_ms,
    )
    account = AccountSpec("acme").apply(attrs.evolve(NEW_ACCOUNT, declared=True))
    assert (account.id, account.declared, account.name) == (7, True, "acme")


@table_rows(
    ("usd", "period", "quota"),
    [
        (None, None, Quota()),
        (Decimal("0.5"), None, Quota(500_000_000, "lifetime")),
        (Decimal(0), None, Quota(0, "lifetime")),
        (Decimal("0.5"), "daily", Quota(500_000_000, "daily")),
    ],
)
def test_an_amount_without_a_period_is_for_good(usd: Decimal | None, period: Any, quota: Quota) -> None:
    assert AccountSpec("a", quota_usd=usd, quota_period=period).apply(NEW_ACCOUNT).quota == quota


@table_rows("status", [None, 403, 429])
def test_the_status_of_an_exhausted_cap_may_be_chosen_for_both(status: Any) -> None:
    table = {"name": "a", "quota_usd": 1, "quota_period": "daily", "quota_status": status}
    table = {key: value for key, value in table.items() if value is not None}
    quota = Quota(NANOS_PER_USD, "daily", status)
    assert parse_table(table, AccountSpec).apply(NEW_ACCOUNT).quota == quota
    assert parse_table(table | {"account": "a"}, KeySpec).apply(NEW_KEY).quota == quota


def test_a_status_alone_caps_nothing() -> None:
    assert AccountSpec("a", quota_status=403).apply(NEW_ACCOUNT).quota == Quota(None, "none", 403)


def test_times_are_written_in_utc() -> None:
    assert build_account_fields(NEW_ACCOUNT)["created_at"] == "2025-06-15T15:06:40Z"


@table_rows("secret", ["sk-" + "a" * 13, "sk-" + "a" * 253])
def test_a_secret_of_the_right_shape_is_taken(secret: str) -> None:
    assert parse_table({"name": "k", "account": "a", "secret": secret}, KeySpec).secret == secret


@table_rows(
    ("table", "paths"),
    [
        ({}, {"name", "account"}),
        ({"name": "", "account": "a"}, {"name"}),
        ({"name": "k\n", "account": 5}, {"name", "account"}),
        ({"name": "k", "account": "a", "secret": "hunter2"}, {"secret"}),
        ({"name": "k", "account": "a", "allow_ips": ["10.0.0.0/33"]}, {"allow_ips"}),
        ({"name": "k", "account": "a", "quota_usd": -1}, {"quota_usd"}),
        (
            {"name": "k", "account": "a", "rpm": 0, "tpm": 2**31, "max_concurrency": True},
            {"rpm", "tpm", "max_concurrency"},
        ),
        ({"name": "k", "account": "a", "quota_status": 402, "status": "on"}, {"quota_status", "status"}),
        ({"name": "k", "account": "a", "allow_ips": ["10.0.0.1", "localhost"], "group": ""}, {"allow_ips", "group"}),
        ({"name": "k", "account": "a", "models": ["m", ""], "quota_period": "weekly"}, {"models", "quota_period"}),
        ({"name": "k", "account": "a", "expires_at": "9999-12-31T23:59:59-14:00"}, {"expires_at"}),
        ({"name": "k", "account": "a", "expires_at": "0001-01-01T00:00:00+14:00"}, {"expires_at"}),
        ({"name": "k", "account": "a", "expires_at": "1969-12-31"}, {"expires_at"}),
    ],
)
def test_a_bad_key_is_refused_with_every_path(table: dict[str, Any], paths: set[str]) -> None:
    with pytest.raises(ValidationErrors) as caught:
        parse_table(table, KeySpec)
    assert {path for path, _ in caught.value.problems} == paths
    assert "hunter2" not in str(caught.value)


def test_a_declared_key_never_shows_its_secret() -> None:
    assert "zzzz" not in repr(KeySpec("k", "a", secret="sk-" + "z" * 20))


@table_rows(
    ("table", "spec"),
    [
        ({"amount_usd": 5}, CreditSpec(Decimal(5))),
        ({"amount_usd": Decimal("-0.000000001")}, CreditSpec(Decimal("-0.000000001"), "top_up")),
        ({"amount_usd": 0, "kind": "set"}, CreditSpec(Decimal(0), "set")),
        (
            {"amount_usd": 9_000_000_000, "reference": "r" * 64, "note": "n" * 256},
            CreditSpec(Decimal(9_000_000_000), "top_up", "r" * 64, "n" * 256),
        ),
        ({"amount_usd": 1, "note": ""}, CreditSpec(Decimal(1), note="")),
    ],
)
def test_a_credit_is_an_amount_and_what_it_is_for(table: dict[str, Any], spec: CreditSpec) -> None:
    assert parse_table(table, CreditSpec) == spec


@table_rows(
    ("table", "paths"),
    [
        ({}, {"amount_usd"}),
        ({"amount_usd": "5"}, {"amount_usd"}),
        ({"amount_usd": True}, {"amount_usd"}),
        ({"amount_usd": float("nan")}, {"amount_usd"}),
        ({"amount_usd": 9_000_000_001}, {"amount_usd"}),
        ({"amount_usd": -9_000_000_001}, {"amount_usd"}),
        ({"amount_usd": 1, "kind": "charge"}, {"kind"}),
        ({"amount_usd": 1, "reference": ""}, {"reference"}),
        ({"amount_usd": 1, "reference": "r" * 65, "note": "n" * 257}, {"reference", "note"}),
        ({"amount_usd": 1, "reference": "a\nb", "note": "a\x00"}, {"reference", "note"}),
        ({"amount_usd": 1, "amount": 1}, {"amount"}),
    ],
)
def test_a_bad_credit_is_refused_with_every_path(table: dict[str, Any], paths: set[str]) -> None:
    with pytest.raises(ValidationErrors) as caught:
        parse_table(table, CreditSpec)
    assert {path for path, _ in caught.value.problems} == paths


@table_rows("kind", [AccountSpec, KeySpec])
def test_an_amount_that_no_store_can_hold_is_refused(kind: type[Any]) -> None:
    # Amounts are kept in 64 bits of nano-USD: 9.2 thousand million dollars.
    base = {"name": "k"} if kind is AccountSpec else {"name": "k", "account": "a"}
    assert parse_table(base | {"quota_usd": 9_000_000_000}, kind).quota_usd == 9_000_000_000
    for amount in (10_000_000_000, 1e300):
        with pytest.raises(ValidationErrors):
            parse_table(base | {"quota_usd": amount}, kind)
