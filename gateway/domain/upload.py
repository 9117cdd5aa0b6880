"""A file that came with a request, and bodies with files in them, which are never in memory whole."""

from typing import Protocol

import attrs


class Spooled(Protocol):
    """The bytes of a file that waits until it has been sent on; the same bytes however often they are read."""

    @property
    def size(self) -> int:
        """How many bytes there are."""
        ...

    async def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset`` on; fewer only at the end."""
        ...


@attrs.frozen(eq=False)
class Upload:
    """One file of a form.

    Attributes:
        field: its field, without a trailing ``[]``.
        filename: as its sender called it, without folders; never empty.
        media_type: what it is: by its first bytes where those tell, else what its sender said.
        head: its first bytes, at most ``HEAD_BYTES``.
        spooled: all of them.
        duration_ms: how long it sounds; None where nobody has looked, or can tell.
    """

    field: str
    filename: str
    media_type: str
    head: bytes = attrs.field(repr=False)
    spooled: Spooled = attrs.field(repr=False)
    duration_ms: int | None = None

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.spooled.size


HEAD_BYTES = 512
"""What is kept of a file to look at: enough for every signature and for a WAV's or a PNG's header."""


@attrs.frozen(eq=False)
class FilePiece:
    """A file in the middle of a body, as it is or in base64."""

    upload: Upload
    base64: bool = False

    @property
    def length(self) -> int:
        """Bytes it takes in the body."""
        return -(-self.upload.size // 3) * 4 if self.base64 else self.upload.size


@attrs.frozen(eq=False)
class Content:
    """A body that is read from several places as it is sent: bytes, and files between them."""

    pieces: tuple[bytes | FilePiece, ...] = attrs.field(repr=False)

    @property
    def length(self) -> int:
        """Bytes of the whole body."""
        return sum(len(piece) if isinstance(piece, bytes) else piece.length for piece in self.pieces)
