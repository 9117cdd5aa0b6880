"""Clients' files in a bucket: ``files/<first two digits>/<32 digits>.bin``, as in a folder.

An object cannot be appended to. So the results of a running batch are numbered objects of some lines each, below
``files/batch-<32 digits>.output/``; the end of the batch joins them into one file. This allows another node to continue
a batch.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from gateway.domain.client_file import find_digits
from gateway.domain.media import CleanupResult, RemoteMedia
from gateway.errors import NotFound, StoreUnavailable
from gateway.storage.bucket.client import Bucket
from gateway.storage.bucket.media import delete_objects, make_remote
from gateway.storage.file_draft import FileDraft, convert_disk_errors
from gateway.storage.file_folder import MEDIA_TYPE, STORED_NAME, name_file
from gateway.storage.media_files import STALE_DRAFT_S, MediaFiles
from gateway.storage.media_reading import copy_to

FOLDER = "files"
_NUMBER_DIGITS = 10

log = structlog.stdlib.get_logger(__name__)


class BucketFiles:
    """The bytes of clients' files.

    ``drafts`` and ``local_folder`` are on this machine: for files that arrive in pieces, and for copies of objects.
    """

    def __init__(
        self, bucket: Bucket, drafts: MediaFiles, local_folder: Path, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._bucket = bucket
        self._drafts = drafts
        self._local_folder = local_folder
        self._clock = clock

    def check_room(self) -> None:
        self._bucket.check_reachable()
        self._drafts.check_room()

    def open_draft(self) -> FileDraft:
        return self._drafts.open_draft()

    async def keep(self, draft: FileDraft, object_id: str) -> int:
        path, size, _ = await asyncio.to_thread(draft.finish_draft)
        try:
            await self._bucket.put(find_name(object_id), path, size)
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        return size

    async def find(self, object_id: str) -> RemoteMedia:
        stored_object = await self._bucket.find(find_name(object_id))
        if stored_object is None:
            raise NotFound("The gateway no longer has the content of this file", should_retry=False)
        return make_remote(self._bucket, stored_object, object_id, MEDIA_TYPE)

    @asynccontextmanager
    async def open_local(self, object_id: str) -> AsyncIterator[Path]:
        media = await self.find(object_id)
        self._drafts.check_room()
        path = self._name_copy()
        try:
            with convert_disk_errors():
                await copy_to(media, path)
            yield path
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def remove(self, object_id: str) -> None:
        try:
            await self._bucket.delete([find_name(object_id)])
        except StoreUnavailable as error:
            log.warning("file_not_removed", error=error.message)

    def open_lines(self, name: str, parse: Callable[[bytes], Any]) -> "BucketLines":
        return BucketLines(self._bucket, name, parse)

    def copy_lines(self, earlier_names: Sequence[str], name: str) -> None:
        """Copy the first file of ``earlier_names`` that exists to ``name``, unless ``name`` exists. Blocks."""
        pieces = next(
            filter(None, (self._bucket.list_now(_find_folder(earlier_name)) for earlier_name in earlier_names)), None
        )
        if pieces is not None and not self._bucket.list_now(_find_folder(name)):
            self._join(pieces, _name_piece(name, 0))

    def adopt(self, name: str, object_id: str) -> int:
        """Store the appended file ``name`` as the bytes of ``object_id``; return its size.

        Blocks. An interrupted call can be repeated: an object is complete or does not exist, and the lines are deleted
        after the object is stored. Raises ``FileNotFoundError`` if neither exists, ``OSError``, ``StoreUnavailable``.
        """
        target = find_name(object_id)
        pieces = self._bucket.list_now(_find_folder(name))
        size = self._bucket.find_size_now(target)
        if size is None:
            if not pieces:
                raise FileNotFoundError(name)
            size = self._join(pieces, target)
        self._bucket.delete_now(pieces)
        return size

    def _join(self, pieces: list[str], target: str) -> int:
        """Concatenate ``pieces`` into one object; return its size."""
        path = self._name_copy()
        try:
            with path.open("xb") as file:
                for piece in pieces:
                    file.write(self._bucket.read_now(piece))
            self._bucket.put_now(target, path)
            return path.stat().st_size
        finally:
            path.unlink(missing_ok=True)

    def _name_copy(self) -> Path:
        return self._local_folder / f"copy-{secrets.token_hex(16)}"

    async def sweep(self, kept_ids: set[str]) -> CleanupResult:
        """Delete the bytes of every id not in ``kept_ids``; return how much was deleted and how much is left.

        Files younger than an hour stay, because their rows may not be stored yet.
        """
        digits, before_s = {find_digits(kept_id) for kept_id in kept_ids}, self._clock() - STALE_DRAFT_S
        deleted_names: list[str] = []
        files = freed_bytes = left_bytes = 0
        async for batch in self._bucket.list_objects(FOLDER):
            for stored_object in batch:
                folder, _, name = stored_object.name.rpartition("/")
                match = STORED_NAME.match(name) or STORED_NAME.match(folder.rpartition("/")[2])
                is_known = match is None or (match["digits"] or match["batch"]) in digits
                if is_known or stored_object.stored_s >= before_s:
                    left_bytes += stored_object.size
                    continue
                deleted_names.append(stored_object.name)
                files, freed_bytes = files + 1, freed_bytes + stored_object.size
        await delete_objects(self._bucket, deleted_names)
        return CleanupResult(files, freed_bytes, left_bytes)


class BucketLines:
    """The results of a running batch, in numbered objects. Every method blocks."""

    def __init__(self, bucket: Bucket, name: str, parse: Callable[[bytes], Any]) -> None:
        self._bucket = bucket
        self.name = name
        self._parse = parse
        self._next_number = 0
        self._has_new_piece = False

    def recover(self) -> list[Any]:
        names = self._bucket.list_now(_find_folder(self.name))
        self._next_number = 1 + int(names[-1].rpartition("/")[2]) if names else 0
        parsed_lines = (
            self._parse(line) for name in names for line in self._bucket.read_now(name).splitlines(keepends=True)
        )
        return [line for line in parsed_lines if line is not None]

    def append(self, lines: Sequence[bytes]) -> None:
        self._has_new_piece = bool(lines)
        if lines:
            self._bucket.put_now(_name_piece(self.name, self._next_number), b"".join(lines))

    def make_permanent(self) -> None:
        self._next_number += self._has_new_piece
        self._has_new_piece = False

    def remove(self) -> None:
        self._bucket.delete_now(self._bucket.list_now(_find_folder(self.name)))


def find_name(object_id: str) -> str:
    """Return the name of the object with the bytes of ``object_id``."""
    name = name_file(object_id)
    return f"{FOLDER}/{name[:2]}/{name}"


def _find_folder(name: str) -> str:
    return f"{FOLDER}/{name}"


def _name_piece(name: str, number: int) -> str:
    return f"{_find_folder(name)}/{number:0{_NUMBER_DIGITS}}"
