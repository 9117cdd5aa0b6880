"""The common chat model: every chat API format is parsed into it and built from it.

So N formats need N parsers and N builders.

A request is a ``ChatRequest``; an answer, streamed or not, is a sequence of events. If client and provider use the same
format, the bytes pass through and this model is not involved. Whatever a format has and the model has not is lost in
translation.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from gateway.domain.usage import Usage
from gateway.errors import ProviderError
from gateway.frozen import frozen, quick_frozen

Json = Mapping[str, Any]
GEMINI_PREFIX = "gemini:"
"""Prefix of reasoning signatures that are Gemini's, so that no other provider gets them as its own."""


@frozen
class TextPart:
    """Text. ``cache``: Anthropic's cache control (``{"type": "ephemeral"}``); None if there is none."""

    text: str
    cache: Json | None = None


@frozen
class MediaPart:
    """An image, a recording or a file: its base64 with the media type, or an address.

    ``name`` is a file's name, ``detail`` the OpenAI API's detail of an image (auto, low, high), ``where`` its place in
    the request, for errors.
    """

    kind: Literal["image", "audio", "file"]
    media_type: str | None = None
    data: str | None = attrs.field(default=None, repr=False)
    url: str | None = None
    name: str | None = None
    detail: str | None = None
    cache: Json | None = None
    where: str = attrs.field(default="messages", eq=False, repr=False)


@frozen
class ReasoningPart:
    """A model's reasoning in an earlier message, with the signature that its provider requires.

    ``redacted`` is the provider's encrypted form; then there is no text.
    """

    text: str = ""
    signature: str | None = None
    redacted: str | None = None


@frozen
class ToolCallPart:
    """A tool call of the model; ``arguments`` is JSON as text, as the model wrote it.

    ``signature`` is Gemini's thought signature of the call.
    """

    id: str
    name: str
    arguments: str
    signature: str | None = None
    cache: Json | None = None


@frozen
class ToolResultPart:
    """The result of the tool call ``id``."""

    id: str
    parts: tuple["TextPart | MediaPart", ...]
    failed: bool = False
    cache: Json | None = None


Part = TextPart | MediaPart | ReasoningPart | ToolCallPart | ToolResultPart


@frozen
class Message:
    """One message. OpenAI's ``developer`` is ``system`` here; tool results are parts of the user's messages."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]


@frozen
class Tool:
    """A function that the model may call; ``schema`` is the JSON Schema of its arguments, None if it has none."""

    name: str
    description: str | None = None
    schema: Json | None = None
    strict: bool | None = None
    cache: Json | None = None


@frozen
class ForcedTool:
    """The model must call this tool."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | ForcedTool
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORT_TOKENS: Mapping[str, int] = {
    "none": 0, "minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576, "max": 32_768,
}  # fmt: skip
"""The token budget of an effort, for formats that count reasoning in tokens. Our choice; no API documents a table."""


@frozen
class ResponseFormat:
    """The required form of an answer: any JSON object, or one that satisfies ``schema``."""

    kind: Literal["json", "schema"]
    schema: Json | None = None
    name: str | None = None
    strict: bool | None = None


@frozen
class ChatRequest:
    """A chat request. None, or empty, means "not set".

    Attributes:
        max_tokens: the most tokens of one answer.
        n: number of answers.
        thinking_tokens: the most tokens of reasoning; 0 forbids it. Set if the format gives a number.
        effort: how hard to think, if the format gives a word.
        user: the client's own user, as an opaque name.
        top_logprobs: number of most likely tokens whose log probabilities are requested beside that of each token of
            the answer; None if none are requested at all.
        adapted: what was written as text, left out or changed to suit the provider, as the client's format calls it
            (``tool_reference``), in the order of its first use, without repetition.
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
"""Why an answer ended, in the words of the OpenAI API. A stop sequence is a ``stop``."""


@frozen
class MessageStart:
    """The answer begins. ``usage`` is what the provider has counted so far, if it reports that here."""

    id: str
    model: str
    created_s: int | None = None
    usage: Usage | None = None


@quick_frozen
class TextDelta:
    """More text."""

    text: str
    choice: int = 0


@quick_frozen
class RefusalDelta:
    """More text of a refusal, if the format separates it."""

    text: str
    choice: int = 0


@quick_frozen
class ReasoningDelta:
    """More reasoning."""

    text: str
    choice: int = 0


@frozen
class ReasoningSignature:
    """The reasoning so far is complete; this is its provider's signature."""

    signature: str
    choice: int = 0


@frozen
class RedactedReasoning:
    """Reasoning that the provider shows only encrypted."""

    data: str
    choice: int = 0


@frozen
class ToolCallStart:
    """A tool call begins; its arguments follow.

    ``id`` is never empty: a parser makes one if the provider gives none.
    """

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
    """The natural logarithm of a token's probability, and those of the most likely tokens in its place."""

    token: str
    logprob: float
    top: tuple["TokenLogprob", ...] = ()


@frozen
class LogprobsReport:
    """The log probabilities of the tokens of the text that follows."""

    tokens: tuple[TokenLogprob, ...]
    choice: int = 0


@frozen
class ChoiceFinished:
    """One answer is complete. ``stop_sequence``: the one that ended it, if the provider reports it."""

    reason: Reason
    choice: int = 0
    stop_sequence: str | None = None


@frozen
class UsageReport:
    """The provider's counts so far; a later report replaces an earlier one. Reasoning is part of completion."""

    usage: Usage
    reasoning_tokens: int = 0


@frozen
class StreamError:
    """The provider reported an error inside its answer; nothing after it counts."""

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
ENDED = StreamEnd()
