"""Both stores of media and of clients' files: a folder, and a bucket of a server of this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.storage.bucket.client import Bucket
from gateway.storage.bucket.files import BucketFiles
from gateway.storage.bucket.media import BucketMedia
from gateway.storage.file_folder import FileFolder
from gateway.storage.media_files import MediaFiles
from gateway.storage.media_location import BucketAddress, parse_location
from gateway.storage.media_store import FileStore, MediaStore
from tests.support.s3_server import S3Server, start_s3_server

KINDS = ("folder", "bucket")


def open_bucket(server: S3Server, *, retry_for_s: float = 0.2) -> Bucket:
    """A client of the server, which gives up soon."""
    address = parse_location(server.media_url)
    assert isinstance(address, BucketAddress)
    return Bucket(address, retry_for_s=retry_for_s)


def make_media(server: S3Server, local: Path, folder: str = "media") -> BucketMedia:
    """A node's store of media in the server's bucket."""
    return BucketMedia(open_bucket(server), folder, MediaFiles(local))


def make_files(server: S3Server, local: Path) -> BucketFiles:
    """A node's store of clients' files in the server's bucket."""
    return BucketFiles(open_bucket(server), MediaFiles(local), local)


@asynccontextmanager
async def open_media_store(kind: str, path: Path) -> AsyncIterator[MediaStore]:
    if kind == "folder":
        yield MediaFiles(path)
        return
    async with start_s3_server() as server:
        yield make_media(server, path / "drafts")


@asynccontextmanager
async def open_two_media_stores(kind: str, path: Path) -> AsyncIterator[tuple[MediaStore, MediaStore]]:
    """Two nodes' stores of the same media."""
    if kind == "folder":
        yield MediaFiles(path), MediaFiles(path)
        return
    async with start_s3_server() as server:
        yield make_media(server, path / "drafts1"), make_media(server, path / "drafts2")


@asynccontextmanager
async def open_two_file_stores(kind: str, path: Path) -> AsyncIterator[tuple[FileStore, FileStore]]:
    """Two nodes' stores of the same clients' files."""
    if kind == "folder":
        yield FileFolder(path), FileFolder(path)
        return
    async with start_s3_server() as server:
        yield make_files(server, path / "drafts1"), make_files(server, path / "drafts2")
