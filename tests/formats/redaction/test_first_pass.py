"""The first pass says only of bodies that the full redaction leaves as they are that there is nothing to redact."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.keep_rule import DEFAULT_REDACTED, RedactedKind
from gateway.formats.redaction import body, event_texts
from gateway.formats.redaction.body import redact_content, redact_stream
from gateway.formats.redaction.escapes import resolve_levels, resolve_once
from gateway.formats.redaction.first_pass import has_nothing_to_redact
from gateway.formats.redaction.own_patterns import parse_pattern
from gateway.formats.redaction.personal_shapes import _may_have_card
from gateway.formats.redaction.redactor import Redactor
from gateway.formats.redaction.secret_shapes import SECRET_NAME
from gateway.formats.redaction.work import Work
from tests.support.secret_samples import HARMLESS, PERSONAL, SECRETS, WRAPPED_SECRETS
from tests.support.text_events import EVENTS, tool_event

ALL: frozenset[RedactedKind] = frozenset({"secrets", "cards", "ibans", "mails", "phones", "ips"})
OWN_SECRETS = ("Ge&heim-wort", 'with "quotes" in it')
MEDIA = base64.b64encode(bytes(range(256)) * 4).decode()
VALUES = [
    *SECRETS.values(), *("".join(parts) for parts in WRAPPED_SECRETS.values()),
    *(value for values in PERSONAL.values() for value in values), *HARMLESS, *OWN_SECRETS, *SECRETS["pem"].split("\n"),
    MEDIA, f"data:image/png;base64,{MEDIA}", MEDIA[:1023], "password", "API_KEY", "Tr0ub4dor&3", "word", "", " ", "\n",
    '"', "\\", "ü", "\U0001d7cf", "😀", "\u0664", "\u017f", "-----BEGIN", "PRIVATE KEY-----", "[card 1]", "[", "{", "]",
    "}", ",", ":", "=", "1", "4111", "11111", "ends-with-one\\",
]  # fmt: skip
NAMES = [
    "a", "content", "delta", "index", "type", "value", "name", "key", "logprobs", "logprobsResult", "token",
    "password", "api_key", "API-KEY", "Refre\u017fh_To\u212aen", "x\\refresh_token", "client_secret", "secretary",
    *list(SECRETS.values())[:3],
]  # fmt: skip


KINDS = st.sampled_from([ALL, frozenset(DEFAULT_REDACTED), frozenset()])


@contextmanager
def without_first_pass() -> Iterator[None]:
    def know_nothing(*_args: object, **_options: object) -> bool:
        return False

    name = has_nothing_to_redact.__name__
    with patch.object(body, name, know_nothing), patch.object(event_texts, name, know_nothing):
        yield


def make_redactor(kinds: frozenset[RedactedKind] = ALL, **options: Any) -> Redactor:
    return Redactor(kinds, OWN_SECRETS, **options)


def is_clean(text: str, redactor: Redactor | None = None) -> bool:
    return has_nothing_to_redact(text, redactor or make_redactor(), keeps_media=False)


def write_json(value: Any, *, ascii_only: bool, every: int, indent: str) -> str:
    """Return JSON in which every so many characters of texts and names are escaped; 0: none without need."""
    write = partial(write_json, ascii_only=ascii_only, every=every, indent=indent)
    if isinstance(value, str):
        units = re.findall(r"\\u....|\\.|.", json.dumps(value, ensure_ascii=ascii_only)[1:-1], re.DOTALL)
        chosen = [every and not number % every and len(unit) == 1 for number, unit in enumerate(units)]
        escaped = [
            f"\\u{ord(unit):04x}" if is_chosen and unit < "\uffff" else unit
            for unit, is_chosen in zip(units, chosen, strict=True)
        ]
        return '"' + "".join(escaped) + '"'
    if isinstance(value, dict):
        return "{" + f",{indent}".join(f"{write(name)}:{indent}{write(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{indent}" + f"{indent}, ".join(map(write, value)) + "]"
    return json.dumps(value)


STYLES = st.fixed_dictionaries(
    {"ascii_only": st.booleans(), "every": st.sampled_from([0, 0, 1, 3]), "indent": st.sampled_from(["", " ", "\n\t"])}
)
TEXTS = st.lists(st.sampled_from(VALUES), max_size=4).map("".join)
CUT_TEXTS = st.tuples(TEXTS, st.integers(0, 40), st.integers(0, 40)).map(lambda cut: cut[0][cut[1] : -cut[2] or None])
NUMBERS = st.sampled_from([4111111111111111, -4111111111111111, 12345678, 0, 1750000000, 2**70, 0.5])
LEAVES = st.sampled_from([None, True]) | NUMBERS | TEXTS | CUT_TEXTS
PLAIN_LEAVES = st.sampled_from(
    [None, False, 7, 1750000000, "word", "two words\n", 'say "hi"', "C:\\new", "ü", "😀", "[1]"]
)


def list_json(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return values of JSON, also with JSON in their texts, in the texts of that, and so on."""
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
            | st.builds(lambda value, style: write_json(value, **style), inner, STYLES)
        ),
        max_leaves=6,
    )


VALUES_OF_JSON = list_json(PLAIN_LEAVES) | list_json(PLAIN_LEAVES | LEAVES)


def check(content: bytes, kinds: frozenset[RedactedKind], redact: Callable[..., bytes], *, keeps_media: bool) -> None:
    """Compare the redaction of a body with that of the full passes alone."""
    kept = redact(content, make_redactor(kinds), keeps_media=keeps_media)
    with without_first_pass():
        assert kept == redact(content, make_redactor(kinds), keeps_media=keeps_media)


@given(VALUES_OF_JSON, STYLES, KINDS, st.booleans())
def test_json_is_redacted_as_without_the_first_pass(
    value: Any, style: dict[str, Any], kinds: frozenset[RedactedKind], keeps_media: bool
) -> None:
    check(write_json(value, **style).encode(errors="replace"), kinds, redact_content, keeps_media=keeps_media)


@given(st.lists(TEXTS | CUT_TEXTS | VALUES_OF_JSON.map(json.dumps), max_size=3), st.integers(0, 200))
def test_any_text_is_redacted_as_without_the_first_pass(texts: list[str], end: int) -> None:
    content = "".join(texts).encode(errors="replace")
    for part in (content, content[:end], content[end:]):
        check(part, ALL, redact_content, keeps_media=False)


STREAMS = st.builds(
    lambda values, style, text, write_event, length, end: (
        "".join(f"data: {write_json(value, **style)}".replace("\n\t", "\ndata: ") + end for value in values).encode()
        + b"".join(write_event(text[start : start + length]) for start in range(0, len(text), length))
        + b"data: [DONE]\n\n"
    ),
    st.lists(VALUES_OF_JSON, max_size=2),
    STYLES,
    TEXTS | VALUES_OF_JSON.map(json.dumps),
    st.sampled_from(list(EVENTS.values())),
    st.integers(1, 60),
    st.sampled_from(["\n\n", "\r\n\r\n", "\n\ndata: "]),
)


@given(STREAMS, KINDS)
def test_streams_are_redacted_as_without_the_first_pass(stream: bytes, kinds: frozenset[RedactedKind]) -> None:
    check(stream, kinds, redact_stream, keeps_media=False)


@pytest.mark.parametrize(
    "arguments",
    [{"password": 12345678}, {"name": "API_KEY", "value": "abcdefgh"}],
    ids=["by its name", "by the name beside"],
)
def test_media_beside_a_secret_in_pieces_of_a_stream_are_left_out(arguments: dict[str, Any]) -> None:
    """The pieces prove nothing. The text joined of them has a secret, and then stands in one event, with the media."""
    image = base64.b64encode(bytes(range(256)) * 9).decode()
    text = json.dumps({**arguments, "image": image})
    stream = b"".join(tool_event(text[at : at + 5]) for at in range(0, len(text), 5))
    check(stream, ALL, redact_stream, keeps_media=False)
    redacted = redact_stream(stream, make_redactor(), keeps_media=False)
    assert image[:40].encode() not in redacted
    assert b"[media" in redacted


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": 'Say "hi",\n\tthen\\stop. Über 😀'}]},
        {"choices": [{"message": {"content": "[1, 2]"}, "logprobs": None}], "created": 1750000000, "usage": {"a": 1}},
        {"tools": [{"arguments": '{"key": "path", "value": "C:\\\\new\\n", "n": [{"secretary": "ann"}]}'}]},
        {"text": "关于网关的问题请回答。" * 100, "名": "值"},
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_ordinary_bodies_pass(body: Any, ascii_only: bool) -> None:
    assert is_clean(json.dumps(body, ensure_ascii=ascii_only, indent=1))


@pytest.mark.parametrize(
    "text",
    [
        '{"password":12345678}', '{"name":"API_KEY","value":"abcdefgh"}', '{"Refre\u017fh_To\u212aen":"abcdefgh"}',
        r'{"a":"{\"p\\u0061ssword\":12345678}"}', '{"logprobs":[1]}', '{"logprobs"\n: {"a":1}}',
        '["PRIVATE KEY","password:","abcd1234efgh5678"]', f'{{"image":"{MEDIA}"}}', r'"\\\\\\\\\\\\\\\\\\\\n"',
        '{"card":"4\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661"}',
    ],
)  # fmt: skip
def test_what_is_recognized_by_other_signs_goes_to_the_full_redaction(text: str) -> None:
    assert not is_clean(text)


def test_the_first_pass_leaves_what_it_cannot_prove_to_the_full_redaction() -> None:
    text = '{"a":"b"}'
    assert is_clean(text)
    assert not is_clean(text, make_redactor(own_patterns=[parse_pattern("staff=^b$")]))
    assert not is_clean(text, make_redactor(left_out=["a"]))
    assert not is_clean(text, Redactor(ALL, ["ends-with-one\\"]))
    assert not is_clean("word " * 200_000)


@given(st.from_regex(SECRET_NAME))
def test_no_name_of_a_secret_passes(name: str) -> None:
    assert not is_clean(json.dumps({name: 12345678}))
    assert not is_clean(json.dumps({name: 12345678}, ensure_ascii=False))


def test_the_digits_of_every_script_may_belong_to_a_card() -> None:
    for code in range(0x110000):
        if re.match(r"\d", chr(code)):
            assert _may_have_card(f"4{chr(code)} {f'{chr(code)}-' * 11}".encode()), hex(code)


@given(st.text(st.sampled_from('\\u0Ddc8"nb/fé😀'), max_size=60))
def test_escapes_are_resolved_as_with_their_places(text: str) -> None:
    levels = list(resolve_levels(text, Work()))
    assert resolve_once(text) == (levels[0][-1].text if levels else text)


@pytest.mark.parametrize(
    "text", ["word ", "://", "sk-", 'key"', "\\n", "\\\\n", "\\u0041", "@", "PATH 4111 1111 ", "AB12 "]
)
def test_the_first_pass_takes_few_steps_for_each_character(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that takes more goes to the full redaction, whose work has a limit of its own."""
    made: list[Work] = []

    def make_work(limit: int) -> Work:
        made.append(Work(limit))
        return made[-1]

    monkeypatch.setattr("gateway.formats.redaction.first_pass.Work", make_work)
    for count in (1_000, 20_000):
        is_clean(text * count)
        assert made[-1].steps <= 20_000 + 17 * len(text) * count
