"""Whom clients name as the end user, the session and the tags of a request."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.domain.attribution import (
    ANY_TAG,
    MAX_NAME_CHARS,
    MAX_TAGS,
    UNATTRIBUTED,
    Attribution,
    AttributionRules,
    UserStorage,
    find_attribution,
    parse_tags,
    split_claude_code_user,
)
from gateway.errors import InvalidRequest

UUID = "54c1eb09-bc4c-4d2f-98eb-6d2ab2d5e2fe"


def rules(users: UserStorage = "text", *tags: str, names: bool = False, key: bytes = b"k") -> AttributionRules:
    return AttributionRules(users, names, frozenset(tags or (ANY_TAG,)), key)


def find(
    headers: dict[str, str] | None = None,
    body: dict[str, Any] | None = None,
    attribution_rules: AttributionRules | None = None,
) -> Attribution:
    return find_attribution(CIMultiDict(headers or {}), body or {}, attribution_rules or rules())


@pytest.mark.parametrize(
    ("headers", "body", "user"),
    [
        ({}, {"user": "u1"}, "u1"),
        ({}, {"user": "u1", "safety_identifier": "s1"}, "s1"),
        ({}, {"user": 7, "metadata": {"user_id": "m1"}}, "m1"),
        ({"X-OpenWebUI-User-Id": "w1"}, {"user": "u1"}, "w1"),
        ({"X-OpenWebUI-User-Id": "w1", "X-OpenWebUI-User-Email": "a@b.c"}, {}, "w1"),
        ({"X-Gateway-User": "g1", "X-OpenWebUI-User-Id": "w1"}, {"user": "u1"}, "g1"),
        ({}, {"metadata": {"user_id": f"user_abc_account_{UUID}_session_s"}}, UUID),
        ({}, {"metadata": {"user_id": "user_abc_account__session_s"}}, "abc"),
        ({}, {"metadata": {"user_id": f'{{"device_id":"d","account_uuid":"","session_id":"{UUID}"}}'}}, "d"),
        ({}, {"metadata": {"user_id": "{not json"}}, "{not json"),
        ({}, {"metadata": {"user_id": '{"account_uuid":7}'}}, ""),
        ({}, {"metadata": "text"}, ""),
        ({"X-Gateway-User": " a\tb\n"}, {}, "a_b"),
    ],
)
def test_the_first_source_names_the_end_user(headers: dict[str, str], body: dict[str, Any], user: str) -> None:
    assert find(headers, body).end_user == user


def test_names_of_open_webui_are_read_only_if_asked_for() -> None:
    headers = {"X-OpenWebUI-User-Id": "w1", "X-OpenWebUI-User-Name": "J%C3%BCrgen B"}
    assert find(headers).end_user == "w1"
    assert find(headers, attribution_rules=rules(names=True)).end_user == "Jürgen B"
    assert find({**headers, "X-OpenWebUI-User-Email": "j@b"}, attribution_rules=rules(names=True)).end_user == "j@b"


def test_a_hash_tells_users_apart_and_depends_on_the_key() -> None:
    hashes = {
        find({}, {"user": user}, rules("hash", key=key)).end_user for user in ("a", "b") for key in (b"k", b"other")
    }
    assert len(hashes) == 4
    assert all(name.startswith("hmac:") and name != "a" for name in hashes)
    assert find({}, {"user": "a"}, rules("off")) == UNATTRIBUTED


@pytest.mark.parametrize(
    ("headers", "body", "session"),
    [
        ({"session_id": "c1"}, {"prompt_cache_key": "p"}, "c1"),
        ({"X-Gateway-Session": "g", "session_id": "c1"}, {}, "g"),
        ({"X-Claude-Code-Session-Id": UUID}, {"metadata": {"user_id": "user_a_account__session_s"}}, UUID),
        ({}, {"metadata": {"user_id": "user_a_account__session_s"}}, "s"),
        ({}, {"metadata": {"user_id": '{"device_id":"d","session_id":"s2"}'}}, "s2"),
        ({}, {"prompt_cache_key": "p"}, "p"),
        ({}, {"prompt_cache_key": ["p"]}, ""),
    ],
)
def test_the_first_source_names_the_session(headers: dict[str, str], body: dict[str, Any], session: str) -> None:
    assert find(headers, body).session == session


def test_long_names_stay_apart() -> None:
    names = [find({}, {"user": "x" * MAX_NAME_CHARS + end}).end_user for end in ("a", "b")]
    assert len({*names}) == 2
    assert max(map(len, names)) <= MAX_NAME_CHARS
    assert find({}, {"user": "x" * MAX_NAME_CHARS}).end_user == "x" * MAX_NAME_CHARS


def test_tags_of_the_header_are_stored_by_name_and_those_of_metadata_only_if_named() -> None:
    headers = {"X-Gateway-Tags": "team=web, feature=search,"}
    body = {"metadata": {"team": "other", "env": "prod", "run": "1"}}
    assert find(headers, body).tags == "feature=search,team=web"
    assert find(headers, body, rules("text", ANY_TAG, "env")).tags == "env=prod,feature=search,team=web"
    assert find(headers, body, rules("text", "env", "team")).tags == "env=prod,team=web"
    assert find({}, body, rules("text", "team")).tags == "team=other"
    for value in (7, "a,b", "", "x" * 65, None):
        assert find({}, {"metadata": {"env": value}}, rules("text", "env")).tags == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("web", "'web' is not name=value"),
        ("team=", "has no value"),
        ("=web", "has no name"),
        ("a b=c", "has no name"),
        (f"team={'x' * 65}", "has no value"),
        (",".join(f"t{number}=v" for number in range(MAX_TAGS + 1)), f"at most {MAX_TAGS}"),
    ],
)
def test_malformed_tags_are_refused_by_the_name_of_the_header(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem) as refused:
        parse_tags(text)
    assert refused.value.param == "x-gateway-tags"


@given(
    st.dictionaries(st.sampled_from(["X-Gateway-User", "session_id", "X-OpenWebUI-User-Email"]), st.text()),
    st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(st.none(), st.text(), st.integers(), st.dictionaries(st.text(), st.text()))
            for name in ("user", "safety_identifier", "prompt_cache_key", "metadata")
        },
    ),
    st.sampled_from(["text", "hash", "off"]),
)
def test_any_request_gets_short_printable_texts(
    headers: dict[str, str], body: dict[str, Any], users: UserStorage
) -> None:
    for text in find(headers, body, rules(users, names=True)):
        assert len(text) <= MAX_NAME_CHARS
        assert text.isprintable()


@given(st.text())
def test_the_user_of_claude_code_is_split_from_any_text(user_id: str) -> None:
    account, session = split_claude_code_user(user_id)
    assert session == "" or session in user_id
    assert account == user_id or session or not account or account in user_id
