"""The second parcel: what the caller asks for, read once from the body and checked."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs
import orjson

from gateway.domain.frozen import frozen
from gateway.domain.image import ImageRequest
from gateway.domain.upload import Upload
from gateway.domain.usage import Usage
from gateway.domain.video import VideoRequest

Operation = Literal[
    "chat",
    "messages",
    "count_tokens",
    "embeddings",
    "completions",
    "moderations",
    "rerank",
    "responses",
    "images",
    "image_edits",
    "transcriptions",
    "translations",
    "speech",
    "videos",
    "video_remixes",
]
"""What is asked for, and in which of the callers' languages: ``chat`` is the convention's, ``messages`` Anthropic's."""
MAX_DIGEST_TOKENS = 256 * 1024
"""Of a prompt that is looked at whole for its digest."""
MAKES_MEDIA: frozenset[Operation] = frozenset({"images", "image_edits", "speech", "videos", "video_remixes"})
"""What makes an image, a video or speech, and bills it: a request for it is never sent to a provider twice."""

PATHS: Mapping[Operation, str] = MappingProxyType(
    {
        "chat": "/v1/chat/completions",
        "messages": "/v1/messages",
        "count_tokens": "/v1/messages/count_tokens",
        "embeddings": "/v1/embeddings",
        "completions": "/v1/completions",
        "moderations": "/v1/moderations",
        "rerank": "/v1/rerank",
        "responses": "/v1/responses",
        "images": "/v1/images/generations",
        "image_edits": "/v1/images/edits",
        "transcriptions": "/v1/audio/transcriptions",
        "translations": "/v1/audio/translations",
        "speech": "/v1/audio/speech",
        "videos": "/v1/videos",
        "video_remixes": "/v1/videos/{id}/remix",
    },
)
"""The endpoint of each operation; a caller is told of it who asked for a model at another."""


_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@frozen
class InferenceRequest:
    """One checked request. ``body`` is the parsed JSON; what is forwarded is serialised from it, not from the bytes.

    Attributes:
        model: as the caller named it.
        stream: whether the answer is a stream of events.
        choices: how many answers were asked for (``n``).
        wants_usage: the caller asked for the usage frame itself.
        prompt_chars: characters of text in the prompt, for an estimate.
        prompt_bound: tokens that the prompt will hardly exceed: no token is shorter than a byte.
        output_bound: tokens of one answer that are set aside for it; 0 where an answer has none.
        sticky: what the caller's calls with the same prompt have in common; None where it did not say.
        encoding: the embedding encoding the caller asked for, float where it said nothing.
        written_bound: tokens of ``max_prompt_tokens`` that may be written into a provider's cache, at a price of their
        own. features: Anthropic's ``anthropic-beta`` header, which goes with a body in that language.
        version: Anthropic's ``anthropic-version`` header, which says what a body in that language means.
        files: those of a form; its other fields are the ``body``.
        picture: what pictures are asked for; None where none are.
        video: what video is asked for; None where none is.
        sound_ms: how long the sound that came is, or hardly exceeds.
        characters: of a text that is to be spoken.
        origin: the gateway as its caller reaches it, for links to what it keeps: ``https://host``.
        channel: the only one that can serve it, since it has made what the call continues; empty: any.
        large: its body is so long that no step over all of it is taken by the event loop.
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

    @property
    def digest(self) -> int:
        """What is asked, as a number; of a very long prompt its length alone, and of files how long they are."""
        said = orjson.dumps(self.body) if self.max_prompt_tokens < MAX_DIGEST_TOKENS else b""
        files = tuple(file.spooled.size for file in self.files)
        return hash((self.operation, self.prompt_chars, self.max_prompt_tokens, self.sound_ms, files, said))

    @property
    def makes_media(self) -> bool:
        """Whether the provider makes more than text of it: also if a chat asks for sound, or a tool makes images."""
        modalities, tools = self.body.get("modalities"), self.body.get("tools")
        return (
            self.operation in MAKES_MEDIA
            or (isinstance(modalities, list) and any(one != "text" for one in modalities))
            or (
                isinstance(tools, list)
                and any(isinstance(one, dict) and one.get("type") == "image_generation" for one in tools)
            )
        )

    @property
    def allowed_output(self) -> int:
        """Tokens of one answer that the caller allows in so many words; 0 if it names no number.

        ``max_output_tokens`` is less: few answers are as long as they may be.
        """
        named = [self.body.get(name) for name in _OUTPUT_LIMITS]
        most = max((limit for limit in named if type(limit) is int), default=0)
        tries, answers = (self.body.get(name) or 1 for name in ("best_of", "n"))
        return most if type(tries) is not int or type(answers) is not int else -(-most * max(tries, answers) // answers)

    @property
    def need(self) -> Usage:
        """The usage to set money aside for."""
        written = self.max_cache_write_tokens
        return Usage(  # in the order of its fields: named, they cost more than all of it
            self.max_prompt_tokens,
            self.max_output_tokens * self.choices,
            0,
            "none",
            self.image.count if self.image else 0,
            self.sound_ms,
            written,
            written,
            self.characters,
        )
