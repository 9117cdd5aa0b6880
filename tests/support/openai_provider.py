"""OpenAI, as a server that looks as closely as the real one; and any server of its convention that thinks aloud.

Rules: the convention's OpenAPI document, ``CreateChatCompletionRequest``; developers.openai.com/api/docs/guides/
function-calling (every call is answered right after), .../structured-outputs ("additionalProperties: false must always
be set", "all fields must be required"), .../error-codes.
"""

import re
from typing import Any

import attrs
import orjson

from tests.support.providers import (
    KEY,
    Fails,
    Heard,
    Json,
    Provider,
    ReceivedImage,
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
from tests.support.scripted_upstream import DONE, Received, Step, event

FIELDS = {
    "messages", "model", "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
    "max_completion_tokens", "max_tokens", "metadata", "modalities", "n", "parallel_tool_calls", "prediction",
    "presence_penalty", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "response_format",
    "safety_identifier", "seed", "service_tier", "stop", "store", "stream", "stream_options", "temperature",
    "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity", "web_search_options",
}  # fmt: skip
MESSAGE = {
    "system": {"content", "name"},
    "developer": {"content", "name"},
    "user": {"content", "name"},
    "assistant": {"content", "name", "refusal", "tool_calls", "audio", "function_call", "annotations"},
    "tool": {"content", "tool_call_id"},
}
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
DATA_URL = re.compile(r"data:([\w/.+-]+);base64,(.*)", re.DOTALL)
ERRORS = {400: "invalid_request_error", 401: "invalid_request_error", 404: "invalid_request_error", 429: "requests"}
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


class OpenAIProvider(Provider):
    """``provider = "openai"``."""

    slug = "openai"
    model = "gpt-4.1-mini"
    fields: frozenset[str] = frozenset(FIELDS)
    extra: frozenset[str] = frozenset()
    """Fields of an assistant's message that are not the convention's."""
    call_fields: frozenset[str] = frozenset({"id", "type", "function"})
    aloud = False
    """Whether it says what it thinks."""
    call_id = "call_{turn}_{at}"
    longest_user = 64

    def read(self, received: Received) -> list[Step]:
        expect(received.headers.get("authorization") == f"Bearer {KEY}", "Incorrect API key provided", 401)
        expect((received.method, received.path) == ("POST", f"{self.root}/chat/completions"), "Not found", 404)
        body = expect_object(received.json, "body", self.fields)
        self.check(body)
        heard = _hear(body, self.extra, self.call_fields)
        _check_body(body)
        for name in ("user", "safety_identifier"):
            expect(len(body.get(name) or "") <= self.longest_user, f"Invalid '{name}': string too long")
        self.heard.append(heard)
        counted = (body.get("stream_options") or {}).get("include_usage") is True
        return self.speak(
            body.get("stream") is True,
            lambda says: _write_answer(self.hush(says), body, _list_calls(says, body, self.call_id)),
            lambda says: _write_events(self.hush(says), body, _list_calls(says, body, self.call_id), counted=counted),
        )

    def check(self, body: Json) -> None:
        """Refuse what this vendor or model refuses beside the convention's rules."""

    def hush(self, says: Says) -> Says:
        """The answer, without its thought where thoughts are kept."""
        return says if self.aloud else attrs.evolve(says, thought="")

    def write_error(self, fails: Fails) -> Json:
        kind = ERRORS.get(fails.status, "server_error")
        return {"error": {"message": fails.message, "type": kind, "param": None, "code": CODES.get(fails.status)}}

    def write_late(self, fails: Fails) -> bytes:
        return event(self.write_error(fails))


class ThinkingProvider(OpenAIProvider):
    """``provider = "custom"``: thoughts are ``reasoning_content``, as DeepSeek's, and ids as odd as Moonshot's.

    It passes over what it does not know in a call, as most servers of the convention do.
    """

    slug = "custom"
    model = "org/thinker"
    extra = frozenset({"reasoning_content"})
    call_fields = OpenAIProvider.call_fields | {"extra_content"}
    call_id = "functions.{name}:{turn}{at}"
    aloud = True
    longest_user = 1_000


def _check_body(body: Json) -> None:
    expect_text(body.get("model"), "model")
    expect_number(body.get("temperature"), "temperature", 0, 2)
    expect_number(body.get("top_p"), "top_p", 0, 1)
    expect_number(body.get("n"), "n", 1, 128)
    for limit in ("max_tokens", "max_completion_tokens"):
        expect_number(body.get(limit), limit, 1, 10**6)
    stop = body.get("stop")
    expect(stop is None or isinstance(stop, str) or 0 < len(stop) <= 4, "stop: at most 4 elements")
    if "stream_options" in body:
        expect(body.get("stream") is True, "The 'stream_options' parameter is only allowed when 'stream' is enabled.")
    names = [_check_tool(tool) for tool in body.get("tools") or ()]
    for name in ("tool_choice", "parallel_tool_calls"):
        expect(names or name not in body, f"'{name}' is only allowed when 'tools' are specified.")
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        expect(choice["type"] == "function" and choice["function"]["name"] in names, "Tool choice not found in 'tools'")
    else:
        expect(choice in {None, "auto", "none", "required"}, "Invalid value for 'tool_choice'")
    form = body.get("response_format") or {"type": "text"}
    if form["type"] == "json_schema":
        schema = expect_object(form.get("json_schema"), "json_schema", {"name", "description", "schema", "strict"})
        expect(NAME.fullmatch(expect_text(schema.get("name"), "name")), "json_schema.name: does not match the pattern")
        if schema.get("strict"):
            _check_closed(schema["schema"])


def _check_closed(schema: Any) -> None:
    for item in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _check_closed(item)
    if isinstance(schema, dict) and schema.get("type") == "object":
        expect(schema.get("additionalProperties") is False, "'additionalProperties' is required to be false")
        missing = schema.get("properties", {}).keys() - set(schema.get("required", ()))
        expect(not missing, f"'required' must include every key in properties. Missing {sorted(missing)}")


def _check_tool(tool: Any) -> str:
    expect(expect_object(tool, "tools", {"type", "function"}).get("type") == "function", "tools.type: function")
    function = expect_object(tool["function"], "function", {"name", "description", "parameters", "strict"})
    expect(NAME.fullmatch(expect_text(function.get("name"), "name")), "function.name: does not match the pattern")
    if "parameters" in function:
        expect(function["parameters"].get("type") == "object", "schema must be a JSON Schema of 'type: \"object\"'")
    if function.get("strict"):
        _check_closed(function["parameters"])
    return str(function["name"])


def _hear(body: Json, extra: frozenset[str], call_fields: frozenset[str]) -> Heard:
    system: list[str] = []
    messages: list[str] = []
    results: list[tuple[str, str]] = []
    images: list[ReceivedImage] = []
    thoughts: list[str] = []
    waiting: dict[str, str] = {}
    for at, raw in enumerate(expect_list(body.get("messages"), "messages")):
        where = f"messages[{at}]"
        role = raw.get("role") if isinstance(raw, dict) else None
        expect(role in MESSAGE, f"{where}.role: Invalid value")
        message = expect_object(raw, where, {"role", *MESSAGE[str(role)], *(extra if role == "assistant" else ())})
        if role == "tool":
            expect(
                message.get("tool_call_id") in waiting,
                "messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
            )
            text = "".join(_list_texts(message.get("content"), where))
            results.append((waiting.pop(message["tool_call_id"]), text))
            continue
        expect(not waiting, f"tool_call_ids did not have response messages: {', '.join(waiting)}")
        waiting = _read_calls(message, where, call_fields)
        if not waiting:
            expect(message.get("content"), f"{where}.content: expected a string or an array, got null")
        if message.get("reasoning_content"):
            thoughts.append(message["reasoning_content"])
        texts = _list_texts(message.get("content"), where, images if role == "user" else None)
        if role in {"system", "developer"}:
            system += texts
        else:
            messages += [f"{role}: {text}" for text in texts]
    expect(not waiting, f"tool_call_ids did not have response messages: {', '.join(waiting)}")
    form = body.get("response_format") or {}
    return Heard(
        "\n\n".join(system),
        tuple(messages),
        tuple(results),
        tuple(images),
        tuple(tool["function"]["name"] for tool in body.get("tools") or ()),
        tuple(thoughts),
        form.get("json_schema", {}).get("schema"),
    )


def _read_calls(message: Json, where: str, known: frozenset[str]) -> dict[str, str]:
    names = {}
    for call in expect_list(message["tool_calls"], where) if message.get("tool_calls") else ():
        expect_object(call, where, known)
        expect(call.get("type") == "function", f"{where}.tool_calls.type: Invalid value")
        function = expect_object(call.get("function"), where, {"name", "arguments"})
        expect(isinstance(function.get("arguments"), str), f"{where}: arguments must be a string")
        expect(call["id"] not in names, f"{where}: duplicate tool call id")
        names[expect_text(call.get("id"), where)] = expect_text(function.get("name"), where)
    return names


def _list_texts(content: Any, where: str, images: list[ReceivedImage] | None = None) -> list[str]:
    if content is None or isinstance(content, str):
        return [content] if content else []
    texts = []
    for part in expect_list(content, where):
        kind = part.get("type")
        if kind == "text":
            texts.append(expect_text(expect_object(part, where, {"type", "text"})["text"], where))
            continue
        expect(images is not None and kind in {"image_url", "file"}, f"{where}: Invalid value '{kind}'")
        assert images is not None
        images.append(_read_blob(expect_object(part, where, {"type", kind})[kind], kind, where))
    return texts


def _read_blob(value: Any, kind: str, where: str) -> ReceivedImage:
    known = {"url", "detail"} if kind == "image_url" else {"filename", "file_data"}
    url = expect_text(expect_object(value, where, known).get("url" if kind == "image_url" else "file_data"), where)
    if url.startswith("https://") and kind == "image_url":
        return ReceivedImage(None, url=url)
    found = DATA_URL.fullmatch(url)
    expect(found, f"{where}: Expected a base64-encoded data URL with a media type")
    assert found is not None
    return ReceivedImage(found[1], decode(found[2], where))


# What it answers.


def _usage(says: Says) -> Json:
    return {
        "prompt_tokens": says.prompt,
        "completion_tokens": says.completion,
        "total_tokens": says.prompt + says.completion,
        "prompt_tokens_details": {"cached_tokens": says.cached},
        "completion_tokens_details": {"reasoning_tokens": says.reasoning},
    }


def _finish(says: Says) -> str:
    return "length" if says.cut else "tool_calls" if says.calls else "stop"


def _list_answer_texts(says: Says, body: Json) -> tuple[str, ...]:
    return (says.text, *says.more)[: body.get("n") or 1]


def _list_calls(says: Says, body: Json, call_id: str) -> list[Json]:
    return [
        {
            "id": call_id.format(name=call.name, turn=len(body["messages"]), at=at),
            "type": "function",
            "function": {"name": call.name, "arguments": orjson.dumps(call.arguments).decode()},
        }
        for at, call in enumerate(says.calls)
    ]


def _write_answer(says: Says, body: Json, calls: list[Json]) -> Json:
    choices = []
    for at, text in enumerate(_list_answer_texts(says, body)):
        message: Json = {"role": "assistant", "content": text or None, "refusal": None, "annotations": []}
        if calls:
            message["tool_calls"] = calls
        if says.thought:
            message["reasoning_content"] = says.thought
        choices.append({"index": at, "message": message, "logprobs": None, "finish_reason": _finish(says)})
    head = {"id": "chatcmpl-B9MBs", "object": "chat.completion", "created": 1741569952, "model": body["model"]}
    return {**head, "choices": choices, "usage": _usage(says), "system_fingerprint": "fp_1"}


def _write_events(says: Says, body: Json, calls: list[Json], *, counted: bool) -> list[bytes]:
    head = {"id": "chatcmpl-B9MBs", "object": "chat.completion.chunk", "created": 1741569952, "model": body["model"]}
    last = {"usage": None} if counted else {}

    def write(delta: Json, at: int = 0, finish: str | None = None) -> bytes:
        choice = {"index": at, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**head, "choices": [choice], **last})

    texts = _list_answer_texts(says, body)
    events = [write({"role": "assistant", "content": "", "refusal": None}, at) for at in range(len(texts))]
    events += [write({"reasoning_content": word}) for word in split_words(says.thought)]
    events += [write({"content": word}, at) for at, text in enumerate(texts) for word in split_words(text)]
    for at, call in enumerate(calls):
        arguments = call["function"]["arguments"]
        begun = {**call, "index": at, "function": {**call["function"], "arguments": ""}}
        events.append(write({"tool_calls": [begun]}))
        events += [
            write({"tool_calls": [{"index": at, "function": {"arguments": piece}}]}) for piece in halve(arguments)
        ]
    events += [write({}, at, _finish(says)) for at in range(len(texts))]
    if counted:
        events.append(event({**head, "choices": [], "usage": _usage(says)}))
    return [*events, DONE]
