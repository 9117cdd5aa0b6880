"""Base64 in steps: a large image does not block the event loop."""

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator

_STEP_CHARS = 3 * 4 * 64 * 1024
"""Bytes or characters per step: about 1 ms. A thread would not help, because it would hold the GIL as long."""


async def encode_base64(data: bytes) -> str:
    """Return ``data`` in base64; other work of the event loop may run between two steps."""
    pieces = []
    for start in range(0, len(data), _STEP_CHARS):
        pieces.append(base64.b64encode(data[start : start + _STEP_CHARS]))
        if len(data) > _STEP_CHARS:
            await asyncio.sleep(0)
    return b"".join(pieces).decode()


async def decode_base64(text: str) -> AsyncIterator[bytes]:
    """Yield the decoded bytes of ``text`` piece by piece. Raises ``ValueError`` for invalid base64."""
    if len(text) % 4 or text.find("=", 0, -2) >= 0:  # the decoder would miss padding between two steps
        raise ValueError("invalid length or padding")
    for start in range(0, len(text), _STEP_CHARS):
        yield binascii.a2b_base64(text[start : start + _STEP_CHARS], strict_mode=True)
        if len(text) > _STEP_CHARS:
            await asyncio.sleep(0)
