"""The strict providers do refuse what the vendors refuse: else the tasks of agents over them would show little."""

from typing import Any

import pytest

from tests.support.providers import Refused
from tests.support.strict_providers.chat_vendors import (
    ChatVendor,
    Custom,
    DashScope,
    DeepSeek,
    Mistral,
    Moonshot,
    OpenAI,
    OpenAIWithoutReasoning,
)

Json = dict[str, Any]
USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}
SYSTEM, DEVELOPER = {"role": "system", "content": "s"}, {"role": "developer", "content": "s"}


def call(call_id: str, **more: Any) -> Json:
    calls = [{"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    return {"role": "assistant", "tool_calls": calls, **more}


def result(call_id: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


def tool(name: str = "f", **schema: Any) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **schema}}}


def talk(*messages: Json, **more: Any) -> Json:
    return {"model": "m", "messages": list(messages) or [USER], "stream": True, **more}


NINE, LONG = "a23456789", "c" * 41


@pytest.mark.parametrize(
    ("vendor", "refused", "taken"),
    [
        (OpenAI, talk(max_tokens=9), talk(max_completion_tokens=9)),
        (OpenAI, talk(reasoning_effort="max"), talk(reasoning_effort="high")),
        (OpenAI, talk(temperature=1), talk()),
        (OpenAI, talk(tools=[tool()]), talk(tools=[tool(properties={})])),
        (OpenAI, talk(USER, call(LONG), result(LONG)), talk(USER, call("c1"), result("c1"))),
        (OpenAIWithoutReasoning, talk(reasoning_effort="high"), talk()),
        (OpenAIWithoutReasoning, talk(max_tokens=32_000), talk(max_tokens=16_384)),
        (OpenAIWithoutReasoning, talk(verbosity="low"), talk(verbosity="medium")),
        (Custom, talk(USER, SYSTEM), talk(SYSTEM, USER)),
        (Custom, talk(DEVELOPER, USER), talk(SYSTEM, USER)),
        (Mistral, talk(USER, call("c1"), result("c1")), talk(USER, call(NINE), result(NINE))),
        (Mistral, talk(USER, call(NINE), result(NINE), USER), talk(USER, call(NINE), result(NINE), ASSISTANT, USER)),
        (Mistral, talk(USER, SYSTEM), talk(SYSTEM, USER)),
        (Mistral, talk(ASSISTANT, USER), talk(SYSTEM, ASSISTANT, USER)),
        (Mistral, talk(USER, ASSISTANT), talk(USER, {**ASSISTANT, "prefix": True})),
        (Mistral, talk(reasoning_effort="low"), talk(reasoning_effort="high")),
        (Mistral, talk({**USER, "name": "ada"}), talk()),
        (Moonshot, talk(USER, call("c1"), result("c1")), talk(USER, call("c1", reasoning_content=" "), result("c1"))),
        (Moonshot, talk(thinking={"type": "enabled"}, reasoning_effort="high"), talk(thinking={"type": "enabled"})),
        (Moonshot, talk(tools=[tool(properties={})], tool_choice="required"), talk(tools=[tool(properties={})])),
        (Moonshot, talk(tools=[tool("1f", properties={})]), talk(tools=[tool("f1", properties={})])),
        (DashScope, talk(stream=False), talk(stream=False, enable_thinking=False)),
        (DashScope, talk(max_tokens=32_000), talk(max_tokens=16_384)),
        (DashScope, talk(DEVELOPER, USER), talk(SYSTEM, USER)),
        (DeepSeek, talk(reasoning_effort="minimal"), talk(reasoning_effort="low")),
        (DeepSeek, talk(USER, call("c1"), result("c1")), talk(USER, call("c1"), thinking={"type": "disabled"})),
        (DeepSeek, talk(tools=[tool(properties={})] * 2), talk(tools=[tool(properties={})])),
    ],
)
def test_a_vendor_refuses_what_it_does_not_take(vendor: type[ChatVendor], refused: Json, taken: Json) -> None:
    vendor().check(taken)
    with pytest.raises(Refused):
        vendor().check(refused)
