"""A bucket of an S3-compatible store: reads, writes and lists objects by name, within time limits.

Credentials, and a region or endpoint missing from the address, come from the environment variables that AWS's own tools
read; a role of the machine or of its pod works, too (docs.rs/object_store, ``AmazonS3Builder``).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import structlog
from obstore.exceptions import BaseError
from obstore.store import S3Store

from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.storage.media_location import BucketAddress

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 20.0
RETRY_FOR_S = 5.0
"""How long a request is repeated, in seconds: enough that a short outage loses no paid result."""
OPERATION_TIMEOUT_S = 45.0
"""Timeout of a call with its retries, in seconds. A large object gets more time, by ``MIN_RATE``."""
MIN_RATE = 128 * 1024
"""Bytes per second that the transfer of a large object must average."""
FAILURE_PAUSE_S = 3.0
"""Seconds after an error during which the bucket counts as down."""
PART_BYTES = 8 * 1024 * 1024
MAX_PARALLEL_PARTS = 4
_ERROR_CHARS = 300

log = structlog.stdlib.get_logger(__name__)


@frozen
class StoredObject:
    """An object of a bucket. ``stored_s`` is Unix time: by the store's clock if it was read from the store."""

    name: str
    size: int
    stored_s: float


class Bucket:
    """Reads and writes the objects of a bucket.

    Names are relative to the address's prefix. Methods raise ``StoreUnavailable`` if the store refuses or does not
    answer. Those ending in ``_now`` block and are for threads. ``retry_for_s`` is how long a request is repeated after
    its first attempt if the store does not answer.
    """

    def __init__(self, address: BucketAddress, *, retry_for_s: float = RETRY_FOR_S) -> None:
        self._store = _open_store(address, retry_for_s)
        self._failed_s = float("-inf")
        self._is_failing = False

    def check_reachable(self) -> None:
        """Raise ``StoreUnavailable`` if the last call failed moments ago, so that no paid work starts."""
        if self._is_failing and time.monotonic() - self._failed_s < FAILURE_PAUSE_S:
            raise _make_unavailable()

    async def put(self, name: str, data: bytes | Path, size: int) -> None:
        """Store ``size`` bytes, or a local file, under ``name``, completely or not at all."""
        async with self._limit_call("put", OPERATION_TIMEOUT_S + size / MIN_RATE):
            await obstore.put_async(self._store, name, data, chunk_size=PART_BYTES, max_concurrency=MAX_PARALLEL_PARTS)

    async def find(self, name: str) -> StoredObject | None:
        async with self._limit_call("find"):
            try:
                meta = await obstore.head_async(self._store, name)
            except FileNotFoundError:
                return None
        return StoredObject(name, meta["size"], meta["last_modified"].timestamp())

    async def read(self, name: str, start: int, stop: int) -> bytes | None:
        if start == stop:
            return b""
        async with self._limit_call("read", OPERATION_TIMEOUT_S + (stop - start) / MIN_RATE):
            try:
                return bytes(await obstore.get_range_async(self._store, name, start=start, end=stop))
            except FileNotFoundError:
                return None

    async def delete(self, names: Sequence[str]) -> None:
        async with self._limit_call("delete"):
            await obstore.delete_async(self._store, list(names))

    async def list_objects(self, folder: str) -> AsyncIterator[list[StoredObject]]:
        pages = obstore.list(self._store, folder)
        while True:
            async with self._limit_call("list"):
                try:
                    batch = await anext(pages)
                except StopAsyncIteration:
                    return
            yield [StoredObject(entry["path"], entry["size"], entry["last_modified"].timestamp()) for entry in batch]

    def put_now(self, name: str, data: bytes | Path) -> None:
        with self._translate_errors("put"):
            obstore.put(self._store, name, data, chunk_size=PART_BYTES, max_concurrency=MAX_PARALLEL_PARTS)

    def read_now(self, name: str) -> bytes:
        with self._translate_errors("read"):
            return bytes(obstore.get(self._store, name).bytes())

    def find_content_now(self, name: str) -> bytes | None:
        with self._translate_errors("read"):
            try:
                return bytes(obstore.get(self._store, name).bytes())
            except FileNotFoundError:
                return None

    def find_size_now(self, name: str) -> int | None:
        with self._translate_errors("find"):
            try:
                return obstore.head(self._store, name)["size"]
            except FileNotFoundError:
                return None

    def list_now(self, folder: str) -> list[str]:
        with self._translate_errors("list"):
            return sorted(entry["path"] for batch in obstore.list(self._store, folder) for entry in batch)

    def delete_now(self, names: Sequence[str]) -> None:
        with self._translate_errors("delete"):
            if names:
                obstore.delete(self._store, list(names))

    @asynccontextmanager
    async def _limit_call(self, operation: str, timeout_s: float = OPERATION_TIMEOUT_S) -> AsyncIterator[None]:
        with self._translate_errors(operation):
            async with asyncio.timeout(timeout_s):
                yield

    @contextmanager
    def _translate_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:  # time-outs are OSErrors; for some errors obstore raises Python's own
            self._is_failing, self._failed_s = True, time.monotonic()
            text = str(error).partition("\n\nDebug source")[0][:_ERROR_CHARS] or type(error).__name__
            log.warning("media_store_failed", operation=operation, error=text)
            raise _make_unavailable() from error
        self._is_failing = False


def _make_unavailable() -> StoreUnavailable:
    return StoreUnavailable("The gateway's store of media and files does not answer", retry_after_s=5)


def _open_store(address: BucketAddress, retry_for_s: float) -> S3Store:
    """Return obstore's client, which connects at the first call."""
    config: S3Config = {}
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
    }
    retry: RetryConfig = {
        "max_retries": 10,
        "retry_timeout": timedelta(seconds=retry_for_s),
        "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=1), "base": 2},
    }
    if address.endpoint:
        scheme, _, host = address.endpoint.partition("://")
        config["endpoint"] = f"{scheme}://{address.bucket}.{host}" if address.virtual else address.endpoint
        client["allow_http"] = scheme == "http"
    if address.region:
        config["region"] = address.region
    config["virtual_hosted_style_request"] = address.virtual
    if address.access_key:
        config["access_key_id"], config["secret_access_key"] = address.access_key, address.secret_key
    prefix = address.prefix or None
    return S3Store(address.bucket, prefix=prefix, config=config, client_options=client, retry_config=retry)
