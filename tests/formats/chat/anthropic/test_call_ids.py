"""Ids of calls are unique in what Claude gets and in what a client gets, also where one format is passed through."""

from typing import Any

import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.formats.chat.anthropic.passthrough import MessagesPassthrough
from gateway.formats.chat.anthropic.passthrough_body import build_passed_body
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from gateway.formats.wire import sse
from tests.support.table_rows import table_rows

IDENTITY = ResponseIdentity("1", "m", 1)
TOOL = {"name": "read", "input_schema": {"type": "object"}}


def called(*ids: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": i, "name": "read", "input": {}} for i in ids]}


def answered(*ids: str) -> dict[str, Any]:
    results = [{"type": "tool_result", "tool_use_id": i, "content": str(at)} for at, i in enumerate(ids)]
    return {"role": "user", "content": results}


def ask(*history: dict[str, Any], **more: Any) -> InferenceRequest:
    messages = [{"role": "user", "content": "Go"}, *history]
    return parse_messages_inference({"model": "m", "max_tokens": 9, "tools": [TOOL], "messages": messages, **more})


@table_rows(
    ("history", "expected"),
    [
        ([called("a"), answered("a")], [["a"], ["a"]]),
        ([called("a"), answered("a"), called("a"), answered("a")], [["a"], ["a"], ["a_2"], ["a_2"]]),
        ([called("a", "a"), answered("a", "a")], [["a", "a_2"], ["a", "a_2"]]),
        ([called("a", "a_2"), answered("a_2", "a"), called("a"), answered("a")],
         [["a", "a_2"], ["a_2", "a"], ["a_3"], ["a_3"]]),
        ([called("a"), called("a"), answered("a")], [["a"], ["a_2"], ["a_2"]]),
    ],
)  # fmt: skip
def test_a_repeated_id_of_the_history_is_changed_with_its_result(history: Any, expected: list[list[str]]) -> None:
    inference = ask(*history)
    before = orjson.dumps(inference.body)
    sent = build_passed_body(inference, "claude-sonnet-4-5")["messages"][1:]
    found = [[block.get("id") or block["tool_use_id"] for block in message["content"]] for message in sent]
    assert found == expected
    assert orjson.dumps(inference.body) == before


@table_rows("wrong", [[], {}, 7, None])
def test_an_id_of_another_type_is_left_to_the_provider(wrong: Any) -> None:
    sent = build_passed_body(ask(called(wrong, "a"), answered("a")), "claude-sonnet-4-5")
    assert [block["id"] for block in sent["messages"][1]["content"]] == [wrong, "a"]


def read_ids(inference: InferenceRequest, answer: list[dict[str, Any]], *, stream: bool) -> tuple[bytes, bytes]:
    """Return the provider's bytes of an answer and those that the client gets."""
    translator = make_translator(inference, "anthropic_messages", IDENTITY)
    if not stream:
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use"}
        raw = orjson.dumps(message | {"content": answer, "usage": {"input_tokens": 1, "output_tokens": 1}})
        return raw, translator.parse_answer(raw, ())[0]
    starts = [{"type": "content_block_start", "index": at, "content_block": block} for at, block in enumerate(answer)]
    raw = b"".join(b"event: content_block_start\ndata: " + orjson.dumps(start) + b"\n\n" for start in starts)
    return raw, translator.open_transform([]).feed(raw)


@table_rows("stream", [False, True])
def test_a_new_call_never_has_an_id_of_the_history(stream: bool) -> None:
    answer = [*called("call_0", "call_1", "call_0")["content"], {"type": "text", "text": 'of "tool_use"'}]
    inference = ask(called("call_0"), answered("call_0"), stream=stream)
    raw, reported = read_ids(inference, answer, stream=stream)
    blocks = (
        [orjson.loads(sse.parse_data(event) or b"")["content_block"] for event in sse.SseSplitter().split(reported)]
        if stream
        else orjson.loads(reported)["content"]
    )
    assert [block.get("id") for block in blocks] == ["call_0_2", "call_1", "call_0_3", None]
    fresh = [*called("call_7")["content"], {"type": "tool_use", "id": [], "name": "read", "input": {}}]
    raw, reported = read_ids(inference, fresh, stream=stream)
    assert reported == raw


def test_only_a_chat_with_tools_and_calls_looks_at_events() -> None:
    plain = [ask(stream=True), ask(called("a"), answered("a"), stream=True, tools=[])]
    opened = [make_translator(inference, "anthropic_messages", IDENTITY).open_transform([]) for inference in plain]
    assert [type(one) for one in opened] == [MessagesPassthrough, MessagesPassthrough]
