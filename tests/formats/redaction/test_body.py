"""Whole bodies: no secret is left in a prompt, in a tool's arguments or in a stream, wherever its events cut it."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.keep_rule import RedactedKind
from gateway.domain.kept_body import BodyPart
from gateway.formats.redaction.body import cut_middle, redact_content, redact_part, redact_stream
from gateway.formats.redaction.redactor import Redactor
from tests.support.secret_samples import PERSONAL, SECRETS
from tests.support.text_events import EVENTS, openai_event, tool_event

KINDS: frozenset[RedactedKind] = frozenset({"secrets", "cards", "ibans", "mails"})
SAMPLES = {**SECRETS, **{kind: PERSONAL[kind][0] for kind in ("cards", "ibans", "mails")}}


def redactor() -> Redactor:
    return Redactor(KINDS)


def join_strings(value: Any) -> str:
    """Every text in a JSON value, one after another."""
    if isinstance(value, dict):
        return "".join(map(join_strings, value.values()))
    if isinstance(value, list):
        return "".join(map(join_strings, value))
    return value if isinstance(value, str) else ""


def join_stream(stream: bytes) -> str:
    lines = [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: {")]
    return "".join(join_strings(orjson.loads(line)) for line in lines)


@pytest.mark.parametrize("name", SAMPLES)
def test_no_cut_of_a_stream_hides_a_secret(name: str) -> None:
    text, mark = f"It is {SAMPLES[name]} now", "secret" if name in SECRETS else name[:-1]
    for cut in range(len(text) + 1):
        stream = b"".join(map(openai_event, (text[:cut], text[cut:])))
        kept = join_stream(redact_stream(stream, redactor()))
        assert kept.replace("chatcmpl-1", "") == f"It is [{mark} 1] now", cut


@pytest.mark.parametrize("write_event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("name", ["openai", "pem", "jwt", "cards", "mails"])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_events_of_every_api_format_are_joined(name: str, write_event: Any, length: int) -> None:
    text = f"A {SAMPLES[name]} B {SAMPLES[name]}."
    pieces = [text[start : start + length] for start in range(0, len(text), length)]
    stream = b"".join(map(write_event, pieces)) + b"data: [DONE]\n\n"
    kept = redact_stream(stream, redactor())
    assert SAMPLES[name] not in join_stream(kept)
    mark = "secret" if name in SECRETS else name[:-1]
    assert join_stream(kept).count(f"[{mark} 1]") == 2
    assert kept.count(b"data: ") == len(pieces) + 1
    assert kept.endswith(b"data: [DONE]\n\n")


def test_two_answers_at_once_are_two_texts() -> None:
    secret = SECRETS["github"]
    first, second = f"one {secret} x", f"two {secret} y"
    stream = b"".join(
        openai_event(first[at : at + 3], index=0) + openai_event(second[at : at + 3], index=1)
        for at in range(0, len(first), 3)
    )
    kept = redact_stream(stream, redactor())
    texts = {0: "", 1: ""}
    for line in kept.splitlines():
        if line:
            choice = orjson.loads(line.removeprefix(b"data: "))["choices"][0]
            texts[choice["index"]] += choice["delta"]["content"]
    assert texts == {0: "one [secret 1] x", 1: "two [secret 1] y"}


@pytest.mark.parametrize(
    "fields",
    [
        {"password": "hunter2-hunter2"},
        {"note": 'line\n"quoted"', "api_key": "abcdefgh"},
        {"card": 4111111111111111},
        {"mail": "a@b.io"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_values_in_one_event_are_redacted(fields: dict[str, Any]) -> None:
    plain = openai_event("hello")
    kept = redact_stream(plain + b"data: " + orjson.dumps({"index": 0, "tool": fields}) + b"\n\n" + plain, redactor())
    assert kept.startswith(plain)
    assert b" 1]" in kept
    assert not [value for value in fields.values() if str(value).encode() in kept]


def test_a_stream_without_secrets_stays_byte_by_byte() -> None:
    stream = b": keepalive\n\n" + b"".join(write("hello") for write in EVENTS.values()) + b"data: [DONE]\n\ndata: {inc"
    assert redact_stream(stream, redactor()) == stream


def test_the_events_beside_a_secret_stay_byte_by_byte() -> None:
    spaced = b'data: {"choices": [ {"index":0, "delta":{"content":"a"}} ]}\n\n'
    kept = redact_stream(spaced + openai_event(SECRETS["openai"]) + spaced, redactor())
    assert kept.startswith(spaced)
    assert kept.endswith(spaced)
    assert b"[secret 1]" in kept


@pytest.mark.parametrize("name", SAMPLES)
def test_prompts_and_arguments_of_tools_are_redacted(name: str) -> None:
    secret = SAMPLES[name]
    arguments = orjson.dumps({"command": f"curl -H 'X: {secret}'"}).decode()
    call = {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": arguments}}
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": f"Mine: {secret}."}]},
            {"tool_calls": [call]},
        ],
        "metadata": {secret: "x"},
    }
    kept = orjson.loads(redact_content(orjson.dumps(body), redactor()))
    mark = "[secret 1]" if name in SECRETS else f"[{name[:-1]} 1]"
    assert kept["messages"][0]["content"][0]["text"] == f"Mine: {mark}."
    assert mark[:-2] in kept["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert kept["metadata"] == {mark: "x"}
    assert secret not in join_strings(kept)
    escaped = orjson.dumps(secret)[1:-1]
    assert escaped not in redact_content(orjson.dumps(body), redactor())


def test_json_without_secrets_stays_byte_by_byte() -> None:
    body = b'{ "a" : 1.0, "big": 123456789012345678901234567890, "t":"\\u0041", "list": [null, true] }'
    assert redact_content(body, redactor()) == body


def test_an_escaped_secret_is_found() -> None:
    escaped = "".join(f"\\u{ord(char):04x}" for char in SECRETS["openai"])
    assert redact_content(f'{{"a":"{escaped}"}}'.encode(), redactor()) == b'{"a":"[secret 1]"}'


def test_fields_named_for_secrets_and_card_numbers_are_replaced() -> None:
    texts = {"password": "hunter2-hunter2", "client_secret": "abcdefgh", "secretary": "abcdefgh"}
    kept = orjson.loads(redact_content(orjson.dumps({**texts, "card": 4111111111111111}), redactor()))
    assert kept == {**texts, "password": "[secret 1]", "client_secret": "[secret 2]", "card": "[card 1]"}


def test_a_field_that_occurs_twice_is_redacted() -> None:
    kept = redact_content(f'{{"a":"{SECRETS["openai"]}","a":"x"}}'.encode(), redactor())
    assert SECRETS["openai"].encode() not in kept


@pytest.mark.parametrize("content", [b"", b"no json: %b", b'{"incomplete":"%b', b"\xff\xfe %b", b'"%b"', b"[[[[%b"])
def test_what_is_no_json_is_redacted_as_text(content: bytes) -> None:
    secret = SECRETS["github"].encode()
    kept = redact_content(content.replace(b"%b", secret), redactor())
    assert secret not in kept
    assert kept.count(b"[secret 1]") == content.count(b"%b")


@pytest.mark.parametrize("size", [1_000, 100_000, 100_001])
@pytest.mark.parametrize(
    "frame",
    [
        "data:image/png;base64,%s",
        "%s",
        "Look: ![x](data:audio/wav;base64,%s) end",
        "long" * 64 + " is a word, and data:image/png;base64,%s is not",
    ],
)
def test_media_are_replaced_by_their_size_and_digest(frame: str, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    body = orjson.dumps({"data": frame.replace("%s", base64.b64encode(data).decode())})
    kept = orjson.loads(redact_content(body, redactor()))["data"]
    assert f"{size:,} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}]" in kept
    assert len(kept) < len(frame) + 150
    assert redact_content(body, redactor(), keeps_media=True) == body


def test_a_long_body_keeps_head_and_tail_and_says_so() -> None:
    content = "ü".encode() * 1000
    kept = cut_middle(content, 101)
    assert len(kept) < 160
    assert kept.decode().startswith("ü" * 25 + "\n[… 1,899 bytes left out …]\n")
    assert cut_middle(content, 2000) == content


def test_a_part_is_redacted_by_its_media_type() -> None:
    stream = b"".join(map(openai_event, SECRETS["openai"]))
    part = BodyPart("answer", stream, "text/event-stream; charset=utf-8", len(stream), event_times_ms=(1, 2))
    kept = redact_part(part, redactor(), 10**6)
    assert (kept.received_bytes, kept.event_times_ms) == (len(stream), (1, 2))
    assert SECRETS["openai"] not in join_stream(kept.content)
    assert b"left out" in redact_part(part, redactor(), 200).content


def _list_json() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.sampled_from([*SAMPLES.values(), "", "text"])
    names = st.sampled_from(["a", "delta", "content", "index", *list(SAMPLES.values())[:3]])
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))


@given(st.lists(_list_json(), max_size=4))
def test_nothing_survives_in_any_json_or_stream(values: Sequence[Any]) -> None:
    encoded = [orjson.dumps(value) for value in values]
    stream = b"".join(b"data: " + value + b"\n\n" for value in encoded)
    for kept in (redact_stream(stream, redactor()), *(redact_content(value, redactor()) for value in encoded)):
        assert not [secret for secret in SAMPLES.values() if orjson.dumps(secret)[1:-1] in kept]


def keep_json(value: Any) -> Any:
    return orjson.loads(redact_content(orjson.dumps(value), redactor()))


@pytest.mark.parametrize(
    "fields",
    [
        {"password": "Tr0ub4dor&3"},
        {"password": "correct horse battery 42"},
        {"password": 'with "quotes" in it'},
        {"password": 12345678},
        {"secret_key": "abcdefghijklmnop"},
        {"apiKey": "abcdefghijkl"},
        {"accessToken": "abcdefghijkl"},
        {"refresh_token": "abcdefghijkl"},
        {"name": "API_KEY", "value": "0123456789ab"},
        {"text": f"line\n{SECRETS['github']}"},
        {"text": f"https://hooks.slack.com/services/T{'A' * 30}"},
    ],
    ids="-".join,
)
def test_values_named_for_secrets_are_redacted_at_every_depth(fields: dict[str, Any]) -> None:
    value: Any = fields
    for _ in range(4):
        kept = redact_content(orjson.dumps({"a": value}), redactor()).decode()
        assert "[secret 1]" in kept
        secret = str(list(fields.values())[-1]).partition("\n")[2] or str(list(fields.values())[-1])
        assert secret.replace("https://hooks.slack.com/services/", "") not in kept.replace("\\", "")
        assert "[secret 2]" not in kept
        value = orjson.dumps(value).decode().replace("/", "\\/")


@pytest.mark.parametrize("cut", range(1, 40, 4))
def test_json_in_a_stream_is_redacted_value_by_value(cut: int) -> None:
    text = '{"user":"ann","password":"Tr0ub4dor&3","pin_secret":12345678,"n":1}'
    pieces = [text[:cut], text[cut : cut + 9], text[cut + 9 :]]
    kept = redact_stream(b"".join(map(tool_event, pieces)), redactor())
    assert orjson.loads(join_stream(kept)) == {
        "user": "ann",
        "password": "[secret 1]",
        "pin_secret": "[secret 2]",
        "n": 1,
    }


def test_incomplete_json_in_a_stream_is_redacted() -> None:
    pieces = ['{"a":"x\\', "n" + SECRETS["github"][:20], SECRETS["github"][20:] + '","password":"Tr0ub', "4dor&3"]
    kept = join_stream(redact_stream(b"".join(map(tool_event, pieces)), redactor()))
    assert kept == '{"a":"x\\n[secret 1]","password":"[secret 2]'


@pytest.mark.parametrize("has_index", [True, False])
def test_the_first_piece_of_a_tool_call_is_joined_with_the_next(has_index: bool) -> None:
    secret = SECRETS["github"]
    index = {"index": 0} if has_index else {}
    calls = [
        {**index, "id": "c1", "type": "function", "function": {"name": "run", "arguments": f"A {secret[:15]}"}},
        {"index": 0, "function": {"arguments": f"{secret[15:]} B"}},
    ]
    stream = b"".join(
        b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}) + b"\n\n"
        for call in calls
    )
    kept = redact_stream(stream, redactor())
    assert b"A [secret 1]" in kept
    assert secret[15:].encode() not in kept


def test_probabilities_of_tokens_are_left_out() -> None:
    logprobs = {"content": [{"token": "ghp", "bytes": [103, 104, 112], "logprob": -0.1}]}
    choice = {"index": 0, "logprobs": logprobs, "delta": {"content": "ghp"}}
    body = orjson.dumps({"choices": [choice]})
    for kept in (redact_content(body, redactor()), redact_stream(b"data: " + body + b"\n\n", redactor())):
        assert b'"logprobs":"[logprobs left out]"' in kept
        assert b"103" not in kept
    assert keep_json({"logprobs": True, "a": {"logprobs": None}}) == {"logprobs": True, "a": {"logprobs": None}}
    assert redact_content(body, Redactor(frozenset())) == body


def test_a_private_key_in_a_list_of_lines_is_redacted() -> None:
    lines = SECRETS["pem"].split("\n")
    kept = keep_json({"key": ["before", *lines, "after"]})
    assert kept["key"] == ["before", "[secret 1]", *[""] * (len(lines) - 2), "", "after"]


@pytest.mark.parametrize(
    "content",
    [
        '{"a":"x\\n%s","a":1}',
        '{"a":"\\u0067%t","a":1}',
        '{"cut":"\\u0067%t',
        '{"password":"abc\\u0064efghi","password":""}',
        '{"a":"https:\\/\\/u:abcdefghi@x","a":1}',
    ],
)
def test_secrets_in_fields_that_are_not_read_are_redacted(content: str) -> None:
    secret = SECRETS["github"]
    kept = redact_content(content.replace("%s", secret).replace("%t", secret[1:]).encode(), redactor())
    assert b"[secret 1]" in kept
    assert secret[1:].encode() not in kept
    assert b"efghi" not in kept
