"""What the claims of a provider say of a member."""

from typing import Any

import pytest

from gateway.auth.sign_in_provider import RoleClaims, SignInProvider, find_email, list_names
from gateway.domain.member import Role
from gateway.parsing import ValidationErrors, parse_table
from tests.support.table_rows import table_rows

FIELDS = {"name": "corp", "issuer": "https://id.example.com", "client_id": "gateway", "client_secret": "s"}
ROLES = RoleClaims(administrator=("admins",), member=("staff", "dev"), viewer=("guests",))


def make(**more: Any) -> SignInProvider:
    return parse_table({**FIELDS, **more}, SignInProvider)


@table_rows(
    ("claims", "role"),
    [
        ({"groups": ["guests", "admins", "staff"]}, "administrator"),
        ({"groups": ["dev"]}, "member"),
        ({"groups": "guests"}, "viewer"),
        ({"groups": ["Admins", "admins "]}, None),
        ({"groups": [["admins"], {"admins": 1}, 7, None]}, None),
        ({"groups": {"admins": True}}, None),
        ({"groups": None}, None),
        ({}, None),
    ],
)
def test_the_highest_role_wins_and_only_texts_give_one(claims: dict[str, Any], role: Role | None) -> None:
    roles = {"administrator": ["admins"], "member": ["staff", "dev"], "viewer": ["guests"]}
    assert make(roles=roles).find_role(claims) == role


def test_a_claim_is_found_by_its_name_before_its_path() -> None:
    provider = make(role_claim="https://example.com/roles", roles={"viewer": ["v"]})
    assert provider.find_role({"https://example.com/roles": ["v"]}) == "viewer"
    provider = make(role_claim="a.b", roles={"viewer": ["v"], "member": ["m"]})
    assert provider.find_role({"a": {"b": ["m"]}}) == "member"
    assert provider.find_role({"a": {"b": ["m"]}, "a.b": ["v"]}) == "viewer"
    assert provider.find_role({"a": "b"}) is None


def test_the_account_is_that_of_the_claim_if_one_is_set_and_else_the_fixed_one() -> None:
    assert make(account="acme").find_account({"team": "beta"}) == "acme"
    provider = make(account_claim="team")
    assert provider.find_account({"team": "beta"}) == "beta"
    assert provider.find_account({"team": ["beta", "acme"]}) is None, "which of the two?"
    assert provider.find_account({}) is None
    provider = make(account="acme", account_claim="team")
    every: list[dict[str, Any]] = [
        {}, {"team": None}, {"team": 5}, {"team": []}, {"team": ["a", "b"]}, {"Team": "beta"}, {"team": {}},
    ]  # fmt: skip
    for claims in every:
        assert provider.find_account(claims) is None, "the fixed account does not stand in"


@table_rows(
    ("claims", "email"),
    [
        ({"email": "Ann@Example.com", "email_verified": True}, "ann@example.com"),
        ({"email": "ann@example.com", "email_verified": 1}, None),
        ({"email": "ann@example.com"}, None),
        ({"email": ["ann@example.com"], "email_verified": True}, None),
        ({"email": "a@b@example.com", "email_verified": True}, None),
        ({"email": "example.com", "email_verified": True}, None),
    ],
)
def test_an_address_counts_only_if_it_is_verified(claims: dict[str, Any], email: str | None) -> None:
    assert find_email(claims) == email


@table_rows(
    ("claims", "first"),
    [
        ({"email": "ann@example.com", "email_verified": True, "preferred_username": "annie"}, "ann@example.com"),
        ({"email": "ann@example.com", "preferred_username": "Annie"}, "annie"),
        ({"preferred_username": "gateway"}, "member-"),
        ({"preferred_username": "Ann Lee"}, "member-"),
        ({"preferred_username": "../x"}, "member-"),
        ({}, "member-"),
    ],
)
def test_a_new_member_is_called_as_it_may_be_called(claims: dict[str, Any], first: str) -> None:
    own = {"iss": "https://id.example.com", "sub": "1"}
    names = list_names({**own, **claims})
    assert names[0].startswith(first)
    assert names[-1] != list_names({**own, **claims, "sub": "2"})[-1], "the last is its own"
    assert all(len(name) <= 64 for name in list_names({**own, "preferred_username": "x" * 64}))


@table_rows(
    ("changed", "where"),
    [
        ({"name": "Corp"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"issuer": "http://id.example.com"}, "issuer"),
        ({"issuer": "https://id.example.com/?tenant=1"}, "issuer"),
        ({"issuer": "https://user@id.example.com"}, "issuer"),
        ({"scopes": ["email"]}, "scopes"),
        ({"domains": ["Example.com"]}, "domains"),
        ({"roles": {"owner": ["x"]}}, "roles.owner"),
        ({"create": True}, "account"),
        ({"client_secret": ""}, "client_secret"),
    ],
)
def test_a_wrong_setting_is_named(changed: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationErrors) as caught:
        make(**changed)
    assert [path for path, _ in caught.value.problems] == [where]


def test_the_secret_is_in_no_text() -> None:
    assert "'s'" not in repr(make())
    assert ROLES
    assert not RoleClaims()
