"""Which painter speaks which of the providers' picture languages."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gateway.domain.api_format import Wire
from gateway.domain.capability import Capability
from gateway.domain.inference_request import Call
from gateway.formats.gemini.images import GeminiPainter
from gateway.formats.image_backend import Painter
from gateway.formats.openai.chat_images import ChatPainter
from gateway.formats.openai.image_backend import OpenAiPainter
from gateway.formats.vendors.dashscope_images import DashScopePainter
from gateway.formats.vendors.replicate_images import ReplicatePainter

Factory = Callable[[Call, str, str, Capability], Painter]

_PAINTERS: Mapping[Wire, Factory] = MappingProxyType(
    {
        "openai_images": OpenAiPainter,
        "openai_edits": OpenAiPainter,
        "gemini_pictures": GeminiPainter,
        "chat_pictures": ChatPainter,
        "dashscope_pictures": DashScopePainter,
        "replicate_pictures": ReplicatePainter,
    },
)


def make_painter(wire: Wire, call: Call, model: str, mark: str, capability: Capability) -> Painter:
    """A painter for ``call`` in the language ``wire``, towards a provider that calls its model ``model``.

    ``mark`` is a word that nobody could have put into the call; see ``formats/request_body.py``.
    """
    return _PAINTERS[wire](call, model, mark, capability)
