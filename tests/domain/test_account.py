"""Keys and accounts: shapes, restrictions, expiry."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.account import (
    KEY_LENGTH,
    KEY_PREFIX,
    NAME_SHAPE,
    Account,
    ApiKey,
    Caller,
    Status,
    is_key_shape,
    key_digest,
)
from gateway.domain.ip_address import parse_networks
from gateway.errors import GroupNotAllowed, IpNotAllowed, KeyDisabled, KeyExpired, ModelNotAllowed
from tests.support.table_rows import table_rows

ACCOUNT = Account(1, "acme")
KEY = ApiKey(1, 1, "laptop", digest=b"\x01" * 32, last4="abcd")
CALLER = Caller(ACCOUNT, KEY)
ALPHABET = "ABCXYZabcxyz0189._-"


def caller(*, account: Status = "active", **key: Any) -> Caller:
    return Caller(attrs.evolve(ACCOUNT, status=account), attrs.evolve(KEY, **key))


@given(st.text(ALPHABET, min_size=13, max_size=253))
def test_a_prefix_and_a_token_are_a_key(token: str) -> None:
    assert is_key_shape("sk-" + token)


@given(st.text(ALPHABET, max_size=12) | st.text(ALPHABET, min_size=254, max_size=300))
def test_a_token_too_short_or_too_long_is_none(token: str) -> None:
    assert not is_key_shape("sk-" + token)


@table_rows("bad", ["\n", " ", "\x00", "é", "\u0661", "/", "'", ","])
@table_rows("place", [0, 3, 10, 23])
def test_any_other_character_makes_it_none(bad: str, place: int) -> None:
    good = "sk-" + "a" * 20
    assert not is_key_shape(good[:place] + bad + good[place:])


def test_other_prefixes_are_none() -> None:
    for secret in ("", "sk-", "SK-" + "a" * 20, "pk-" + "a" * 20, " sk-" + "a" * 20, "a" * 40):
        assert not is_key_shape(secret)
    assert is_key_shape(KEY_PREFIX + "a" * KEY_LENGTH)


def test_a_digest_is_keyed_and_does_not_hold_the_secret() -> None:
    digest = key_digest(b"p" * 32, "sk-secret")
    assert len(digest) == 32
    assert digest == key_digest(b"p" * 32, "sk-secret")
    assert digest != key_digest(b"q" * 32, "sk-secret")
    assert digest != key_digest(b"p" * 32, "sk-secreu")


def test_a_key_shows_its_last_four_characters_and_never_its_digest() -> None:
    assert KEY.masked == "sk-…abcd"
    assert "\\x01" not in repr(KEY)
    assert "\\x01" not in repr(CALLER)


def test_an_active_key_of_an_active_account_is_usable() -> None:
    CALLER.check_usable(0)
    caller(expires_s=100).check_usable(99.9)


def test_a_disabled_key_is_refused_whatever_else_it_is() -> None:
    for bad in (caller(status="disabled"), caller(account="disabled"), caller(status="disabled", expires_s=1)):
        with pytest.raises(KeyDisabled) as caught:
            bad.check_usable(50)
        assert caught.value.should_retry is False


@table_rows("now", [100, 100.5, 10**12])
def test_a_key_expires_at_its_second(now: float) -> None:
    with pytest.raises(KeyExpired):
        caller(expires_s=100).check_usable(now)


@table_rows(
    ("globs", "model", "allowed"),
    [
        ((), "anything", True),
        (("gpt-*",), "gpt-4o", True),
        (("gpt-*",), "GPT-4o", False),
        (("gpt-*",), "xgpt-4o", False),
        (("a", "b/*"), "b/c/d", True),
        (("a",), "ab", False),
        (("*",), "", True),
    ],
)
def test_a_keys_globs_say_which_models_it_may_use(globs: tuple[str, ...], model: str, allowed: bool) -> None:
    assert caller(models=globs).may_use(model) is allowed
    if allowed:
        caller(models=globs).check_model(model)
    else:
        with pytest.raises(ModelNotAllowed) as caught:
            caller(models=globs).check_model(model)
        assert (caught.value.param, caught.value.status) == ("model", 403)


@table_rows(
    ("networks", "address", "allowed"),
    [
        ((), "203.0.113.9", True),
        ((), None, True),
        (("10.0.0.0/8",), "10.255.255.255", True),
        (("10.0.0.0/8",), "11.0.0.0", False),
        (("10.0.0.0/8", "2001:db8::/32"), "2001:db8::1", True),
        (("10.0.0.0/8",), "::ffff:10.0.0.1", True),
        (("203.0.113.9",), "203.0.113.9", True),
        (("203.0.113.9",), "203.0.113.8", False),
        (("0.0.0.0/0",), None, False),
        (("0.0.0.0/0",), "not an address", False),
        (("0.0.0.0/0",), "::1", False),
    ],
)
def test_a_key_is_for_its_networks_and_an_unknown_address_is_in_none(
    networks: tuple[str, ...], address: str | None, allowed: bool
) -> None:
    restricted = attrs.evolve(CALLER, networks=parse_networks(networks))
    if allowed:
        restricted.check_address(address)
        return
    with pytest.raises(IpNotAllowed) as caught:
        restricted.check_address(address)
    assert (caught.value.status, caught.value.public_code, caught.value.should_retry) == (403, "ip_not_allowed", False)
    assert address is None or address not in caught.value.message


@table_rows(
    ("group", "groups", "allowed"),
    [
        (None, (), True),
        (None, ("vip",), True),
        ("vip", (), True),
        ("vip", ("lab", "vip"), True),
        ("vip", ("lab",), False),
        ("vip", ("VIP", "vip*"), False),
    ],
)
def test_an_account_with_groups_has_keys_of_these_alone(
    group: str | None, groups: tuple[str, ...], allowed: bool
) -> None:
    one = Caller(attrs.evolve(ACCOUNT, groups=groups), attrs.evolve(KEY, group=group))
    if allowed:
        one.check_group()
        return
    with pytest.raises(GroupNotAllowed) as caught:
        one.check_group()
    assert (caught.value.status, caught.value.public_code, caught.value.should_retry) == (
        403,
        "group_not_allowed",
        False,
    )


@table_rows("name", ["a", "A b", "ops@example.com/x_y-z.1", "a" * 64])
def test_a_good_name(name: str) -> None:
    assert NAME_SHAPE.match(name)


@table_rows("name", ["", " a", "-a", "a" * 65, "a\n", "a\x00", "é", "a;b", "a'b", 'a"b', "../x"])
def test_a_bad_name(name: str) -> None:
    assert not NAME_SHAPE.match(name)
