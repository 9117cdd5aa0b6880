"""Reads the members of a backup: a tar file in ustar format with pax headers (POSIX.1-2017, "pax").

A backup may come from an untrusted source. Python's ``tarfile`` reads a header of any size into memory, follows links
and chains of records, and raises any exception of its parser. This module reads the output of ``backup.py``, and
nothing else.
"""

import tarfile
from collections.abc import Iterator
from typing import IO

import attrs

from gateway.storage.backup_encryption import BackupUnreadable

MAX_MEMBERS = 500_000
_BLOCK_BYTES = 512
_PARTS_BYTES = 64 * 1024
_MAX_PAX_HEADER_BYTES = 64 * 1024
_MAX_PADDING_BYTES = 1024 * 1024
"""Maximum padding after the last member: tar fills its last record, of 10 KiB by default."""
_PAX = b"x"
_REGULAR_TYPES = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE})
_MAX_MTIME_S = 2**33
"""The limit of times in a ustar header."""
_TRUNCATED_ERROR = "it is cut off"


@attrs.define
class BackupMember:
    """A file of a backup.

    ``mtime_s`` is Unix time. Content that ``read_chunks`` has not read is skipped before the next member.
    """

    name: str
    size: int
    mtime_s: int
    _source: IO[bytes] = attrs.field(alias="source", repr=False)
    _left_bytes: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._left_bytes = self.size

    def read_chunks(self) -> Iterator[bytes]:
        while self._left_bytes:
            chunk = self._source.read(min(self._left_bytes, _PARTS_BYTES))
            if not chunk:
                raise BackupUnreadable(_TRUNCATED_ERROR)
            self._left_bytes -= len(chunk)
            yield chunk


def read_members(source: IO[bytes], max_members: int = MAX_MEMBERS) -> Iterator[BackupMember]:
    """Yield the members, then read the rest of ``source``. Raises ``BackupUnreadable`` for invalid content."""
    count = 0
    while (header := _read_header(source)) is not None:
        size, mtime_s = header.size, int(header.mtime)
        if header.type == _PAX:
            pax_values = _read_pax_header(source, header.size)
            header = _read_header(source)
            if header is None:
                raise BackupUnreadable(_TRUNCATED_ERROR)
            size, mtime_s = pax_values.get("size", header.size), pax_values.get("mtime", int(header.mtime))
        count += 1
        if header.type not in _REGULAR_TYPES or count > max_members or not header.name:
            raise BackupUnreadable(f"it has {header.name[:200]!r}, which is no file of a backup")
        member = BackupMember(header.name, size, min(mtime_s, _MAX_MTIME_S), source)
        yield member
        for _ in member.read_chunks():
            pass
        _skip_padding(source, size)
    _read_end(source)


def _read_header(source: IO[bytes]) -> tarfile.TarInfo | None:
    block = source.read(_BLOCK_BYTES)
    if len(block) != _BLOCK_BYTES:
        raise BackupUnreadable("it ends before its manifest" if not block else _TRUNCATED_ERROR)
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
        return None
    except (tarfile.TarError, ValueError) as error:
        raise BackupUnreadable(f"it is no backup, or is damaged: {error}") from None
    if header.size < 0 or header.mtime < 0:
        raise BackupUnreadable("a number in it is negative")
    return header


def _read_pax_header(source: IO[bytes], size: int) -> dict[str, int]:
    """Return the next member's size and time from a pax header, which has values too large for a ustar header.

    Raises ``BackupUnreadable``.
    """
    if size > _MAX_PAX_HEADER_BYTES:
        raise BackupUnreadable("a record in it is too long")
    data = source.read(size)
    _skip_padding(source, size)
    fields = {}
    for line in data.split(b"\n")[:-1]:
        name, _, value = line.partition(b" ")[2].partition(b"=")
        integer = value.partition(b".")[0]
        if name not in {b"size", b"mtime"} or not integer.isdigit() or len(integer) > len(str(2**63)):
            raise BackupUnreadable(f"it has {line[:200].decode(errors='replace')!r}, which is no file of a backup")
        fields[name.decode()] = int(integer)
    return fields


def _skip_padding(source: IO[bytes], size: int) -> None:
    padding = -size % _BLOCK_BYTES
    if len(source.read(padding)) != padding:
        raise BackupUnreadable(_TRUNCATED_ERROR)


def _read_end(source: IO[bytes]) -> None:
    """Read to the end, which verifies the checksums of the compression and of the encryption.

    Raises ``BackupUnreadable``.
    """
    remaining_bytes = _MAX_PADDING_BYTES
    while chunk := source.read(_PARTS_BYTES):
        remaining_bytes -= len(chunk)
        if remaining_bytes < 0 or chunk.strip(b"\0"):
            raise BackupUnreadable("something is behind its end")
