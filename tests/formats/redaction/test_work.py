"""The work of a redaction grows with the length of a text, whatever the text repeats, and has a limit."""

import pytest

from gateway.domain.kept_body import BodyPart
from gateway.formats.redaction import redactor as redactor_module
from gateway.formats.redaction.body import redact_part
from gateway.formats.redaction.media import replace_media
from gateway.formats.redaction.pieces import redact_pieces
from gateway.formats.redaction.redactor import Redactor
from gateway.formats.redaction.secret_shapes import SecretShape
from gateway.formats.redaction.work import TooMuchWorkError, Work
from tests.support.secret_samples import SECRETS

REPEATED = (
    "sk-",
    "secret=",
    "@",
    "a@",
    "-eyJ",
    "-----BEGIN PRIVATE KEY-----",
    "://",
    "-us",
    ":AA",
    ".atlasv1.",
    "PRIVATE KEY",
    "4111 ",
    "AB12 ",
    "Bearer ",
    'password":"',
    "\\n",
    "\\\\\\u0041",
)


def count_steps(text: str) -> int:
    redactor = Redactor(frozenset({"secrets", "cards", "ibans", "mails"}))
    redactor.redact(text)
    return redactor.work.steps


def count_tries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the positions of tried patterns written into the list."""
    tries: list[int] = []
    try_shape = redactor_module._try_shape

    def note(shape: SecretShape, text: str, start: int) -> tuple[int, int] | None:
        tries.append(start)
        return try_shape(shape, text, start)

    monkeypatch.setattr(redactor_module, "_try_shape", note)
    return tries


@pytest.mark.parametrize("text", REPEATED)
def test_the_work_grows_with_the_length(text: str) -> None:
    once, twice = count_steps(text * 20_000), count_steps(text * 40_000)
    assert twice <= 2.1 * once + 40_000


@pytest.mark.parametrize("text", REPEATED)
def test_a_pattern_is_tried_once_at_each_anchor_at_most(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = count_tries(monkeypatch)
    count_steps(text * 10_000)
    assert len(tries) <= 20_000


@pytest.mark.parametrize("text", ["sk-", "-eyJ", "-----BEGIN PRIVATE KEY-----"])
def test_repeated_anchors_inside_of_a_secret_are_passed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = count_tries(monkeypatch)
    count_steps(text * 50_000)
    assert len(tries) < 400


def test_a_token_at_the_end_of_a_long_word_is_found() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl"
    text = "-eyJ" * 20_000 + "-" + token
    assert token not in Redactor(frozenset({"secrets"})).redact(text)


def test_parameters_of_a_data_url_are_few() -> None:
    text = "data:a" + ";a" * 100_000
    assert replace_media(text) == text


def test_a_body_that_takes_too_much_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    redactor = Redactor(frozenset({"secrets"}))
    monkeypatch.setattr("gateway.formats.redaction.body.Work", lambda: Work(limit=1_000))
    content = b"x://" * 1_000 + SECRETS["github"].encode()
    part = BodyPart("request", content, "text/plain", len(content))
    with pytest.raises(TooMuchWorkError):
        redact_part(part, redactor, 10**6)
    assert redact_part(BodyPart("request", b"short", "text/plain", 5), redactor, 10**6).content == b"short"


def test_many_pieces_with_many_marks_are_redacted() -> None:
    values = ["a@b.i", "o ", "x "] * 3_000
    redacted = redact_pieces(values, Redactor(frozenset({"mails"})))
    assert redacted == ["[mail 1]", " ", "x "] * 3_000
