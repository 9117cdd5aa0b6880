"""A chat model that answers with pictures, as OpenRouter serves it: strict, and with its errors."""

import base64
import re
from typing import Any, ClassVar

from aiohttp import web

from gateway.domain.media import sniff_image
from tests.support.gemini_images import SIZES
from tests.support.image_providers import ImageProvider, Json, ReceivedImageRequest, draw

_FIELDS = {"model", "messages", "modalities", "image_config", "user"}
_DATA_URL = re.compile(r"data:(image/[a-z]+);base64,([A-Za-z0-9+/]+={0,2})\Z")


class Refused(Exception):
    """The vendor's 400."""


class ChatImages(ImageProvider):
    """``/chat/completions`` with ``modalities``."""

    slug: ClassVar[str] = "openrouter"
    model: ClassVar[str] = "google/gemini-2.5-flash-image"
    root: ClassVar[str] = "/api/v1"

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post(f"{self.root}/chat/completions", self._complete)

    def write_denied(self) -> Json:
        return {"error": {"message": "User not found.", "code": 401}}

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            heard = read_question(await request.json(), self.model)
        except Refused as refused:
            return web.json_response({"error": {"message": str(refused), "code": 400}}, status=400)
        self.heard.append(heard)
        fate = self.give()
        if fate == "fail":
            return web.json_response(write_failure(), status=502)
        if fate == "block":
            return web.json_response(write_moderated(heard.prompt, self.model), status=403)
        return web.json_response(write_answer(draw(*SIZES[heard.size or "1:1"], shade=len(self.heard)), self.model))


def read_question(body: Any, model: str) -> ReceivedImageRequest:
    """What a body asks for; ``size`` is the ratio. Raises ``Refused`` as the vendor would."""
    if not isinstance(body, dict) or body.keys() - _FIELDS:
        raise Refused(f"Unrecognized keys: {sorted(body.keys() - _FIELDS)}")
    if body.get("model") != model:
        raise Refused(f"{body.get('model')} is not a valid model ID")
    if body.get("modalities") != ["image", "text"]:
        raise Refused("modalities: the model outputs text and images")
    config = body.get("image_config", {})
    if config.keys() - {"aspect_ratio"} or config.get("aspect_ratio", "1:1") not in SIZES:
        raise Refused("image_config: Invalid input")
    messages = body.get("messages")
    if not isinstance(messages, list) or len(messages) != 1 or messages[0].get("role") != "user":
        raise Refused("messages: Invalid input")
    content = messages[0]["content"]
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    prompt = "".join(part["text"] for part in parts if part["type"] == "text")
    sources = tuple(_read_data_url(part["image_url"]["url"]) for part in parts if part["type"] == "image_url")
    return ReceivedImageRequest(prompt, size=config.get("aspect_ratio"), sources=sources, body=body)


def _read_data_url(url: str) -> bytes:
    match = _DATA_URL.match(url)
    data = base64.b64decode(match[2], validate=True) if match else b""
    if match is None or sniff_image(data[:64]) != match[1]:
        raise Refused("Unsupported image")
    return data


def write_answer(image: bytes, model: str = ChatImages.model) -> Json:
    """A picture in ``message.images``, with words beside it."""
    url = "data:image/png;base64," + base64.b64encode(image).decode()
    message = {
        "role": "assistant",
        "content": "Here is your image: ![no](https://example.com/not-it.png)",
        "refusal": None,
        "reasoning": None,
        "images": [{"type": "image_url", "image_url": {"url": url}, "index": 0}],
    }
    return {
        "id": "gen-1760000000-Ab",
        "provider": "Google",
        "model": model,
        "object": "chat.completion",
        "created": 1760000000,
        "choices": [
            {"logprobs": None, "finish_reason": "stop", "native_finish_reason": "STOP", "index": 0, "message": message}
        ],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 1300,
            "total_tokens": 1309,
            "cost": 0.0387,
            "completion_tokens_details": {"reasoning_tokens": 0, "image_tokens": 1290},
        },
    }


def write_moderated(prompt: str, model: str = ChatImages.model) -> Json:
    """What a flagged prompt is answered with."""
    return {
        "error": {
            "message": f"{model} requires moderation and your input was flagged. No credits were charged.",
            "code": 403,
            "metadata": {
                "reasons": ["violence/graphic"],
                "flagged_input": prompt[:100],
                "provider_name": "Google",
                "model_slug": model,
            },
        }
    }


def write_failure() -> Json:
    """What a model that is down is answered with."""
    return {
        "error": {"message": "Provider returned error", "code": 502, "metadata": {"error_type": "provider_unavailable"}}
    }
