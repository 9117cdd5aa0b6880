"""Clients' files: received into the file store, listed, read, and deleted on request or when they expire."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from gateway.domain.account import Caller
from gateway.domain.audit_log import AuditRow
from gateway.domain.client_file import ClientFile, FileFilter, FileRules, NewFile, is_client_id
from gateway.domain.media import AnyMedia
from gateway.errors import GatewayError, NotFound, StoreUnavailable
from gateway.storage.client_files import ClientFileRepository
from gateway.storage.file_draft import FileDraft
from gateway.storage.file_folder import make_client_id
from gateway.storage.media_store import FileStore

FIRST_SWEEP_S = 20.0
SWEEP_EVERY_S = 3_600.0
_UPLOAD_LIFETIME_MS = 24 * 3_600 * 1000
_PREFIX = "file-"
_SECOND_MS = 1000

log = structlog.stdlib.get_logger(__name__)


class ReceivedFile:
    """A file that is being received; the form's reader writes to it. ``draft`` becomes a stored file at the end."""

    def __init__(self, draft: FileDraft) -> None:
        self.draft = draft
        self._size = 0

    @property
    def size(self) -> int:
        return self._size

    async def write(self, data: bytes) -> None:
        await self.draft.write(data)
        self._size += len(data)

    async def read(self, offset: int, size: int) -> bytes:
        """Raise ``NotImplementedError``: the file is write-only."""
        raise NotImplementedError

    def close(self) -> None:
        self.draft.discard()


class ClientFiles:
    """The files of all accounts.

    Args:
        find_rules: returns the current limits.
        expiry_clock: the clock by which files and uploads expire for ``sweep``.
    """

    def __init__(
        self,
        store: ClientFileRepository,
        folder: FileStore,
        find_rules: Callable[[], FileRules],
        clock: Callable[[], float],
        expiry_clock: Callable[[], float],
    ) -> None:
        self._expiry_clock = expiry_clock
        self.store = store
        self.folder = folder
        self._find_rules = find_rules
        self._clock = clock

    @property
    def rules(self) -> FileRules:
        return self._find_rules()

    @property
    def now_ms(self) -> int:
        return int(self._clock() * _SECOND_MS)

    def receive(self) -> ReceivedFile:
        """Return a new, empty file. Raises ``StoreUnavailable`` if nothing can be stored now."""
        self.folder.check_room()
        return ReceivedFile(self.folder.open_draft())

    def plan(self, new_file: NewFile, account_id: int, key_id: int, size: int) -> ClientFile:
        now_ms, retention_ms = self.now_ms, self.rules.keep_ms
        if new_file.kept_s is not None:
            retention_ms = new_file.kept_s * _SECOND_MS
        return ClientFile(
            id=make_client_id(_PREFIX),
            account_id=account_id,
            key_id=key_id,
            filename=new_file.filename,
            purpose=new_file.purpose,
            bytes=size,
            created_ms=now_ms,
            expires_ms=now_ms + retention_ms if retention_ms else None,
        )

    async def add(self, new_file: NewFile, caller: Caller, draft: FileDraft, size: int) -> ClientFile:
        file = self.plan(new_file, caller.account.id, caller.key.id, size)
        await self.folder.keep(draft, file.id)
        try:
            await self.store.add_file(file, self.rules.max_total_bytes)
        except GatewayError:
            await self.folder.remove(file.id)
            raise
        return file

    async def get(self, file_id: str, account_id: int | None) -> ClientFile:
        """Return the file of the account, or of any account if ``account_id`` is None. Raises ``NotFound``."""
        file = await self.store.find_file(file_id, account_id) if is_client_id(file_id, _PREFIX) else None
        if file is None or (file.expires_ms is not None and file.expires_ms <= self.now_ms):
            raise NotFound(f"There is no file with the id {file_id[:64]!r}", param="file_id", should_retry=False)
        return file

    async def open(self, file: ClientFile) -> AnyMedia:
        return await self.folder.find(file.id)

    async def list_files(self, file_filter: FileFilter) -> Sequence[ClientFile]:
        return await self.store.list_files(file_filter)

    async def remove(self, file: ClientFile, audit: AuditRow | None = None) -> bool:
        """Delete a file and store ``audit``. Return False and store nothing if another request has deleted the file."""
        is_deleted = await self.store.delete_file(file, audit)
        await self.folder.remove(file.id)
        return is_deleted

    async def run(self) -> None:
        await asyncio.sleep(FIRST_SWEEP_S)
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_EVERY_S)

    async def sweep(self) -> None:
        """Delete expired files, old uploads, old drafts, and bytes that nothing in the database names any more.

        The latter are those of deleted accounts, ended uploads and ended batches. Errors are logged.
        """
        now_ms = int(self._expiry_clock() * _SECOND_MS)
        try:
            rows = await self.store.delete_expired(now_ms, now_ms - _UPLOAD_LIFETIME_MS)
            result = await self.folder.sweep(await self.store.list_used_ids())
        except (StoreUnavailable, OSError) as error:
            log.warning("files_not_swept", error=str(error))
            return
        if rows or result.files:
            log.info("files_swept", rows=rows, files=result.files, bytes=result.freed_bytes)
