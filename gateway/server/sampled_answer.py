"""Answers that are held in memory until they have been compared with those of shadow models. No text is kept."""

from weakref import WeakSet

from gateway.domain.kept_body import BodyPart
from gateway.formats.transcript.agreement import Agreement, compare_answers
from gateway.formats.transcript.body_parts import read_part_answers
from gateway.large_work import run_in_thread
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.copying_stream import CopyingStream

MAX_SAMPLE_BYTES = 512 * 1024
"""A larger answer is not compared."""
MAX_SAMPLES = 64
"""How many answers are held at once. Further ones are not compared."""


class SampledAnswer:
    """One answer, as its client gets it. A dropped answer frees its memory and its place at once.

    ``draw``: the random number from 0 to below 1 which decides whether the request is copied. ``held``: the answers
    that are held, which this one joins unless there are too many.
    """

    __slots__ = ("__weakref__", "_held", "_is_wanted", "_media_type", "_pieces", "_size", "draw")

    def __init__(self, draw: float, held: "WeakSet[SampledAnswer]") -> None:
        self.draw = draw
        self._held = held
        self._is_wanted = len(held) < MAX_SAMPLES
        if self._is_wanted:
            held.add(self)
        self._media_type = ""
        self._pieces: list[bytes] = []
        self._size = 0

    def wrap(self, client_stream: ClientStream) -> ClientStream:
        """Return a client stream that also holds what is sent; ``client_stream`` itself if the answer is not held."""
        return CopyingStream(client_stream, self) if self._is_wanted else client_stream

    def note_answer(self, body: bytes, media_type: str) -> None:
        """Take a complete answer."""
        self.begin_stream(media_type)
        self.add(body)

    def begin_stream(self, media_type: str) -> None:
        self._media_type = media_type

    def add(self, data: bytes) -> None:
        """Hold a piece of the answer. Above ``MAX_SAMPLE_BYTES`` the whole answer is dropped, and its place is free."""
        self._size += len(data)
        if self._size <= MAX_SAMPLE_BYTES and self._is_wanted:
            self._pieces.append(data)
        elif self._is_wanted:
            self._is_wanted = False
            self._held.discard(self)
            self._pieces.clear()

    async def compare(self, other: "SampledAnswer") -> Agreement | None:
        """Return how far two complete answers agree, found in a thread; None if one cannot be read or is not held."""
        part, other_part = self.build_part(), other.build_part()
        if not part.content or not other_part.content:
            return None
        return await run_in_thread(_compare_parts, part, other_part)

    def build_part(self) -> BodyPart:
        """Return the answer as a body; without content if the answer is not held."""
        return BodyPart("answer", b"".join(self._pieces), self._media_type, self._size)


def _compare_parts(part: BodyPart, other_part: BodyPart) -> Agreement | None:
    return compare_answers(read_part_answers(part), read_part_answers(other_part))
