"""Shared stores of kept bodies: a folder, and a bucket of a server of this process."""

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from typing_extensions import override

from gateway.storage.bodies.body_store import BodyStore
from gateway.storage.bodies.bucket_segments import BucketSegments
from gateway.storage.bodies.segment_store import FolderSegments, SegmentStore
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox
from tests.support.body_stores import MASTER, NUMBERED, find_marker, open_bodies, share
from tests.support.media_stores import open_bucket
from tests.support.s3_server import S3Server, start_s3_server


class SharedPlace(ABC):
    """Where nodes move their segments. ``copies`` is a folder for copies of it."""

    def __init__(self, copies: Path) -> None:
        self._copies = copies

    @property
    @abstractmethod
    def url(self) -> str:
        """The gateway's setting."""

    @abstractmethod
    def open(self) -> SegmentStore:
        """The store of a node."""

    @abstractmethod
    def save(self, copy: Path) -> None:
        """Copy everything into a folder."""

    @abstractmethod
    def break_down(self) -> None:
        """Let every call fail from now on."""

    @abstractmethod
    def repair(self) -> None:
        """Let calls work again. Does nothing if they work."""

    @abstractmethod
    def age(self, seconds: float) -> None:
        """Let everything have been stored earlier."""

    def list_segments(self) -> list[str]:
        return sorted(path.name for path in (self.copy() / "bodies" / "segments").glob("*"))

    def copy(self) -> Path:
        """A copy of everything, as a folder."""
        shutil.rmtree(self._copies, ignore_errors=True)
        self._copies.mkdir()
        self.save(self._copies)
        return self._copies

    def find(
        self,
        marker: str,
        segments: Path | None = None,
        *,
        master: SecretBox = MASTER,
        request_ids: Sequence[str] = NUMBERED,
    ) -> list[str]:
        """The files with ``marker``, unsealed with every data key of every node that is in the store now.

        ``segments``: search in an older copy instead.
        """
        copy = self.copy()
        found = []
        for keys in (copy / "nothing", *(copy / "bodies" / "keys").glob("*")):
            found += find_marker(segments or copy, marker.encode(), keys, master=master, request_ids=request_ids)
        return found


class SharedFolder(SharedPlace):
    def __init__(self, copies: Path, folder: Path) -> None:
        super().__init__(copies)
        self._folder = folder
        folder.mkdir()

    @property
    @override
    def url(self) -> str:
        return str(self._folder)

    @override
    def open(self) -> SegmentStore:
        return FolderSegments(self._folder)

    @override
    def save(self, copy: Path) -> None:
        shutil.copytree(self._folder, copy, dirs_exist_ok=True)

    @override
    def break_down(self) -> None:
        """As if its mount were gone: the mount point is left, empty."""
        self._folder.rename(self._folder.with_suffix(".away"))
        self._folder.mkdir()

    @override
    def repair(self) -> None:
        away = self._folder.with_suffix(".away")
        if away.exists():
            shutil.rmtree(self._folder)
            away.rename(self._folder)

    @override
    def age(self, seconds: float) -> None:
        for path in self._folder.rglob("*"):
            os.utime(path, (time.time() - seconds,) * 2)


class SharedBucket(SharedPlace):
    def __init__(self, copies: Path, server: S3Server) -> None:
        super().__init__(copies)
        self._server = server

    @property
    @override
    def url(self) -> str:
        return self._server.media_url

    @override
    def open(self) -> SegmentStore:
        return BucketSegments(open_bucket(self._server), "s3://bucket")

    @override
    def save(self, copy: Path) -> None:
        for name, stored in self._server.objects.items():
            path = copy / name.removeprefix("gw/one/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stored.body)

    @override
    def break_down(self) -> None:
        self._server.fails = 503

    @override
    def repair(self) -> None:
        self._server.fails = 0

    @override
    def age(self, seconds: float) -> None:
        self._server.age_all(timedelta(seconds=seconds))


@asynccontextmanager
async def open_place(kind: str, path: Path) -> AsyncIterator[SharedPlace]:
    """A shared folder or a bucket, by its name in ``media_stores.KINDS``."""
    if kind == "folder":
        yield SharedFolder(path / "copies", path / "shared")
        return
    async with start_s3_server() as server:
        yield SharedBucket(path / "copies", server)


def open_moving_node(database: Database, folder: Path, store: SegmentStore, max_bytes: int = 10**6) -> BodyStore:
    """The node ``folder.name``, which moves what it keeps to ``store``."""
    shared = share(database, folder / "bodies", store, node=folder.name)
    return open_bodies(database, folder / "bodies", node=folder.name, shared=shared, max_segment_bytes=max_bytes)


async def move_all(store: BodyStore) -> None:
    """Write what waits, and move it."""
    await store.write_waiting()
    await store.move_finished()
