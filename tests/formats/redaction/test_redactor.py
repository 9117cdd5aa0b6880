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


CARD = "4111 1111 1111 1111"
IBAN = "DE89 3704 0044 0532 0130 00"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("4111111111111111 12/29 123", "[card 1] 12/29 123"),
        (f"card {CARD} 12/29", "card [card 1] 12/29"),
        (f"{CARD} 123", "[card 1] 123"),
        (f"2 {CARD}", "2 [card 1]"),
        ("x 5 4111111111111111", "x 5 [card 1]"),
        (f"No.{CARD}, 5555-5555-5555-4444 378282246310005", "No.[card 1], [card 2] [card 3]"),
        (" ".join("4111111111111111"), "[card 1]"),
        ("4 5 3 2 1 0 " * 20, "4 5 3 2 1 0 " * 20),
    ],
)
def test_cards_are_found_beside_other_numbers(text: str, redacted: str) -> None:
    assert Redactor(frozenset({"cards"})).redact(text) == redacted


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("id US12ABCDEFGHIJKLMNOPQ", None),
        ("AA00BBCCDDEEFF11223344", None),
        (f"RE24 {IBAN}", "RE24 [iban 1]"),
        (f"{IBAN} {IBAN}", "[iban 1] [iban 1]"),
        (f"DE12 {IBAN} GB00", "DE12 [iban 1] GB00"),
    ],
)
def test_letters_of_no_country_are_no_iban(text: str, redacted: str | None) -> None:
    assert Redactor(frozenset({"ibans"})).redact(text) == (text if redacted is None else redacted)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (r"line\n%s", r"line\n[secret 1]"),
        (r"{\"a\": \"x\\n%s\"}", r"{\"a\": \"x\\n[secret 1]\"}"),
        (
            r"https:\/\/hooks.slack.com\/services\/T0AB2CD3E\/B0AB2CD3E\/x",
            r"https:\/\/hooks.slack.com\/services\/[secret 1]",
        ),
        (r"postgres:\/\/u:pw@db", r"postgres:\/\/u:[secret 1]@db"),
        ("postgres://u:p@ss1word@db:5432/x", "postgres://u:[secret 1]@db:5432/x"),
        ("key%%20%s", "key%%20[secret 1]"),
        ("\x1b[1m%s\x1b[32m%s", "\x1b[1m[secret 1]\x1b[32m[secret 1]"),
        ("access-token: 0123456789abcdef", "access-token: [secret 1]"),
        ("apiKey=0123456789abcdef", "apiKey=[secret 1]"),
        (r"{\"password\": \"correct horse", r"{\"password\": \"[secret 1]"),
        (r"{\"password\": \"a b\\\"c d e\", \"b\": 1", r"{\"password\": \"[secret 1]\", \"b\": 1"),
    ],
)
def test_secrets_are_found_in_and_after_escapes(text: str, redacted: str) -> None:
    secret = SECRETS["github"]
    redactor = Redactor(frozenset({"secrets"}))
    assert redactor.redact(text.replace("%s", secret).replace("%%", "%")) == redacted.replace("%%", "%")


def test_keys_of_channels_are_found_in_escapes() -> None:
    redactor = Redactor(frozenset({"secrets"}), ["Ge&heim-wort"])
    assert redactor.redact(r"Ge\u0026heim-wort, Ge&heim-wort") == "[secret 1], [secret 1]"


def test_a_private_key_without_its_end_is_replaced_up_to_a_bound() -> None:
    text = SECRETS["pem"].partition("-----END")[0] + "x " * 20_000
    redacted = Redactor(ALL).redact(text)
    assert redacted.startswith("[secret 1]")
    assert SECRETS["pem"][40:100] not in redacted
