"""Conversations as an application keeps them, and clients of four conventions that write and read them.

An application may change the convention between two turns: texts, images, calls and results then go over in words of
its own. What an answer has besides them, reasoning above all, goes back only in the convention that it came in.
"""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.gemini.request import parse_generate_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.responses.responses import parse_responses_inference

Json = dict[str, Any]
SCHEMA: Json = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOLS = [{"name": name, "description": "Finds it", "parameters": SCHEMA} for name in ("get_time", "get_weather")]


@attrs.frozen
class Question:
    """A turn of the user."""

    text: str
    images: tuple[bytes, ...] = ()


@attrs.frozen
class ToolCall:
    """A call in an answer. ``given``: its id came with it; Gemini gives none, and then the application makes one."""

    id: str
    name: str
    arguments: Json
    given: bool = True


@attrs.frozen
class Answer:
    """A turn of the model.

    Attributes:
        api_format: the one in which ``raw`` came; empty if another application wrote it.
        raw: what goes back into the history in that convention.
        provider: who gave it.
    """

    text: str
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    api_format: str = ""
    raw: tuple[Json, ...] = ()
    provider: str = ""


@attrs.frozen
class Results:
    """What the tools answered to the calls of the answer before, in their order."""

    of: tuple[ToolCall, ...]
    texts: tuple[str, ...]


Turn = Question | Answer | Results


@attrs.frozen
class Client:
    """One convention.

    Attributes:
        write_turn: the messages of a turn; an answer comes here only if another convention wrote it.
        build: the call of a history, whose model thinks and streams, or does not.
        read: the answer in a stream's events.
        read_whole: the answer in a whole one.
    """

    name: str
    write_turn: Callable[[Turn], list[Json]]
    build: Callable[[list[Json], bool, bool], InferenceRequest]
    read: Callable[[list[Json]], Answer]
    read_whole: Callable[[Json], Answer]

    def ask(self, turns: list[Turn], *, thinks: bool, stream: bool) -> InferenceRequest:
        """The call that continues a conversation."""
        written: list[Json] = []
        for turn in turns:
            own = isinstance(turn, Answer) and turn.api_format == self.name
            written += turn.raw if isinstance(turn, Answer) and own else self.write_turn(turn)
        # As it comes over the network: what is shared between turns is not shared here.
        return self.build(orjson.loads(orjson.dumps(written)), thinks, stream)

    def hear(self, raw: bytes, *, stream: bool) -> Answer:
        """The answer in the bytes that arrived."""
        found = self.read(list(list_events(raw))) if stream else self.read_whole(orjson.loads(raw))
        return attrs.evolve(found, api_format=self.name)


def list_events(raw: bytes) -> Iterator[Json]:
    """The data of a stream's events."""
    for event in raw.replace(b"\r\n", b"\n").split(b"\n\n"):
        for line in event.split(b"\n"):
            if line.startswith(b"data: {"):
                yield orjson.loads(line[6:])


def _url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def _arguments(call: ToolCall) -> str:
    return orjson.dumps(call.arguments).decode()


# The OpenAI API's chat.


def _write_chat(turn: Turn) -> list[Json]:
    match turn:
        case Question():
            images = [{"type": "image_url", "image_url": {"url": _url(image)}} for image in turn.images]
            return [{"role": "user", "content": [{"type": "text", "text": turn.text}, *images]}]
        case Answer():
            calls = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
                for call in turn.calls
            ]
            return [{"role": "assistant", "content": turn.text or None} | ({"tool_calls": calls} if calls else {})]
        case Results():
            pairs = zip(turn.of, turn.texts, strict=True)
            return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in pairs]


def _build_chat(messages: list[Json], thinks: bool, stream: bool) -> InferenceRequest:
    tools = [{"type": "function", "function": tool} for tool in TOOLS]
    more = {"reasoning_effort": "low"} if thinks else {}
    return parse_chat_inference({"model": "m", "messages": messages, "tools": tools, "stream": stream, **more})


def _read_chat_message(message: Json) -> Answer:
    calls = [
        ToolCall(call["id"], call["function"]["name"], orjson.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return Answer(message["content"] or "", message.get("reasoning_content") or "", tuple(calls), raw=(message,))


def _read_completion(value: Json) -> Answer:
    return _read_chat_message(value["choices"][0]["message"])


def _read_chat(events: list[Json]) -> Answer:
    """As the client libraries add deltas up."""
    message: Json = {"role": "assistant", "content": None}
    calls: dict[int, Json] = {}
    for delta in [choice["delta"] for event in events for choice in event["choices"]]:
        for field in ("content", "reasoning_content"):
            if delta.get(field):
                message[field] = (message.get(field) or "") + delta[field]
        for piece in delta.get("tool_calls") or ():
            if piece["index"] not in calls:
                calls[piece["index"]] = {name: value for name, value in piece.items() if name != "index"}
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    if calls:
        message["tool_calls"] = list(calls.values())
    return _read_chat_message(message)


# The Responses API.


def _write_items(turn: Turn) -> list[Json]:
    match turn:
        case Question():
            images = [{"type": "input_image", "image_url": _url(image)} for image in turn.images]
            return [{"role": "user", "content": [{"type": "input_text", "text": turn.text}, *images]}]
        case Answer():
            text = [{"role": "assistant", "content": [{"type": "output_text", "text": turn.text}]}] if turn.text else []
            return text + [
                {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": _arguments(call)}
                for call in turn.calls
            ]
        case Results():
            pairs = zip(turn.of, turn.texts, strict=True)
            return [{"type": "function_call_output", "call_id": call.id, "output": text} for call, text in pairs]


def _build_items(items: list[Json], thinks: bool, stream: bool) -> InferenceRequest:
    tools = [{"type": "function", **tool} for tool in TOOLS]
    more: Json = {"reasoning": {"effort": "low"}} if thinks else {}
    more |= {"stream": stream, "store": False, "include": ["reasoning.encrypted_content"]}
    return parse_responses_inference({"model": "m", "input": items, "tools": tools, **more})


def _read_response(response: Json) -> Answer:
    output = response["output"]
    texts = [part["text"] for item in output if item["type"] == "message" for part in item["content"]]
    thoughts = [part["text"] for item in output if item["type"] == "reasoning" for part in item["summary"]]
    calls = [
        ToolCall(item["call_id"], item["name"], orjson.loads(item["arguments"]))
        for item in output
        if item["type"] == "function_call"
    ]
    return Answer("".join(texts), "".join(thoughts), tuple(calls), raw=tuple(output))


def _read_response_events(events: list[Json]) -> Answer:
    """The last event repeats everything; the items that were done before have to be the same."""
    response: Json = events[-1]["response"]
    assert response["output"] == [event["item"] for event in sorted(
        (event for event in events if event["type"] == "response.output_item.done"), key=lambda one: one["output_index"]
    )]  # fmt: skip
    texts = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    answer = _read_response(response)
    assert answer.text == texts
    return answer


# Anthropic's messages.


def _write_blocks(turn: Turn) -> list[Json]:
    match turn:
        case Question():
            images = [
                {"type": "image", "source": {
                    "type": "base64", "media_type": "image/png", "data": base64.b64encode(image).decode(),
                }}
                for image in turn.images
            ]  # fmt: skip
            return [{"role": "user", "content": [{"type": "text", "text": turn.text}, *images]}]
        case Answer():
            text = [{"type": "text", "text": turn.text}] if turn.text else []
            calls = [
                {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in turn.calls
            ]
            return [{"role": "assistant", "content": [*text, *calls]}]
        case Results():
            pairs = zip(turn.of, turn.texts, strict=True)
            blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in pairs]
            return [{"role": "user", "content": blocks}]


def _build_messages(messages: list[Json], thinks: bool, stream: bool) -> InferenceRequest:
    tools = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]} for tool in TOOLS
    ]
    more = {"thinking": {"type": "enabled", "budget_tokens": 2_000}} if thinks else {}
    return parse_messages_inference(
        {"model": "m", "max_tokens": 8_000, "messages": messages, "tools": tools, "stream": stream, **more}
    )


def _read_message(message: Json) -> Answer:
    content = message["content"]
    texts = [block["text"] for block in content if block["type"] == "text"]
    thoughts = [block["thinking"] for block in content if block["type"] == "thinking"]
    calls = [ToolCall(block["id"], block["name"], block["input"]) for block in content if block["type"] == "tool_use"]
    raw = {"role": "assistant", "content": content}
    return Answer("".join(texts), "".join(thoughts), tuple(calls), raw=(raw,))


def _read_message_events(events: list[Json]) -> Answer:
    """As the client libraries add deltas up (``accumulate_event``)."""
    content: list[Json] = []
    inputs: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "content_block_start":
                content.append(dict(event["content_block"]))
            case "content_block_delta":
                at, delta = event["index"], event["delta"]
                for field in ("text", "thinking", "signature"):
                    if field in delta:
                        content[at][field] += delta[field]
                inputs[at] = inputs.get(at, "") + delta.get("partial_json", "")
    for at, block in enumerate(content):
        if block["type"] == "tool_use":
            block["input"] = orjson.loads(inputs.get(at) or "{}")
    assert events[-1]["type"] == "message_stop"
    return _read_message({"content": content})


# Gemini's content.


def _write_contents(turn: Turn) -> list[Json]:
    match turn:
        case Question():
            images = [
                {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(image).decode()}}
                for image in turn.images
            ]
            return [{"role": "user", "parts": [{"text": turn.text}, *images]}]
        case Answer():
            text = [{"text": turn.text}] if turn.text else []
            calls = [
                {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}} for call in turn.calls
            ]
            return [{"role": "model", "parts": [*text, *calls]}]
        case Results():
            pairs = zip(turn.of, turn.texts, strict=True)
            responses = [
                {"name": call.name, "response": {"output": text}} | ({"id": call.id} if call.given else {})
                for call, text in pairs
            ]
            return [{"role": "user", "parts": [{"functionResponse": response} for response in responses]}]


def _build_contents(contents: list[Json], thinks: bool, stream: bool) -> InferenceRequest:
    more = {"generationConfig": {"thinkingConfig": {"thinkingBudget": 2_000, "includeThoughts": True}}}
    body = {"contents": contents, "tools": [{"functionDeclarations": TOOLS}]}
    return parse_generate_inference(body | (more if thinks else {}), model="m", stream=stream)


def _read_content(answer: Json) -> Answer:
    return _read_parts(answer["candidates"][0]["content"]["parts"])


def _read_chunks(events: list[Json]) -> Answer:
    return _read_parts([part for event in events for part in event["candidates"][0]["content"]["parts"]])


def _read_parts(parts: list[Json]) -> Answer:
    texts = [part["text"] for part in parts if "text" in part and not part.get("thought")]
    thoughts = [part["text"] for part in parts if "text" in part and part.get("thought")]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    named = [ToolCall(call.get("id", ""), call["name"], call.get("args") or {}, "id" in call) for call in calls]
    return Answer("".join(texts), "".join(thoughts), tuple(named), raw=({"role": "model", "parts": parts},))


CLIENTS = (
    Client(
        "chat", _write_chat, _build_chat, _read_chat, lambda value: _read_chat_message(value["choices"][0]["message"])
    ),
    Client("responses", _write_items, _build_items, _read_response_events, _read_response),
    Client("messages", _write_blocks, _build_messages, _read_message_events, _read_message),
    Client("gemini", _write_contents, _build_contents, _read_chunks, _read_content),
)
