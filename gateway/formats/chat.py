"""The hub: what every chat dialect is read into and written from, so that N languages need N readers and N writers.

A request is a ``ChatRequest``; an answer, streamed or whole, is a sequence of events. Same language on both sides
never comes here: those bytes pass untouched. What a dialect has and the hub has not is lost in translation, and only
there.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from gateway.domain.usage import Usage
from gateway.errors import ProviderError

Json = Mapping[str, Any]
GEMINI_MARK = "gemini:"
"""Begins a thought's signature that is Gemini's, so that no other provider is given it as its own."""


@attrs.frozen
class TextPart:
    """Words. ``cache``: a cache mark as Anthropic writes it (``{"type": "ephemeral"}``), None where there is none."""

    text: str
    cache: Json | None = None


@attrs.frozen
class MediaPart:
    """A picture, a recording or a file: its bytes in base64 with their media type, or an address.

    ``name`` is a file's name, ``detail`` the convention's wish for a picture (auto, low, high).
    """

    kind: Literal["image", "audio", "file"]
    media_type: str | None = None
    data: str | None = attrs.field(default=None, repr=False)
    url: str | None = None
    name: str | None = None
    detail: str | None = None
    cache: Json | None = None


@attrs.frozen
class ReasoningPart:
    """What a model thought in an earlier turn, with the signature its provider wants back.

    ``redacted`` is the provider's sealed form of one; then there is no text.
    """

    text: str = ""
    signature: str | None = None
    redacted: str | None = None


@attrs.frozen
class ToolCallPart:
    """A call of a tool by the model; ``arguments`` is JSON as text, as the model wrote it.

    ``signature`` is Gemini's thought signature of the call.
    """

    id: str
    name: str
    arguments: str
    signature: str | None = None
    cache: Json | None = None


@attrs.frozen
class ToolResultPart:
    """What a tool answered to the call of that ``id``."""

    id: str
    parts: tuple["TextPart | MediaPart", ...]
    failed: bool = False
    cache: Json | None = None


Part = TextPart | MediaPart | ReasoningPart | ToolCallPart | ToolResultPart


@attrs.frozen
class Message:
    """One message. The convention's ``developer`` is ``system`` here; tool results are parts of the user's turns."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]


@attrs.frozen
class Tool:
    """A function the model may call; ``schema`` is the JSON Schema of its arguments, None where it takes none."""

    name: str
    description: str | None = None
    schema: Json | None = None
    strict: bool | None = None
    cache: Json | None = None


@attrs.frozen
class ForcedTool:
    """The choice of exactly this tool."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | ForcedTool
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORT_TOKENS: Mapping[str, int] = {
    "none": 0, "minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576, "max": 32_768,
}  # fmt: skip
"""What an effort comes to in a dialect that counts thinking in tokens. Our own choice; the dialects give no table."""


@attrs.frozen
class ResponseFormat:
    """The shape an answer must have: any JSON object, or what ``schema`` says."""

    kind: Literal["json", "schema"]
    schema: Json | None = None
    name: str | None = None
    strict: bool | None = None


@attrs.frozen
class ChatRequest:
    """A chat request. None, or empty, is "not said".

    Attributes:
        max_tokens: most tokens of one answer.
        choices: how many answers.
        thinking_tokens: most tokens to think with; 0 forbids it. Set where the dialect said a number.
        effort: how hard to think, where the dialect said a word.
        user: whom the caller calls for, as an opaque name.
    """

    turns: tuple[Message, ...]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    choices: int = 1
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tools: bool | None = None
    format: ResponseFormat | None = None
    thinking_tokens: int | None = None
    effort: Effort | None = None
    user: str | None = None


# What happens in an answer. ``choice`` counts the answers from 0, ``index`` the tool calls of one answer from 0.

Reason = Literal["stop", "length", "tool_calls", "content_filter"]
"""Why an answer ended, in the convention's words. A stop sequence is a ``stop``."""


@attrs.frozen
class MessageStart:
    """The answer begins. ``usage`` is what the provider has counted already, if it says so here."""

    id: str
    model: str
    created_s: int | None = None
    usage: Usage | None = None


@attrs.frozen
class TextDelta:
    """More words."""

    text: str
    choice: int = 0


@attrs.frozen
class RefusalDelta:
    """More words of a refusal, where the dialect has a place of its own for them."""

    text: str
    choice: int = 0


@attrs.frozen
class ReasoningDelta:
    """More of a thought."""

    text: str
    choice: int = 0


@attrs.frozen
class ReasoningSignature:
    """The thought so far is complete, and this is its provider's signature."""

    signature: str
    choice: int = 0


@attrs.frozen
class RedactedReasoning:
    """A thought that the provider shows only sealed."""

    data: str
    choice: int = 0


@attrs.frozen
class ToolCallStart:
    """A tool call begins; its arguments follow. ``id`` is never empty: a reader makes one where there is none."""

    index: int
    id: str
    name: str
    choice: int = 0
    signature: str | None = None


@attrs.frozen
class ToolCallDelta:
    """More of a tool call's arguments, as JSON text."""

    index: int
    arguments: str
    choice: int = 0


@attrs.frozen
class ImageOutput:
    """A whole picture, in base64."""

    media_type: str
    data: str = attrs.field(repr=False)
    choice: int = 0


@attrs.frozen
class ChoiceFinished:
    """One answer is complete. ``stop_sequence``: the one it ended at, where the provider says so."""

    reason: Reason
    choice: int = 0
    stop_sequence: str | None = None


@attrs.frozen
class UsageReport:
    """What the provider has counted, as totals; a later one replaces an earlier. Reasoning is part of completion."""

    usage: Usage
    reasoning_tokens: int = 0


@attrs.frozen
class StreamError:
    """The provider reported a fault inside its answer; nothing after it counts."""

    fault: ProviderError


@attrs.frozen
class StreamEnd:
    """The dialect's end mark: the answer is whole."""


Event = (
    MessageStart
    | TextDelta
    | RefusalDelta
    | ReasoningDelta
    | ReasoningSignature
    | RedactedReasoning
    | ToolCallStart
    | ToolCallDelta
    | ImageOutput
    | ChoiceFinished
    | UsageReport
    | StreamError
    | StreamEnd
)
ENDED = StreamEnd()
