"""What must not be kept is found in texts, and what is harmless stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.keep_rule import RedactedKind
from gateway.formats.redaction.redactor import Redactor
from tests.support.secret_samples import HARMLESS, PERSONAL, SECRETS, WRAPPED_SECRETS

ALL: frozenset[RedactedKind] = frozenset({"secrets", "cards", "ibans", "mails", "phones", "ips"})
PERSONAL_CASES = [(kind, value) for kind, values in PERSONAL.items() for value in values]


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("frame", ["{}", "Use {} now.", "KEY='{}'", "ü→{}\n", '{{"a":"{}"}}', "x={}&y=1"])
def test_a_secret_is_replaced_as_a_whole(name: str, frame: str) -> None:
    assert Redactor(frozenset({"secrets"})).redact(frame.format(SECRETS[name])) == frame.format("[secret 1]")


@pytest.mark.parametrize("name", WRAPPED_SECRETS)
def test_a_secret_is_recognized_by_what_stands_before_it(name: str) -> None:
    before, secret, after = WRAPPED_SECRETS[name]
    assert Redactor(frozenset({"secrets"})).redact(f"a {before}{secret}{after}") == f"a {before}[secret 1]{after}"


@pytest.mark.parametrize(("kind", "value"), PERSONAL_CASES)
def test_a_switch_has_its_values_replaced(kind: RedactedKind, value: str) -> None:
    text = f"Mine is {value}, and yours?"
    assert Redactor(frozenset({kind})).redact(text) == f"Mine is [{kind[:-1]} 1], and yours?"
    assert Redactor(ALL - {kind}).redact(text) == text


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_texts_stay(text: str) -> None:
    assert Redactor(ALL).redact(text) == text


def test_equal_values_have_equal_marks() -> None:
    redactor = Redactor(ALL)
    first, second = SECRETS["github"], SECRETS["openai"]
    assert redactor.redact(f"{first} {second} {first} a@b.io") == "[secret 1] [secret 2] [secret 1] [mail 1]"
    assert redactor.redact(f"c@b.io {second} a@b.io") == "[mail 2] [secret 2] [mail 1]"


def test_keys_of_channels_are_replaced_whatever_their_shape() -> None:
    redactor = Redactor(frozenset({"secrets"}), ["my own provider key", "short"])
    assert redactor.redact("bad key: my own provider key; short") == "bad key: [secret 1]; short"


def test_a_private_key_without_its_end_is_replaced() -> None:
    cut = SECRETS["pem"][:500]
    assert Redactor(ALL).redact(f"Key:\n{cut}") == "Key:\n[secret 1]"


def test_a_connection_string_keeps_all_but_its_password() -> None:
    text = "mysql://root:hunter2@db/x and https://example.com/a:b@c"
    assert Redactor(frozenset({"secrets"})).redact(text) == "mysql://root:[secret 1]@db/x and https://example.com/a:b@c"


@given(st.lists(st.sampled_from([*SECRETS.values(), " ", "word", "\n", "ü", "12 "]), max_size=8))
def test_no_secret_survives_beside_others(words: list[str]) -> None:
    text = " ".join(words)
    redacted = Redactor(ALL).redact(text)
    assert not [secret for secret in SECRETS.values() if secret in redacted]
    assert Redactor(ALL).redact(redacted) == redacted


@given(st.text(st.sampled_from('aZ09 @.:+-/_=eyJsk\n\\"ü😀{}[]'), max_size=300))
def test_any_text_is_redacted_without_an_error(text: str) -> None:
    redactor = Redactor(ALL)
    assert redactor.redact(text) == text or redactor.find(text)


@pytest.mark.parametrize("offset", [32 * 1024 - 20, 32 * 1024 - 1, 32 * 1024, 64 * 1024 - 7])
@pytest.mark.parametrize("value", ["4111 1111 1111 1111", "DE89370400440532013000", "+14155552671", "192.0.2.17"])
def test_a_value_on_the_border_of_two_searches_is_found(offset: int, value: str) -> None:
    text = "a" * (offset - 1) + " " + value + " end"
    redacted = Redactor(ALL).redact(text)
    assert value not in redacted
    assert redacted.endswith(" 1] end")
