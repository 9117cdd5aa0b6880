"""One tool call at a time, of providers whose API format has no option for it."""

from typing import Any

import orjson

from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.call_conversion import takes_one_call
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from tests.support.gemini_cassettes import chunk, stream
from tests.support.table_rows import table_rows

IDENTITY = ResponseIdentity("0123", "gemini-2.5-flash", 1_700_000_000)
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
RAW = chunk({"functionCall": {"name": "first"}}, {"functionCall": {"name": "second"}}, reason="STOP")


@table_rows(("parallel", "called"), [(False, ["first"]), (True, ["first", "second"])])
def test_a_client_that_takes_one_tool_call_gets_the_first(parallel: bool, called: list[str]) -> None:
    translator = make_translator(
        parse_chat_inference(ASK | {"parallel_tool_calls": parallel}), "gemini_generate", IDENTITY
    )
    body, _ = translator.parse_answer(orjson.dumps(RAW), ())
    (choice,) = orjson.loads(body)["choices"]
    assert [one["function"]["name"] for one in choice["message"]["tool_calls"]] == called
    assert choice["finish_reason"] == "tool_calls"
    transform = translator.open_transform(())
    streamed = transform.feed(stream(RAW)) + transform.finish()
    assert [name for name in ("first", "second") if f'"{name}"'.encode() in streamed] == called


def test_anthropics_clients_ask_for_it_in_the_choice_of_a_tool() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert takes_one_call(parse_messages_inference({**ASK, "max_tokens": 9, "tool_choice": choice}).body)
    assert not takes_one_call(parse_messages_inference({**ASK, "max_tokens": 9, "tool_choice": {"type": "auto"}}).body)
