"""A row that the database refuses is set aside and charged; every other row is stored, and the ledger agrees."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.billing.flush_worker import LedgerFlusher
from gateway.billing.reconcile import reconcile
from gateway.billing.recovery import load_balances, recover
from gateway.billing.write_queue import WriteQueue
from gateway.doctor.folder_checks import check_unstorable
from gateway.domain.request_log import RequestRecord
from gateway.errors import StoreUnavailable
from gateway.storage.data_folder import JOURNAL, UNSTORABLE
from gateway.storage.database import Database, RowRefused
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository
from gateway.storage.ledger_rows import UNSTORABLE_MODEL
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.unstorable import UnstorableFile
from tests.support.journal_entries import find
from tests.support.ledger_balances import ALWAYS, read_ids
from tests.support.request_records import NOON_MS, make_row

ROWS, BAD = 2_000, 1_234
COST = 3


def now() -> float:
    return NOON_MS / 1000


def spoil(row: RequestRecord, kind: str, how: str) -> RequestRecord:
    """A row with a value that the database refuses."""
    wrong: dict[str, Any] = {"outcome": None}
    if how == "value":
        # An index of PostgreSQL has no room for it, however well it is compressed.
        long = hashlib.shake_256(b"").hexdigest(20_000)
        wrong = {"model": long} if kind == "postgresql" else {"prompt_tokens": 2**63}
    return attrs.evolve(row, **wrong)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[RequestJournal]:
    opened = RequestJournal(tmp_path / JOURNAL)
    yield opened
    opened.close()


async def audit(database: Database) -> dict[str, Any]:
    ledger = LedgerRepository(database)
    return await reconcile(await load_balances(ledger, now), ledger, WriteQueue(), None)


@pytest.mark.parametrize("how", ["value", "missing"])
async def test_one_row_in_2000_that_is_refused_is_set_aside_and_charged(
    database: Database, journal: RequestJournal, tmp_path: Path, how: str
) -> None:
    rows = [make_row(number, cost_nanos=COST) for number in range(ROWS)]
    rows[BAD] = spoil(rows[BAD], database.kind, how)
    queue, aside = WriteQueue(), UnstorableFile(tmp_path / UNSTORABLE)
    for row in rows:
        journal.record_end(row)
        queue.put(row)
    ledger = LedgerRepository(database, aside)
    assert await LedgerFlusher(queue, ledger, journal).flush()
    journal.renew()
    assert (queue.failing, len(queue), aside.count, find(tmp_path / JOURNAL)) == (False, 0, 1, {})
    await database.check_writable()
    assert set(await read_ids(RequestLogRepository(database))) == {row.id for row in rows} - {rows[BAD].id}
    (line,) = (tmp_path / UNSTORABLE).read_text().splitlines()
    kept = json.loads(line)
    assert (kept["row"]["id"], kept["row"]["cost_nanos"], bool(kept["reason"])) == (rows[BAD].id, COST, True)
    assert (tmp_path / UNSTORABLE).stat().st_mode & 0o077 == 0
    report = await audit(database)
    assert (report["problems"], report["charged_nanos"]) == ([], ROWS * COST)
    usage = {line.label: line.cost_nanos for line in await ledger.list_usage("model", ALWAYS)}
    assert usage[UNSTORABLE_MODEL] == COST


async def test_a_row_is_charged_once_however_often_it_is_set_aside(database: Database, tmp_path: Path) -> None:
    row = spoil(make_row(1, cost_nanos=COST), database.kind, "value")
    aside = UnstorableFile(tmp_path / UNSTORABLE)
    ledger = LedgerRepository(database, aside)
    await ledger.post([row])
    written = RequestJournal(tmp_path / JOURNAL)
    written.record_end(row)  # as if the process had been killed before it forgot the row
    written.close()
    again = RequestJournal(tmp_path / JOURNAL)
    await recover(again.leftovers, ledger, again, on_crash="release", now_ms=NOON_MS, list_charges=lambda _: "")
    again.close()
    report = await audit(database)
    assert (report["problems"], report["charged_nanos"], aside.count) == ([], COST, 2)
    (finding,) = check_unstorable(tmp_path)
    assert (finding.state, "refused 1 requests" in finding.text) == ("warning", True)


async def test_a_row_that_cannot_be_set_aside_waits(database: Database, tmp_path: Path) -> None:
    row = spoil(make_row(1, cost_nanos=COST), database.kind, "value")
    (tmp_path / UNSTORABLE).mkdir()
    with pytest.raises(StoreUnavailable, match="cannot record requests"):
        await LedgerRepository(database, UnstorableFile(tmp_path / UNSTORABLE)).post([row])
    assert (await audit(database))["charged_nanos"] == 0
    with pytest.raises(RowRefused):
        await LedgerRepository(database).post([row])
