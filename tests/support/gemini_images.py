"""Gemini's own picture models, as strict as ai.google.dev/api/generate-content: unknown fields are refused."""

import base64
import binascii
from typing import Any, ClassVar

from aiohttp import web

from gateway.domain.media import sniff_image
from tests.support.image_providers import KEY, ImageProvider, Json, ReceivedImageRequest, draw

SIZES = {
    "1:1": (1024, 1024),
    "2:3": (832, 1248),
    "3:2": (1248, 832),
    "3:4": (864, 1184),
    "4:3": (1184, 864),
    "4:5": (896, 1152),
    "5:4": (1152, 896),
    "9:16": (768, 1344),
    "16:9": (1344, 768),
    "21:9": (1536, 672),
}
"""The table of gemini-2.5-flash-image."""
_MOST_SOURCES = 3
_MODALITIES = {"TEXT", "IMAGE"}


class Refused(Exception):
    """The vendor's 400."""


class GeminiImages(ImageProvider):
    """``:generateContent`` of one model. ``"block"`` takes the picture away; ``blocks_prompt``: looks at the prompt."""

    slug: ClassVar[str] = "gemini"
    model: ClassVar[str] = "gemini-2.5-flash-image"
    root: ClassVar[str] = "/v1beta"
    auth: ClassVar[tuple[str, str]] = ("x-goog-api-key", KEY)
    blocks_prompt: bool = False

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post(f"{self.root}/models/{self.model}:generateContent", self._generate)

    def write_denied(self) -> Json:
        return _error(401, "API key not valid. Please pass a valid API key.", "UNAUTHENTICATED")

    async def _generate(self, request: web.Request) -> web.Response:
        try:
            heard = read_question(await request.json())
        except Refused as refused:
            return web.json_response(_error(400, str(refused), "INVALID_ARGUMENT"), status=400)
        self.heard.append(heard)
        fate = self.give()
        if fate == "fail":
            error = _error(503, "The model is overloaded. Please try again later.", "UNAVAILABLE")
            return web.json_response(error, status=503)
        if fate == "block":
            return web.json_response(write_blocked_prompt() if self.blocks_prompt else write_blocked_image())
        return web.json_response(write_answer(draw(*SIZES[heard.size or "1:1"], shade=len(self.heard))))


def read_question(body: Any) -> ReceivedImageRequest:
    """What a body asks for; ``size`` is the ratio. Raises ``Refused`` as the vendor would."""
    _only(body, "", {"contents", "generationConfig"})
    config = body.get("generationConfig", {})
    _only(config, "generation_config", {"responseModalities", "imageConfig", "candidateCount"})
    if not set(config.get("responseModalities", _MODALITIES)) <= _MODALITIES:
        raise Refused("Invalid value at 'generation_config.response_modalities'")
    image = config.get("imageConfig", {})
    _only(image, "generation_config.image_config", {"aspectRatio"})
    ratio = image.get("aspectRatio")
    if ratio is not None and ratio not in SIZES:
        raise Refused("aspect_ratio must be one of " + ", ".join(SIZES))
    contents = body.get("contents")
    if not isinstance(contents, list) or len(contents) != 1 or contents[0].get("role") != "user":
        raise Refused("contents is not specified")
    prompt, sources = "", []
    for part in contents[0]["parts"]:
        _only(part, "contents[0].parts", {"text", "inlineData"})
        prompt += part.get("text", "")
        if "inlineData" in part:
            sources.append(_read_blob(part["inlineData"]))
    if len(sources) > _MOST_SOURCES:
        raise Refused(f"The model takes at most {_MOST_SOURCES} images")
    return ReceivedImageRequest(prompt, size=ratio, sources=tuple(sources), body=body)


def _read_blob(blob: Json) -> bytes:
    _only(blob, "contents[0].parts.inline_data", {"mimeType", "data"})
    try:
        data = base64.b64decode(blob["data"], validate=True)
    except binascii.Error:
        raise Refused(
            "Invalid value at 'contents[0].parts.inline_data.data' (TYPE_BYTES), Base64 decoding failed"
        ) from None
    if sniff_image(data[:64]) != blob["mimeType"]:
        raise Refused("Unable to process input image")
    return data


def _only(value: Any, where: str, known: set[str]) -> None:
    if not isinstance(value, dict):
        raise Refused(f"Invalid value at '{where}'")
    for name in value:
        if name not in known:
            raise Refused(f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field.")


def _error(code: int, message: str, status: str) -> Json:
    return {"error": {"code": code, "message": message, "status": status}}


def write_answer(image: bytes) -> Json:
    """A picture, with words before it, as the model has them."""
    blob = {"mimeType": "image/png", "data": base64.b64encode(image).decode()}
    parts = [{"text": "Here is your image: https://example.com/not-it.png"}, {"inlineData": blob}]
    return {
        "candidates": [{"content": {"parts": parts, "role": "model"}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": 9,
            "candidatesTokenCount": 1300,
            "totalTokenCount": 1309,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 9}],
            "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1290}],
        },
        "modelVersion": "gemini-2.5-flash-image",
        "responseId": "tTCwacuEBMvnitYP06qsgQY",
    }


def write_blocked_image() -> Json:
    """The filter took the picture away."""
    return {
        "candidates": [
            {
                "content": {"parts": None, "role": "model"},
                "finishReason": "IMAGE_SAFETY",
                "finishMessage": "Unable to show the generated image.",
                "index": 0,
            }
        ],
        "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9},
        "modelVersion": "gemini-2.5-flash-image",
    }


def write_blocked_prompt() -> Json:
    """The filter did not let the prompt pass."""
    return {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9},
        "modelVersion": "gemini-2.5-flash-image",
    }
