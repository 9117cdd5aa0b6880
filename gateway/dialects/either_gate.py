"""A gate for providers that answer a call for a stream as they please: with a stream, or with a whole JSON answer."""

from collections.abc import Callable

from gateway.dialects.gate import Ending, Gate
from gateway.domain.fault import UpstreamError
from gateway.domain.usage import NO_USAGE, Usage

MAX_WHOLE_BYTES = 64 * 1024 * 1024


class EitherGate(Ending):
    """A gate; see ``Gate``.

    Args:
        stream: for a stream.
        write_whole: a whole answer -> the events that say the same, end mark included, and what it used. Raises an
            ``UpstreamFault``.
    """

    __slots__ = ("_held", "_held_bytes", "_stream", "_usage", "_whole", "_write_whole", "events")

    def __init__(self, stream: Gate, write_whole: Callable[[bytes], tuple[bytes, Usage]]) -> None:
        super().__init__()
        self._stream = stream
        self._write_whole = write_whole
        self._whole: bool | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._usage = NO_USAGE
        self.events = 0

    def feed(self, data: bytes) -> bytes:
        """A piece in, what may leave out; of a whole answer nothing, until it has ended."""
        if self._whole is None:
            begun = data.lstrip()
            if not begun:
                return b""
            self._whole = begun.startswith(b"{")
        if not self._whole:
            out = self._stream.feed(data)
            self._follow()
            return out
        self._held_bytes += len(data)
        if self._held_bytes > MAX_WHOLE_BYTES:
            self._held.clear()
            self.fault = UpstreamError(f"The provider's answer is larger than {MAX_WHOLE_BYTES} bytes")
        else:
            self._held.append(data)
        return b""

    def finish(self) -> bytes:
        """The transport has ended. Raises an ``UpstreamFault`` where the stream was cut or the answer is none."""
        if not self._whole:
            out = self._stream.finish()
            self._follow()
            return out
        if self.fault is not None:
            raise self.fault
        written, self._usage = self._write_whole(b"".join(self._held))
        self._held.clear()
        self.events, self.ended = 1, True
        return written

    def read_usage(self) -> Usage:
        """What was used by what passed."""
        if self._whole:
            return self._usage
        self._stream.fault = self._stream.fault or self.fault
        return self._stream.read_usage()

    def _follow(self) -> None:
        self.events = self._stream.events
        if self._stream.closed:
            self.ended, self.fault = self._stream.ended, self._stream.fault
