"""The interfaces of the media store: a folder of this machine, a shared folder, or a bucket."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from gateway.domain.media import AnyMedia, CleanupResult
from gateway.storage.file_draft import FileDraft


class MediaDraft(Protocol):
    """A media file that arrives in pieces: found only once it is kept."""

    async def write(self, piece: bytes) -> None:
        """Add a piece. Raises ``StoreUnavailable``; then the whole draft is deleted."""
        ...

    async def keep(self) -> AnyMedia:
        """Store the file durably under a new id. On ``UnknownMedia`` or ``StoreUnavailable`` it is deleted."""
        ...

    def discard(self) -> None:
        """Delete the draft. Does nothing if it was kept or has failed."""
        ...


class MediaStore(Protocol):
    """Keeps images or videos: in a folder (``storage/media_files.py``) or a bucket (``storage/bucket/media.py``)."""

    async def put(self, data: bytes) -> AnyMedia:
        """Store ``data`` durably under a new id. Raises ``UnknownMedia`` or ``StoreUnavailable``."""
        ...

    def open_draft(self) -> MediaDraft:
        """Return a draft for data that arrives in pieces."""
        ...

    def check_room(self) -> None:
        """Raise ``StoreUnavailable`` if nothing can be stored now."""
        ...

    async def find(self, media_id: str) -> AnyMedia | None:
        """Return the file with that id; None if there is none or the id is malformed. Raises ``StoreUnavailable``."""
        ...

    async def remove(self, media_id: str) -> bool:
        """Delete a file; return whether there was one. Raises ``StoreUnavailable``."""
        ...

    async def sweep(self, *, before_s: float, max_bytes: int) -> CleanupResult:
        """Delete files that were stored before ``before_s``, then the oldest until at most ``max_bytes`` remain.

        A file that cannot be deleted is logged and stays.
        """
        ...


class ResultLines(Protocol):
    """Lines appended to a file that is not complete yet.

    Every method blocks, and raises ``OSError`` or ``StoreUnavailable``.
    """

    @property
    def name(self) -> str: ...

    def recover(self) -> list[Any]:
        """Cut an incomplete line off the end; return the parsed lines."""
        ...

    def append(self, lines: Sequence[bytes]) -> None:
        """Append lines durably. After an error the same call can be repeated, until ``mark``."""
        ...

    def mark(self) -> None:
        """Make the last append permanent."""
        ...

    def remove(self) -> None:
        """Delete the file."""
        ...


class FileStore(Protocol):
    """Keeps the bytes of clients' files, of the parts of uploads, and of the results of running batches.

    Implemented for a folder (``storage/file_folder.py``) and a bucket (``storage/bucket/files.py``).
    """

    def check_room(self) -> None:
        """Raise ``StoreUnavailable`` if nothing can be stored now."""
        ...

    def open_draft(self) -> FileDraft:
        """Return a draft for data that arrives in pieces; ``keep`` stores it."""
        ...

    async def keep(self, draft: FileDraft, object_id: str) -> int:
        """Store a draft durably as the bytes of ``object_id``; return its size. Raises ``StoreUnavailable``."""
        ...

    async def find(self, object_id: str) -> AnyMedia:
        """Return the stored bytes of a file or a part. Raises ``NotFound``, ``StoreUnavailable``."""
        ...

    def open_local(self, object_id: str) -> AbstractAsyncContextManager[Path]:
        """Yield the path of a local file with the bytes, valid as long as the context is open.

        Raises ``NotFound``, ``StoreUnavailable``.
        """
        ...

    async def remove(self, object_id: str) -> None:
        """Delete the bytes of a file or a part. If that fails, the next sweep deletes them."""
        ...

    def open_lines(self, name: str, parse: Callable[[bytes], Any]) -> ResultLines:
        """Return the appended file ``name``. ``parse`` parses a line; it returns None if the line is not a result."""
        ...

    def copy_lines(self, before: Sequence[str], name: str) -> None:
        """Start the appended file ``name`` with a copy of the first existing file of ``before``.

        Blocks. Does nothing if ``name`` exists, so a call can be repeated. Raises ``OSError``, ``StoreUnavailable``.
        """
        ...

    def adopt(self, name: str, object_id: str) -> int:
        """Store the appended file ``name`` as the bytes of ``object_id``; return its size.

        Blocks. An interrupted call can be repeated. Raises ``FileNotFoundError`` if neither file exists, ``OSError``
        and ``StoreUnavailable``.
        """
        ...

    async def sweep(self, kept: set[str]) -> CleanupResult:
        """Delete the bytes of every id that is not in ``kept``, and old drafts.

        A file younger than an hour stays, because its row may not be written yet.
        """
        ...
