"""The interfaces of the stores of media and clients' files: a folder of this machine, a shared folder, or a bucket."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from gateway.domain.media import AnyMedia, CleanupResult
from gateway.storage.file_draft import FileDraft


class MediaDraft(Protocol):
    """A media file that arrives in pieces. ``MediaStore.find`` does not return it before ``keep``."""

    async def write(self, piece: bytes) -> None:
        """Add a piece. Raises ``StoreUnavailable``; then the whole draft is deleted."""
        ...

    async def keep(self) -> AnyMedia:
        """Store the file durably under a new id, and return it.

        Raises ``UnknownMedia``, ``StoreUnavailable``; the draft is then deleted.
        """
        ...

    def discard(self) -> None:
        """Delete the draft. Does nothing if it was kept or has failed."""
        ...


class MediaStore(Protocol):
    """Keeps images or videos: in a folder (``storage/media_files.py``) or a bucket (``storage/bucket/media.py``)."""

    async def put(self, data: bytes) -> AnyMedia:
        """Store ``data`` durably under a new id, and return the file. Raises ``UnknownMedia``, ``StoreUnavailable``."""
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
        """Delete files stored before ``before_s``, then the oldest until at most ``max_bytes`` remain.

        Return how much was deleted and how much is left. ``before_s`` is in Unix seconds.
        """
        ...


class ResultLines(Protocol):
    """Lines appended to an incomplete file. Methods block, and raise ``OSError`` or ``StoreUnavailable``."""

    @property
    def name(self) -> str: ...

    def recover(self) -> list[Any]:
        """Cut an incomplete line off the end; return the parsed lines."""
        ...

    def append(self, lines: Sequence[bytes]) -> None:
        """Append lines durably. They replace the previous append, unless ``make_permanent`` was called after it."""
        ...

    def make_permanent(self) -> None:
        """Make the last append permanent."""
        ...

    def remove(self) -> None: ...


class FileStore(Protocol):
    """Keeps the bytes of clients' files, of uploads' parts and of batches' results, in a folder or bucket."""

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
        """Find the bytes of a file or a part, for ``media_reading``. Raises ``NotFound``, ``StoreUnavailable``."""
        ...

    def open_local(self, object_id: str) -> AbstractAsyncContextManager[Path]:
        """Yield a local file with the bytes, valid during the context. Raises ``NotFound``, ``StoreUnavailable``."""
        ...

    async def remove(self, object_id: str) -> None:
        """Delete the bytes of a file or a part. Never raises: a later sweep deletes what could not be deleted."""
        ...

    def open_lines(self, name: str, parse: Callable[[bytes], Any]) -> ResultLines:
        """Return the appended file ``name``. ``parse`` parses a line; it returns None if the line is not a result."""
        ...

    def copy_lines(self, earlier_names: Sequence[str], name: str) -> None:
        """Copy the first file of ``earlier_names`` that exists to ``name``, unless ``name`` exists.

        Blocks. Raises ``OSError``, ``StoreUnavailable``.
        """
        ...

    def adopt(self, name: str, object_id: str) -> int:
        """Store the appended file ``name`` as the bytes of ``object_id``; return its size.

        Blocks. An interrupted call can be repeated. Raises ``FileNotFoundError`` if neither exists, ``OSError``,
        ``StoreUnavailable``.
        """
        ...

    async def sweep(self, kept_ids: set[str]) -> CleanupResult:
        """Delete old drafts and the bytes of ids not in ``kept_ids``. Files younger than an hour stay.

        Return how much was deleted and how much is left.
        """
        ...
