"""The SDKs put together what a provider said in one whole JSON answer to a call for a stream: all of it is there."""

from typing import Any

import pytest

from tests.support import anthropic_cassettes as cassettes
from tests.support.gateway import HELLO, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.sdk_clients import MakeClaude, MakeClient
from tests.support.started_gateways import StartGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")
CALLS = [{"id": f"c{at}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for at in range(2)]
CHOICES = [
    {"index": 0, "message": {"role": "assistant", "content": "Hi", "refusal": None}, "finish_reason": "stop"},
    {"index": 1, "message": {"role": "assistant", "content": None, "tool_calls": CALLS}, "finish_reason": "tool_calls"},
    {"index": 2, "message": {"role": "assistant", "content": None, "refusal": "No"}, "finish_reason": "stop"},
]
OUTPUT: list[dict[str, Any]] = [
    {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [
        {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []},
        {"type": "refusal", "refusal": "No"},
    ]},
    {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
]  # fmt: skip
RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "error": None,
    "incomplete_details": None, "instructions": None, "metadata": {}, "output": OUTPUT, "parallel_tool_calls": True,
    "tool_choice": "auto", "tools": [], "temperature": 1.0, "top_p": 1.0,
    "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12,
              "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}},
}  # fmt: skip


async def test_a_completion(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([answer(COMPLETION | {"choices": CHOICES})]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        more: Any = {**HELLO, "n": 3}
        async with sdk(gateway).chat.completions.stream(**more) as stream:
            done = (await stream.get_final_completion()).to_dict()
    choices: Any = done["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "tool_calls", "stop"]
    assert [choice["message"].get("content") for choice in choices] == ["Hi", None, None]
    assert choices[2]["message"]["refusal"] == "No"
    assert [(call["id"], call["function"]["name"]) for call in choices[1]["message"]["tool_calls"]] == [
        ("c0", "f"), ("c1", "f"),
    ]  # fmt: skip


async def test_a_message(standing_with: StartGateway, claude: MakeClaude) -> None:
    async with ScriptedUpstream([answer(cassettes.MESSAGE)]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url, provider="anthropic")]})
        more: Any = {**HELLO, "max_tokens": 99}
        async with claude(gateway).messages.stream(**more) as stream:
            done = (await stream.get_final_message()).to_dict()
    body: Any = cassettes.MESSAGE
    kept = [{name: value for name, value in block.items() if value is not None} for block in body["content"]]
    assert done["content"] == kept
    assert {name: done[name] for name in ("id", "model", "stop_reason", "usage")} == {
        name: body[name] for name in ("id", "model", "stop_reason", "usage")
    }


async def test_a_response(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([answer(RESPONSE)]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        kinds, numbers = [], []
        async with sdk(gateway).responses.stream(model="m", input="hi") as stream:
            async for event in stream:
                kinds.append(event.type)
                numbers.append(event.sequence_number)
            done = (await stream.get_final_response()).to_dict()
    output: Any = done["output"]
    assert [[item[name] for name in OUTPUT[at]] for at, item in enumerate(output) if at != 1] == [
        list(item.values()) for item in OUTPUT if item["type"] != "message"
    ]
    assert [part.get("text", part.get("refusal")) for part in output[1]["content"]] == ["Hi", "No"]
    assert numbers == list(range(len(numbers)))
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == len(OUTPUT)
    assert {
        "response.output_text.delta", "response.refusal.delta", "response.function_call_arguments.done",
        "response.reasoning_summary_text.delta",
    } <= set(kinds)  # fmt: skip
