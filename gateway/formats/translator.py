"""The interface of translators, which convert a request to a provider's API format and the answer to the client's."""

from typing import Protocol

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.formats.errors.openai import Secrets
from gateway.formats.stream import StreamTransform
from gateway.formats.wire.request_body import Payload
from gateway.frozen import frozen, quick_frozen

EVENT_STREAM = "text/event-stream"
TOO_DEEP_TEXT = "The provider's answer is nested too deeply to be passed on"
"""The message for an answer that orjson can read (up to 1024 levels) but not write (up to 254 levels)."""


@quick_frozen
class ResponseIdentity:
    """Defaults for an answer whose provider gives none: id, the provider's model name, time (Unix seconds)."""

    id: str
    model: str
    now_s: int


@frozen
class ResponseMode:
    """The media types and the kind of stream of an answer.

    Attributes:
        media_type: media type of an unstreamed answer.
        binary: whether a stream consists of raw bytes in the provider's media type instead of events. The gateway
            cannot insert anything into such a stream, which ends with the connection.
        stream_type: media type of the provider's stream.
        accept: the ``Accept`` header of a request, unless it asks for a stream of events.
    """

    media_type: str = "application/json"
    binary: bool = False
    stream_type: str = EVENT_STREAM
    accept: str = attrs.field(init=False)

    @accept.default
    def _find_accept(self) -> str:
        return self.media_type if self.media_type == "application/json" else "*/*"


PLAIN_MODE = ResponseMode()


class Translator(Protocol):
    """Converts one request to a provider's API format, and the answer to the client's format.

    ``inference`` may be replaced before a body is written.

    Attributes:
        adapted: names of the dropped or changed parts of the last written body.
    """

    adapted: tuple[str, ...]
    inference: InferenceRequest

    @property
    def mode(self) -> ResponseMode: ...

    @property
    def identity(self) -> ResponseIdentity: ...

    @property
    def path(self) -> str | None:
        """The path below the base URL, known after ``write_body``; None for the endpoint's own path."""
        ...

    def write_body(self) -> Payload:
        """Build a new request body. Raises ``InvalidRequest`` if the format cannot express the request."""
        ...

    def open_transform(self, secrets: Secrets) -> StreamTransform: ...

    def build_whole(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        """Return an unstreamed answer as a stream, end mark included, and its usage. Raises ``ProviderError``."""
        ...

    def parse_answer(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        """Return an unstreamed answer for the client, and its usage. Raises ``ProviderError`` if it is invalid."""
        ...
