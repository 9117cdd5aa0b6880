"""Segments and data keys of kept bodies in a bucket of an S3-compatible store."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.errors import StoreUnavailable
from gateway.storage.bodies.data_keys import KeyFiles
from gateway.storage.bodies.segment_store import FOLDER, KEYS_FOLDER, MARK_FILE, SEGMENTS_FOLDER, SINGLE_NODE
from gateway.storage.bodies.segments import Location
from gateway.storage.bucket.client import Bucket
from gateway.storage.bucket.media import delete_objects

KEY_PAUSE_S = 30.0
"""Seconds after a failed call during which no data key is read or made: each call holds up all writing."""
_SEGMENTS = f"{FOLDER}/{SEGMENTS_FOLDER}"
_KEYS = f"{FOLDER}/{KEYS_FOLDER}"
_MARK = f"{FOLDER}/{MARK_FILE}"
_KEY_SUFFIX = ".key"


class BucketSegments:
    """The segments in a bucket. Objects cannot be changed in place: an erased segment is stored under another name."""

    def __init__(self, bucket: Bucket, location: str) -> None:
        self._bucket = bucket
        self._location = location

    @property
    def location(self) -> str:
        return self._location

    async def create(self) -> None:
        """Do nothing: a bucket has no folders."""

    async def put(self, name: str, path: Path, size: int) -> None:
        with self._translate_errors():
            await self._bucket.put(_name_object(name), path, size)

    async def read(self, name: str, location: Location) -> bytes | None:
        with self._translate_errors():
            start = location.position
            return await self._bucket.read(_name_object(name), start, start + location.bytes)

    async def erase(self, name: str, new_name: str, size: int, locations: Sequence[Location]) -> str:
        with self._translate_errors():
            content = await self._bucket.read(_name_object(name), 0, size)
            if content is None:
                return name
            if len(content) != size:  # stored anew, a part of the segment would replace all of it
                raise OSError(f"the bucket has returned {len(content)} of {size} bytes of a segment")
            erased = await asyncio.to_thread(_erase_frames, content, locations)
            await self._bucket.put(_name_object(new_name), erased, len(erased))
        return new_name

    async def remove(self, names: Sequence[str]) -> None:
        with self._translate_errors():
            await delete_objects(self._bucket, [_name_object(name) for name in names])

    async def list_older(self, age_s: float) -> list[str]:
        before_s, names = time.time() - age_s, list[str]()
        with self._translate_errors():
            async for batch in self._bucket.list_objects(_SEGMENTS):
                names += [stored.name.rpartition("/")[2] for stored in batch if stored.stored_s < before_s]
        return names

    async def read_mark(self) -> str:
        with self._translate_errors():
            content = await asyncio.to_thread(self._bucket.find_content_now, _MARK)
        return (content or b"").decode("ascii", "replace").strip()

    async def write_mark(self, mark: str) -> None:
        with self._translate_errors():
            await self._bucket.put(_MARK, mark.encode(), len(mark))

    def open_keys(self, node: str) -> KeyFiles:
        return BucketKeyFiles(self._bucket, f"{_KEYS}/{node or SINGLE_NODE}")

    def list_key_nodes(self) -> list[str]:
        with self._translate_errors():
            nodes = {name.split("/")[-2] for name in self._bucket.list_now(_KEYS)}
        return ["" if node == SINGLE_NODE else node for node in nodes]

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable as error:
            raise _make_error(error) from error


class BucketKeyFiles:
    """Sealed data keys of one node as objects in ``folder`` of the bucket."""

    def __init__(self, bucket: Bucket, folder: str) -> None:
        self._bucket = bucket
        self._folder = folder
        self._failed_at = float("-inf")

    def read(self, account_id: int) -> bytes | None:
        self._check()
        with self._note_failure():
            return self._bucket.find_content_now(self._name(account_id))

    def write(self, account_id: int, sealed: bytes) -> None:
        self._check()
        with self._note_failure():
            self._bucket.put_now(self._name(account_id), sealed)

    def destroy(self, account_id: int) -> bool:
        with self._note_failure():
            was_there = self._bucket.find_size_now(self._name(account_id)) is not None
            self._bucket.delete_now([self._name(account_id)])
        return was_there

    def remove_dead(self) -> None:
        """Do nothing: an object is removed in one step."""

    def list_accounts(self) -> list[int]:
        with self._note_failure():
            names = self._bucket.list_now(self._folder)
        stems = [name.rpartition("/")[2].removesuffix(_KEY_SUFFIX) for name in names]
        return [int(stem) for stem in stems if stem.isdigit()]

    def _check(self) -> None:
        if time.monotonic() - self._failed_at < KEY_PAUSE_S:
            raise OSError("the bucket with the data keys did not answer moments ago")

    @contextmanager
    def _note_failure(self) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable as error:
            self._failed_at = time.monotonic()
            raise _make_error(error) from error
        self._failed_at = float("-inf")

    def _name(self, account_id: int) -> str:
        return f"{self._folder}/{account_id}{_KEY_SUFFIX}"


def _name_object(name: str) -> str:
    return f"{_SEGMENTS}/{name}"


def _erase_frames(content: bytes, locations: Sequence[Location]) -> bytes:
    erased = bytearray(content)
    for location in locations:
        count = max(min(location.bytes, len(erased) - location.position), 0)
        erased[location.position : location.position + count] = bytes(count)
    return bytes(erased)


def _make_error(error: StoreUnavailable) -> OSError:
    reason = str(error.__cause__ or error).partition("\n")[0][:300]
    return OSError(f"the bucket does not answer: {reason}")
