"""Bedrock's Converse API with a Claude model, as a server that looks as closely as the real one.

Rules: docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html and its types (names and ids by
pattern, members of a union, roles that alternate, ``toolConfig`` if earlier turns used tools).
"""

import re
from typing import Any
from urllib.parse import unquote

import orjson

from tests.support import converse_cassettes as cassettes
from tests.support.providers import (
    KEY,
    Fails,
    Heard,
    Json,
    Says,
    expect,
    expect_list,
    expect_number,
    expect_object,
    expect_text,
    halve,
    split_words,
)
from tests.support.scripted_upstream import LAST_CHUNK, SSE_HEAD, Received, Step, answer, chunk
from tests.support.strict_providers.agent_task import Agent

_FIELDS = {
    "messages", "system", "inferenceConfig", "toolConfig", "guardrailConfig", "additionalModelRequestFields",
    "additionalModelResponseFieldPaths", "promptVariables", "requestMetadata", "performanceConfig", "serviceTier",
    "outputConfig",
}  # fmt: skip
_BLOCKS = {
    "text", "image", "document", "video", "toolUse", "toolResult", "guardContent", "cachePoint", "reasoningContent",
}  # fmt: skip
_PATH = re.compile(r"/model/([^/]+)/converse(-stream)?")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_EFFORTS = {None, "low", "medium", "high", "max"}
_MOST = 128_000
_HEAD = SSE_HEAD.replace(b"text/event-stream", cassettes.STREAM_TYPE.encode())
_SIGNATURE = "c2lnbmVk"


class Converse(Agent):
    """``provider = "bedrock_converse"``."""

    label = slug = "bedrock_converse"
    model = "us.anthropic.claude-opus-4-6-v1"
    root = ""

    def read(self, received: Received) -> list[Step]:
        expect(received.headers.get("authorization") == f"Bearer {KEY}", "The security token is invalid", 403)
        found = _PATH.fullmatch(unquote(received.path))
        expect(found and received.method == "POST", "UnknownOperationException", 404)
        assert found is not None
        body = expect_object(received.json, "body", _FIELDS)
        heard = _hear(body)
        _check_fields(body)
        self.heard.append(heard)
        given = self.give()
        assert isinstance(given, Says)
        turn = len(body["messages"])
        if found[2] is None:
            return [answer(_write_message(given, turn))]
        return [_HEAD, *map(chunk, _write_events(given, turn)), LAST_CHUNK]

    def write_error(self, fails: Fails) -> Json:
        return {"message": fails.message}


def _check_fields(body: Json) -> None:
    inference = expect_object(
        body.get("inferenceConfig") or {}, "inferenceConfig", {"maxTokens", "temperature", "topP", "stopSequences"}
    )
    expect_number(inference.get("maxTokens"), "maxTokens", 1, _MOST)
    more = body.get("additionalModelRequestFields") or {}
    expect_object(more, "additionalModelRequestFields", {"thinking", "output_config", "top_k", "anthropic_beta"})
    expect((more.get("output_config") or {}).get("effort") in _EFFORTS, "output_config.effort: unknown value")
    thinking = expect_object(
        more.get("thinking") or {"type": "disabled"}, "thinking", {"type", "budget_tokens", "display"}
    )
    forced = (body.get("toolConfig") or {}).get("toolChoice", {}).keys() & {"any", "tool"}
    expect(
        not forced or thinking["type"] == "disabled", "Thinking may not be enabled when tool_choice forces tool use."
    )


def _hear(body: Json) -> Heard:
    system = [part["text"] for part in body.get("system") or () if "text" in part]
    expect(all(text.strip() for text in system), "The text field in the ContentBlock object is blank")
    messages: list[str] = []
    results: list[tuple[str, str]] = []
    thoughts: list[str] = []
    names: dict[str, str] = {}
    waiting: set[str] = set()
    before = ""
    for at, message in enumerate(expect_list(body.get("messages"), "messages")):
        where = f"messages.{at}"
        role = expect_object(message, where, {"role", "content"})["role"]
        expect(
            role in {"user", "assistant"} and role != before,
            f"{where}: roles must alternate between user and assistant",
        )
        expect(at or role == "user", "A conversation must start with a user message.")
        before = role
        blocks = [_read_block(block, where) for block in expect_list(message.get("content"), where)]
        answered = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
        expect(set(answered) == waiting, f"Expected toolResult blocks at {where} for the Ids: {sorted(waiting)}")
        expect(len(answered) == len(set(answered)), f"{where}: duplicate toolResult")
        for block in blocks:
            if "text" in block:
                messages.append(f"{role}: {block['text']}")
            if "toolUse" in block:
                expect(block["toolUse"]["toolUseId"] not in names, "`tool_use` ids must be unique")
                names[block["toolUse"]["toolUseId"]] = block["toolUse"]["name"]
            if "toolResult" in block:
                texts = [part.get("text", "") for part in block["toolResult"]["content"]]
                results.append((names[block["toolResult"]["toolUseId"]], "\n".join(texts)))
            if "reasoningContent" in block:
                thoughts.append(block["reasoningContent"].get("reasoningText", {}).get("text", ""))
        waiting = {block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block}
    expect(not waiting, f"Expected toolResult blocks for the Ids: {sorted(waiting)}")
    config = body.get("toolConfig")
    expect(
        config or not names, "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    )
    tools = _read_tools(config) if config else ()
    return Heard("\n\n".join(system), tuple(messages), tuple(results), (), tools, tuple(thoughts))


def _read_block(block: Any, where: str) -> Json:
    block = expect_object(block, where, _BLOCKS)
    expect(len(block) == 1, f"{where}: a content block has one member")
    if "text" in block:
        expect(expect_text(block["text"], where).strip(), "The text field in the ContentBlock object is blank")
    if "toolUse" in block:
        call = expect_object(block["toolUse"], where, {"toolUseId", "name", "input"})
        expect(_ID.fullmatch(call["toolUseId"]) and _NAME.fullmatch(call["name"]), f"{where}: fails the pattern")
        expect(isinstance(call["input"], dict), f"{where}: toolUse.input must be a JSON object")
    if "toolResult" in block:
        result = expect_object(block["toolResult"], where, {"toolUseId", "content", "status"})
        for part in expect_list(result.get("content"), where):
            expect_object(part, where, {"text", "json", "image", "document", "video"})
            expect(part.get("text", ".").strip(), f"The content field at {where}.toolResult is blank")
    if "reasoningContent" in block:
        text = block["reasoningContent"].get("reasoningText")
        expect(text is None or text.get("signature") == _SIGNATURE, "Invalid `signature` in `thinking` block")
    return block  # type: ignore[no-any-return]


def _read_tools(config: Json) -> tuple[str, ...]:
    expect_object(config, "toolConfig", {"tools", "toolChoice"})
    choice = config.get("toolChoice") or {"auto": {}}
    expect(len(choice) == 1 and choice.keys() <= {"auto", "any", "tool"}, "toolChoice: one of auto, any, tool")
    names = []
    for tool in expect_list(config.get("tools"), "toolConfig.tools"):
        if "cachePoint" in tool:
            continue
        spec = expect_object(tool["toolSpec"], "toolSpec", {"name", "description", "inputSchema", "strict"})
        expect(_NAME.fullmatch(expect_text(spec.get("name"), "toolSpec.name")), "toolSpec.name: fails the pattern")
        expect(spec.get("description") != "", "toolSpec.description: length at least 1")
        expect(spec["inputSchema"]["json"].get("type") == "object", "inputSchema.json.type must be object")
        names.append(spec["name"])
    expect(len(names) == len(set(names)), "The tool names must be unique")
    return tuple(names)


# What it answers.


def _name(turn: int, at: int) -> str:
    return f"tooluse_{turn}-{at}"


def _write_message(says: Says, turn: int) -> Json:
    content: list[Json] = [{"text": says.text}] if says.text else []
    content += [
        {"toolUse": {"toolUseId": _name(turn, at), "name": call.name, "input": call.arguments}}
        for at, call in enumerate(says.calls)
    ]
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "tool_use" if says.calls else "end_turn",
        "usage": cassettes.usage(says.prompt, says.completion),
        "metrics": {"latencyMs": 9},
    }


def _write_events(says: Says, turn: int) -> list[bytes]:
    events = [cassettes.BEGIN]
    blocks: list[list[bytes]] = []
    if says.thought:
        blocks.append([cassettes.thought(text=says.thought), cassettes.thought(signature=_SIGNATURE), cassettes.stop()])
    if says.text:
        at = len(blocks)
        blocks.append([*(cassettes.words(word, at) for word in split_words(says.text)), cassettes.stop(at)])
    for number, call in enumerate(says.calls):
        pieces = halve(orjson.dumps(call.arguments).decode())
        blocks.append([cassettes.call(len(blocks), _name(turn, number), call.name, *pieces)])
    reason = "tool_use" if says.calls else "end_turn"
    return [
        *events,
        *(one for block in blocks for one in block),
        cassettes.finish(reason),
        cassettes.metadata(says.prompt, says.completion),
    ]
