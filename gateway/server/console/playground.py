"""The playground for chat, images, videos and audio, charged to a key of the member's account."""

from collections.abc import Mapping

from aiohttp import web

from gateway.server.console.connect import find_address
from gateway.server.console.form_choices import ModelKind, find_choices, find_free_name, find_kind, format_choices
from gateway.server.console.page import Data
from gateway.server.console.routes import mark

MODES: tuple[tuple[ModelKind, str], ...] = (
    ("chat", mark("Chat")),
    ("images", mark("Images")),
    ("video", mark("Video")),
    ("speech", mark("Speech")),
    ("transcription", mark("Transcription")),
)
KEY_NAME = "playground"
_SAMPLES: Mapping[str, str] = {
    "tools_sample": '[{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", '
    '"properties": {"city": {"type": "string"}}}}}]',
    "schema_sample": '{"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"], '
    '"additionalProperties": false}',
    "fields_sample": '{"top_k": 40}',
}
"""What the empty fields for JSON show."""


async def load_playground(request: web.Request) -> Data:
    """Load the playground in the requested mode, or else in that of the requested model."""
    model = request.query.get("model", "")[:256]
    mode = find_mode(request.query.get("mode", ""), model)
    choices = await find_choices(request)
    values = format_choices(choices, mode)
    return {
        **values,
        **_SAMPLES,
        "model": model or values["model"],
        "modes": MODES,
        "mode": mode,
        "origin": find_address(request),
        "free_name": find_free_name(KEY_NAME, choices.taken_names),
    }


def find_mode(mode: str, model: str) -> ModelKind:
    """Return ``mode`` if it exists, else the mode of ``model``; ``chat`` if that model has no mode."""
    mode_names = {name for name, _ in MODES}
    for kind in (mode, find_kind(model)):
        if kind in mode_names:
            return kind
    return "chat"
