"""Where finished segments and data keys are moved to, so that every node can read them: a shared folder or a bucket.

Below the location: ``bodies/segments/<32 digits>.segment``, ``bodies/keys/<node>/<account id>.key``, and
``bodies/owner`` with the mark of the database. Each node creates only its own keys; every node reads and destroys the
keys of all nodes.
"""

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from gateway.storage.bodies.data_keys import FolderKeyFiles, KeyFiles
from gateway.storage.bodies.segments import Location, overwrite_frames
from gateway.storage.data_folder import sync_folder, write_private

FOLDER = "bodies"
SEGMENTS_FOLDER, KEYS_FOLDER = "segments", "keys"
MARK_FILE = "owner"
"""Has the mark of the database whose segments these are: the copy of a database must not remove them."""
SINGLE_NODE = "single"
"""The folder of the data keys of a gateway that is no node of a cluster."""
_NAME_BYTES = 16
_SUFFIX = ".segment"
_DRAFT = ".draft-"
_OWNER_ONLY_FOLDER_MODE = 0o700
_CHUNK_BYTES = 1024 * 1024


class SegmentStore(Protocol):
    """A shared store of segments: a folder (``FolderSegments``) or a bucket (``bucket_segments``).

    Every method raises ``OSError`` if the store does not answer, or refuses.
    """

    @property
    def location(self) -> str:
        """The location without credentials, for people."""
        ...

    async def create(self) -> None:
        """Make the store, unless it exists. Called only while the index has no segments there."""
        ...

    async def put(self, name: str, path: Path, size: int) -> None:
        """Store a copy of a segment as ``name``, durably."""
        ...

    async def read(self, name: str, location: Location) -> bytes | None:
        """Return a frame; None if there is no such segment."""
        ...

    async def erase(self, name: str, new_name: str, size: int, locations: Sequence[Location]) -> str:
        """Overwrite frames with zeros; return the name of the segment without them: ``name`` or ``new_name``.

        If that is ``new_name``, the segment ``name`` must be removed once the index has the new one.
        """
        ...

    async def remove(self, names: Sequence[str]) -> None:
        """Remove segments, also those that were not stored whole. Those that do not exist are ignored."""
        ...

    async def list_older(self, age_s: float) -> list[str]:
        """Return the names of segments, whole or not, that were stored more than ``age_s`` seconds ago."""
        ...

    async def read_mark(self) -> str:
        """Return the mark of the database whose segments these are; empty without one."""
        ...

    async def write_mark(self, mark: str) -> None:
        """Store the mark of the database whose segments these are."""
        ...

    def open_keys(self, node: str) -> KeyFiles:
        """Return the data keys of a node."""
        ...

    def list_key_nodes(self) -> list[str]:
        """Return the ids of the nodes that have data keys, an empty text for a single gateway. Blocks."""
        ...


class FolderSegments:
    """A folder that all nodes mount.

    While the subfolders are missing, every access fails except ``create``: the folder is probably not mounted then.
    """

    def __init__(self, folder: Path) -> None:
        self._parent = folder
        self._segments_folder = folder / FOLDER / SEGMENTS_FOLDER
        self._keys_folder = folder / FOLDER / KEYS_FOLDER

    @property
    def location(self) -> str:
        return str(self._parent)

    async def create(self) -> None:
        await asyncio.to_thread(self._create)

    def _create(self) -> None:
        for folder in (self._segments_folder.parent, self._segments_folder, self._keys_folder):
            folder.mkdir(exist_ok=True, mode=_OWNER_ONLY_FOLDER_MODE)

    async def put(self, name: str, path: Path, size: int) -> None:  # noqa: ARG002 - a bucket needs it
        await asyncio.to_thread(self._put, name, path)

    def _put(self, name: str, path: Path) -> None:
        self._check()
        draft = self._segments_folder / f"{_DRAFT}{name}"
        try:
            with path.open("rb") as source, open(draft, "xb", opener=_open_private) as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
                target.flush()
                os.fsync(target.fileno())
            draft.rename(self._segments_folder / name)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        sync_folder(self._segments_folder)

    async def read(self, name: str, location: Location) -> bytes | None:
        return await asyncio.to_thread(self._read, name, location)

    def _read(self, name: str, location: Location) -> bytes | None:
        self._check()
        try:
            with (self._segments_folder / name).open("rb") as file:
                return os.pread(file.fileno(), location.bytes, location.position)
        except FileNotFoundError:
            return None

    async def erase(
        self,
        name: str,
        new_name: str,  # noqa: ARG002 - as above
        size: int,  # noqa: ARG002
        locations: Sequence[Location],
    ) -> str:
        await asyncio.to_thread(self._erase, name, locations)
        return name

    def _erase(self, name: str, locations: Sequence[Location]) -> None:
        self._check()
        with suppress(FileNotFoundError):
            overwrite_frames(self._segments_folder / name, locations)

    async def remove(self, names: Sequence[str]) -> None:
        await asyncio.to_thread(self._remove, names)

    def _remove(self, names: Sequence[str]) -> None:
        self._check()
        for name in names:
            (self._segments_folder / name).unlink(missing_ok=True)
            (self._segments_folder / f"{_DRAFT}{name}").unlink(missing_ok=True)
        sync_folder(self._segments_folder)

    async def list_older(self, age_s: float) -> list[str]:
        return await asyncio.to_thread(self._list_older, age_s)

    def _list_older(self, age_s: float) -> list[str]:
        self._check()
        with os.scandir(self._segments_folder) as entries:
            ages = {entry.name: time.time() - entry.stat().st_mtime for entry in entries if entry.is_file()}
        return [name for name, file_age_s in ages.items() if file_age_s > age_s]

    async def read_mark(self) -> str:
        return await asyncio.to_thread(self._read_mark)

    def _read_mark(self) -> str:
        self._check()
        try:
            return (self._segments_folder.parent / MARK_FILE).read_text(encoding="ascii").strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    async def write_mark(self, mark: str) -> None:
        await asyncio.to_thread(write_private, self._segments_folder.parent / MARK_FILE, mark.encode())

    def open_keys(self, node: str) -> KeyFiles:
        return FolderKeyFiles(self._keys_folder / (node or SINGLE_NODE), self._check)

    def list_key_nodes(self) -> list[str]:
        self._check()
        return ["" if path.name == SINGLE_NODE else path.name for path in self._keys_folder.iterdir() if path.is_dir()]

    def _check(self) -> None:
        if not self._keys_folder.is_dir():
            raise FileNotFoundError(f"the folder {self._keys_folder} is missing: is it mounted?")


def describe_other_owner() -> str:
    """Return what is wrong with a store that has the mark of another database, and what to do."""
    return (
        "the kept bodies there are those of another database, and this one, perhaps restored from its backup, removes "
        f"and moves none. If no other gateway uses the store, remove {FOLDER}/{MARK_FILE} there"
    )


def make_segment_name() -> str:
    """Return a new name, which no other segment of any node has."""
    return f"{secrets.token_hex(_NAME_BYTES)}{_SUFFIX}"


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
