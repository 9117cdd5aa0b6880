"""Files and uploads are brought back into a database that lacks them, in any order of the nodes."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import pytest
from sqlalchemy import select

from gateway.cluster.kept.restore import restore_changes
from gateway.domain.account import Account
from gateway.domain.client_file import ClientFile, ClientUpload, UploadPart
from gateway.storage.accounts import AccountRepository
from gateway.storage.client_files import ClientFileRepository
from gateway.storage.database import Database
from gateway.storage.schema import files, upload_parts, uploads
from tests.support.lacking_stores import Work, open_lacking
from tests.support.postgres import SharedPostgres

FILE = ClientFile("file-1", 1, 2, "lines.jsonl", "batch", 9, 5, 10**13)
UPLOAD = ClientUpload("upload_1", 1, 2, "lines.jsonl", "batch", "text/plain", 9, 5, 10**13, kept_s=7)
PART = UploadPart("part_1", UPLOAD.id, 9, 6)
DONE = attrs.evolve(UPLOAD, status="completed", file_id=FILE.id)
Rows = Mapping[str, list[Any]]


def with_account(*works: Callable[[ClientFileRepository], Awaitable[object]]) -> Work:
    async def work(database: Database) -> None:
        await AccountRepository(database).add_account(Account(0, "acme"))
        for each in works:
            await each(ClientFileRepository(database))

    return work


nothing = with_account()
add = with_account(lambda store: store.add_file(FILE, 0))
remove = with_account(lambda store: store.add_file(FILE, 0), lambda store: store.delete_file(FILE))
begin = with_account(lambda store: store.add_upload(UPLOAD, 0))
send = with_account(lambda store: store.add_upload(UPLOAD, 0), lambda store: store.add_part(PART, UPLOAD))
complete = with_account(
    lambda store: store.add_upload(UPLOAD, 0),
    lambda store: store.add_part(PART, UPLOAD),
    lambda store: store.complete_upload(UPLOAD, FILE),
)
cancel = with_account(lambda store: store.add_upload(UPLOAD, 0), lambda store: store.end_upload(UPLOAD, "cancelled"))


@pytest.mark.parametrize(
    ("known", "lost", "expected"),
    [
        (nothing, add, [FILE]),
        (add, add, [FILE]),
        (add, remove, []),
        (nothing, begin, [UPLOAD]),
        (begin, send, [UPLOAD, PART]),
        (nothing, send, [UPLOAD, PART]),
        (send, complete, [FILE, DONE]),
        (nothing, complete, [FILE, DONE]),
        (complete, send, [FILE, DONE]),  # another node knows less
        (begin, cancel, [attrs.evolve(UPLOAD, status="cancelled")]),
    ],
)
async def test_rows_of_files_are_as_their_node_knows_them(
    shared_postgres: SharedPostgres, known: Work, lost: Work, expected: list[object]
) -> None:
    async with open_lacking(shared_postgres, known, lost) as database:
        for _ in range(2):
            await restore_changes(database, "", "me:1")
            rows = await database.read(select(*[column for column in files.c if column.name != "sequence"]))
            found: list[object] = [ClientFile(**row._mapping) for row in rows]
            found += [ClientUpload(**row._mapping) for row in await database.read(select(uploads))]
            found += [UploadPart(**row._mapping) for row in await database.read(select(upload_parts))]
            assert found == expected
