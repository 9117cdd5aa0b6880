"""``/v1/responses``: parse the request as a chat, and build the Responses API's items from the chat model's answer.

The OpenAI API's OpenAPI document describes it: ``CreateResponse``, ``Response`` and ``ResponseStreamEvent``.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web
from attrs import field, frozen

from gateway.demo import chat as talk
from gateway.demo.replies import EVENT_STREAM, build_event, json_reply, parse_json, pass_events, send_pieces
from gateway.demo.requests import DemoChatRequest, Json, RequestError, check_messages, parse_chat, typed

_ECHOED: Json = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that its response repeats, with their defaults."""
_KEPT = ("conversation", "previous_response_id", "prompt")
_TEXTS = frozenset({"input_text", "output_text"})

Event = Callable[..., Json]


def add_routes(app: web.Application, *, pace_s: float) -> None:
    """Add the path; ``pace_s`` is the pause between two events, in seconds."""

    async def respond(request: web.Request) -> web.StreamResponse:
        answered = DemoResponse.to(await parse_json(request))
        if not answered.ask.stream:
            return json_reply(answered.response())
        events = pass_events(build_event(event, named=True) for event in answered.events())
        return await send_pieces(request, events, headers=EVENT_STREAM, pace_s=pace_s)

    app.router.add_post("/v1/responses", respond)


@frozen
class DemoResponse:
    """A response, and its two forms: an object, and a stream of events."""

    body: Json
    ask: DemoChatRequest
    answer: talk.DemoAnswer
    id: str = field(factory=lambda: secrets.token_hex(12))
    created_at: int = field(factory=lambda: int(time.time()))

    @classmethod
    def to(cls, body: object) -> "DemoResponse":
        """Answer a request. Raises ``RequestError`` for the first wrong field."""
        chat = _parse_as_chat(body) if isinstance(body, dict) else body
        ask = parse_chat(chat)
        return cls(dict(body) if isinstance(body, dict) else {}, ask, talk.answer(ask, 0))

    def response(self) -> Json:
        """Return the response as one object."""
        return self._build([item for item, _ in self._items()], ended=True)

    def events(self) -> Iterator[Json]:
        """Yield the response as the numbered events of a stream."""
        for number, event in enumerate(self._list_events()):
            yield {"type": event.pop("type"), "sequence_number": number, **event}

    def _list_events(self) -> Iterator[Json]:
        begun = self._build([], ended=False)
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        done = []
        for at, (item, pieces) in enumerate(self._items()):
            write = _stream_message if item["type"] == "message" else _stream_call
            yield from write(item, pieces, {"item_id": item["id"], "output_index": at})
            yield {"type": "response.output_item.done", "output_index": at, "item": item}
            done.append(item)
        whole = self._build(done, ended=True)
        yield {"type": f"response.{whole['status']}", "response": whole}

    def _items(self) -> list[tuple[Json, tuple[str, ...]]]:
        """Return each item of the output with the pieces in which it streams."""
        status = "completed" if self.answer.finish_reason != "length" else "incomplete"
        if not self.answer.calls:
            part = _build_text("".join(self.answer.pieces))
            item = {"id": f"msg_{self.id}", "type": "message", "status": status, "role": "assistant", "content": [part]}
            return [(item, self.answer.pieces)]
        return [
            (
                {
                    "id": f"fc_{self.id}_{at}",
                    "type": "function_call",
                    "status": "completed",
                    "call_id": f"call_{self.id}_{at}",
                    "name": call.name,
                    "arguments": "".join(call.fragments),
                },
                call.fragments,
            )
            for at, call in enumerate(self.answer.calls)
        ]

    def _build(self, output: list[Json], *, ended: bool) -> Json:
        short = self.answer.finish_reason == "length"
        prompt, completion = talk.prompt_tokens(self.ask), self.answer.tokens
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + completion,
        }
        echoed = {name: self.body[name] for name in _ECHOED if self.body.get(name) is not None}
        return {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created_at,
            "completed_at": int(time.time()) if ended and not short else None,
            "status": "in_progress" if not ended else "incomplete" if short else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if ended and short else None,
            "model": self.body["model"],
            "output": output,
            "previous_response_id": None,
            "usage": usage if ended else None,
            **_ECHOED,
            **echoed,
        }


def _build_text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _stream_message(item: Json, pieces: tuple[str, ...], place: Json) -> Iterator[Json]:
    yield _add(item | {"status": "in_progress", "content": []}, place)
    place = place | {"content_index": 0}
    yield {"type": "response.content_part.added", "part": _build_text(""), **place}
    for piece in pieces:
        yield {"type": "response.output_text.delta", "delta": piece, "logprobs": [], **place}
    (part,) = item["content"]
    yield {"type": "response.output_text.done", "text": part["text"], "logprobs": [], **place}
    yield {"type": "response.content_part.done", "part": part, **place}


def _stream_call(item: Json, pieces: tuple[str, ...], place: Json) -> Iterator[Json]:
    yield _add(item | {"status": "in_progress", "arguments": ""}, place)
    for piece in pieces:
        yield {"type": "response.function_call_arguments.delta", "delta": piece, **place}
    fields = {"name": item["name"], "arguments": item["arguments"]}
    yield {"type": "response.function_call_arguments.done", **fields, **place}


def _add(item: Json, place: Json) -> Json:
    return {"type": "response.output_item.added", "output_index": place["output_index"], "item": item}


def _parse_as_chat(body: Json) -> Json:
    """Convert the request to a chat request. Raises ``RequestError`` for what a chat does not have."""
    for name in _KEPT:
        if body.get(name) is not None:
            code = "previous_response_not_found" if name == "previous_response_id" else None
            raise RequestError(f"The demo keeps nothing: it does not support '{name}'.", param=name, code=code)
    if typed(body, "background", bool, default=False):
        raise RequestError("The demo answers at once: it does not support 'background'.", param="background")
    instructions = typed(body, "instructions", str, default="")
    developer = [{"role": "developer", "content": instructions}] if instructions else []
    shape = typed(typed(body, "text", dict, default={}), "format", dict, default={})
    return {
        **{name: body.get(name) for name in ("model", "stream", "parallel_tool_calls")},
        "messages": developer + _parse_input(body.get("input")),
        "max_completion_tokens": body.get("max_output_tokens"),
        "tools": [_parse_tool(tool) for tool in typed(body, "tools", list, default=[])],
        "tool_choice": _parse_choice(body.get("tool_choice")),
        "response_format": {"type": shape.get("type"), "json_schema": shape},
    }


def _parse_input(given: object) -> list[Json]:
    if isinstance(given, str) and given:
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given or not all(isinstance(item, dict) for item in given):
        raise RequestError("'input' must be a text, or a list with at least one item.", param="input")
    messages = [message for index, item in enumerate(given) for message in _parse_checked(item, f"input[{index}]")]
    if not messages:
        raise RequestError("'input' has nothing in it to answer.", param="input")
    return messages


def _parse_checked(item: Json, where: str) -> list[Json]:
    messages = _parse_item(item)
    try:
        check_messages(messages)
    except RequestError as error:
        raise RequestError(
            f"'{where}' must be an item with a known 'role' and 'content', or an 'output'.", param=where
        ) from error
    return messages


def _parse_item(item: Json) -> list[Json]:
    """Return the messages of an item: none for items that a chat model ignores, such as reasoning."""
    match item.get("type") or "message":
        case "message":
            content = item.get("content")
            parts = [_parse_part(part) for part in content] if isinstance(content, list) else content
            return [{"role": item.get("role"), "content": parts}]
        case "function_call":
            return [{"role": "assistant", "content": None}]
        case "function_call_output":
            output = item.get("output")
            parts = [_parse_part(part) for part in output] if isinstance(output, list) else output
            return [{"role": "tool", "content": parts}]
        case _:
            return []


def _parse_part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        return part
    return {**part, "type": "text" if kind in _TEXTS else "image_url" if kind == "input_image" else kind}


def _parse_tool(tool: Any) -> Any:
    """Return a function in the form of a chat request; other tools are never called."""
    return {"type": "function", "function": tool} if _is_function(tool) else tool


def _parse_choice(choice: Any) -> Any:
    if _is_function(choice):
        return _parse_tool(choice)
    if isinstance(choice, dict) and isinstance(choice.get("tools"), list):
        return {"allowed_tools": {**choice, "tools": [_parse_tool(tool) for tool in choice["tools"]]}}
    return choice


def _is_function(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "function"
