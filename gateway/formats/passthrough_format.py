"""How one format is sent, read whole and streamed without the common chat model."""

from collections.abc import Callable
from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.openai.errors import Secrets
from gateway.formats.request_body import Payload
from gateway.formats.stream import StreamTransform
from gateway.formats.translator import ResponseIdentity, ResponseMode
from gateway.frozen import frozen

Parsed = tuple[bytes, Usage]
BuildWhole = Callable[[bytes, InferenceRequest, Secrets], Parsed]
ParseAnswer = Callable[[bytes, InferenceRequest, ResponseIdentity, Secrets], Parsed]


def _open_none(_inference: InferenceRequest, _secrets: Secrets) -> StreamTransform:
    raise ProviderBadResponse("An answer of this kind is not streamed")


def _build_none(_raw: bytes, _inference: InferenceRequest, _secrets: Secrets) -> Parsed:
    raise ProviderBadResponse("The provider did not answer with an event stream")


@frozen
class PassthroughFormat:
    """How one format is sent, read whole and streamed without the common chat model.

    ``build_whole`` builds the stream of an unstreamed answer. ``find_mode`` None: every answer is JSON. ``find_path``
    None: every request goes to the endpoint's own path.
    """

    write: Callable[[InferenceRequest, str], Payload]
    read: ParseAnswer
    transform: Callable[[InferenceRequest, Secrets], StreamTransform] = _open_none
    build_whole: BuildWhole = _build_none
    find_mode: Callable[[InferenceRequest], ResponseMode] | None = None
    find_path: Callable[[InferenceRequest, str], str] | None = None


def untouched(read: Callable[[bytes, InferenceRequest, Secrets], Usage]) -> ParseAnswer:
    """Wrap a function that only reads the usage so that it also returns the bytes."""
    return lambda raw, inference, _identity, secrets: (raw, read(raw, inference, secrets))


def without_identity(parse: BuildWhole) -> ParseAnswer:
    """Wrap a function that does not need the identity of the response."""
    return lambda raw, inference, _identity, secrets: parse(raw, inference, secrets)


def uncounted(convert: Callable[[bytes, Secrets], bytes]) -> ParseAnswer:
    """Wrap the conversion of an answer that nothing is charged for."""
    return lambda raw, _inference, _identity, secrets: (convert(raw, secrets), NO_USAGE)


def refuse_whole(_raw: bytes, _inference: InferenceRequest, _identity: ResponseIdentity, _secrets: Secrets) -> Parsed:
    """Refuse an answer that is only streamed, or comes from an image backend."""
    raise ProviderBadResponse("An answer of this kind is not read whole")


def _refuse_body(_inference: InferenceRequest, _model: str) -> dict[str, Any]:
    raise InvalidRequest("A call of this kind is not said in one body")


IMAGE_BACKEND_FORMAT = PassthroughFormat(_refuse_body, refuse_whole)
"""Images come from an image backend (``formats/image_backends.py``): there is neither one body nor one answer."""
