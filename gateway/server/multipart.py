"""Read multipart forms: text fields, and files that are written to the upload spool as they arrive.

The parts come in any order (RFC 7578). The push parser of the ``multipart`` package splits the body without any I/O.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Protocol
from urllib.parse import unquote

import attrs
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from multipart import MultipartError, MultipartSegment, ParserLimitReached, PushMultipartParser, StrictParserError

from gateway.domain.media import sniff_image
from gateway.domain.upload import HEAD_BYTES, SpooledData, Upload
from gateway.errors import ClientDisconnected, InvalidRequest, RequestTimeout, RequestTooLarge, UnsupportedMediaType
from gateway.formats.wire.form import ReceivedForm
from gateway.formats.wire.request_body import ANY_TYPE, MEDIA_TYPE
from gateway.frozen import frozen
from gateway.server.media_type import read_media_type
from gateway.storage.upload_spool import SpooledSlice, UploadSpool

MIB = 1024 * 1024
READ_BYTES = 64 * 1024
"""Bytes per read: the size of aiohttp's buffer. A larger read would enlarge the buffer."""
PIECE_BYTES = 256 * 1024
"""Bytes per write to the spool; large, because each write runs in a thread."""
MAX_BOUNDARY_CHARS = 70
MAX_NAME_CHARS = 128
FALLBACK_NAME = "file"
_MAX_SHOWN_NAME_CHARS = 64
_BOUNDARY_PATTERN = re.compile(r';\s*boundary\s*=\s*(?:"([^"\\]*)"|([^\s";,]+))', re.IGNORECASE)
_OPTION_PATTERN = re.compile(r';\s*([a-z0-9*_-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s";]*)', re.IGNORECASE)
_ALLOWED_ENCODINGS = frozenset({"", "binary", "8bit", "7bit"})
_SOUND_PATTERNS = (
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "audio/wav"),
    (re.compile(rb"ID3|\xff[\xfa\xfb\xf2\xf3]"), "audio/mpeg"),
    (re.compile(rb"OggS"), "audio/ogg"),
    (re.compile(rb"fLaC"), "audio/flac"),
    (re.compile(rb"....ftypM4[AB]", re.DOTALL), "audio/mp4"),
)
_WEBM_PATTERN = re.compile(rb"\x1a\x45\xdf\xa3.{0,60}webm", re.DOTALL)


@frozen
class FormLimits:
    """The limits of a form.

    Attributes:
        max_parts: the maximum number of parts, text fields and files together.
        max_text_bytes: the maximum size of all text fields together.
        idle_s: the maximum pause between two pieces of data, and the longest wait of an upload for its turn.
        min_rate: the minimum average rate in bytes per second, over each ``pace_s`` seconds of waiting except the
            first.
    """

    max_body_bytes: int
    max_file_bytes: int
    max_parts: int = 64
    max_text_bytes: int = MIB
    max_files: int = 32
    idle_s: float = 30.0
    total_s: float = 900.0
    min_rate: int = 1024
    pace_s: float = 60.0


class FileSink(SpooledData, Protocol):
    """Receives the bytes of all files of a form, one file after another."""

    async def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Delete the data that is not kept."""
        ...


class MultipartReader:
    """Reads the form of one request. All files share one spooled file, or ``sink``; they exist until ``close``."""

    def __init__(
        self,
        request: web.Request,
        spool: UploadSpool,
        limits: FormLimits,
        *,
        account_id: int,
        sink: FileSink | None = None,
    ) -> None:
        self._request = request
        self._share = spool.find_share(account_id)
        self._spool_file: FileSink = self._share.open() if sink is None else sink
        self._limits = limits
        self._part_count = 0
        self._file_count = 0
        self._current_part: _Part | None = None
        self._text_bytes_left = limits.max_text_bytes
        self._texts: list[tuple[str, bytes]] = []
        self._files: list[Upload] = []

    async def read(self) -> ReceivedForm:
        """Read the form; call this once. Raises ``GatewayError`` and deletes the files of a refused form."""
        is_complete = False
        try:
            async with self._share.hold_slot(self._limits.idle_s):
                await self._read()
            form = ReceivedForm(tuple(_read_text(*text) for text in self._texts), tuple(self._files))
            is_complete = True
            return form
        finally:
            if not is_complete:
                self.close()

    def close(self) -> None:
        self._spool_file.close()

    async def _read(self) -> None:
        parser = PushMultipartParser(_read_boundary(self._request), strict=True)
        body_reader = _BodyReader(self._request, self._limits)
        at_end = False
        try:
            while piece := await body_reader.receive():
                at_end = at_end or await self._parse(parser, piece)
            parser.close()
        except ParserLimitReached:
            raise InvalidRequest("The form has a part whose headers are too long or too many") from None
        except MultipartError:
            raise InvalidRequest("The form is malformed or truncated") from None

    async def _parse(self, parser: PushMultipartParser, piece: bytes) -> bool:
        """Parse ``piece``. Return whether the form ended within it. Raises ``MultipartError``."""
        try:
            for event in parser.parse(piece):
                await self._process_event(event)
        except StrictParserError:
            parser.close()  # raises unless the form is complete; data after its end is ignored (RFC 2046, 5.1.1)
            return True
        return False

    async def _process_event(self, event: MultipartSegment | bytes | None) -> None:
        if isinstance(event, MultipartSegment):
            self._current_part = self._open(event)
        elif self._current_part is None:
            raise InvalidRequest("The form is malformed or truncated")
        elif event is None:
            await self._current_part.finish()
            self._current_part = None
        else:
            await self._current_part.write(event)

    def _open(self, segment: MultipartSegment) -> "_Part":
        self._part_count += 1
        if self._part_count > self._limits.max_parts:
            raise InvalidRequest(f"The form has more than {self._limits.max_parts} parts")
        if not segment.name:
            raise InvalidRequest("The form has a part without a name")
        encoding = segment.header("Content-Transfer-Encoding", "").strip().lower()
        if encoding not in _ALLOWED_ENCODINGS:
            name = segment.name[:_MAX_SHOWN_NAME_CHARS]
            raise InvalidRequest(f"'{name}' has a Content-Transfer-Encoding, which a form may not have", param=name)
        filename = _find_filename(segment)
        return _TextPart(self, segment.name) if filename is None else self._open_file(segment, filename)

    def _open_file(self, segment: MultipartSegment, filename: str) -> "_File":
        self._file_count += 1
        if self._file_count > self._limits.max_files:
            raise InvalidRequest(f"The form has more than {self._limits.max_files} files")
        return _File(
            field=segment.name.removesuffix("[]"),
            filename=filename,
            declared_type=segment.content_type,
            spooled=self._spool_file,
            limit=self._limits.max_file_bytes,
            keep=self._files.append,
        )

    def take_text(self, name: str, count: int) -> None:
        self._text_bytes_left -= count
        if self._text_bytes_left < 0:
            short_name, limit = name[:_MAX_SHOWN_NAME_CHARS], _write_size(self._limits.max_text_bytes)
            raise RequestTooLarge(
                f"'{short_name}' is too long: all text fields together may have {limit}", param=short_name
            )

    def keep_text(self, name: str, data: bytes) -> None:
        """Keep a complete text field as bytes until the form is complete: a ``str`` may take four times the memory."""
        self._texts.append((name, data))


class _Part(Protocol):
    async def write(self, data: bytes) -> None: ...

    async def finish(self) -> None: ...


class _TextPart:
    __slots__ = ("_data", "_name", "_reader")

    def __init__(self, reader: MultipartReader, name: str) -> None:
        self._reader = reader
        self._name = name
        self._data = bytearray()

    async def write(self, data: bytes) -> None:
        self._reader.take_text(self._name, len(data))
        self._data += data

    async def finish(self) -> None:
        self._reader.keep_text(self._name, bytes(self._data))


@attrs.define
class _File:
    field: str
    filename: str
    declared_type: str | None
    spooled: FileSink
    limit: int
    keep: Callable[[Upload], None]
    head: bytes = b""
    waiting: bytearray = attrs.Factory(bytearray)
    start: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.start = self.spooled.size

    async def write(self, data: bytes) -> None:
        self.waiting += data
        if self.spooled.size - self.start + len(self.waiting) > self.limit:
            name = self.field[:_MAX_SHOWN_NAME_CHARS]
            raise RequestTooLarge(f"The file '{name}' is larger than {_write_size(self.limit)}", param=name)
        if len(self.waiting) >= PIECE_BYTES:
            await self._spool()

    async def finish(self) -> None:
        await self._spool()
        size = self.spooled.size - self.start
        if self.filename or size:  # browsers send an empty part if no file is chosen
            media_type = _find_media_type(self.head, self.declared_type)
            name, file_slice = _clean_filename(self.filename), SpooledSlice(self.spooled, self.start, size)
            self.keep(Upload(self.field, name, media_type, self.head, file_slice))

    async def _spool(self) -> None:
        data = bytes(self.waiting)
        self.waiting.clear()
        self.head = self.head or data[:HEAD_BYTES]
        await self.spooled.write(data)


class _BodyReader:
    def __init__(self, request: web.Request, limits: FormLimits) -> None:
        self._request = request
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limits.total_s
        self._size = 0
        self._waited_s = 0.0
        self._received_bytes = 0
        self._warmed_up = False
        self._check_size(request.content_length or 0)

    async def receive(self) -> bytes:
        try:
            piece = await self._receive()
        except (web.RequestPayloadError, HttpProcessingError):
            raise InvalidRequest("The request body does not match its Content-Length or Transfer-Encoding") from None
        except TimeoutError:
            if self._request.transport is None:  # the connection died (ETIMEDOUT)
                raise ClientDisconnected from None
            raise RequestTimeout(self._describe_timeout()) from None
        except OSError:
            raise ClientDisconnected from None
        self._size += len(piece)
        self._check_size(self._size)
        if piece:
            self._check_pace(len(piece))
        return piece

    async def _receive(self) -> bytes:
        now = self._loop.time()
        if now >= self._deadline:
            raise TimeoutError
        try:
            async with asyncio.timeout_at(min(now + self._limits.idle_s, self._deadline)):
                return await self._request.content.read(READ_BYTES)
        finally:
            self._waited_s += self._loop.time() - now

    def _describe_timeout(self) -> str:
        if self._loop.time() >= self._deadline:
            return f"The form did not arrive within {self._limits.total_s:g} s"
        return f"Nothing of the form arrived for {self._limits.idle_s:g} s"

    def _check_pace(self, count: int) -> None:
        """Check the average rate.

        Only the time spent waiting for the client counts, not that of disk writes. Raises ``RequestTimeout`` if the
        rate is too low.
        """
        self._received_bytes += count
        if self._waited_s < self._limits.pace_s:
            return
        if self._warmed_up and self._received_bytes < self._waited_s * self._limits.min_rate:
            raise RequestTimeout(f"The form arrived at less than {self._limits.min_rate} bytes a second")
        self._warmed_up, self._waited_s, self._received_bytes = True, 0.0, 0

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_body_bytes:
            raise RequestTooLarge(f"The request body is larger than {_write_size(self._limits.max_body_bytes)}")


def _read_boundary(request: web.Request) -> str:
    kind = read_media_type(request)
    if kind != "multipart/form-data":
        raise UnsupportedMediaType(f"Content-Type must be multipart/form-data, not {kind[:_MAX_SHOWN_NAME_CHARS]}")
    if request.headers.get("Content-Encoding", "").strip().lower() not in {"", "identity"}:
        raise UnsupportedMediaType("A form must come without a Content-Encoding")
    match = _BOUNDARY_PATTERN.search(request.headers["Content-Type"])
    boundary = (match[1] or match[2] or "") if match else ""
    if not (boundary.isascii() and boundary.isprintable() and 0 < len(boundary) <= MAX_BOUNDARY_CHARS):
        raise InvalidRequest("Content-Type must name the boundary of the form's parts, of 1 to 70 characters")
    return boundary


def _find_filename(segment: MultipartSegment) -> str | None:
    """Return the filename; None for a text field. ``filename*`` is accepted, although RFC 7578 forbids it."""
    disposition = segment.header("Content-Disposition", "")
    options = _OPTION_PATTERN.findall(disposition) if "*" in disposition else ()
    extended_name = next((value for key, value in options if key.lower() == "filename*"), None)
    if extended_name is not None:
        return unquote(extended_name.strip('"').rpartition("'")[2], errors="replace")
    return None if segment.filename is None else str(segment.filename)


def _read_text(name: str, data: bytes) -> tuple[str, str]:
    try:
        return name, data.decode()
    except UnicodeDecodeError:
        short_name = name[:_MAX_SHOWN_NAME_CHARS]
        raise InvalidRequest(f"'{short_name}' is not UTF-8", param=short_name) from None


def _clean_filename(name: str) -> str:
    base_name = re.split(r"[/\\]", name)[-1]
    return "".join(letter for letter in base_name if letter.isprintable())[-MAX_NAME_CHARS:].strip() or FALLBACK_NAME


def _find_media_type(head: bytes, declared_type: str | None) -> str:
    sniffed_type = sniff_image(head) or next((kind for sound, kind in _SOUND_PATTERNS if sound.match(head)), None)
    if sniffed_type is not None:
        return sniffed_type
    if _WEBM_PATTERN.match(head):
        return "video/webm" if declared_type == "video/webm" else "audio/webm"
    return declared_type if declared_type and MEDIA_TYPE.match(declared_type) else ANY_TYPE


def _write_size(size: int) -> str:
    return f"{size // MIB} MB" if size >= MIB and not size % MIB else f"{size} bytes"
