"""Clients' files and uploads in the database."""

from collections.abc import Sequence
from typing import Any

import attrs
from sqlalchemy import Column, ColumnElement, Row, case, delete, func, insert, or_, select, union_all, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.audit_log import AuditRow
from gateway.domain.batch import ENDED_STATES
from gateway.domain.client_file import ClientFile, ClientUpload, FileFilter, UploadPart, UploadStatus
from gateway.errors import Conflict, NotFound, RequestTooLarge
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.kept_changes import KeptKind
from gateway.storage.schema import batches, files, upload_parts, uploads

_FILE_COLUMNS = [column for column in files.c if column.name != "sequence"]

MIN_BYTES = 4096
"""The least size that a file or an open upload counts as: an empty one occupies a row and a file name, too."""


class ClientFileRepository:
    """The tables ``files``, ``uploads`` and ``upload_parts``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_file(self, file: ClientFile, max_total_bytes: int) -> None:
        """Store a new file. Raises ``NotFound`` without the account, and ``RequestTooLarge`` if the account lacks room.

        ``max_total_bytes``: the bound of all files and open uploads of the account; 0 for none.
        """

        async def add(connection: AsyncConnection) -> None:
            await _check_room(connection, file, max_total_bytes)
            await connection.execute(insert(files).values(attrs.asdict(file)))

        await self._write(add)
        self._keep("file", file)

    async def find_file(self, file_id: str, account_id: int | None) -> ClientFile | None:
        """Return a file of the account, or of any account if ``account_id`` is None; None if there is no such file."""
        query = select(*_FILE_COLUMNS).where(files.c.id == file_id, *_match_account(account_id))
        rows = await self._database.read(query)
        self._database.check_found(found=bool(rows))
        return _parse_file(rows[0]) if rows else None

    async def list_files(self, file_filter: FileFilter) -> Sequence[ClientFile]:
        number = files.c.sequence
        is_unexpired = or_(files.c.expires_ms.is_(None), files.c.expires_ms > file_filter.now_ms)
        query = (
            select(*_FILE_COLUMNS).where(*_match_account(file_filter.account_id), is_unexpired).limit(file_filter.limit)
        )
        if file_filter.search:
            matches = [
                column.icontains(file_filter.search, autoescape=True) for column in (files.c.id, files.c.filename)
            ]
            query = query.where(or_(*matches))
        if file_filter.purpose is not None:
            query = query.where(files.c.purpose == file_filter.purpose)
        if file_filter.after is not None:
            cursor = select(number).where(files.c.id == file_filter.after, *_match_account(file_filter.account_id))
            cursor_sequence = cursor.scalar_subquery()
            query = query.where(number < cursor_sequence if file_filter.newest_first else number > cursor_sequence)
        query = query.order_by(number.desc() if file_filter.newest_first else number)
        return [_parse_file(row) for row in await self._database.read(query)]

    async def delete_file(self, file: ClientFile, audit: AuditRow | None = None) -> bool:
        """Delete the row of a file and store ``audit`` in one commit. If it is gone, store nothing and return False."""
        is_deleted = bool(await self._database.change(delete(files).where(files.c.id == file.id), audit))
        self._database.check_found(found=is_deleted)
        self._keep("file", file, removed=True)
        return is_deleted

    async def add_upload(self, upload: ClientUpload, max_total_bytes: int) -> None:
        """Store a new upload, whose declared bytes count while it is open. Raises the errors of ``add_file``."""

        async def add(connection: AsyncConnection) -> None:
            await _check_room(connection, upload, max_total_bytes)
            await connection.execute(insert(uploads).values(attrs.asdict(upload)))

        await self._write(add)
        self._keep("upload", upload)

    async def find_upload(self, upload_id: str, account_id: int) -> ClientUpload | None:
        query = select(uploads).where(uploads.c.id == upload_id, uploads.c.account_id == account_id)
        rows = await self._database.read(query)
        self._database.check_found(found=bool(rows))
        return ClientUpload(**rows[0]._mapping) if rows else None  # noqa: SLF001 - the documented way to a row's names

    async def list_parts(self, upload_id: str) -> Sequence[UploadPart]:
        rows = await self._database.read(select(upload_parts).where(upload_parts.c.upload_id == upload_id))
        self._database.check_found(found=False)  # how many there are is not known
        return [UploadPart(**row._mapping) for row in rows]  # noqa: SLF001 - as above

    async def add_part(self, upload_part: UploadPart, upload: ClientUpload) -> None:
        """Store a new part. Raises ``Conflict`` if the upload has ended.

        Raises ``RequestTooLarge`` if the parts exceed the upload's declared size.
        """

        async def add(connection: AsyncConnection) -> None:
            sent_bytes = select(func.coalesce(func.sum(upload_parts.c.bytes), 0)).where(
                upload_parts.c.upload_id == upload.id
            )
            if (await connection.execute(sent_bytes)).scalar_one() + upload_part.bytes > upload.bytes:
                raise RequestTooLarge(f"The parts have more than the {upload.bytes} bytes of the upload", param="data")
            await _check_pending_upload(connection, upload)
            await connection.execute(insert(upload_parts).values(attrs.asdict(upload_part)))

        await self._write(add)
        self._keep("upload_part", upload_part, upload=attrs.asdict(upload))

    async def complete_upload(self, upload: ClientUpload, file: ClientFile) -> None:
        """Replace the parts of a pending upload with its file. Raises ``Conflict`` if the upload has ended."""

        async def complete(connection: AsyncConnection) -> None:
            await _check_pending_upload(connection, upload)
            await connection.execute(delete(upload_parts).where(upload_parts.c.upload_id == upload.id))
            completion = update(uploads).where(uploads.c.id == upload.id).values(status="completed", file_id=file.id)
            await connection.execute(completion)
            await connection.execute(insert(files).values(attrs.asdict(file)))

        await self._write(complete)
        self._keep("file", file)
        self._keep("upload", attrs.evolve(upload, status="completed", file_id=file.id))

    async def end_upload(self, upload: ClientUpload, status: UploadStatus) -> None:
        async def end(connection: AsyncConnection) -> None:
            await _check_pending_upload(connection, upload)
            await connection.execute(delete(upload_parts).where(upload_parts.c.upload_id == upload.id))
            await connection.execute(update(uploads).where(uploads.c.id == upload.id).values(status=status))

        await self._write(end)
        self._keep("upload", attrs.evolve(upload, status=status))

    async def delete_expired(self, now_ms: int, uploads_before_ms: int) -> int:
        deleted_count = await self._database.change(delete(files).where(files.c.expires_ms <= now_ms))
        return deleted_count + await self._database.change(
            delete(uploads).where(uploads.c.expires_ms < uploads_before_ms)
        )

    async def list_used_ids(self) -> set[str]:
        """Return the ids of all files, parts of uploads, and running batches: what has a name in the folder."""
        running_batches = select(batches.c.id).where(batches.c.status.not_in(sorted(ENDED_STATES)))
        ids = union_all(select(files.c.id), select(upload_parts.c.id), running_batches)
        return {row[0] for row in await self._database.read(ids)}

    def _keep(self, kind: KeptKind, row: ClientFile | ClientUpload | UploadPart, **extra_fields: Any) -> None:
        if self._database.kept is not None:
            self._database.kept.keep(kind, row.id, {"row": attrs.asdict(row), **extra_fields})

    async def _write(self, work: Any) -> None:
        try:
            await self._database.write(work)
        except IntegrityError:
            raise NotFound("The account or the upload was deleted") from None


def _match_account(account_id: int | None) -> list[ColumnElement[bool]]:
    return [] if account_id is None else [files.c.account_id == account_id]


async def _check_room(connection: AsyncConnection, new_object: ClientFile | ClientUpload, max_total_bytes: int) -> None:
    """Raise ``RequestTooLarge`` unless ``new_object`` fits next to what the account has already.

    Files count with their sizes, open uploads with the declared ones, and expired uploads with those of their parts.
    """
    if not max_total_bytes:
        return
    is_account, is_unexpired = (
        uploads.c.account_id == new_object.account_id,
        uploads.c.expires_ms > new_object.created_ms,
    )
    joined_tables = upload_parts.join(uploads, uploads.c.id == upload_parts.c.upload_id)
    held_bytes = 0
    for sizes in (
        select(_sum_counted_bytes(files.c.bytes)).where(files.c.account_id == new_object.account_id),
        select(_sum_counted_bytes(uploads.c.bytes)).where(is_account, is_unexpired, uploads.c.status == "pending"),
        select(_sum_counted_bytes(upload_parts.c.bytes)).select_from(joined_tables).where(is_account, ~is_unexpired),
    ):
        held_bytes += (await connection.execute(sizes)).scalar_one()
    if held_bytes + max(new_object.bytes, MIN_BYTES) > max_total_bytes:
        limit = max_total_bytes // 1024**2
        param = "file" if isinstance(new_object, ClientFile) else "bytes"
        raise RequestTooLarge(f"The account's files may have {limit} MB together: delete some", param=param)


def _sum_counted_bytes(size: Column[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((size < MIN_BYTES, MIN_BYTES), else_=size)), 0)


async def _check_pending_upload(connection: AsyncConnection, upload: ClientUpload) -> None:
    status_rows = await connection.execute(select(uploads.c.status).where(uploads.c.id == upload.id))
    if status_rows.scalar() != "pending":
        raise Conflict("The upload has ended", param="upload_id", should_retry=False)


def _parse_file(row: Row[Any]) -> ClientFile:
    return ClientFile(**row._mapping)  # noqa: SLF001 - the documented way to a row's names
