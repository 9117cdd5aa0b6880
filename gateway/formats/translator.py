"""The interface of translators: one request in a provider's API format, and the answer in the client's."""

from typing import Protocol

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.formats.openai.errors import Secrets
from gateway.formats.request_body import Payload
from gateway.formats.stream import StreamTransform
from gateway.frozen import frozen, quick_frozen

EVENT_STREAM = "text/event-stream"


@quick_frozen
class ResponseIdentity:
    """What an answer gets if its provider gives none: its id, the provider's model name, the time (Unix seconds)."""

    id: str
    model: str
    now_s: int


@frozen
class ResponseMode:
    """How an answer is sent to the client.

    ``media_type``: of an answer that is not streamed. ``binary``: a stream consists of raw bytes of the provider's
    media type, not of events. Nothing can be inserted into it, and it ends when the connection does. ``stream_type``:
    the media type of the provider's stream.
    """

    media_type: str = "application/json"
    binary: bool = False
    stream_type: str = EVENT_STREAM
    accept: str = attrs.field(init=False)

    @accept.default
    def _find_accept(self) -> str:
        return self.media_type if self.media_type == "application/json" else "*/*"


PLAIN = ResponseMode()


class Translator(Protocol):
    """One request in one provider's API format.

    ``adapted`` names what the last body that was written, or the vendor's quirks, left out or changed.
    ``inference`` may be replaced before a body is written.
    """

    adapted: tuple[str, ...]
    inference: InferenceRequest

    @property
    def mode(self) -> ResponseMode: ...

    @property
    def identity(self) -> ResponseIdentity: ...

    @property
    def path(self) -> str | None:
        """The path below the base URL, if the request decides it; None: the endpoint's own.

        Only for a request whose body could be built.
        """
        ...

    def write_body(self) -> Payload:
        """Build the request body; the outermost dict is a new one.

        Raises ``InvalidRequest`` if the format cannot express it.
        """
        ...

    def open_transform(self, secrets: Secrets) -> StreamTransform:
        """Return the transform for the stream that answers."""
        ...

    def build_whole(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        """Build the equivalent stream, end mark included, from an unstreamed answer to a streaming request.

        Returns the stream and its usage. Raises ``ProviderError`` if ``raw`` is no valid answer.
        """
        ...

    def parse_answer(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        """Return the client's bytes and the usage of an unstreamed answer.

        Raises ``ProviderError`` if it is invalid.
        """
        ...
