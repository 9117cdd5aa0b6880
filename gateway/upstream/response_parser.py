"""Parser of HTTP/1.1 responses on top of llhttp, without sockets.

This module adds two facts that llhttp does not report: the size of a head, and the exact end of a response. Bytes after
that end are never taken for the next response. Header fields are split on demand, because few of them are ever read.
Most pieces of a stream are exactly one chunk and bypass llhttp, whose state they would leave unchanged
(``read_chunks``).
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of one response head, without interim responses. Also the maximum of received bytes that contain no byte
of a body."""
MAX_FIELD_BYTES = 8190
MAX_FIELDS = 200
MAX_INTERIM_RESPONSES = 16
MAX_PUSH_BYTES = 64 * 1024
"""Maximum of body bytes passed on in one turn of the event loop: translating so many small events takes 20 ms."""
_SMALL_HEAD_BYTES = 4 * MAX_FIELDS
"""No head of this size has too many fields: the smallest field is a one-byte name, a colon and CRLF."""
_HEAD_END = b"\r\n\r\n"
_FRAMING_HEADERS = re.compile(rb"\r\n(content-length|content-encoding|transfer-encoding):[ \t]*([^\r]*)")
_SIZE_LINE = re.compile(rb"[0-9A-Fa-f]{1,8}\r\n")
_MIN_STATUS = 100
_SWITCHING_STATUS = 101
_MIN_FINAL_STATUS = 200
_LF = 10


def _split(head: bytes) -> list[tuple[bytes, bytes]]:
    """Return the fields, names in lower case. llhttp has accepted the head: it has no folded line, no bare CR or LF."""
    lines = head.strip(b"\r\n").split(b"\r\n")
    pairs = [line.partition(b":") for line in lines[1:]]
    return [(name.lower(), value.lstrip(b" \t")) for name, _, value in pairs]


class Headers(Mapping[str, str]):
    """Header fields, case-insensitive; the first value if a name is repeated."""

    __slots__ = ("_lines",)

    def __init__(self, head: bytes) -> None:
        self._lines: dict[bytes, bytes] = {}
        for name, value in _split(head):
            self._lines.setdefault(name, value)

    def __getitem__(self, name: str) -> str:
        return self._lines[name.lower().encode("utf-8", "surrogatepass")].strip(b" \t").decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._lines)

    def __len__(self) -> int:
        return len(self._lines)


@lru_cache(4096)
def _write_size_line(length: int) -> bytes | None:
    """Return the size line of a chunk of ``length`` bytes including its framing.

    None if no chunk has that length, or if it is above ``MAX_PUSH_BYTES``.
    """
    for digits in range(1, 9 if length <= MAX_PUSH_BYTES else 1):
        size = length - digits - 4
        line = b"%x\r\n" % max(size, 0)
        if size > 0 and len(line) == digits + 2:
            return line
    return None


def read_chunks(data: bytes) -> bytes | None:
    """Return the payload of ``data`` if it consists of one or more whole chunks; None otherwise.

    The last chunk, a chunk with an extension (RFC 9112, 7.1) and more than ``MAX_PUSH_BYTES`` also give None.
    """
    line = _write_size_line(len(data))
    if line is not None and data.startswith(line) and data.endswith(b"\r\n"):
        return data[len(line) : -2]
    return _read_several(data)


def _read_several(data: bytes) -> bytes | None:
    payloads: list[bytes] = []
    start, length = 0, len(data)
    if length > MAX_PUSH_BYTES:
        return None
    while start < length:
        line = _SIZE_LINE.match(data, start)
        if line is None:
            return None
        begin = line.end()
        size = int(line.group(), 16)
        start = begin + size + 2
        if not size or data[start - 2 : start] != b"\r\n":
            return None
        payloads.append(data[begin : start - 2])
    return b"".join(payloads) or None


class ResponseParser:
    """Parses the responses of one connection. Call ``begin`` before each one, then ``feed`` for received data.

    Attributes:
        head_complete: whether the head has arrived, and with it ``status``, ``head``, ``encoding``, ``length`` and
            ``chunked``.
        encoding: the Content-Encoding in lower case; empty for none, None if the head has two.
        length: the Content-Length; None if there is none.
        keep_alive: the provider leaves the connection open after the complete response.
        excess: bytes arrived after the complete response.
        broken: the error in the response, or None.
        at_chunk: the next byte is the first of a chunk, and the body has no encoding.
    """

    __slots__ = (
        "_between_chunks",
        "_dry_bytes",
        "_head_start",
        "_interim_count",
        "_left_bytes",
        "_parser",
        "_parts",
        "_tail",
        "at_chunk",
        "broken",
        "chunked",
        "complete",
        "encoding",
        "excess",
        "head",
        "head_complete",
        "keep_alive",
        "length",
        "on_body",
        "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        self._parser = HttpResponseParser(self)
        # Older servers pad their sizes; aiohttp is as lenient.
        self._parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)
        self._head_start = self._tail = self.head = b""
        self._left_bytes: int | None = None
        self.length: int | None = None
        self.encoding: str | None = ""
        self.broken: Exception | None = None
        self._between_chunks = self.at_chunk = self.chunked = self.excess = False
        self.begin()

    def begin(self) -> None:
        self._dry_bytes = self._interim_count = self.status = 0
        self.head_complete = self.complete = self.keep_alive = False

    def release_parser(self) -> None:
        """Drop llhttp's object, which references this one: reference counting can then free both."""
        del self._parser

    def feed(self, data: bytes) -> bytes:
        """Parse the next received bytes and return the part of the body in them. Errors are stored in ``broken``."""
        rest = data
        try:
            while rest and not self.head_complete:
                rest = self._take_head(rest)
            if rest:
                self._take_body(rest)
        except (HttpParserError, HttpParserUpgrade, ValueError) as error:
            self._fail(error)
        parts = self._parts
        if parts:
            self._dry_bytes = 0
            payload = parts.pop()
            if parts:
                payload = b"".join((*parts, payload))
                parts.clear()
            return payload
        self._dry_bytes += len(data)
        if self._dry_bytes > MAX_HEAD_BYTES and self.broken is None and not self.complete:
            self.broken = HttpParserError("More than a head may be")
        return b""

    def end(self) -> None:
        """Handle the end of the connection, which ends a body of unknown length."""
        if self.head_complete and self.length is None and not self.chunked and self.broken is None:
            self.complete = True

    def _fail(self, error: Exception) -> None:
        self.at_chunk = False
        if self.head_complete and self.complete:
            self.excess = True
        else:  # a response without a body is complete before its head has been checked
            self.complete = False
            self.broken = error.with_traceback(None)  # its frames reference this object

    def _take_head(self, data: bytes) -> bytes:
        earlier_size = len(self._head_start)
        head_data = self._head_start + data
        head_end = head_data.find(_HEAD_END, earlier_size and max(0, earlier_size - 3))
        is_whole = head_end >= 0
        end = head_end + 4
        self._parser.feed_data(head_data[earlier_size:end] if is_whole else data)
        # llhttp must agree about the end of the head.
        if is_whole != (self.status > 0):
            raise HttpParserError("An empty line that ends no head, or none where one ended")
        if not is_whole:
            self._head_start = head_data
            return b""
        self._head_start = b""
        self._read_head(head_data[:end])
        return head_data[end:]

    def _read_head(self, head: bytes) -> None:
        if len(head) > _SMALL_HEAD_BYTES:
            _check_size(head)
        if self.status < _MIN_FINAL_STATUS:
            self._skip_interim()
            return
        self._left_bytes = self.length = None
        self.encoding = ""
        self.chunked = False
        lower_head = head.lower()
        for name, value in _FRAMING_HEADERS.findall(lower_head):
            if name == b"content-length":  # llhttp rejects a second one
                self._left_bytes = self.length = int(value)
            elif name == b"content-encoding":
                self.encoding = _name_encoding(value) if lower_head.count(b"\r\ncontent-encoding:") == 1 else None
            # Only trailing spaces are ignored, as by llhttp: a more lenient reader would see another body.
            elif value.rstrip(b" ") != b"chunked" or self.chunked:
                raise HttpParserError("A transfer coding that was not asked for")
            else:
                self.chunked = True
        if self.chunked:
            self._between_chunks = True
            self._tail = b""
            self.at_chunk = self.encoding == "" and not self.complete
        self.head = head
        self.head_complete = True

    def _skip_interim(self) -> None:
        self._interim_count += 1
        if self.status < _MIN_STATUS or self.status == _SWITCHING_STATUS or self._interim_count > MAX_INTERIM_RESPONSES:
            raise HttpParserError("Too many interim responses, or a response without a request")
        self.status = 0

    def _take_body(self, data: bytes) -> None:
        left_bytes = self._left_bytes
        if self.complete:
            self.excess = True
            return
        if left_bytes is not None:
            if len(data) > left_bytes:
                self.excess = True
                data = data[:left_bytes]
            left_bytes = self._left_bytes = left_bytes - len(data)
        self._parser.feed_data(data)
        if self.chunked:
            self._track_boundary(data)
        # llhttp must agree about the end of the body.
        elif self.complete != (left_bytes == 0):
            raise HttpParserError("An end that the head does not say, or none where it does")

    def _track_boundary(self, data: bytes) -> None:
        # llhttp skips line ends between two responses. A chunked body ends with a byte that is neither CR nor LF, and
        # CRLF CRLF.
        tail = self._tail = (data if len(data) > len(_HEAD_END) else self._tail + data)[-5:]
        if self.complete:
            self.at_chunk = False
            self.excess = not tail.endswith(_HEAD_END) or tail[0] in b"\r\n"
        else:
            self.at_chunk = self._between_chunks and tail[-1] == _LF and self.encoding == ""

    # Callbacks of llhttp. ``feed_data`` raises their exceptions as ``HttpParserError``.

    def on_headers_complete(self) -> None:
        if self.status:
            raise HttpParserError("An answer that nobody asked for")
        self.status = self._parser.get_status_code()

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_message_complete(self) -> None:
        if self.status >= _MIN_FINAL_STATUS:
            self.complete = True
            self.at_chunk = False
            self.keep_alive = self._parser.should_keep_alive()


def _name_encoding(value: bytes) -> str:
    name = value.strip().decode("latin-1")
    return "" if name == "identity" else name


def _check_size(head: bytes) -> None:
    field_count = head.strip(b"\r\n").count(b"\r\n")
    # No field can be larger than the whole head, and few heads exceed that size.
    sizes = [len(name) + len(value) for name, value in _split(head)] if len(head) > MAX_FIELD_BYTES else []
    if (
        field_count > MAX_FIELDS
        or max(sizes, default=0) > MAX_FIELD_BYTES
        or sum(sizes) + 4 * field_count > MAX_HEAD_BYTES
    ):
        raise HttpParserError("More than a head may be")
