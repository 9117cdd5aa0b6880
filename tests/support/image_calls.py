"""Calls for pictures as a reader leaves them, and what is sent of them, in bytes."""

import base64
from typing import Any

import orjson

from gateway.domain.image import ImageRequest
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.media import sniff_image
from gateway.domain.upload import Content, FilePiece, Upload
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.wire.request_body import Form, build_payload


class InMemory:
    """The bytes of an upload, in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def size(self) -> int:
        return len(self.data)

    async def read(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]


def upload(data: bytes, field: str = "image") -> Upload:
    media_type = sniff_image(data[:64]) or "application/octet-stream"
    return Upload(field, "picture.png", media_type, data[:64], InMemory(data))


def image_call(
    prompt: str = "a cat", *, size: str | None = None, files: tuple[Upload, ...] = (), **fields: Any
) -> InferenceRequest:
    sources = sum(file.field == "image" for file in files)
    masked = any(file.field == "mask" for file in files)
    return InferenceRequest(
        operation="image_edits" if files else "images",
        model="m",
        body={"model": "m", "prompt": prompt, **fields},
        prompt_chars=len(prompt),
        max_prompt_tokens=len(prompt),
        files=files,
        image=ImageRequest(prompt, size=size, sources=sources, masked=masked),
    )


def read_sent(provider_request: ProviderRequest) -> Any:
    """The JSON that an ask sends, with its files in it; or the fields of its form."""
    assert provider_request.body is not None
    if isinstance(provider_request.body, Form):
        return dict(provider_request.body.fields)
    body, media_type = build_payload(provider_request.body, "mark")
    assert media_type == "application/json"
    if isinstance(body, bytes):
        return orjson.loads(body)
    assert isinstance(body, Content)
    return orjson.loads(b"".join(_write(piece) for piece in body.pieces))


def _write(piece: bytes | FilePiece) -> bytes:
    if isinstance(piece, bytes):
        return piece
    assert piece.base64
    assert isinstance(piece.upload.spooled, InMemory)
    return base64.b64encode(piece.upload.spooled.data)
