"""Images or videos in a bucket: ``<folder>/<first two digits>/<32 digits>.<extension>``, as in a folder."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import attrs

from gateway.domain import media
from gateway.errors import NotFound, StoreUnavailable
from gateway.storage.bucket.client import Bucket, StoredObject
from gateway.storage.file_draft import FileDraft, make_media_id
from gateway.storage.media_files import MediaFiles, OldestFiles

NAMES_PER_BATCH = 500


class BucketMedia:
    """The media in one folder of the bucket. ``drafts`` is a local folder for files that arrive in pieces."""

    def __init__(
        self, bucket: Bucket, folder: str, drafts: MediaFiles, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._bucket = bucket
        self._clock = clock
        self._folder = folder
        self._drafts = drafts
        self._sweep_lock = asyncio.Lock()  # two concurrent sweeps would free the same space twice

    async def put(self, data: bytes) -> media.RemoteMedia:
        return await self.store(data, data, len(data))

    async def store(self, head: bytes, data: bytes | Path, size: int) -> media.RemoteMedia:
        media_type = media.sniff_media(head)
        if media_type is None:
            raise media.UnknownMedia("The gateway does not keep files of this type")
        media_id = make_media_id(media_type)
        name = self._name(media_id)
        await self._bucket.put(name, data, size)
        return make_remote(self._bucket, StoredObject(name, size, self._clock()), media_id, media_type)

    def open_draft(self) -> "BucketDraft":
        return BucketDraft(self, self._drafts.open_draft())

    def check_room(self) -> None:
        self._bucket.check_reachable()
        self._drafts.check_room()

    async def find(self, media_id: str) -> media.RemoteMedia | None:
        media_type = media.find_media_type(media_id)
        stored_object = await self._bucket.find(self._name(media_id)) if media_type is not None else None
        if media_type is None or stored_object is None:
            return None
        return make_remote(self._bucket, stored_object, media_id, media_type)

    async def remove(self, media_id: str) -> bool:
        if await self.find(media_id) is None:
            return False
        await self._bucket.delete([self._name(media_id)])
        return True

    async def sweep(self, *, before_s: float, max_bytes: int) -> media.CleanupResult:
        """Delete files stored before ``before_s``, then the oldest until at most ``max_bytes`` remain.

        Return how much was deleted and how much is left. If the bucket does not answer, the sweep ends with an empty
        result.
        """
        async with self._sweep_lock:
            try:
                return await self._sweep(before_s, max_bytes)
            except StoreUnavailable:
                return media.CleanupResult()

    async def _sweep(self, before_s: float, max_bytes: int) -> media.CleanupResult:
        result, left_bytes = media.CleanupResult(), 0
        async for batch in self._list_media():
            old_objects = [stored_object for stored_object in batch if stored_object.stored_s < before_s]
            left_bytes += sum(stored_object.size for stored_object in batch if stored_object.stored_s >= before_s)
            result = await self._delete(old_objects, result)
        if left_bytes > max_bytes:
            oldest_files = OldestFiles(left_bytes - max_bytes)
            async for batch in self._list_media():
                for stored_object in batch:
                    oldest_files.add((stored_object.stored_s, stored_object.size, stored_object.name))
            old_objects = [StoredObject(name, size, stored_s) for stored_s, size, name in oldest_files.list_surplus()]
            result = await self._delete(old_objects, result)
            left_bytes -= sum(stored_object.size for stored_object in old_objects)
        return attrs.evolve(result, left_bytes=left_bytes)

    async def _list_media(self) -> AsyncIterator[list[StoredObject]]:
        async for batch in self._bucket.list_objects(self._folder):
            yield [
                stored_object for stored_object in batch if media.find_media_type(stored_object.name.rpartition("/")[2])
            ]

    async def _delete(self, old_objects: list[StoredObject], former_result: media.CleanupResult) -> media.CleanupResult:
        await delete_objects(self._bucket, [stored_object.name for stored_object in old_objects])
        return media.CleanupResult(
            former_result.files + len(old_objects),
            former_result.freed_bytes + sum(stored_object.size for stored_object in old_objects),
        )

    def _name(self, media_id: str) -> str:
        return f"{self._folder}/{media_id[:2]}/{media_id}"


class BucketDraft:
    """A media file that arrives in pieces on this machine; ``keep`` stores it in the bucket."""

    def __init__(self, store: BucketMedia, draft: FileDraft) -> None:
        self._store = store
        self._draft = draft

    async def write(self, piece: bytes) -> None:
        await self._draft.write(piece)

    async def keep(self) -> media.AnyMedia:
        path, size, head = await asyncio.to_thread(self._draft.finish_draft)
        try:
            return await self._store.store(head, path, size)
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)

    def discard(self) -> None:
        self._draft.discard()


def make_remote(bucket: Bucket, stored_object: StoredObject, media_id: str, media_type: str) -> media.RemoteMedia:
    """Return the media file that an object of the bucket contains."""
    return media.RemoteMedia(
        media_id, media_type, stored_object.size, stored_object.stored_s, partial(_read, bucket, stored_object.name)
    )


async def _read(bucket: Bucket, name: str, start: int, stop: int) -> bytes:
    content = await bucket.read(name, start, stop)
    if content is None:
        raise NotFound("There is no such file any more", should_retry=False)
    return content


async def delete_objects(bucket: Bucket, names: list[str]) -> None:
    """Delete any number of objects, in batches. Raises ``StoreUnavailable``; then some may be deleted."""
    for start in range(0, len(names), NAMES_PER_BATCH):
        await bucket.delete(names[start : start + NAMES_PER_BATCH])
