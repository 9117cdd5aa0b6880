"""The interface of a format that is used without the common chat model."""

from collections.abc import Callable
from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.errors.openai import Secrets
from gateway.formats.stream import StreamTransform
from gateway.formats.translator import ResponseIdentity, ResponseMode
from gateway.formats.wire.request_body import Payload
from gateway.frozen import frozen

ParsedAnswer = tuple[bytes, Usage]
BuildWhole = Callable[[bytes, InferenceRequest, Secrets], ParsedAnswer]
ParseAnswer = Callable[[bytes, InferenceRequest, ResponseIdentity, Secrets], ParsedAnswer]


def _reject_stream(_inference: InferenceRequest, _secrets: Secrets) -> StreamTransform:
    raise ProviderBadResponse("An answer of this kind is not streamed")


def _reject_whole(_raw: bytes, _inference: InferenceRequest, _secrets: Secrets) -> ParsedAnswer:
    raise ProviderBadResponse("The provider did not answer with an event stream")


@frozen
class PassthroughFormat:
    """The functions of a format that is used without the common chat model.

    Attributes:
        find_mode: returns the form of an answer; None if every answer is JSON.
        find_path: returns the path of a request; None if every request uses the endpoint's own path.
    """

    write_body: Callable[[InferenceRequest, str], Payload]
    parse_answer: ParseAnswer
    open_transform: Callable[[InferenceRequest, Secrets], StreamTransform] = _reject_stream
    build_whole: BuildWhole = _reject_whole
    find_mode: Callable[[InferenceRequest], ResponseMode] | None = None
    find_path: Callable[[InferenceRequest, str], str] | None = None


def unchanged_answer(read_usage: Callable[[bytes, InferenceRequest, Secrets], Usage]) -> ParseAnswer:
    """Return an answer parser that forwards the answer unchanged and only reads its usage."""
    return lambda raw, inference, _identity, secrets: (raw, read_usage(raw, inference, secrets))


def without_identity(parse: BuildWhole) -> ParseAnswer:
    """Return an answer parser from a function that does not need the ``ResponseIdentity``."""
    return lambda raw, inference, _identity, secrets: parse(raw, inference, secrets)


def free_answer(convert: Callable[[bytes, Secrets], bytes]) -> ParseAnswer:
    """Return an answer parser from the conversion of an answer that is free of charge."""
    return lambda raw, _inference, _identity, secrets: (convert(raw, secrets), NO_USAGE)


def reject_unstreamed(
    _raw: bytes, _inference: InferenceRequest, _identity: ResponseIdentity, _secrets: Secrets
) -> ParsedAnswer:
    """Raise ``ProviderBadResponse``: the format is only streamed, or uses an image backend."""
    raise ProviderBadResponse("An answer of this kind is not read whole")


def _reject_body(_inference: InferenceRequest, _model: str) -> dict[str, Any]:
    raise InvalidRequest("A call of this kind is not said in one body")


IMAGE_BACKEND_FORMAT = PassthroughFormat(_reject_body, reject_unstreamed)
"""The format of images from an image backend (``formats/images/backends.py``), which may send several requests."""
