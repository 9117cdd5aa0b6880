"""Kept streams in a file, from the end of a process to the start of the next one in the same data folder.

The file has one sealed part for each stream, with its length in front. It is written whole or not at all, and deleted
before it is read: a file that a start cannot bear does not prevent the next one.
"""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
import structlog

from gateway.frozen import frozen
from gateway.storage.data_folder import write_private
from gateway.storage.encryption import DecryptionFailed, SecretBox

NAME = "handed-over"
_LENGTH = struct.Struct(">I")
_CONTEXT = "stream"
_PURPOSE = "streams"

log = structlog.stdlib.get_logger(__name__)


@frozen
class HandedOverStream:
    """The events of a stream, and what is known of it: ``facts`` as JSON."""

    facts: dict[str, Any]
    events: Sequence[bytes]


def write_streams(folder: Path, secret_box: SecretBox, streams: Iterable[HandedOverStream]) -> None:
    """Write the file into ``folder``. For use in a thread. Raises ``OSError``."""
    box, parts = secret_box.derive(_PURPOSE), list[bytes]()
    for stream in streams:
        facts = orjson.dumps(stream.facts | {"lengths": [*map(len, stream.events)]})
        sealed = box.seal(b"".join((_LENGTH.pack(len(facts)), facts, *stream.events)), context=_CONTEXT)
        parts += (_LENGTH.pack(len(sealed)), sealed)
    if parts:
        folder.mkdir(mode=0o700, exist_ok=True)
        write_private(folder / NAME, b"".join(parts))


def take_streams(folder: Path, secret_box: SecretBox) -> Sequence[HandedOverStream]:
    """Delete the file and return its streams; none if there is no file. For use in a thread. Raises ``OSError``.

    What cannot be read is logged and left out.
    """
    path = folder / NAME
    try:
        data = path.read_bytes()
        path.unlink()
    except FileNotFoundError:
        return ()
    box, streams, start = secret_box.derive(_PURPOSE), list[HandedOverStream](), 0
    try:
        while start < len(data):
            (length,) = _LENGTH.unpack_from(data, start)
            start += _LENGTH.size
            streams.append(_parse_stream(box.open(data[start : start + length], context=_CONTEXT)))
            start += length
    except (DecryptionFailed, struct.error, ValueError, KeyError, TypeError) as error:
        log.warning("streams_not_taken_over", error=str(error) or type(error).__name__)
    return streams


def delete_streams(folder: Path) -> None:
    """Delete the file if there is one. Raises ``OSError``."""
    (folder / NAME).unlink(missing_ok=True)


def _parse_stream(plain: bytes) -> HandedOverStream:
    (length,) = _LENGTH.unpack_from(plain)
    start = _LENGTH.size + length
    facts = orjson.loads(plain[_LENGTH.size : start])
    events = list[bytes]()
    for size in facts.pop("lengths"):
        events.append(plain[start : start + size])
        start += size
    return HandedOverStream(facts, events)
