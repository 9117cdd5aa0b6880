"""Log probabilities between the OpenAI API's chat and Gemini's format, asked for and answered."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest
from gateway.formats.chat.gemini import logprobs as gemini
from gateway.formats.chat.gemini.request import parse_generate_inference
from gateway.formats.chat.model import TokenLogprob
from gateway.formats.chat.openai import logprobs as openai
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from tests.support.conversations import list_events
from tests.support.table_rows import table_rows

Json = dict[str, Any]
IDENTITY = ResponseIdentity("0123", "gemini-2.5-flash", 1_700_000_000)
TOKENS = (
    TokenLogprob("Hé", -0.25, (TokenLogprob("Hé", -0.25), TokenLogprob("Ho", -1.5))),
    TokenLogprob("llo", -0.5, (TokenLogprob("llo", -0.5),)),
)
OF_GEMINI: Json = {
    "topCandidates": [
        {"candidates": [{"token": "Hé", "logProbability": -0.25}, {"token": "Ho", "logProbability": -1.5}]},
        {"candidates": [{"token": "llo", "logProbability": -0.5}]},
    ],
    "chosenCandidates": [{"token": "Hé", "logProbability": -0.25}, {"token": "llo", "logProbability": -0.5}],
}
FIRST: Json = {"token": "Hé", "logprob": -0.25, "bytes": [72, 195, 169]}
SECOND: Json = {"token": "llo", "logprob": -0.5, "bytes": [108, 108, 111]}
OTHER: Json = {"token": "Ho", "logprob": -1.5, "bytes": [72, 111]}
OF_CHAT: Json = {
    "content": [FIRST | {"top_logprobs": [FIRST, OTHER]}, SECOND | {"top_logprobs": [SECOND]}],
    "refusal": None,
}
LEAVES = st.builds(TokenLogprob, st.text(max_size=5), st.floats(-9999, 0))
PROBABILITIES = st.lists(
    st.builds(TokenLogprob, st.text(max_size=5), st.floats(-9999, 0), st.lists(LEAVES, max_size=3).map(tuple)),
    max_size=4,
).map(tuple)


def ask_chat(*, stream: bool = False, **fields: Any) -> InferenceRequest:
    return parse_chat_inference(
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": stream, **fields}
    )


def ask_gemini(*, stream: bool = False, **config: Any) -> InferenceRequest:
    body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "generationConfig": config}
    return parse_generate_inference(body, model="m", stream=stream)


def write(inference: InferenceRequest, wire: Wire) -> Json:
    body = make_translator(inference, wire, IDENTITY).write_body()
    assert isinstance(body, dict)
    return body


def play(inference: InferenceRequest, wire: Wire, *chunks: Json, end: bytes = b"") -> list[Json]:
    transform = make_translator(inference, wire, IDENTITY).open_transform(())
    written = [transform.feed(b"data: " + orjson.dumps(chunk) + b"\n\n") for chunk in chunks]
    return list(list_events(b"".join([*written, transform.feed(end), transform.finish()])))


def chat_chunk(text: str, logprobs: Any, reason: str | None = None) -> Json:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def gemini_chunk(text: str, logprobs: Any, **more: Any) -> Json:
    content = {"role": "model", "parts": [{"text": text}]}
    result = {} if logprobs is None else {"logprobsResult": logprobs}
    return {"candidates": [{"content": content, "index": 0, **result, **more}]}


@table_rows(
    ("fields", "config"),
    [
        ({"logprobs": True}, {"responseLogprobs": True}),
        ({"logprobs": True, "top_logprobs": 2}, {"responseLogprobs": True, "logprobs": 2}),
        ({}, {}),
    ],
)
def test_what_one_format_asks_for_the_other_is_asked_for(fields: Json, config: Json) -> None:
    assert write(ask_chat(**fields), "gemini_generate").get("generationConfig", {}) == config
    written = write(ask_gemini(**config), "openai_chat")
    assert {name: value for name, value in written.items() if "logprobs" in name} == fields


def test_no_top_tokens_are_the_same_as_none_named() -> None:
    assert write(ask_chat(logprobs=True, top_logprobs=0), "gemini_generate")["generationConfig"] == {
        "responseLogprobs": True
    }
    assert "logprobs" not in write(ask_chat(logprobs=False, top_logprobs=0), "gemini_generate")


@table_rows("wire", ["anthropic_messages", "bedrock_converse"])
def test_a_provider_without_them_is_not_asked_and_the_record_says_so(wire: Wire) -> None:
    for inference in (ask_chat(logprobs=True), ask_gemini(responseLogprobs=True)):
        translator = make_translator(inference, wire, IDENTITY)
        assert "logprobs" not in str(translator.write_body())
        assert translator.adapted == ("logprobs",)


@table_rows(
    ("config", "field"),
    [
        ({"logprobs": 2}, "logprobs"),
        ({"responseLogprobs": True, "logprobs": 21}, "logprobs"),
        ({"responseLogprobs": True, "logprobs": "2"}, "logprobs"),
        ({"responseLogprobs": "yes"}, "responseLogprobs"),
    ],
)
def test_a_wrong_value_of_gemini_is_named(config: Json, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        write(ask_gemini(**config), "openai_chat")
    assert refused.value.param == f"generationConfig.{field}"


def test_a_chat_has_those_of_gemini() -> None:
    inference = ask_chat(logprobs=True, top_logprobs=2)
    raw = orjson.dumps(gemini_chunk("Héllo", OF_GEMINI, finishReason="STOP"))
    answer = orjson.loads(make_translator(inference, "gemini_generate", IDENTITY).parse_answer(raw, ())[0])
    assert answer["choices"][0]["logprobs"] == OF_CHAT
    assert answer["choices"][0]["message"]["content"] == "Héllo"


def test_gemini_s_client_has_those_of_a_chat() -> None:
    inference = ask_gemini(responseLogprobs=True, logprobs=2)
    message = {"role": "assistant", "content": "Héllo"}
    value = {"choices": [{"index": 0, "message": message, "logprobs": OF_CHAT, "finish_reason": "stop"}]}
    answer = orjson.loads(make_translator(inference, "openai_chat", IDENTITY).parse_answer(orjson.dumps(value), ())[0])
    assert answer["candidates"][0]["logprobsResult"] == OF_GEMINI
    assert answer["candidates"][0]["content"]["parts"] == [{"text": "Héllo"}]


def test_a_streamed_chat_has_each_with_its_text() -> None:
    inference = ask_chat(stream=True, logprobs=True, top_logprobs=2)
    chunks = [gemini_chunk("Héllo", OF_GEMINI), gemini_chunk(" you", None), gemini_chunk("!", OF_GEMINI)]
    events = play(inference, "gemini_generate", *chunks, gemini_chunk("", OF_GEMINI, finishReason="STOP"))
    found = [(choice["delta"].get("content"), choice["logprobs"]) for each in events for choice in each["choices"]]
    assert found == [("Héllo", OF_CHAT), (" you", None), ("!", OF_CHAT), (None, OF_CHAT)]


def test_a_stream_for_gemini_s_client_has_each_with_its_text() -> None:
    inference = ask_gemini(stream=True, responseLogprobs=True, logprobs=2)
    chunks = [chat_chunk("Héllo", OF_CHAT), chat_chunk(" you", None), chat_chunk("!", OF_CHAT)]
    events = play(inference, "openai_chat", *chunks, chat_chunk("", OF_CHAT, "stop"), end=b"data: [DONE]\n\n")
    found = [
        (candidate["content"]["parts"][0]["text"], candidate.get("logprobsResult"))
        for each in events
        for candidate in each["candidates"]
    ]
    assert found == [("Héllo", OF_GEMINI), (" you", None), ("!", OF_GEMINI), ("", OF_GEMINI)]


def test_tokens_do_not_count_as_events_of_an_estimate() -> None:
    inference = ask_chat(stream=True, logprobs=True)
    plain, full = (make_translator(inference, "gemini_generate", IDENTITY).open_transform(()) for _ in range(2))
    for _ in range(20):
        plain.feed(b"data: " + orjson.dumps(gemini_chunk("word ", None)) + b"\n\n")
        full.feed(b"data: " + orjson.dumps(gemini_chunk("word ", OF_GEMINI)) + b"\n\n")
    assert (full.events, full.parse_usage()) == (plain.events, plain.parse_usage())


@given(tokens=PROBABILITIES)
def test_tokens_are_read_as_they_are_written(tokens: tuple[TokenLogprob, ...]) -> None:
    assert openai.parse_logprobs(orjson.loads(orjson.dumps(openai.build_logprobs(tokens)))) == tokens
    assert gemini.parse_logprobs(orjson.loads(orjson.dumps(gemini.build_logprobs(tokens)))) == tokens


def test_gemini_leaves_out_what_is_zero_and_writes_infinity() -> None:
    found = gemini.parse_logprobs({"chosenCandidates": [{"token": "a"}, {"token": "b", "logProbability": "-Infinity"}]})
    assert found == (TokenLogprob("a", 0), TokenLogprob("b", -9999.0))


@table_rows("value", [None, 1, [], {"chosenCandidates": 5, "content": 5}, {"content": [{"token": 1}]}])
def test_what_is_not_documented_is_none(value: Any) -> None:
    assert openai.parse_logprobs(value) == gemini.parse_logprobs(value) == ()
