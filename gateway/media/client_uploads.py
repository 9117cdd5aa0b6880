"""Uploads: files that clients send in parts. Any node of a cluster may receive parts and join them."""

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import aclosing

from gateway.domain.account import Caller
from gateway.domain.client_file import UPLOAD_TTL_MS, ClientFile, ClientUpload, NewFile, UploadPart, is_client_id
from gateway.errors import Conflict, GatewayError, InvalidRequest, NotFound, RequestTooLarge
from gateway.media.client_files import ClientFiles
from gateway.storage.file_draft import FileDraft
from gateway.storage.file_folder import make_client_id
from gateway.storage.media_reading import read_pieces

JOIN_BYTES = 1024 * 1024
"""Bytes of a part that are in memory at one time while the parts are joined."""


class ClientUploads:
    """The uploads of all accounts.

    Args:
        files: stores completed uploads.
    """

    def __init__(self, files: ClientFiles) -> None:
        self._files = files
        self._store = files.store
        self._folder = files.folder

    @property
    def now_ms(self) -> int:
        return self._files.now_ms

    async def create(self, new_file: NewFile, mime_type: str, size: int, caller: Caller) -> ClientUpload:
        limit = self._files.rules.max_bytes
        if limit and size > limit:
            raise RequestTooLarge(f"A file may have {limit // 1024**2} MB at most", param="bytes")
        now_ms = self.now_ms
        upload = ClientUpload(
            id=make_client_id("upload_"),
            account_id=caller.account.id,
            key_id=caller.key.id,
            filename=new_file.filename,
            purpose=new_file.purpose,
            mime_type=mime_type,
            bytes=size,
            created_ms=now_ms,
            expires_ms=now_ms + UPLOAD_TTL_MS,
            kept_s=new_file.kept_s,
        )
        await self._store.add_upload(upload, self._files.rules.max_total_bytes)
        return upload

    async def get(self, upload_id: str, account_id: int) -> ClientUpload:
        upload = await self._store.find_upload(upload_id, account_id) if is_client_id(upload_id, "upload_") else None
        if upload is None:
            text = f"There is no upload with the id {upload_id[:64]!r}"
            raise NotFound(text, param="upload_id", should_retry=False)
        return upload

    async def find_pending_upload(self, upload_id: str, account_id: int) -> ClientUpload:
        upload = await self.get(upload_id, account_id)
        status = upload.find_status(self.now_ms)
        if status != "pending":
            raise Conflict(f"The upload is {status}", param="upload_id", should_retry=False)
        return upload

    async def add_part(self, upload: ClientUpload, draft: FileDraft, size: int) -> UploadPart:
        """Store a received part.

        Raises ``Conflict`` if the upload has ended, ``RequestTooLarge`` if the parts exceed its size, and ``NotFound``
        if it was deleted.
        """
        part = UploadPart(make_client_id("part_"), upload.id, size, self.now_ms)
        await self._folder.keep(draft, part.id)
        try:
            await self._store.add_part(part, upload)
        except GatewayError:
            await self._folder.remove(part.id)
            raise
        return part

    async def complete(self, upload: ClientUpload, part_ids: Sequence[str], md5: str | None) -> ClientFile:
        """Join the parts, in the order of ``part_ids``, into a file. Then delete all parts of the upload.

        Raises ``InvalidRequest`` for an unknown part, a wrong size or a wrong checksum, ``Conflict`` if the upload has
        ended, and another ``GatewayError`` if the file cannot be stored.
        """
        parts = {part.id: part for part in await self._store.list_parts(upload.id)}
        unknown_part = next((part_id for part_id in part_ids if part_id not in parts), None)
        if unknown_part is not None:
            raise InvalidRequest(f"The upload has no part with the id {unknown_part!r}", param="part_ids")
        size = sum(parts[part_id].bytes for part_id in part_ids)
        if size != upload.bytes:
            text = f"The parts have {size} bytes together, the upload was to have {upload.bytes}"
            raise InvalidRequest(text, param="part_ids")
        draft = self._folder.open_draft()
        try:
            digest = await self._join(part_ids, draft)
            if md5 is not None and digest != md5:
                raise InvalidRequest("The parts do not have this checksum", param="md5")
            new_file = NewFile(upload.filename, upload.purpose, upload.kept_s)
            file = self._files.plan(new_file, upload.account_id, upload.key_id, size)
            await self._folder.keep(draft, file.id)
        finally:
            draft.discard()
        try:
            await self._store.complete_upload(upload, file)
        except GatewayError:
            await self._folder.remove(file.id)
            raise
        await self._remove_parts(tuple(parts))
        return file

    async def _join(self, part_ids: Sequence[str], draft: FileDraft) -> str:
        """Copy the parts into ``draft``; return the MD5 of the whole, which clients may state as a checksum."""
        digest = hashlib.md5(usedforsecurity=False)
        for part_id in part_ids:
            async with aclosing(read_pieces(await self._folder.find(part_id), JOIN_BYTES)) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(digest.update, piece)
                    await draft.write(piece)
        return digest.hexdigest()

    async def cancel(self, upload: ClientUpload) -> None:
        parts = await self._store.list_parts(upload.id)
        await self._store.end_upload(upload, "cancelled")
        await self._remove_parts(tuple(part.id for part in parts))

    async def _remove_parts(self, part_ids: Sequence[str]) -> None:
        for part_id in part_ids:
            await self._folder.remove(part_id)
