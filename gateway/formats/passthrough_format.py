"""How one format is sent, read whole and streamed without the common chat model."""

from collections.abc import Callable

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.openai.errors import Secrets
from gateway.formats.request_body import Payload
from gateway.formats.stream import StreamTransform
from gateway.formats.translator import ResponseIdentity, ResponseMode

Parsed = tuple[bytes, Usage]
BuildWhole = Callable[[bytes, InferenceRequest, Secrets], Parsed]
ParseAnswer = Callable[[bytes, InferenceRequest, ResponseIdentity, Secrets], Parsed]


def _open_none(_inference: InferenceRequest, _secrets: Secrets) -> StreamTransform:
    raise ProviderBadResponse("An answer of this kind is not streamed")


def _build_none(_raw: bytes, _inference: InferenceRequest, _secrets: Secrets) -> Parsed:
    raise ProviderBadResponse("The provider did not answer with an event stream")


@attrs.frozen
class PassthroughFormat:
    """How one format is sent, read whole and streamed without the common chat model.

    ``build_whole`` builds the stream of an unstreamed answer. ``find_manner`` None: every answer is JSON. ``find_path``
    None: every request goes to the endpoint's own path.
    """

    write: Callable[[InferenceRequest, str], Payload]
    read: ParseAnswer
    transform: Callable[[InferenceRequest, Secrets], StreamTransform] = _open_none
    build_whole: BuildWhole = _build_none
    find_mode: Callable[[InferenceRequest], ResponseMode] | None = None
    find_path: Callable[[InferenceRequest, str], str] | None = None
