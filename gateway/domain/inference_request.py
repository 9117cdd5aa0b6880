"""A client's inference request: the checked and parsed body, and its derived properties."""

from collections.abc import Callable
from typing import Any, Literal

import attrs

from gateway.domain import exact_json
from gateway.domain.image import ImageRequest
from gateway.domain.operation import GENERATION_CONFIG, OPERATIONS, Operation
from gateway.domain.upload import Upload
from gateway.domain.usage import Usage, UsageDetails
from gateway.domain.video import VideoRequest
from gateway.frozen import quick_frozen

MAX_DIGEST_TOKENS = 256 * 1024
"""The maximum tokens of a prompt that is digested as a whole."""

STORED_RESPONSES = "responses"
"""The affinity key of requests whose response is stored at a provider, or that use a stored one."""
OUTPUT_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"})
"""Fields with which a client limits the tokens of one answer."""
OUTPUT_LIMIT_FIELDS = OUTPUT_LIMITS | {GENERATION_CONFIG}
"""Fields of a body with which a client may limit the tokens of one answer."""


@quick_frozen
class InferenceRequest:
    """One checked request.

    ``body`` is the parsed JSON; the provider's request is serialized from it, not from the bytes.

    Attributes:
        choices: the number of requested answers.
        include_usage: whether the client itself asked for the usage event.
        prompt_chars: the number of characters of text in the prompt, for an estimate.
        max_prompt_tokens: an upper bound of the prompt's tokens; no token is shorter than a byte.
        max_output_tokens: the tokens reserved for one answer; 0 if an answer has none.
        max_cache_write_tokens: the part of ``max_prompt_tokens`` that may be written to a provider's cache, at
            another price.
        features: Anthropic's ``anthropic-beta`` header, sent on with a body in that format.
        version: Anthropic's ``anthropic-version`` header, which a body in that format depends on.
        files: the files of a form; its other fields are the ``body``.
        sound_ms: the length of the uploaded audio, or an upper bound; of speech to generate, the estimated length.
        characters: the number of characters to speak.
        origin: the gateway's URL as the client reaches it, for links to media: ``https://host``.
        channel: the only channel that can serve the request, because it made the objects that the request continues;
            empty if any channel can.
        large: whether the body is so long that no step over all of it may run on the event loop.
        continues: the id of the response whose conversation was added to the body; empty if there is none.
        sounds: whether tokens of the prompt and the answer may be audio.
        plain: whether the prompt consists only of the texts of its messages, so that the provider reads nothing else in
            the body.
        foreign_objects: those at a provider that were not made through the gateway: for each of them, the field that a
            channel must allow, and the place of the id in the body.
        made: a list that receives the ids in the answer that the client may name in a later request.
        compaction: the form of a requested summary of the conversation: an ``item`` of a response, or a ``response`` of
            ``/v1/responses/compact``; empty for an ordinary answer.
        earlier_tokens: the reported tokens of the response that the request continues at the provider, with its prompt;
            0 if unknown.
        keep: a callback that stores the whole response if the gateway writes it; None if it is not stored.
    """

    operation: Operation
    model: str
    body: dict[str, Any] = attrs.field(repr=False)
    stream: bool = False
    choices: int = 1
    include_usage: bool = False
    prompt_chars: int = 0
    max_prompt_tokens: int = 0
    max_output_tokens: int = 0
    affinity_key: str | None = None
    encoding: Literal["float", "base64"] = "float"
    max_cache_write_tokens: int = 0
    features: str | None = None
    version: str | None = None
    files: tuple[Upload, ...] = ()
    image: ImageRequest | None = None
    video: VideoRequest | None = None
    sound_ms: int = 0
    characters: int = 0
    origin: str = ""
    channel: str = ""
    large: bool = False
    continues: str = ""
    sounds: bool = False
    plain: bool = False
    foreign_objects: tuple[tuple[str, str], ...] = ()
    made: list[str] = attrs.field(factory=list, repr=False, eq=False)
    searches: int = 0
    compaction: Literal["", "item", "response"] = ""
    earlier_tokens: int = 0
    keep: Callable[[bytes], None] | None = attrs.field(default=None, repr=False, eq=False)

    @property
    def digest(self) -> int:
        """A hash of the request, which only this process can compare.

        Of a very long prompt only the length counts, and of files only the sizes.
        """
        body = exact_json.dumps(self.body) if self.max_prompt_tokens < MAX_DIGEST_TOKENS else b""
        file_sizes = tuple(file.spooled.size for file in self.files)
        return hash((self.operation, self.prompt_chars, self.max_prompt_tokens, self.sound_ms, file_sizes, body))

    @property
    def makes_media(self) -> bool:
        """Whether the provider makes more than text: also if a chat asks for audio, or a tool makes images."""
        settings, tools = self.settings, self.body.get("tools")
        modalities = settings.get("modalities") or settings.get("responseModalities")
        return (
            bool(OPERATIONS[self.operation].media)
            or (isinstance(modalities, list) and any(str(modality).lower() != "text" for modality in modalities))
            or (
                isinstance(tools, list)
                and any(isinstance(tool, dict) and tool.get("type") == "image_generation" for tool in tools)
            )
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The object with the model's settings: the body, or a part of it."""
        name = OPERATIONS[self.operation].settings
        return self.body.get(name) or {} if name else self.body

    @property
    def allowed_output(self) -> int:
        """Tokens of one answer that the client allows explicitly; 0 if it names no number.

        With ``best_of``, they include the answer's share of the candidates that are discarded.
        """
        body, max_tokens = self.settings, 0
        for name in OUTPUT_LIMITS:
            limit = body.get(name)
            if type(limit) is int and limit > max_tokens:
                max_tokens = limit
        if not max_tokens:
            return 0
        candidates, answers = body.get("best_of") or 1, body.get("n") or 1
        return (
            max_tokens
            if type(candidates) is not int or type(answers) is not int
            else -(-max_tokens * max(candidates, answers) // answers)
        )

    @property
    def need(self) -> Usage:
        """The highest expected usage, for which money is reserved."""
        written_tokens = self.max_cache_write_tokens
        if self.sounds:
            prompt, answer = self.max_prompt_tokens, self.max_output_tokens * self.choices
            return Usage(prompt, answer, duration_ms=self.sound_ms, details=UsageDetails(prompt, 0, answer))
        return Usage(  # positional: keywords would cost more than the rest
            self.max_prompt_tokens,
            self.max_output_tokens * self.choices,
            0,
            "none",
            self.image.count if self.image else 0,
            self.sound_ms,
            written_tokens,
            written_tokens,
            self.characters,
        )
