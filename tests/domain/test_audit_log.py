"""Who acts, and what is on record of a change."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.audit_log import (
    FILE,
    GATEWAY,
    KINDS,
    MASKED_CHANGE,
    MAX_DETAIL_BYTES,
    OPERATOR,
    SECRET_FIELDS,
    Actor,
    build_change,
)
from tests.support.table_rows import table_rows

VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("abc日", max_size=9)
JSON = VALUES | st.lists(VALUES, max_size=3) | st.dictionaries(st.text("ab", max_size=2), VALUES, max_size=2)
FIELDS = st.dictionaries(st.sampled_from(["rpm", "name", "models", "api_keys", "headers", "secret"]), JSON)


def read(detail: str) -> dict[str, Any]:
    reported: dict[str, Any] = orjson.loads(detail)
    return reported


def test_a_member_sees_its_own_account_and_who_has_no_scope_sees_all() -> None:
    assert [Actor("member", scope=3).may_see(account_id) for account_id in (2, 3)] == [False, True]
    for actor in (OPERATOR, FILE, GATEWAY, Actor("member", "ada", 1, account_id=3)):
        assert actor.may_see(2)


def test_what_somebody_did_says_who_where_and_what() -> None:
    row = Actor("member", "ada", 7, 3, 3, "10.0.0.9").build_audit_row(
        "key.created", "acme/ci", 5, account_id=3, detail='{"a":1}'
    )
    assert (row.actor_kind, row.actor, row.member_id, row.address) == ("member", "ada", 7, "10.0.0.9")
    assert (row.action, row.subject, row.at_ms, row.account_id) == ("key.created", "acme/ci", 5, 3)
    assert (row.detail, row.sequence) == ('{"a":1}', 0)


def test_every_kind_of_actor_is_known() -> None:
    assert {OPERATOR.kind, FILE.kind, GATEWAY.kind, "member"} == {*KINDS}


@table_rows(
    ("before", "after", "reported"),
    [
        ({}, {}, {}),
        ({"rpm": 60, "tpm": 5}, {"rpm": 120, "tpm": 5}, {"rpm": [60, 120]}),
        ({"rpm": 60}, {"rpm": None}, {"rpm": [60, None]}),
        ({}, {"rpm": 60, "tpm": None}, {"rpm": [None, 60]}),
        ({"rpm": 60}, {}, {"rpm": [60, None]}),
        ({"models": []}, {"models": ["é"]}, {"models": [[], ["é"]]}),
        ({"proxy": None}, {"proxy": "http://u:p@h"}, {"proxy": MASKED_CHANGE}),
        ({"api_keys": ["a"]}, {"api_keys": ["b"]}, {"api_keys": MASKED_CHANGE}),
        ({"models": []}, {"models": ["x" * MAX_DETAIL_BYTES]}, {"models": MASKED_CHANGE}),
    ],
)
def test_a_change_is_its_fields_before_and_after(
    before: dict[str, Any], after: dict[str, Any], reported: dict[str, Any]
) -> None:
    assert read(build_change(before, after)) == reported


@given(FIELDS, FIELDS)
def test_what_differs_is_on_record_and_nothing_else_and_no_secret(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    reported = read(build_change(before, after))
    assert reported.keys() == {name for name in before | after if before.get(name) != after.get(name)}
    for name, value in reported.items():
        assert value == (MASKED_CHANGE if name in SECRET_FIELDS else [before.get(name), after.get(name)])
