"""Unstreamed chat answers of the OpenAI API format, parsed into events and built from events."""

from collections.abc import Collection, Iterable
from typing import Any

import orjson

from gateway.errors import ProviderBadResponse
from gateway.formats.chat import model as chat
from gateway.formats.chat.openai.chat import MISSING_CHOICES_TEXT, parse_answer_object
from gateway.formats.chat.openai.chunk_reader import ChunkParser
from gateway.formats.chat.openai.custom_tools import build_custom_call, read_input
from gateway.formats.chat.openai.logprobs import build_logprobs
from gateway.formats.chat.openai.odd_answers import join_choices
from gateway.formats.chat.openai.stream import build_call, build_image, build_usage
from gateway.formats.errors.openai import Secrets


def parse_answer(raw: bytes, secrets: Secrets = (), answer_id: str = "", *, choices: int = 0) -> list[chat.Event]:
    """Parse an unstreamed answer into events. Raises ``ProviderError``.

    ``choices`` is the number of requested answers, 0 if unknown.
    """
    value = parse_answer_object(raw, secrets, exact=True)
    choices_field = value.get("choices")
    if not isinstance(choices_field, list) or not choices_field:
        raise ProviderBadResponse(MISSING_CHOICES_TEXT)
    # A whole message is parsed like a single delta, because both have the same fields.
    choice_bodies = join_choices(choices_field) if choices == 1 else choices_field
    deltas = [_parse_choice(choice, index) for index, choice in enumerate(choice_bodies)]
    reader = ChunkParser(secrets, answer_id)
    events = [*reader.read(value | {"choices": deltas}), *reader.end()]
    for event in events:
        if isinstance(event, chat.StreamError):
            raise ProviderBadResponse(event.error.message)
    return events


def _parse_choice(choice: object, index: int) -> dict[str, Any]:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ProviderBadResponse("The provider's answer has a choice without a message")
    calls = message.get("tool_calls")
    if isinstance(calls, list):  # each entry is a separate call, even if ids repeat
        calls = [{**call, "index": call_index} for call_index, call in enumerate(calls) if isinstance(call, dict)]
    return {**choice, "index": index, "delta": {**message, "tool_calls": calls}}


class _Message:
    __slots__ = ("calls", "images", "logprobs", "reason", "reasoning_texts", "refusal", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.refusal: list[str] = []
        self.reasoning_texts: list[str] = []
        self.calls: dict[int, tuple[chat.ToolCallStart, list[str]]] = {}
        self.images: list[chat.ImageOutput] = []
        self.logprobs: list[chat.TokenLogprob] = []
        self.reason = "stop"

    def add_event(self, event: chat.Event) -> None:
        match event:
            case chat.TextDelta():
                self.text.append(event.text)
            case chat.ReasoningDelta():
                self.reasoning_texts.append(event.text)
            case chat.RefusalDelta():
                self.refusal.append(event.text)
            case chat.ToolCallStart():
                self.calls[event.index] = (event, [])
            case chat.ToolCallDelta() if event.index in self.calls:
                self.calls[event.index][1].append(event.arguments)
            case chat.ImageOutput():
                self.images.append(event)
            case chat.LogprobsReport():
                self.logprobs += event.tokens
            case chat.ChoiceFinished():
                self.reason = event.reason

    def build_choice(self, index: int, custom_names: Collection[str]) -> dict[str, Any]:
        """Build the choice. ``custom_names`` has the names of custom tools.

        Empty text next to calls or a refusal becomes null.
        """
        has_other_content = self.calls or self.refusal
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(self.text) if self.text or not has_other_content else None,
            "refusal": "".join(self.refusal) if self.refusal else None,
        }
        if self.reasoning_texts:
            message["reasoning_content"] = "".join(self.reasoning_texts)
        if self.calls:
            message["tool_calls"] = [
                _build_call(*self.calls[call_index], custom_names) for call_index in sorted(self.calls)
            ]
        if self.images:
            message["images"] = [build_image(image) for image in self.images]
        logprobs = build_logprobs(self.logprobs) if self.logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": self.reason}


def _build_call(start: chat.ToolCallStart, arguments: list[str], custom_names: Collection[str]) -> dict[str, Any]:
    if start.name in custom_names:
        return build_custom_call(start, read_input("".join(arguments)))
    call = build_call(start)
    call["function"]["arguments"] = "".join(arguments)
    return call


def build_answer(
    events: Iterable[chat.Event], *, answer_id: str, model: str, created_s: int, custom_names: Collection[str] = ()
) -> bytes:
    """Build a ``chat.completion``. The provider's id, model and time take precedence over the arguments.

    ``custom_names`` has the names of custom tools. Raises the error of a ``StreamError``, and ``ProviderBadResponse``
    if the events contain no answer.
    """
    messages: dict[int, _Message] = {}
    report: chat.UsageReport | None = None
    for event in events:
        match event:
            case chat.MessageStart():
                answer_id, model = event.id or answer_id, event.model or model
                created_s = event.created_s or created_s
            case chat.UsageReport():
                report = event
            case chat.StreamError():
                raise event.error
            case chat.ReasoningSignature() | chat.RedactedReasoning() | chat.StreamEnd():
                pass  # the format cannot express these events
            case _:
                messages.setdefault(event.choice, _Message()).add_event(event)
    if not messages:
        raise ProviderBadResponse(MISSING_CHOICES_TEXT)
    answer: dict[str, Any] = {
        "id": answer_id,
        "object": "chat.completion",
        "created": created_s,
        "model": model,
        "choices": [messages[index].build_choice(index, custom_names) for index in sorted(messages)],
    }
    if report is not None:
        answer["usage"] = build_usage(report)
    return orjson.dumps(answer)
