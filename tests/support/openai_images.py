"""OpenAI's images API, as strict as the real one; and a server of its convention that answers with addresses.

Rules: the convention's OpenAPI document, ``CreateImageRequest`` and ``CreateImageEditRequest``; the GPT Image models
refuse ``response_format``, and answer with base64.
"""

import base64
from collections.abc import Mapping
from typing import Any, ClassVar

import orjson
from aiohttp import BodyPartReader, web

from gateway.domain.media import sniff_image
from tests.support.image_providers import ImageProvider, Json, ReceivedImageRequest, draw, parse_size

FIELDS = {
    "prompt", "model", "background", "complexity", "frame_count", "frame_duration_ms", "moderation", "n",
    "output_compression", "output_format", "partial_images", "quality", "safety_identifier", "size", "stream", "style",
    "svg", "user",
}  # fmt: skip
SIZES = {"auto", "1024x1024", "1536x1024", "1024x1536"}
USAGE = {
    "input_tokens": 50,
    "input_tokens_details": {"image_tokens": 40, "text_tokens": 10},
    "output_tokens": 272,
    "total_tokens": 322,
}
BLOCKED = {
    "error": {
        "message": "Your request was rejected by the safety system. If you believe this is an error, contact us at "
        "help.openai.com and include the request ID req_0123456789abcdef. safety_violations=[violence].",
        "type": "image_generation_user_error",
        "param": None,
        "code": "moderation_blocked",
    }
}
FAILED = {"error": {"message": "The server had an error", "type": "server_error", "param": None, "code": None}}
Parts = list[tuple[str, str | None, bytes]]


class Refused(Exception):
    """What was sent is not what the vendor takes."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.param = param


def expect(held: object, message: str, param: str | None = None) -> None:
    """Refuse unless ``held``."""
    if not held:
        raise Refused(message, param)


class OpenAiImages(ImageProvider):
    """``provider = "openai"``: pictures in base64, of the size that was asked for; streams of them without an end mark.

    Attributes:
        refusals: what it said to requests that it did not take.
    """

    slug: ClassVar[str] = "openai"
    model: ClassVar[str] = "gpt-image-1"
    fields: ClassVar[set[str]] = FIELDS
    sizes: ClassVar[set[str] | None] = SIZES
    most: ClassVar[int] = 10

    def __init__(self, *fates: Any) -> None:
        super().__init__(*fates)
        self.refusals: list[str] = []

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/images/generations", self.generate)
        app.router.add_post("/v1/images/edits", self.edit)

    def write_denied(self) -> Json:
        return {"error": {"message": "Incorrect API key provided", "type": "invalid_request_error", "param": None,
                          "code": "invalid_api_key"}}  # fmt: skip

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """``POST /images/generations``."""
        body = orjson.loads(await request.read())
        try:
            expect(isinstance(body, dict), "We could not parse the JSON body of your request.")
            heard = self.look(body, ())
        except Refused as refused:
            return self.refuse(refused)
        return await self.answer(request, heard, "image_generation")

    async def edit(self, request: web.Request) -> web.StreamResponse:
        """``POST /images/edits``."""
        try:
            expect(request.content_type == "multipart/form-data", "Expected multipart/form-data")
            heard = self.look(*_sort([part async for part in _read_parts(request)]))
        except Refused as refused:
            return self.refuse(refused)
        return await self.answer(request, heard, "image_edit")

    def look(self, body: Json, files: Parts | tuple[()]) -> ReceivedImageRequest:
        """What was asked for. Raises ``Refused``."""
        unknown = body.keys() - self.fields - ({"input_fidelity"} if files else set())
        expect(not unknown, f"Unknown parameter: {sorted(unknown)}.", next(iter(sorted(unknown)), None))
        expect(body.get("model") == self.model, "The model does not exist", "model")
        prompt = body.get("prompt")
        expect(isinstance(prompt, str) and 0 < len(prompt) <= 32_000, "Missing required parameter: 'prompt'.", "prompt")
        count, partial = body.get("n", 1), body.get("partial_images", 0)
        expect(type(count) is int and 1 <= count <= self.most, f"Invalid 'n': integer 1 to {self.most}.", "n")
        expect(type(partial) is int and 0 <= partial <= 3, "Invalid 'partial_images'.", "partial_images")
        expect(not partial or body.get("stream") is True, "'partial_images' is for streams only.", "partial_images")
        expect(body.get("stream") in {None, True, False}, "Invalid type for 'stream'", "stream")
        size = body.get("size")
        expect(size is None or self.sizes is None or size in self.sizes, f"Invalid value: '{size}'.", "size")
        images = tuple(data for name, _, data in files if name != "mask")
        masks = [data for name, _, data in files if name == "mask"]
        return ReceivedImageRequest(str(prompt), count, size, images, masks[0] if masks else None, body)

    def refuse(self, refused: Refused) -> web.Response:
        """400, in the vendor's words."""
        self.refusals.append(str(refused))
        error = {"message": str(refused), "type": "invalid_request_error", "param": refused.param, "code": None}
        return web.json_response({"error": error}, status=400)

    async def answer(self, request: web.Request, heard: ReceivedImageRequest, kind: str) -> web.StreamResponse:
        """What the test decided on."""
        self.heard.append(heard)
        fate = self.give()
        if fate != "ok":
            blocked = fate == "block"
            return web.json_response(BLOCKED if blocked else FAILED, status=400 if blocked else 500)
        if heard.body.get("stream"):
            return await self.stream(request, heard, kind)
        return web.json_response(self.write_answer(heard, self.paint(heard)))

    def paint(self, heard: ReceivedImageRequest) -> list[bytes]:
        """Pictures of the size that was asked for, each of a shade of its own."""
        size = None if heard.size == "auto" else heard.size
        return [draw(*parse_size(size), shade=16 * number) for number in range(heard.count)]

    def write_answer(self, heard: ReceivedImageRequest, images: list[bytes]) -> Json:
        """The whole answer."""
        data = [{"b64_json": base64.b64encode(image).decode()} for image in images]
        return {
            "created": 1_700_000_000,
            "background": "opaque",
            "data": data,
            "output_format": "png",
            "quality": "high",
            "size": heard.size or "1024x1024",
            "usage": USAGE,
        }

    async def stream(self, request: web.Request, heard: ReceivedImageRequest, kind: str) -> web.StreamResponse:
        """Partial pictures, and then whole ones. There is no end mark, as there is none at the vendor's."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for image in self.paint(heard):
            for index in range(heard.body.get("partial_images", 0)):
                partial = _write_event(f"{kind}.partial_image", image, heard, {"partial_image_index": index})
                await response.write(partial)
            await response.write(_write_event(f"{kind}.completed", image, heard, {"usage": USAGE}))
        return response


class CustomImages(OpenAiImages):
    """``provider = "custom"``: addresses of its own, or base64 where it is asked for it; whole answers only."""

    slug: ClassVar[str] = "custom"
    model: ClassVar[str] = "org/painter"
    fields: ClassVar[set[str]] = FIELDS | {"response_format"}
    sizes: ClassVar[set[str] | None] = None
    most: ClassVar[int] = 4

    def __init__(self, *fates: Any) -> None:
        super().__init__(*fates)
        self.files: list[bytes] = []

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        app.router.add_get("/files/{number}.png", self.serve_file)

    async def serve_file(self, request: web.Request) -> web.Response:
        """A picture that an answer named."""
        return web.Response(body=self.files[int(request.match_info["number"])], content_type="image/png")

    async def stream(self, request: web.Request, heard: ReceivedImageRequest, kind: str) -> web.StreamResponse:
        del request, kind
        return web.json_response(self.write_answer(heard, self.paint(heard)))

    def write_answer(self, heard: ReceivedImageRequest, images: list[bytes]) -> Json:
        if heard.body.get("response_format") == "b64_json":
            data: list[Mapping[str, str]] = [{"b64_json": base64.b64encode(one).decode()} for one in images]
        else:
            data = [{"url": self.keep(image), "revised_prompt": f"{heard.prompt}!"} for image in images]
        return {"created": 1_700_000_000, "data": data}

    def keep(self, image: bytes) -> str:
        """The address of a picture."""
        self.files.append(image)
        return f"{self.origin}/files/{len(self.files) - 1}.png"


async def _read_parts(request: web.Request) -> Any:
    reader = await request.multipart()
    async for part in reader:
        assert isinstance(part, BodyPartReader)
        yield part.name or "", part.filename, bytes(await part.read())


def _sort(parts: Parts) -> tuple[Json, Parts]:
    """The text fields, typed as the vendor types them, and the files."""
    body: Json = {}
    for name, filename, data in parts:
        if filename is None:
            expect(name not in body, f"Duplicate parameter: '{name}'.", name)
            body[name] = _read_field(name, data.decode())
    files = [part for part in parts if part[1] is not None]
    names = [name for name, _, _ in files]
    images = [name for name in names if name in {"image", "image[]"}]
    expect(images, "Missing required parameter: 'image'.", "image")
    expect(images in (["image"], ["image[]"] * len(images)), "Duplicate parameter: 'image'.", "image")
    expect(len(images) <= 16, "Too many images.", "image")
    expect(names.count("mask") <= 1 and set(names) <= {"image", "image[]", "mask"}, "Unknown file.", None)
    expect(all(sniff_image(data[:512]) for _, _, data in files), "Invalid image file.", "image")
    return body, files


def _read_field(name: str, text: str) -> Any:
    if name == "stream":
        return {"true": True, "false": False}.get(text, text)
    integers = {"n", "partial_images", "output_compression"}
    return int(text) if name in integers and text.isdecimal() else text


def _write_event(kind: str, image: bytes, heard: ReceivedImageRequest, more: Json) -> bytes:
    event = {
        "type": kind,
        "b64_json": base64.b64encode(image).decode(),
        "background": "opaque",
        "created_at": 1_700_000_000,
        "output_format": "png",
        "quality": "high",
        "size": heard.size or "1024x1024",
        **more,
    }
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"
