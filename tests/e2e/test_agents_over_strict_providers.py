"""Requests of Codex and Claude Code as installed, over providers that refuse what nine vendors refuse.

``agent_requests.json`` has the last request of a task, recorded with Codex 0.171.0 (a model that it knows, and another
one) and Claude Code 2.1.332 over Gemini, with other texts. ``make test-clients`` runs the agents themselves.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from tests.support.gateway import KEY, RunningGateway
from tests.support.started_gateways import StartGateway
from tests.support.strict_providers import STRICT
from tests.support.strict_providers.agent_task import FINISHED, LEARNED, NOT_FOUND, Agent

Json = dict[str, Any]
Answer = tuple[str, list[Json]]

REQUESTS: dict[str, Json] = orjson.loads(
    (Path(__file__).parents[1] / "support" / "strict_providers" / "agent_requests.json").read_bytes()
)
FIRST_CALLS = {
    "codex_known_model": {("functions", "exec")},
    "codex_other_model": {(None, "exec_command")},
    "claude_code": {(None, "Grep"), (None, "ToolSearch"), (None, "Read")},
}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABo"}


def list_requests(agent: str) -> Iterator[tuple[Json, bool]]:
    """The agent's first request, its last one, and one that it sends beside a task; and whether calls answer it."""
    body = REQUESTS[agent]
    if "input" in body:
        asked = [item for item in body["input"] if item.get("role") in {"user", "developer"}]
        yield body | {"input": asked}, True
        yield body | {"input": [body["input"][0], COMPACTION, *body["input"][1:]]}, False
    else:
        yield body | {"messages": body["messages"][:2]}, True
        yield body | {"thinking": {"type": "disabled"}, "tool_choice": {"type": "none"}, "stream": False}, False
    yield body, False


async def ask(gateway: RunningGateway, body: Json) -> Answer:
    """The text of an answer and its calls, read as strictly as the agents do."""
    path = "/v1/responses" if "input" in body else "/v1/messages"
    headers = {"Authorization": f"Bearer {KEY}", "anthropic-version": "2023-06-01"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(gateway.url + path, json=body, headers=headers) as reply,
    ):
        raw = await reply.read()
    assert reply.status == 200, raw
    if not body["stream"]:
        return read_blocks(orjson.loads(raw)["content"])
    events = [orjson.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]
    return read_response(events) if "input" in body else read_message(events)


def read_response(events: list[Json]) -> Answer:
    """Codex takes the items as they are done, and needs the last event."""
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
    items = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert items == events[-1]["response"]["output"]
    texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    calls = [item for item in items if item["type"].endswith("_call")]
    for call in calls:
        if call["type"] == "function_call":
            assert isinstance(orjson.loads(call["arguments"]), dict)
        else:
            assert call["type"] == "custom_tool_call"
            assert isinstance(call["input"], str)
    return "".join(texts), [{"id": call["call_id"], **call} for call in calls]


def read_message(events: list[Json]) -> Answer:
    """Claude Code takes the blocks one after another."""
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    blocks: list[Json] = []
    for one in events:
        if one["type"] == "content_block_start":
            assert one["index"] == len(blocks)
            blocks.append({**one["content_block"], "json": ""})
        elif one["type"] == "content_block_delta":
            assert one["index"] == len(blocks) - 1
            delta = one["delta"]
            blocks[-1]["json"] += delta.get("partial_json", "")
            blocks[-1]["text"] = blocks[-1].get("text", "") + delta.get("text", "")
    made = [one | {"input": orjson.loads(one["json"] or "{}")} if one["type"] == "tool_use" else one for one in blocks]
    stop = next(one["delta"]["stop_reason"] for one in events if one["type"] == "message_delta")
    text, calls = read_blocks(made)
    assert stop == ("tool_use" if calls else "end_turn")
    return text, calls


def read_blocks(blocks: list[Json]) -> Answer:
    """Blocks of a message."""
    calls = [one for one in blocks if one["type"] == "tool_use"]
    assert all(isinstance(call["input"], dict) for call in calls)
    return "".join(one["text"] for one in blocks if one["type"] == "text"), calls


@pytest.mark.parametrize("agent", REQUESTS)
@pytest.mark.parametrize("provider", STRICT, ids=lambda provider: provider.label)
async def test_an_agents_requests_are_refused_by_no_vendor(
    provider: type[Agent], agent: str, standing_with: StartGateway
) -> None:
    async with provider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        for body, calls_tools in list_requests(agent):
            text, calls = await ask(gateway, body)
            assert [one for one in up.refusals if one != NOT_FOUND and LEARNED not in one] == []
            assert sum(LEARNED in one for one in up.refusals) <= 1
            assert calls_tools or (text, calls) == (FINISHED, [])
            called = {(call.get("namespace"), call["name"]) for call in calls}
            assert not calls_tools or (called and called <= FIRST_CALLS[agent])  # type: ignore[operator]
            history = orjson.dumps(body).decode()
            ids = [call["id"] for call in calls]
            assert len(set(ids)) == len(ids)
            assert not any(one in history for one in ids)
