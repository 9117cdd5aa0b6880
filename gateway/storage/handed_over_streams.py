"""Kept streams in a file, from the end of a process to the start of the next one in the same data folder.

The file has one sealed part for each stream, with its length in front. It is there whole or not at all, and is deleted
before it is read: a file at which a start fails does not prevent the next start. For use in threads.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import structlog

from gateway.frozen import frozen
from gateway.storage.data_folder import sync_folder
from gateway.storage.encryption import DecryptionFailed, SecretBox

FILE_NAME = "handed-over"
_DRAFT = f".{FILE_NAME}"
_LENGTH = struct.Struct(">I")
_CONTEXT = "stream"
_PURPOSE = "streams"
_OWNER_ONLY_MODE = 0o600

log = structlog.stdlib.get_logger(__name__)


@frozen
class HandedOverStream:
    """The events of a stream, and what is known of the stream: ``facts``, which has only values of JSON."""

    facts: dict[str, Any]
    events: Sequence[bytes]


class StreamFileWriter:
    """Writes the file, stream by stream. Raises ``OSError``."""

    def __init__(self, folder: Path, secret_box: SecretBox) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._box = secret_box.derive(_PURPOSE)
        descriptor = os.open(folder / _DRAFT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _OWNER_ONLY_MODE)
        self._file = os.fdopen(descriptor, "wb")

    def add(self, stream: HandedOverStream) -> None:
        facts = orjson.dumps(stream.facts | {"lengths": [*map(len, stream.events)]})
        sealed = self._box.seal(b"".join((_LENGTH.pack(len(facts)), facts, *stream.events)), context=_CONTEXT)
        self._file.write(_LENGTH.pack(len(sealed)) + sealed)

    def commit(self) -> None:
        """Flush what was written to the disk, and put the file in its place."""
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        (self._folder / _DRAFT).rename(self._folder / FILE_NAME)
        sync_folder(self._folder)

    def discard(self) -> None:
        """Delete what was written."""
        self._file.close()
        (self._folder / _DRAFT).unlink(missing_ok=True)


class StreamFileReader:
    """Reads the file, stream by stream. Raises ``OSError``."""

    def __init__(self, folder: Path, secret_box: SecretBox) -> None:
        self._box = secret_box.derive(_PURPOSE)
        self._file: BinaryIO = (folder / FILE_NAME).open("rb")
        (folder / FILE_NAME).unlink()

    def read(self) -> HandedOverStream | None:
        """Return the next stream; None at the end, or if the rest cannot be read, which is logged."""
        head = self._file.read(_LENGTH.size)
        if not head:
            return None
        try:
            (length,) = _LENGTH.unpack(head)
            return _parse_stream(self._box.open(self._file.read(length), context=_CONTEXT))
        except (DecryptionFailed, struct.error, ValueError, KeyError, TypeError) as error:
            log.warning("streams_not_taken_over", error=str(error) or type(error).__name__)
            return None

    def close(self) -> None:
        self._file.close()


def delete_streams(folder: Path) -> None:
    """Delete the file if there is one, and what a killed process has written of it. Raises ``OSError``."""
    for name in (FILE_NAME, _DRAFT):
        (folder / name).unlink(missing_ok=True)


def _parse_stream(plain: bytes) -> HandedOverStream:
    (length,) = _LENGTH.unpack_from(plain)
    start = _LENGTH.size + length
    facts = orjson.loads(plain[_LENGTH.size : start])
    events = list[bytes]()
    for size in facts.pop("lengths"):
        events.append(plain[start : start + size])
        start += size
    return HandedOverStream(facts, events)
