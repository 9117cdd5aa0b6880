"""What a member may do, what a passphrase must be, and what proves who somebody is."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import member
from gateway.domain.member_spec import InviteSpec, LinkUseSpec, MemberSpec, SetupSpec, SignInSpec, build_member_fields
from gateway.error_status import STATUS
from gateway.errors import InvalidRequest
from gateway.parsing import parse_spec
from tests.support.table_rows import table_rows

NOW = 1_800_000_000_000
HASH = "$argon2id$ann"
ANN = member.Member(3, 1, "ann", "member", passphrase=HASH)


def test_each_role_may_do_what_those_before_it_may() -> None:
    assert [[member.includes_rights(role, needed) for needed in member.ROLES] for role in member.ROLES] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


@table_rows(
    "passphrase",
    [
        "four green frogs sing",
        "x7#kQ2!mNp0v",
        "зелёные лягушки поют",
        "蛙が四匹歌っています、緑の蛙",
        "my password is a long sentence",
        "a" * 240 + "bcdef and more",
    ],
)
def test_what_is_long_enough_and_not_worn_will_do(passphrase: str) -> None:
    assert member.find_passphrase_problem(passphrase, "ann") is None


@table_rows(
    ("passphrase", "message"),
    [
        ("elevenchars", "12 to 256"),
        ("a b c d e f " * 30, "12 to 256"),
        ("", "12 to 256"),
        ("four green\nfrogs sing", "seen"),
        ("four green frogs\x00 sing", "seen"),
        ("aaaaaaaaaaaaaaaaaaaa", "different"),
        ("abababababab", "different"),
        ("passwordpassword123", "guess"),
        ("Password1234", "guess"),
        ("QWERTYqwerty12", "guess"),
        ("correct horse battery staple", "guess"),
        ("ann@example.org", "guess"),
        ("Ann@Example.Org123", "guess"),
    ],
)
def test_what_is_short_or_worn_will_not(passphrase: str, message: str) -> None:
    assert message in (member.find_passphrase_problem(passphrase, "ann@example.org") or "")


@given(passphrase=st.text(max_size=300), name=st.text(max_size=70))
def test_whatever_is_typed_there_is_a_word_about_it_or_it_is_long_enough(passphrase: str, name: str) -> None:
    problem = member.find_passphrase_problem(passphrase, name)
    if problem is None:
        assert member.MIN_PASSPHRASE <= len(passphrase) <= member.MAX_PASSPHRASE
        assert passphrase.isprintable()
        assert passphrase.lower() != name.lower()
    else:
        assert passphrase not in problem or len(passphrase) < 4


@given(name=st.from_regex(member.MEMBER_NAME, fullmatch=True).filter(lambda name: len(name) > 6))
def test_nobodys_own_name_is_a_passphrase(name: str) -> None:
    for passphrase in (name, name.upper(), name * 2, f"{name}12345", f"password{name}"):
        assert member.find_passphrase_problem(passphrase, name) is not None


@table_rows("name", ["a", "ann", "ann@example.org", "0.a+b-c_d", "a" * 64])
def test_a_name_is_written_small(name: str) -> None:
    assert member.MEMBER_NAME.match(name)
    assert not member.MEMBER_NAME.match(f"{name}A"[-64:]) or len(name) == 64


@table_rows("name", ["", "Ann", ".ann", "ann ", "a" * 65, "ann\n", "änn", "a/b", "<b>"])
def test_what_is_no_name(name: str) -> None:
    assert not member.MEMBER_NAME.match(name)


def test_a_session_is_over_unused_or_old() -> None:
    session = member.Session(b"d" * 32, 3, NOW, NOW)
    assert not session.is_over(NOW + member.IDLE_MS - 1)
    assert session.is_over(NOW + member.IDLE_MS)
    used = attrs.evolve(session, seen_ms=NOW + member.ABSOLUTE_MS - 1)
    assert not used.is_over(NOW + member.ABSOLUTE_MS - 1)
    assert used.is_over(NOW + member.ABSOLUTE_MS)


def test_nothing_of_what_is_secret_is_shown() -> None:
    whole = attrs.evolve(ANN, totp=b"sealed", recovery=("digest",))
    session = member.Session(b"digest-of-a-reference-of-32-byte", 3, NOW, NOW)
    for noun in (
        whole,
        session,
        member.Credential(HASH, recovery_digest="digest"),
        SignInSpec("ann", "four green frogs", "123456"),
    ):
        assert not any(word in repr(noun) for word in (HASH, "sealed", "digest", "frogs", "123456"))


def test_a_passphrase_proves_who_it_is_where_there_is_no_second_factor() -> None:
    assert ANN.accept(member.Credential(HASH)) == ANN
    assert ANN.accept(member.Credential("another")) is None


def test_where_there_is_a_second_factor_it_takes_an_unused_code() -> None:
    both = attrs.evolve(ANN, totp=b"sealed", totp_step=7, recovery=("ab", "cd"))
    assert both.accept(member.Credential(HASH)) is None
    assert both.accept(member.Credential(HASH, step=7)) is None
    assert both.accept(member.Credential("another", step=8)) is None
    assert both.accept(member.Credential(HASH, step=8)) == attrs.evolve(both, totp_step=8)
    assert both.accept(member.Credential(HASH, recovery_digest="ab")) == attrs.evolve(both, recovery=("cd",))
    assert both.accept(member.Credential(HASH, recovery_digest="ef")) is None
    assert both.accept(member.Credential(HASH, is_known=True)) == both


def test_what_differs_is_named() -> None:
    assert member.find_difference(ANN, ANN) == set()
    assert member.find_difference(ANN, attrs.evolve(ANN, role="viewer", recovery=("ab",))) == {"role", "recovery"}


def test_a_member_is_shown_without_what_is_secret() -> None:
    shown = build_member_fields(attrs.evolve(ANN, totp=b"sealed", recovery=("ab", "cd"), signed_in_ms=NOW))
    assert shown == {
        "id": 3,
        "name": "ann",
        "role": "member",
        "second_factor": True,
        "authenticator": True,
        "recovery_left": 2,
        "passkeys": 0,
        "may_read_bodies": False,
        "created_at": "1970-01-01T00:00:00Z",
        "signed_in_at": "2027-01-15T08:00:00Z",
    }


def test_faults_of_signing_in_say_no_more_than_they_must() -> None:
    assert {STATUS[kind.code] for kind in (member.WrongPassphrase, member.SecondFactorNeeded)} == {401}
    assert member.WrongPassphrase().message == member.WrongPassphrase().message
    assert member.WrongPassphrase().should_retry is False


@table_rows(
    ("kind", "fields", "param"),
    [
        (SignInSpec, {"name": "ann", "passphrase": "c4nary" * 50}, "passphrase"),
        (SignInSpec, {"name": "c4nary" * 50, "passphrase": "x"}, "name"),
        (SignInSpec, {"name": "ann", "passphrase": "x", "code": "c4nary" * 50}, "code"),
        (SignInSpec, {"name": "ann", "passphrase": ["c4nary"]}, "passphrase"),
        (SetupSpec, {"token": "c4nary" * 50, "name": "ann", "passphrase": "x"}, "token"),
        (SetupSpec, {"token": "t", "name": "ann"}, "passphrase"),
        (LinkUseSpec, {"token": "t", "passphrase": 7}, "passphrase"),
        (InviteSpec, {"account": "acme", "role": "chief"}, "role"),
        (InviteSpec, {"account": "acme", "hours": 0}, "hours"),
        (MemberSpec, {"second_factor": True}, "second_factor"),
        (MemberSpec, {"passphrase": "c4nary"}, "passphrase"),
    ],
)
def test_what_is_typed_wrong_is_named_and_not_repeated(kind: type, fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_spec(fields, kind)
    assert refused.value.param == param
    assert "c4nary" not in refused.value.message
