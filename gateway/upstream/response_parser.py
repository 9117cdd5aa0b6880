"""What of received bytes is an answer's head and body, by llhttp; knows no sockets.

llhttp decides what is HTTP. Around it stands what it does not tell: where exactly an answer ended (what follows is
never to be taken for the next one), and how much a head may be. It is not asked for the fields of a head, one by one:
a head that it has read has a field in each line, and few of them are ever looked at. Most pieces of a stream are one
chunk, whole; of these llhttp need not be shown any, for it would stand behind them where it stood before
(``read_chunks``).
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
MAX_PUSH_BYTES = 64 * 1024
"""Of a body, pushed in one turn of the event loop: events that are translated take 20 ms then, small as they may be."""
_SMALL_HEAD_BYTES = 4 * MAX_FIELDS
"""No head of so few has too many fields, or too large ones: the smallest is a name of one byte, a colon and CRLF."""
_HEAD_END = b"\r\n\r\n"
_FRAMING = re.compile(rb"\r\n(content-length|content-encoding|transfer-encoding):[ \t]*([^\r]*)")
_SIZE_LINE = re.compile(rb"[0-9A-Fa-f]{1,8}\r\n")
_INTERIM = 100
_SWITCHING = 101
_FINAL = 200
_LF = 10


def _split(head: bytes) -> list[tuple[bytes, bytes]]:
    """Names, in lower case, and values. llhttp has read the head: it passes no folded line, and no bare CR or LF."""
    lines = head.strip(b"\r\n").split(b"\r\n")
    pairs = [line.partition(b":") for line in lines[1:]]
    return [(name.lower(), value.lstrip(b" \t")) for name, _, value in pairs]


class Headers(Mapping[str, str]):
    """The fields of a head, case-insensitive; of a name that came twice, the first."""

    __slots__ = ("_raw",)

    def __init__(self, head: bytes) -> None:
        self._raw: dict[bytes, bytes] = {}
        for name, value in _split(head):
            self._raw.setdefault(name, value)

    def __getitem__(self, name: str) -> str:
        return self._raw[name.lower().encode("utf-8", "surrogatepass")].strip(b" \t").decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)


@lru_cache(4096)
def _write_size_line(length: int) -> bytes | None:
    """The size line of the one chunk that takes ``length`` bytes with everything; None if none takes so many."""
    for digits in range(1, 9 if length <= MAX_PUSH_BYTES else 1):
        size = length - digits - 4
        line = b"%x\r\n" % max(size, 0)
        if size > 0 and len(line) == digits + 2:
            return line
    return None


def read_chunks(data: bytes) -> bytes | None:
    """The payload of ``data``, if that is one or more whole chunks and nothing besides; the last chunk is none.

    No more is taken than a parser in a hurry may take: a plain size, no extension (RFC 9112, 7.1). None also if
    ``data`` is more than is pushed at once.
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
    """The answers of one connection, one after the other. ``begin`` before each; then ``take`` what comes.

    Attributes:
        headed: the head is there, and with it ``status``, ``head``, ``encoding``, ``length`` and ``chunked``.
        head: as it came.
        encoding: the body's, lower-case; empty for none, None where it was given twice.
        length: bytes of the body, where its head says so.
        complete: all of the answer is there.
        keep_alive: with it, whether the provider leaves the connection open.
        excess: something came after it.
        broken: what is wrong with it, or None.
        at_chunk: llhttp awaits the first byte of a chunk of a body that is not encoded.
        on_body: for llhttp, which has some of the body.
    """

    __slots__ = (
        "_dry", "_edge", "_interim", "_left", "_parser", "_parts", "_seen", "_tail", "at_chunk", "broken", "chunked",
        "complete", "encoding", "excess", "head", "headed", "keep_alive", "length", "on_body", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        self._parser = HttpResponseParser(self)
        # Older servers pad their sizes; aiohttp is as lenient.
        self._parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)
        self._seen = self._tail = self.head = b""
        self._left: int | None = None
        self.length: int | None = None
        self.encoding: str | None = ""
        self.broken: Exception | None = None
        self._edge = self.at_chunk = self.chunked = self.excess = False
        self.begin()

    def begin(self) -> None:
        """The next byte is of another answer; the last was complete, and nothing came after it."""
        self._dry = self._interim = self.status = 0
        self.headed = self.complete = self.keep_alive = False

    def drop(self) -> None:
        """Nothing more will come; llhttp's object and this one hold each other."""
        del self._parser

    def take(self, data: bytes) -> bytes:
        """What of the body is in ``data``, the next bytes that came. What is wrong with them is said by ``broken``."""
        rest = data
        try:
            while rest and not self.headed:
                rest = self._take_head(rest)
            if rest:
                self._take_body(rest)
        except (HttpParserError, HttpParserUpgrade, ValueError) as error:
            self._fail(error)
        parts = self._parts
        if parts:
            self._dry = 0
            payload = parts.pop()
            if parts:
                payload = b"".join((*parts, payload))
                parts.clear()
            return payload
        self._dry += len(data)
        if self._dry > MAX_HEAD_BYTES and self.broken is None and not self.complete:
            self.broken = HttpParserError("More than a head may be")
        return b""

    def end(self) -> None:
        """The provider has closed in order: that is the end of a body which no length is said of."""
        if self.headed and self.length is None and not self.chunked and self.broken is None:
            self.complete = True

    def _fail(self, error: Exception) -> None:
        self.at_chunk = False
        if self.headed and self.complete:
            self.excess = True
        else:  # a head without a body ends the answer before it has been looked at
            self.complete = False
            self.broken = error

    def _take_head(self, data: bytes) -> bytes:
        """Feed a head, or what there is of it; returns what came after it."""
        fed = len(self._seen)
        seen = self._seen + data
        at = seen.find(_HEAD_END, fed and max(0, fed - 3))
        whole = at >= 0
        end = at + 4
        self._parser.feed_data(seen[fed:end] if whole else data)
        # Where a head ends must not be a matter of opinion.
        if whole != (self.status > 0):
            raise HttpParserError("An empty line that ends no head, or none where one ended")
        if not whole:
            self._seen = seen
            return b""
        self._seen = b""
        self._read_head(seen[:end])
        return seen[end:]

    def _read_head(self, head: bytes) -> None:
        """What a head says that has just ended."""
        if len(head) > _SMALL_HEAD_BYTES:
            _check_size(head)
        if self.status < _FINAL:
            self._pass_over()
            return
        self._left = self.length = None
        self.encoding = ""
        self.chunked = False
        lower = head.lower()
        for name, value in _FRAMING.findall(lower):
            if name == b"content-length":  # llhttp passes no second one
                self._left = self.length = int(value)
            elif name == b"content-encoding":
                self.encoding = _name_encoding(value) if lower.count(b"\r\ncontent-encoding:") == 1 else None
            # llhttp takes away the spaces behind it, and nothing else: whoever reads more leniently reads another body.
            elif value.rstrip(b" ") != b"chunked" or self.chunked:
                raise HttpParserError("A transfer coding that was not asked for")
            else:
                self.chunked = True
        if self.chunked:
            self._edge = True
            self._tail = b""
            self.at_chunk = self.encoding == "" and not self.complete
        self.head = head
        self.headed = True

    def _pass_over(self) -> None:
        """An interim answer."""
        self._interim += 1
        if self.status < _INTERIM or self.status == _SWITCHING or self._interim > MAX_INTERIM:
            raise HttpParserError("Interim answers without end, or to what was not asked")
        self.status = 0

    def _take_body(self, data: bytes) -> None:
        left = self._left
        if self.complete:
            self.excess = True
            return
        if left is not None:
            if len(data) > left:
                self.excess = True
                data = data[:left]
            left = self._left = left - len(data)
        self._parser.feed_data(data)
        if self.chunked:
            self._find_edge(data)
        # Nor is where a body ends.
        elif self.complete != (left == 0):
            raise HttpParserError("An end that the head does not say, or none where it does")

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

    def on_headers_complete(self) -> None:
        """The end of a head."""
        if self.status:
            raise HttpParserError("An answer that nobody asked for")
        self.status = self._parser.get_status_code()

    def on_chunk_header(self) -> None:
        """The end of a size line."""
        self._edge = False

    def on_chunk_complete(self) -> None:
        """The end of a chunk."""
        self._edge = True

    def on_message_complete(self) -> None:
        """The end of an answer, which an interim one is not."""
        if self.status >= _FINAL:
            self.complete = True
            self.at_chunk = False
            self.keep_alive = self._parser.should_keep_alive()


def _name_encoding(value: bytes) -> str:
    name = value.strip().decode("latin-1")
    return "" if name == "identity" else name


def _check_size(head: bytes) -> None:
    """Raises ``HttpParserError``."""
    fields = head.strip(b"\r\n").count(b"\r\n")
    # No field can be larger than all of the head, and few heads are.
    sizes = [len(name) + len(value) for name, value in _split(head)] if len(head) > MAX_FIELD_BYTES else []
    if fields > MAX_FIELDS or max(sizes, default=0) > MAX_FIELD_BYTES or sum(sizes) + 4 * fields > MAX_HEAD_BYTES:
        raise HttpParserError("More than a head may be")
