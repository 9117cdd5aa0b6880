"""The demo chat model: deterministic answers, tool calls and JSON in the OpenAI API's form."""

import itertools
import re

import orjson

from gateway.demo.requests import DemoChatRequest, DemoTool, Json, RequestError, get_typed
from gateway.demo.schemas import fill
from gateway.demo.text import split_pieces
from gateway.frozen import frozen

_GREETINGS = ("Hello!", "Hi there!", "Good to meet you!")
_SENTENCES = (
    "I am demo-chat, the gateway's built-in demo model, so I cannot really think about it, but every word you see "
    "has travelled through the gateway just as a real provider's answer would. "
    "To talk to a real model, add a channel in the console, or run: gateway channels add openai"
)
_FILLER_WORDS = frozenset(
    ("a", "an", "by", "do", "for", "from", "get", "in", "is", "of", "on", "or", "set", "the", "to")
)
_QUOTE_LENGTH = 600
_FRAGMENT_LENGTH = 6
_MESSAGE_TOKENS = 3
_IMAGE_TOKENS = 85
_WORD_PATTERN = re.compile(r"[^\W_]+")
_CONTEXT_PATTERN = re.compile(r"\s*<([a-z]+[-_][a-z_-]+)>")


@frozen
class DemoToolCall:
    """A tool call. Its JSON arguments are split into the fragments that are streamed."""

    name: str
    fragments: tuple[str, ...]


@frozen
class DemoAnswer:
    """One choice: text or tool calls."""

    pieces: tuple[str, ...]
    calls: tuple[DemoToolCall, ...]
    finish_reason: str

    @property
    def tokens(self) -> int:
        return len(self.pieces) + sum(len(call.fragments) for call in self.calls)


def find_text(message: Json) -> str:
    """Return the text of a message, whose content is a string or a list of parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(p["text"] for p in content if p["type"] == "text")


def find_question(message: Json) -> str:
    """Return a message's text without the context that coding agents put before it, such as ``<system-reminder>``.

    A text that consists only of such context is returned unchanged.
    """
    text, place = find_text(message), 0
    while opened := _CONTEXT_PATTERN.match(text, place):
        closing = f"</{opened[1]}>"
        end = text.find(closing, opened.end())
        if end < 0:
            break
        place = end + len(closing)
    return text[place:].strip() or text


def count_images(message: Json) -> int:
    """Count the images among a message's content parts."""
    content = message.get("content")
    return sum(part["type"] == "image_url" for part in content) if isinstance(content, list) else 0


def count_prompt_tokens(chat_request: DemoChatRequest) -> int:
    """Count the tokens of words, images and offered tools."""
    message_tokens = sum(
        len(split_pieces(find_text(message))) + _IMAGE_TOKENS * count_images(message) + _MESSAGE_TOKENS
        for message in chat_request.messages
    )
    tool_tokens = sum(
        len(split_fragments(tool.name)) + len(split_fragments(_dumps(tool.parameters))) for tool in chat_request.tools
    )
    return message_tokens + tool_tokens


def build_answer(chat_request: DemoChatRequest, index: int) -> DemoAnswer:
    """Answer a conversation; the choices of one request differ only in their greeting."""
    if tools := _choose_tools(chat_request):
        prompt = find_question(chat_request.messages[-1])
        placed_fragments = [
            (position, part)
            for position, tool in enumerate(tools)
            for part in split_fragments(build_arguments(tool, prompt))
        ]
        kept_fragments = placed_fragments[: chat_request.limit]
        calls = [
            DemoToolCall(tool.name, tuple(part for n, part in kept_fragments if n == position))
            for position, tool in enumerate(tools)
        ]
        finish_reason = "tool_calls" if len(kept_fragments) == len(placed_fragments) else "length"
        return DemoAnswer((), tuple(call for call in calls if call.fragments), finish_reason)
    words = split_pieces(_cut_at_stop(_build_text(chat_request, index), chat_request.stops))
    spoken_words = words[: chat_request.limit]
    return DemoAnswer(spoken_words, (), "stop" if len(spoken_words) == len(words) else "length")


def split_fragments(text: str) -> tuple[str, ...]:
    """Split a tool's arguments into fragments of equal length, regardless of their meaning, as real models do."""
    return tuple(text[index : index + _FRAGMENT_LENGTH] for index in range(0, len(text), _FRAGMENT_LENGTH))


def build_arguments(tool: DemoTool, prompt: str) -> str:
    """Return the arguments of a tool call as JSON, made from the tool's schema and words of the prompt."""
    return _dumps(_fill_object(tool.parameters, prompt))


def _dumps(value: Json) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:  # orjson parses deeper nesting than it can serialize
        raise RequestError("A JSON schema nests too deep.") from error


def _choose_tools(chat_request: DemoChatRequest) -> tuple[DemoTool, ...]:
    """Return the tools to call: those whose full names are in the prompt, else those with a word of their name in it.

    If there are none, the first tool is called if a call is required. Without parallel calls, only one is called. Only
    a message of the user causes calls.
    """
    if not chat_request.tools or chat_request.messages[-1]["role"] != "user":
        return ()
    text = find_question(chat_request.messages[-1]).lower()
    words = set(_WORD_PATTERN.findall(text)) - _FILLER_WORDS
    fully_named_tools = tuple(
        tool for tool in chat_request.tools if re.search(rf"(?<!\w){re.escape(tool.name.lower())}(?!\w)", text)
    )
    partly_named_tools = tuple(
        tool for tool in chat_request.tools if words.intersection(_WORD_PATTERN.findall(tool.name.lower()))
    )
    tools = fully_named_tools or partly_named_tools or (chat_request.tools[:1] if chat_request.must_call else ())
    return tools if chat_request.parallel else tools[:1]


def _build_text(chat_request: DemoChatRequest, index: int) -> str:
    question = next((m for m in reversed(chat_request.messages) if m["role"] == "user"), {})
    kind = chat_request.response_format.get("type")
    if kind == "json_schema":
        json_schema = get_typed(chat_request.response_format, "json_schema", dict, default={})
        return _dumps(_fill_object(get_typed(json_schema, "schema", dict, default={}), find_question(question)))
    results = tuple(itertools.takewhile(lambda m: m["role"] == "tool", reversed(chat_request.messages)))
    if results:
        quotes = " and ".join(f'"{_clip(find_text(result))}"' for result in reversed(results))
        text = f"The tool answered: {quotes}. A real model would now put that into its own words. {_SENTENCES}"
    else:
        text = f"{_GREETINGS[index % len(_GREETINGS)]} {_build_echo(question)} {_SENTENCES}"
    return _dumps({"answer": text}) if kind == "json_object" else text


def _fill_object(schema: Json, prompt: str) -> Json:
    value = fill(schema, prompt)
    return value if isinstance(value, dict) else {}


def _build_echo(question: Json) -> str:
    text, images = find_question(question).strip(), count_images(question)
    sentence = f'You asked: "{_clip(text)}".' if text else "You have not asked anything in words yet."
    if not images:
        return sentence
    return f"{sentence} You also sent {images} {'image' if images == 1 else 'images'}, which I can only count."


def _clip(text: str) -> str:
    return text if len(text) <= _QUOTE_LENGTH else text[:_QUOTE_LENGTH] + "…"


def _cut_at_stop(text: str, stops: tuple[str, ...]) -> str:
    return text[: min((index for stop in stops if (index := text.find(stop)) >= 0), default=len(text))]
