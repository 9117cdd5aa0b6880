"""What of received bytes is an answer's head and body, by llhttp; knows no sockets.

llhttp decides what is HTTP. Around it stands what it does not tell: where exactly an answer ended (what follows is
never to be taken for the next one), and how much a head may be. Most pieces of a stream are one chunk, whole; of these
llhttp need not be shown any, for it would stand behind them where it stood before (``read_chunks``).
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_HEAD_BYTES = 64 * 1024
"""Of one answer, interim ones apart; also the most that may come, of whatever kind, without a byte of a body."""
MAX_FIELD_BYTES = 8190
MAX_FIELDS = 200
MAX_INTERIM = 16
_HEAD_END = b"\r\n\r\n"
_SIZE_LINE = re.compile(rb"[0-9A-Fa-f]{1,8}\r\n")
_INTERIM = 100
_SWITCHING = 101
_FINAL = 200
_LF = 10


class Fields(Mapping[str, str]):
    """Header fields, case-insensitive; of a name that came twice, the first."""

    __slots__ = ("_raw",)

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> str:
        return self._raw[name.lower().encode("utf-8", "surrogatepass")].strip(b" \t").decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)


@lru_cache(4096)
def _write_size_line(length: int) -> bytes | None:
    """The size line of the one chunk that takes ``length`` bytes with everything; None where none takes so many."""
    for digits in range(1, 9):
        size = length - digits - 4
        line = b"%x\r\n" % max(size, 0)
        if size > 0 and len(line) == digits + 2:
            return line
    return None


def read_chunks(data: bytes) -> bytes | None:
    """The payload of ``data``, if that is one or more whole chunks and nothing besides; the last chunk is none.

    No more is taken than a parser in a hurry may take: a plain size, no extension (RFC 9112, 7.1).
    """
    line = _write_size_line(len(data))
    if line is not None and data.startswith(line) and data.endswith(b"\r\n"):
        return data[len(line) : -2]
    return _read_several(data)


def _read_several(data: bytes) -> bytes | None:
    payloads: list[bytes] = []
    start, length = 0, len(data)
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


class Framing:
    """The answers of one connection, one after the other. ``begin`` before each; then ``take`` what comes.

    Attributes:
        headed: the head is there, and with it ``status``, ``fields``, ``encoding`` and ``length``.
        encoding: the body's, lower-case; empty for none, None where it was given twice.
        length: bytes of the body, where its head says so.
        complete: all of the answer is there.
        keep_alive: with it, whether the provider leaves the connection open.
        excess: something came after it.
        broken: what is wrong with it, or None.
        at_chunk: llhttp awaits the first byte of a chunk of a body that is not encoded.
    """

    __slots__ = (
        "_dry", "_edge", "_interim", "_left", "_more", "_parser", "_parts", "_room", "_tail", "_twice", "at_chunk",
        "broken", "chunked", "complete", "encoding", "excess", "fields", "headed", "keep_alive", "length", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        # Older servers pad their sizes; aiohttp is as lenient.
        self._parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)
        self._parts: list[bytes] = []
        self.begin()

    def begin(self) -> None:
        """Forget the last answer; the next byte is of another."""
        self._room = MAX_HEAD_BYTES
        self._more = MAX_FIELDS
        self._dry = self._interim = self.status = 0
        self._tail = b""
        self._left: int | None = None
        self.length: int | None = None
        self.fields: dict[bytes, bytes] = {}
        self._twice: set[bytes] | None = None
        self.encoding: str | None = ""
        self.broken: Exception | None = None
        self._edge = self.at_chunk = self.chunked = False
        self.headed = self.complete = self.keep_alive = self.excess = False

    def drop(self) -> None:
        """Nothing more will come; llhttp's object and this one hold each other."""
        del self._parser

    def take(self, data: bytes) -> bytes:
        """What of the body is in ``data``, the next bytes that came. What is wrong with them is said by ``broken``."""
        self._dry += len(data)
        try:
            if not self.headed:
                data = self._take_head(data)
            if data:
                self._take_body(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.at_chunk = False
            if self.complete:
                self.excess = True
            else:
                self.broken = error
        parts = self._parts
        if parts:
            self._dry = 0
            payload = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            return payload
        if self._dry > MAX_HEAD_BYTES and self.broken is None and not self.complete:
            self.broken = HttpParserError("More than a head may be")
        return b""

    def end(self) -> None:
        """The provider has closed in order: that is the end of a body which no length is said of."""
        if self.headed and self.length is None and not self.chunked and self.broken is None:
            self.complete = True

    def _take_head(self, data: bytes) -> bytes:
        """Feed heads; returns what came after the last of them."""
        while data and not self.headed:
            seen = self._tail + data
            at = seen.find(_HEAD_END)
            end = len(data) if at < 0 else at + len(_HEAD_END) - len(self._tail)
            self._tail = seen[-3:] if at < 0 else b""
            interim = self._interim
            self._parser.feed_data(data[:end])
            # Where a head ends must not be a matter of opinion.
            ended = self._interim > interim or self.headed
            if ended != (at >= 0):
                raise HttpParserError("An empty line that ends no head, or none where one ended")
            data = data[end:]
        return data

    def _take_body(self, data: bytes) -> None:
        left = self._left
        if self.complete:
            self.excess = True
        elif left is not None:
            self._left = left - len(data)
            self.excess = len(data) > left
            self._parser.feed_data(data[:left] if self.excess else data)
        else:
            self._parser.feed_data(data)
            if self.chunked:
                self._find_edge(data)

    def _find_edge(self, data: bytes) -> None:
        # llhttp passes over line ends between two answers. An answer in chunks ends with one such byte that is none of
        # CR and LF, and CRLF CRLF.
        tail = self._tail = (data if len(data) > len(_HEAD_END) else self._tail + data)[-5:]
        if self.complete:
            self.at_chunk = False
            self.excess = not tail.endswith(_HEAD_END) or tail[0] in b"\r\n"
        else:
            self.at_chunk = self._edge and tail[-1] == _LF and self.encoding == ""

    # What llhttp calls. What is raised here comes out of ``feed_data`` as an ``HttpParserError``.

    def on_message_begin(self) -> None:
        """The first byte of an answer."""
        if self.complete:
            raise HttpParserError("An answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field, of the head or behind the body."""
        if self.headed:
            return
        length = len(name) + len(value)
        self._room -= length + 4
        self._more -= 1
        if length > MAX_FIELD_BYTES or self._room < 0 or self._more < 0:
            raise HttpParserError("More than a head may be")
        name = name.lower()
        if name not in self.fields:
            self.fields[name] = value
        elif self._twice is None:
            self._twice = {name}
        else:
            self._twice.add(name)

    def on_headers_complete(self) -> None:
        """The end of a head."""
        status = self.status = self._parser.get_status_code()
        if status < _FINAL:
            self._interim += 1
            self.fields = {}
            self._twice = None
            self._room = MAX_HEAD_BYTES
            self._more = MAX_FIELDS
            if status < _INTERIM or status == _SWITCHING or self._interim > MAX_INTERIM:
                raise HttpParserError("Interim answers without end, or to what was not asked")
            return
        fields = self.fields
        twice = self._twice or ()
        length = fields.get(b"content-length")
        if length is not None:
            self.length = self._left = int(length)
        coding = fields.get(b"transfer-encoding")
        if coding is not None:
            # llhttp takes away the spaces behind it, and nothing else: whoever reads more leniently reads another body.
            if coding.rstrip(b" ").lower() != b"chunked" or b"transfer-encoding" in twice:
                raise HttpParserError("A transfer coding that was not asked for")
            self.chunked = True
        encoding = fields.get(b"content-encoding")
        if encoding is not None:
            name = encoding.strip().lower().decode("latin-1")
            self.encoding = None if b"content-encoding" in twice else "" if name == "identity" else name
        self._edge = self.chunked
        self.at_chunk = self.chunked and self.encoding == ""
        self.headed = True

    def on_body(self, data: bytes) -> None:
        """Some of the body."""
        self._parts.append(data)

    def on_chunk_header(self) -> None:
        """The end of a size line."""
        self._edge = False

    def on_chunk_complete(self) -> None:
        """The end of a chunk."""
        self._edge = True

    def on_message_complete(self) -> None:
        """The end of an answer."""
        if self.headed:
            self.complete = True
            self.at_chunk = False
            self.keep_alive = self._parser.should_keep_alive()
