"""A backup of a database on a server, taken while a gateway writes to it, has every request that was answered."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import select

from gateway.billing.flush_worker import LedgerFlusher
from gateway.billing.reconcile import reconcile
from gateway.billing.recovery import load_balances, recover
from gateway.billing.write_queue import WriteQueue
from gateway.storage import schema
from gateway.storage.backup import BackupFailed, BackupSource, write_backup
from gateway.storage.copying.places import StoreLocation, copy_between
from gateway.storage.copying.store_copy import CopyFailed
from gateway.storage.data_folder import DATABASE, JOURNAL
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.restore import RestoreRefused, restore_backup
from tests.support.postgres import PostgresServer, SharedPostgres
from tests.support.request_records import NOON_MS, make_row
from tests.support.schema_fixtures import make_folder

BACKUPS = 3
COST = 7


def now() -> float:
    return NOON_MS / 1000


@pytest.fixture
async def server(shared_postgres: SharedPostgres) -> PostgresServer:
    return await shared_postgres.get_server()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data folder of a gateway whose database is on a server."""
    folder = make_folder(schema.REVISION, tmp_path / "data")
    (folder / DATABASE).unlink()
    return folder


async def back_up(folder: Path, url: str, target: Path) -> None:
    await asyncio.to_thread(write_backup, BackupSource(folder, folder / DATABASE, server=url), target)


async def settle(folder: Path, url: str) -> tuple[set[str], dict[str, Any]]:
    """Start on what was restored: settle the journal, and return every request and the reconciliation."""
    database = await open_database(url)
    ledger, journal = LedgerRepository(database), RequestJournal(folder / JOURNAL)
    await recover(journal.leftovers, ledger, journal, on_crash="release", now_ms=NOON_MS, list_charges=lambda _: "")
    journal.close()
    report = await reconcile(await load_balances(ledger, now), ledger, WriteQueue(), None)
    ids = {row.id for row in await database.read(select(schema.requests.c.id))}
    await database.close()
    return ids, report


async def test_every_answered_request_is_in_a_backup_once(server: PostgresServer, folder: Path) -> None:
    url = await server.make_database()
    database = await open_database(url)
    journal, queue = RequestJournal(folder / JOURNAL, rotate_bytes=0), WriteQueue()
    flushing = asyncio.create_task(LedgerFlusher(queue, LedgerRepository(database), journal, commit_delay_s=0).run())
    answered: list[str] = []

    async def answer_requests() -> None:
        while True:
            row = make_row(f"answered {len(answered)}", cost_nanos=COST)
            journal.record_end(row)
            queue.put(row)
            answered.append(row.id)
            await asyncio.sleep(0.002)

    answering = asyncio.create_task(answer_requests())
    for number in range(BACKUPS):
        await asyncio.sleep(0.05)
        before = set(answered)
        backup, target = folder.parent / f"{number}.gwb", folder.parent / f"restored-{number}"
        await back_up(folder, url, backup)
        fresh = await server.make_database()
        await asyncio.to_thread(restore_backup, backup, target, server=fresh)
        assert not (target / DATABASE).exists()
        ids, report = await settle(target, fresh)
        assert before <= ids <= set(answered)
        assert (report["problems"], report["charged_nanos"]) == ([], COST * len(ids))
    for task in (answering, flushing):
        task.cancel()
    await asyncio.gather(answering, flushing, return_exceptions=True)
    journal.close()
    await database.close()


async def test_a_backup_of_a_file_is_restored_to_a_server_and_the_other_way(
    server: PostgresServer, tmp_path: Path
) -> None:
    folder = make_folder("0006", tmp_path / "old")  # of version 0.7: its rows are brought up to date
    file, url = tmp_path / "file.gwb", await server.make_database()
    write_backup(BackupSource(folder, folder / DATABASE), file)
    await asyncio.to_thread(restore_backup, file, tmp_path / "on server", server=url)
    before = await settle(tmp_path / "on server", url)
    await back_up(tmp_path / "on server", url, tmp_path / "server.gwb")
    restore_backup(tmp_path / "server.gwb", tmp_path / "back")
    after = await settle(tmp_path / "back", f"sqlite:///{tmp_path / 'back' / DATABASE}")
    assert (before, len(before[0]) > 1) == (after, True)
    assert not list(tmp_path.glob("*/.backup-*"))


async def put_unfinished(url: str, name: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("INSERT INTO cluster (name, value) VALUES ($1, '5')", f"unfinished {name}")
    await connection.close()


async def test_a_database_whose_upgrade_has_yet_to_sum_requests_is_neither_backed_up_nor_copied(
    server: PostgresServer, folder: Path, tmp_path: Path
) -> None:
    """What is to be summed is noted in a table that is not copied."""
    url = await server.make_database()
    await put_unfinished(url, "requests_by_user")  # an index, which every copy has
    await back_up(folder, url, tmp_path / "with index.gwb")
    await put_unfinished(url, "backfill 0054")
    with pytest.raises(BackupFailed, match=r"yet to sum requests.*start a node of this version and wait"):
        await back_up(folder, url, tmp_path / "refused.gwb")
    assert not (tmp_path / "refused.gwb").exists()
    target = StoreLocation(str(tmp_path / "copy"))
    with pytest.raises(CopyFailed, match="yet to sum requests"):
        await copy_between(StoreLocation(url), target, lambda _table, _rows: None)
    assert not target.folder.exists()


async def test_a_database_that_has_rows_is_not_restored_over(server: PostgresServer, tmp_path: Path) -> None:
    folder = make_folder(schema.REVISION, tmp_path / "data")
    url, file = await server.make_database(), tmp_path / "b.gwb"
    write_backup(BackupSource(folder, folder / DATABASE), file)
    await asyncio.to_thread(restore_backup, file, tmp_path / "first", server=url)
    with pytest.raises(RestoreRefused, match=r"Nothing was restored\. .*has data already"):
        await asyncio.to_thread(restore_backup, file, tmp_path / "second", server=url)
    assert not (tmp_path / "second").exists()
    shutil.rmtree(tmp_path / "first")
