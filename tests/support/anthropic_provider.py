"""Anthropic, as a server that looks as closely as the real one.

Rules: platform.claude.com/docs/en/api/messages, /docs/en/agents-and-tools/tool-use/implement-tool-use ("tool result
blocks must immediately follow", "tool_result blocks come first"), /docs/en/build-with-claude/extended-thinking,
/docs/en/build-with-claude/streaming, /docs/en/api/errors; fields: ``MessageCreateParams`` of the Python library.
"""

import hashlib
import re
from typing import Any

import attrs
import orjson

from tests.support.providers import (
    KEY,
    Call,
    Fails,
    Heard,
    Json,
    Provider,
    ReceivedImage,
    Refused,
    Says,
    decode,
    expect,
    expect_list,
    expect_number,
    expect_object,
    expect_text,
    halve,
    split_words,
)
from tests.support.scripted_upstream import Received, Step, answer

FIELDS = {
    "max_tokens", "messages", "model", "cache_control", "container", "context_management", "inference_geo",
    "mcp_servers", "metadata", "output_config", "service_tier", "speed", "stop_sequences", "stream", "system",
    "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p",
}  # fmt: skip
SAMPLING = {"temperature", "top_p", "top_k"}
"""What the version 2026-10-21 has no more (platform.claude.com/docs/en/api/versioning)."""
COUNT_FIELDS = {"messages", "model", "cache_control", "output_config", "system", "thinking", "tool_choice", "tools"}
BLOCKS = {
    "text": {"text", "cache_control", "citations"},
    "image": {"source", "cache_control"},
    "document": {"source", "title", "context", "cache_control", "citations"},
    "tool_use": {"id", "name", "input", "cache_control"},
    "tool_result": {"tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "tool_reference": {"tool_name", "cache_control"},
}
BELONGS = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
}
MAGIC = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8", "image/webp": b"RIFF"}
ERRORS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error",
}  # fmt: skip
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
ID = re.compile(r"[a-zA-Z0-9_-]+")


def sign(thought: str) -> str:
    """The signature this provider gives a thought, and wants back with it."""
    return "EqQBCgIYAhIM" + hashlib.sha256(thought.encode()).hexdigest()


class AnthropicProvider(Provider):
    """``provider = "anthropic"``."""

    slug = "anthropic"
    model = "claude-haiku-4-5"

    def read(self, received: Received) -> list[Step]:
        expect(received.headers.get("x-api-key") == KEY, "invalid x-api-key", 401)
        version = received.headers.get("anthropic-version")
        expect(version in {"2023-06-01", "2026-10-21"}, "anthropic-version: header is required")
        expect(received.method == "POST", "Not found", 404)
        if received.path == "/v1/messages/count_tokens":
            self.heard.append(_hear(expect_object(received.json, "body", COUNT_FIELDS)))
            return [answer({"input_tokens": 42})]
        expect(received.path == "/v1/messages", "Not found", 404)
        body = expect_object(received.json, "body", FIELDS if version == "2023-06-01" else FIELDS - SAMPLING)
        heard = _hear(body)
        _check_body(body)
        self.heard.append(heard)
        return self.speak(
            body.get("stream") is True, lambda says: _write_message(says, body), lambda says: _write_events(says, body)
        )

    def write_error(self, fails: Fails) -> Json:
        error = {"type": ERRORS.get(fails.status, "api_error"), "message": fails.message}
        return {"type": "error", "error": error, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}

    def write_late(self, fails: Fails) -> bytes:
        return _event("error", error=self.write_error(fails)["error"])


def _check_body(body: Json) -> None:
    limit = body.get("max_tokens")
    expect(type(limit) is int and limit >= 1, "max_tokens: Field required")
    expect_text(body.get("model"), "model")
    expect_number(body.get("temperature"), "temperature", 0, 1)
    expect_number(body.get("top_p"), "top_p", 0, 1)
    both = body.get("temperature") is not None and body.get("top_p") is not None
    expect(not both, "`temperature` and `top_p` cannot both be specified for this model. Please use only one.")
    for stop in body.get("stop_sequences") or ():
        expect(isinstance(stop, str) and stop.strip(), "stop_sequences: each stop sequence must contain non-whitespace")
    if "metadata" in body:
        expect_object(body["metadata"], "metadata", {"user_id"})
    tools = [_check_tool(tool, f"tools.{at}") for at, tool in enumerate(body.get("tools") or ())]
    expect(len(set(tools)) == len(tools), "tools: Tool names must be unique.")
    _check_choice(body.get("tool_choice"), tools)
    _check_thinking(body)
    form = expect_object(body.get("output_config") or {}, "output_config", {"effort", "format"}).get("format")
    if form is not None:
        expect_object(form, "output_config.format", {"type", "schema"})
        _check_closed(form["schema"])


def _check_closed(schema: Any) -> None:
    if isinstance(schema, list):
        for item in schema:
            _check_closed(item)
    elif isinstance(schema, dict):
        closed = schema.get("type") != "object" or schema.get("additionalProperties") is False
        expect(closed, "output_config.format.schema: For 'object' type, 'additionalProperties' must be false")
        for item in schema.values():
            _check_closed(item)


def _check_tool(tool: Any, where: str) -> str:
    known = {
        "name", "description", "input_schema", "type", "cache_control", "strict", "eager_input_streaming",
        "defer_loading", "allowed_callers", "input_examples",
    }  # fmt: skip
    tool = expect_object(tool, where, known)
    expect(NAME.fullmatch(expect_text(tool.get("name"), where)), f"{where}.name: String should match pattern")
    expect(tool.get("input_schema", {}).get("type") == "object", f"{where}.input_schema.type: Field required")
    return str(tool["name"])


def _check_choice(choice: Any, tools: list[str]) -> None:
    if choice is None:
        return
    expect(tools, "tool_choice may only be specified while providing tools.")
    expect_object(choice, "tool_choice", {"type", "name", "disable_parallel_tool_use"})
    kind = choice.get("type")
    expect(kind in {"auto", "any", "tool", "none"}, "tool_choice.type: unknown tag")
    expect(kind != "tool" or choice.get("name") in tools, "Tool not found in provided tools")


def _check_thinking(body: Json) -> None:
    thinking = body.get("thinking")
    if thinking is None:
        return
    thinking = expect_object(thinking, "thinking", {"type", "budget_tokens", "display"})
    if thinking.get("type") == "disabled":
        return
    expect(thinking.get("type") == "enabled", f"thinking.type: '{thinking.get('type')}' is not supported by this model")
    budget = thinking.get("budget_tokens")
    expect(type(budget) is int and budget >= 1024, "thinking.enabled.budget_tokens: at least 1024")
    expect(budget < body["max_tokens"], "`max_tokens` must be greater than `thinking.budget_tokens`.")
    expect(body.get("temperature") in {None, 1}, "`temperature` may only be set to 1 when thinking is enabled.")
    expect("top_k" not in body, "`top_k` must be unset when thinking is enabled.")
    forced = (body.get("tool_choice") or {}).get("type") in {"any", "tool"}
    expect(not forced, "Thinking may not be enabled when tool_choice forces tool use.")
    last = next((message for message in reversed(body["messages"]) if message["role"] == "assistant"), None)
    going_on = isinstance(body["messages"][-1]["content"], list) and any(
        block["type"] == "tool_result" for block in body["messages"][-1]["content"]
    )
    if last is not None and going_on:
        first = last["content"][0]["type"]
        expect(first in {"thinking", "redacted_thinking"}, f"Expected `thinking`, but found `{first}`.")


def _hear(body: Json) -> Heard:
    system = body.get("system") or ""
    if isinstance(system, list):
        system = "\n\n".join(_read_block(block, f"system.{at}", {"text"})["text"] for at, block in enumerate(system))
    ear = _Ear()
    messages = expect_list(body.get("messages"), "messages")
    expect(messages[0].get("role") == "user", 'messages: first message must use the "user" role')
    for at, message in enumerate(messages):
        ear.hear(expect_object(message, f"messages.{at}", {"role", "content"}), f"messages.{at}")
    last = messages[-1]["content"]
    if messages[-1]["role"] == "assistant" and isinstance(last, str):
        expect(not last[-1:].isspace(), "final assistant content cannot end with trailing whitespace")
    expect(not ear.waiting, f"`tool_use` ids were found without `tool_result` blocks: {sorted(ear.waiting)}")
    form = (body.get("output_config") or {}).get("format") or {}
    return Heard(
        system,
        tuple(ear.messages),
        tuple(ear.results),
        tuple(ear.images),
        tuple(tool["name"] for tool in body.get("tools") or ()),
        tuple(ear.thoughts),
        form.get("schema"),
    )


@attrs.define
class _Ear:
    """What the messages say. ``waiting``: the calls of the last one."""

    names: dict[str, str] = attrs.Factory(dict)
    messages: list[str] = attrs.Factory(list)
    results: list[tuple[str, str]] = attrs.Factory(list)
    images: list[ReceivedImage] = attrs.Factory(list)
    thoughts: list[str] = attrs.Factory(list)
    waiting: set[str] = attrs.Factory(set)

    def hear(self, message: Json, where: str) -> None:
        role = message.get("role")
        expect(role in BELONGS, f"{where}.role: Input should be 'user' or 'assistant'")
        blocks = _read_content(message.get("content"), f"{where}.content", BELONGS[str(role)])
        _check_results(blocks, self.waiting, where)
        for block in blocks:
            self.hear_block(block, str(role), where)
        self.waiting = {block["id"] for block in blocks if block["type"] == "tool_use"}

    def hear_block(self, block: Json, role: str, where: str) -> None:
        match block["type"]:
            case "text":
                self.messages.append(f"{role}: {block['text']}")
            case "image" | "document":
                self.images.append(_read_source(block, where))
            case "thinking":
                expect(block.get("signature") == sign(block["thinking"]), "Invalid `signature` in `thinking` block")
                self.thoughts.append(block["thinking"])
            case "tool_use":
                expect(ID.fullmatch(expect_text(block.get("id"), where)), f"{where}: tool_use.id: should match pattern")
                expect(block["id"] not in self.names, "messages: `tool_use` ids must be unique")
                expect(isinstance(block.get("input"), dict), f"{where}: tool_use.input: Input should be an object")
                self.names[block["id"]] = block["name"]
            case "tool_result":
                text, found = _read_result(block, where)
                self.results.append((self.names[block["tool_use_id"]], text))
                self.images += found


def _check_results(blocks: list[Json], waiting: set[str], where: str) -> None:
    """Every call is answered at once, before any word; nothing else is."""
    answered = [block.get("tool_use_id") for block in blocks if block["type"] == "tool_result"]
    missing, unknown = waiting - set(answered), set(answered) - waiting
    expect(not missing, f"`tool_use` ids were found without `tool_result` blocks immediately after: {sorted(missing)}")
    expect(not unknown, f"{where}: unexpected `tool_use_id` found in `tool_result` blocks")
    expect(len(answered) == len(set(answered)), "each tool_use must have a single result")
    first = [block["type"] for block in blocks[: len(answered)]]
    expect(set(first) <= {"tool_result"}, f"{where}: tool_result blocks must come first")


def _read_content(content: Any, where: str, kinds: set[str]) -> list[Json]:
    if isinstance(content, str):
        expect(content.strip(), f"{where}: text content blocks must contain non-whitespace text")
        return [{"type": "text", "text": content}]
    return [_read_block(block, f"{where}.{at}", kinds) for at, block in enumerate(expect_list(content, where))]


def _read_block(block: Any, where: str, kinds: set[str]) -> Json:
    kind = block.get("type") if isinstance(block, dict) else None
    expect(kind in kinds, f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags")
    block = expect_object(block, where, {"type", *BLOCKS[str(kind)]})
    if kind == "text":
        expect(expect_text(block.get("text"), where).strip(), f"{where}: text must contain non-whitespace text")
    mark = block.get("cache_control")
    expect(mark is None or mark.get("type") == "ephemeral", f"{where}.cache_control.type: should be 'ephemeral'")
    return block  # type: ignore[no-any-return]


def _read_result(block: Json, where: str) -> tuple[str, list[ReceivedImage]]:
    content = block.get("content")
    if content is None:
        return "", []
    inner = [{"type": "text", "text": content}] if isinstance(content, str) else expect_list(content, where)
    blocks = [_read_block(one, where, {"text", "image", "document", "tool_reference"}) for one in inner]
    images = [_read_source(one, where) for one in blocks if one["type"] in {"image", "document"}]
    return "\n".join(one["text"] for one in blocks if one["type"] == "text"), images


def _read_source(block: Json, where: str) -> ReceivedImage:
    source = expect_object(block.get("source"), f"{where}.source", {"type", "media_type", "data", "url"})
    media_type = source.get("media_type")
    if source.get("type") == "url":
        return ReceivedImage(None, url=expect_text(source.get("url"), where))
    if source.get("type") == "text":
        expect(media_type == "text/plain", f"{where}.source.media_type: should be 'text/plain'")
        return ReceivedImage(media_type, expect_text(source.get("data"), where).encode())
    expect(source.get("type") == "base64", f"{where}.source.type: unknown tag")
    data = decode(source.get("data"), f"{where}.source.data")
    if block["type"] == "document":
        expect(media_type == "application/pdf", f"{where}.source.media_type: should be 'application/pdf'")
        expect(data.startswith(b"%PDF"), "The PDF specified was not valid.")
    else:
        known = MAGIC.get(str(media_type))
        expect(
            known and data.startswith(known), f"The image was specified using the {media_type} media type, but is not"
        )
    return ReceivedImage(media_type, data)


# What it answers.


def _usage(says: Says) -> Json:
    return {
        "input_tokens": says.prompt - says.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": says.cached,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": says.completion,
        "output_tokens_details": {"thinking_tokens": says.reasoning},
        "service_tier": "standard",
    }


def _stop(says: Says) -> Json:
    if says.stopped_at is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": says.stopped_at}
    reason = "max_tokens" if says.cut else "tool_use" if says.calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _name(call: Call, at: int, body: Json) -> str:
    return f"toolu_{len(body['messages'])}_{at}_{call.name}"


def _write_message(says: Says, body: Json) -> Json:
    content: list[Json] = []
    if says.thought:
        content.append({"type": "thinking", "thinking": says.thought, "signature": sign(says.thought)})
    if says.text:
        content.append({"type": "text", "text": says.text})
    for at, call in enumerate(says.calls):
        content.append({"type": "tool_use", "id": _name(call, at, body), "name": call.name, "input": call.arguments})
    head = {"id": f"msg_01{len(body['messages'])}", "type": "message", "role": "assistant", "model": body["model"]}
    return {**head, "content": content, **_stop(says), "usage": _usage(says)}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def _write_events(says: Says, body: Json) -> list[bytes]:
    message = _write_message(says, body)
    blocks = message["content"]
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    begun["usage"] = {**message["usage"], "output_tokens": 1}
    events = [_event("message_start", message=begun), _event("ping")]
    for at, block in enumerate(blocks):
        start, deltas = _divide(block)
        events.append(_event("content_block_start", index=at, content_block=start))
        events += [_event("content_block_delta", index=at, delta=delta) for delta in deltas]
        events.append(_event("content_block_stop", index=at))
    usage = {name: count for name, count in message["usage"].items() if name.endswith(("tokens", "details"))}
    return [*events, _event("message_delta", delta=_stop(says), usage=usage), _event("message_stop")]


def _divide(block: Json) -> tuple[Json, list[Json]]:
    """A block as it begins, and what follows."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": word} for word in split_words(block["text"])]
        case "thinking":
            words = [{"type": "thinking_delta", "thinking": word} for word in split_words(block["thinking"])]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {"type": "thinking", "thinking": "", "signature": ""}, [*words, signed]
        case "tool_use":
            pieces = ("", *halve(orjson.dumps(block["input"]).decode()))
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    raise Refused("a block that no test knows")
