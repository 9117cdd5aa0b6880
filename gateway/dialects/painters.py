"""Which painter speaks which of the providers' picture languages."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gateway.dialects.chat_pictures import ChatPainter
from gateway.dialects.dashscope_pictures import DashScopePainter
from gateway.dialects.gemini_pictures import GeminiPainter
from gateway.dialects.openai_painter import OpenAiPainter
from gateway.dialects.painting import Painter
from gateway.dialects.replicate_pictures import ReplicatePainter
from gateway.domain.call import Call
from gateway.domain.capability import Capability
from gateway.domain.wire import Wire

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

    ``mark`` is a word that nobody could have put into the call; see ``dialects/payload.py``.
    """
    return _PAINTERS[wire](call, model, mark, capability)
