"""The bodies of one request as bytes, compressed: a JSON head that describes each body, then the bodies themselves.

zlib at level 3, as for kept responses: Python 3.11 has no zstd, and the package for it would save a quarter of the disk
at the price of another dependency.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import attrs
import orjson

from gateway.domain.kept_body import BodyPart

_COMPRESSION_LEVEL = 3
_LENGTH_BYTES = 4
_DESCRIBED = tuple(attribute.name for attribute in attrs.fields(BodyPart) if attribute.name != "content")


class PackDamaged(Exception):
    """The bytes are not packed bodies."""


def pack_parts(parts: Sequence[BodyPart]) -> bytes:
    """Return the bodies as compressed bytes."""
    head = orjson.dumps([_describe(part) for part in parts])
    content = b"".join(part.content for part in parts)
    return zlib.compress(len(head).to_bytes(_LENGTH_BYTES, "big") + head + content, _COMPRESSION_LEVEL)


def unpack_parts(packed: bytes) -> list[BodyPart]:
    """Return the bodies. Raises ``PackDamaged`` if they are not whole."""
    try:
        plain = zlib.decompress(packed)
        start = _LENGTH_BYTES + int.from_bytes(plain[:_LENGTH_BYTES], "big")
        descriptions = orjson.loads(plain[_LENGTH_BYTES:start])
    except (zlib.error, orjson.JSONDecodeError) as error:
        raise PackDamaged(str(error)) from None
    parts = []
    for description in descriptions:
        end = start + description.pop("bytes")
        parts.append(_parse(description, plain[start:end]))
        start = end
    if start != len(plain):
        raise PackDamaged("the lengths of the bodies are wrong")
    return parts


def _describe(part: BodyPart) -> dict[str, Any]:
    return {name: getattr(part, name) for name in _DESCRIBED} | {"bytes": len(part.content)}


def _parse(description: dict[str, Any], content: bytes) -> BodyPart:
    times_ms = tuple(description.pop("event_times_ms"))
    return BodyPart(content=content, event_times_ms=times_ms, **description)
