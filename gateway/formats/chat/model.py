"""The common chat model, the intermediate form between chat API formats.

A request is a ``ChatRequest``; an answer, streamed or not, is a sequence of events. If client and provider use the same
format, the bytes pass through instead. A feature without a place in the model is rejected, dropped or written as text.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from gateway.domain.usage import Usage
from gateway.errors import ProviderError
from gateway.frozen import frozen, quick_frozen

Json = Mapping[str, Any]
GEMINI_PREFIX = "gemini:"
"""Prefix of reasoning signatures from Gemini: other providers must not receive them as their own."""


@frozen
class TextPart:
    """A text in a message.

    Attributes:
        cache_control: Anthropic's cache control (``{"type": "ephemeral"}``), or None.
    """

    text: str
    cache_control: Json | None = None


@frozen
class MediaPart:
    """An image, an audio recording or a file, as base64 ``data`` with a media type or as a ``url``.

    Attributes:
        detail: the OpenAI API's image detail (auto, low, high).
        param: the place in the request, for error messages.
    """

    kind: Literal["image", "audio", "file"]
    media_type: str | None = None
    data: str | None = attrs.field(default=None, repr=False)
    url: str | None = None
    name: str | None = None
    detail: str | None = None
    cache_control: Json | None = None
    param: str = attrs.field(default="messages", eq=False, repr=False)


@frozen
class ReasoningPart:
    """A model's reasoning in an earlier message.

    Attributes:
        redacted_data: the reasoning in encrypted form, instead of text and signature.
    """

    text: str = ""
    signature: str | None = None
    redacted_data: str | None = None


@frozen
class ToolCallPart:
    """A tool call by the model.

    Attributes:
        arguments: the arguments as JSON text.
        signature: Gemini's thought signature for the call.
    """

    id: str
    name: str
    arguments: str
    signature: str | None = None
    cache_control: Json | None = None


@frozen
class ToolResultPart:
    """The result of the tool call ``id``."""

    id: str
    parts: tuple["TextPart | MediaPart", ...]
    failed: bool = False
    cache_control: Json | None = None


Part = TextPart | MediaPart | ReasoningPart | ToolCallPart | ToolResultPart


@frozen
class Message:
    """One message. OpenAI's role ``developer`` becomes ``system``; tool results are parts of user messages."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]


@frozen
class Tool:
    """A function that the model may call.

    Attributes:
        schema: the JSON Schema of its arguments, or None.
    """

    name: str
    description: str | None = None
    schema: Json | None = None
    strict: bool | None = None
    cache_control: Json | None = None


@frozen
class ForcedTool:
    """The model must call this tool."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | ForcedTool
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORT_TOKENS: Mapping[str, int] = {
    "none": 0, "minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576, "max": 32_768,
}  # fmt: skip
"""Token budget of each effort, for formats that limit reasoning in tokens. No API documents such numbers."""


@frozen
class ResponseFormat:
    """The required answer format: any JSON object, or JSON that satisfies ``schema``."""

    kind: Literal["json", "schema"]
    schema: Json | None = None
    name: str | None = None
    strict: bool | None = None


@frozen
class ChatRequest:
    """A chat request. None or an empty value means "not set".

    Attributes:
        max_tokens: maximum tokens of one answer.
        n: number of answers.
        thinking_tokens: maximum tokens of reasoning; 0 forbids reasoning. Set if the format gives a number.
        effort: reasoning effort. Set if the format gives a word.
        user: the client's own end user, as an opaque name.
        top_logprobs: number of alternatives per token whose log probabilities are requested; None requests no log
            probabilities.
        adapted: names of the parts written as text, dropped or changed for the provider.
    """

    messages: tuple[Message, ...]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
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
    top_logprobs: int | None = None
    adapted: tuple[str, ...] = ()


# Events of an answer. ``choice`` counts the answers from 0, ``index`` the tool calls of one answer from 0.

Reason = Literal["stop", "length", "tool_calls", "content_filter"]
"""The finish reasons, named as in the OpenAI API. A stop sequence counts as ``stop``."""


@frozen
class MessageStart:
    """The answer begins.

    Attributes:
        usage: the provider's counts so far, if the format reports them at the start.
    """

    id: str
    model: str
    created_s: int | None = None
    usage: Usage | None = None


@quick_frozen
class TextDelta:
    """More text of the answer."""

    text: str
    choice: int = 0


@quick_frozen
class RefusalDelta:
    """More text of a refusal, from formats that separate refusals from text."""

    text: str
    choice: int = 0


@quick_frozen
class ReasoningDelta:
    """More text of the model's reasoning."""

    text: str
    choice: int = 0


@frozen
class ReasoningSignature:
    """The end of a piece of reasoning, with the provider's signature."""

    signature: str
    choice: int = 0


@frozen
class RedactedReasoning:
    """Reasoning that the provider returns only in encrypted form."""

    data: str
    choice: int = 0


@frozen
class ToolCallStart:
    """A tool call begins; its arguments follow. ``id`` is never empty: a parser generates a missing id."""

    index: int
    id: str
    name: str
    choice: int = 0
    signature: str | None = None


@quick_frozen
class ToolCallDelta:
    """More of a tool call's arguments, as JSON text."""

    index: int
    arguments: str
    choice: int = 0


@frozen
class ImageOutput:
    """A complete image, in base64."""

    media_type: str
    data: str = attrs.field(repr=False)
    choice: int = 0


@frozen
class TokenLogprob:
    """A token with its natural log probability, and the most likely alternatives with theirs."""

    token: str
    logprob: float
    alternatives: tuple["TokenLogprob", ...] = ()


@frozen
class LogprobsReport:
    """The log probabilities of the tokens in the text that follows."""

    tokens: tuple[TokenLogprob, ...]
    choice: int = 0


@frozen
class ChoiceFinished:
    """One answer is complete.

    Attributes:
        stop_sequence: the sequence that ended the answer, if the provider reports it.
    """

    reason: Reason
    choice: int = 0
    stop_sequence: str | None = None


@frozen
class UsageReport:
    """The provider's counts so far; each report replaces the earlier one. Completion tokens include reasoning."""

    usage: Usage
    reasoning_tokens: int = 0


@frozen
class StreamError:
    """The provider reported an error within its answer; everything after it is ignored."""

    error: ProviderError


@frozen
class StreamEnd:
    """The format's end mark: the answer is complete."""


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
    | LogprobsReport
    | ChoiceFinished
    | UsageReport
    | StreamError
    | StreamEnd
)
STREAM_END = StreamEnd()
