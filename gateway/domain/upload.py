"""Uploaded files, and bodies that contain files. They are read in pieces."""

from typing import Protocol

import attrs

from gateway.frozen import frozen


class SpooledData(Protocol):
    """The bytes of a stored upload. Every read returns the same bytes."""

    @property
    def size(self) -> int: ...

    async def read(self, offset: int, size: int) -> bytes:
        """Return at most ``size`` bytes from ``offset`` on; fewer only at the end."""
        ...


@frozen(eq=False)
class Upload:
    """One file of a form.

    Attributes:
        filename: the client's file name, without folders; never empty.
        media_type: the type detected from the first bytes, else the client's.
        duration_ms: the playing time; None if it was not measured or is unknown.
    """

    field: str
    filename: str
    media_type: str
    head: bytes = attrs.field(repr=False)
    spooled: SpooledData = attrs.field(repr=False)
    duration_ms: int | None = None

    @property
    def size(self) -> int:
        return self.spooled.size


HEAD_BYTES = 512
"""The bytes that are kept for inspection: enough for every signature, and for a WAV's or PNG's header."""


@frozen(eq=False)
class FilePiece:
    """A file inside a body, as it is or in base64."""

    upload: Upload
    base64: bool = False

    @property
    def length(self) -> int:
        """The number of bytes that the file takes in the body."""
        return -(-self.upload.size // 3) * 4 if self.base64 else self.upload.size


@frozen(eq=False)
class Content:
    """A body that is read from several sources while it is sent: bytes, and files between them."""

    pieces: tuple[bytes | FilePiece, ...] = attrs.field(repr=False)

    @property
    def length(self) -> int:
        return sum(len(piece) if isinstance(piece, bytes) else piece.length for piece in self.pieces)
