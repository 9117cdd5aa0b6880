"""Notes of started requests in PostgreSQL: committed before the provider is asked, settled for a node that is dead."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import orjson
import pytest

from gateway.billing.recovery import interrupt
from gateway.cluster.credit.authority import PostgresCreditAuthority
from gateway.cluster.credit.store import PostgresCredit
from gateway.cluster.credit.stored_orphans import end_orphans, list_orphaned_nodes
from gateway.cluster.journal import request_notes
from gateway.cluster.journal.left_notes import EndedNodeNotes, record_journal_location
from gateway.cluster.journal.request_notes import NoteWriter, PostgresNotes, find_own_notes
from gateway.cluster.journal.store_journal import StoreJournal
from gateway.domain.account import Account, ApiKey
from gateway.domain.balance import parse_day
from gateway.domain.credit import CreditRequest
from gateway.domain.ledger import KeyTotals, OnCrash
from gateway.domain.request_log import RequestFilter, RequestRecord
from gateway.errors import StoreUnavailable
from gateway.events import Events
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.nodes import list_nodes
from gateway.storage.open import open_database
from gateway.storage.postgres.address import Address
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.unstorable import UnstorableFile
from tests.support.billing_services import NOON, capped
from tests.support.credit_store import CreditStore, open_credit_store
from tests.support.journal_entries import begin
from tests.support.postgres import SharedPostgres
from tests.support.request_records import make_row
from tests.support.stoppable_proxy import StoppableProxy

A, B = "a" * 16, "b" * 16
NOON_MS = int(NOON * 1000)
TODAY = parse_day(NOON)
RESERVED, COST = 700, 50


def row(name: object, **values: object) -> RequestRecord:
    mine = {"account_id": 1, "key_id": 1, "settled_ms": NOON_MS, "started_ms": NOON_MS - 5, "attempts": 1}
    return make_row(name, **{**mine, "reserved_nanos": RESERVED, "cost_nanos": COST, **values})


class Cluster:
    """Nodes ``A`` and ``B`` on a database, with an account and a key that have limits. ``B`` leads."""

    def __init__(self, store: CreditStore, database: Database) -> None:
        self.store, self.database = store, database
        self.left = EndedNodeNotes(database, lambda: TODAY, lambda _: "")
        self.log = RequestLogRepository(database)
        database.credit = PostgresCredit(database, B, lambda: TODAY)
        self.ledger = self.make_ledger()

    def make_ledger(self, unstorable: UnstorableFile | None = None) -> LedgerRepository:
        return LedgerRepository(self.database, unstorable, PostgresNotes())

    def speak_for(self, node: str) -> None:
        self.database.credit = PostgresCredit(self.database, node, lambda: TODAY)

    async def register(self, node: str, journal: str = "store") -> None:
        await self.store.connection.execute(
            "INSERT INTO nodes (id, epoch, state, url, version, schema, config_digest, started_ms)"
            " VALUES ($1, 1, 'live', '', '', '', '', 0)",
            node,
        )
        await self.store.connection.execute(
            "INSERT INTO beats (node, beat, at_ms, seen_change)"
            " VALUES ($1, 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, 0)",
            node,
        )
        await record_journal_location(self.database, node, journal)

    async def list_nodes(self) -> dict[str, tuple[str, int]]:
        """The nodes that operators see, with their states and the credit that they have."""
        return {each.id: (each.state, each.outstanding_nanos) for each in await list_nodes(self.database)}

    async def end(self, node: str, state: str = "dead") -> None:
        await self.store.connection.execute("UPDATE nodes SET state = $2 WHERE id = $1", node, state)

    async def take(self, node: str, nanos: int) -> None:
        """A lease of the key and the account."""
        authority = PostgresCreditAuthority(Address(self.store.url), node, lambda: 1, Events())
        await authority.take([CreditRequest((owner, 1), nanos, nanos, nanos) for owner in ("account", "key")], TODAY)
        await authority.close()

    async def settle(self, node: str, on_crash: OnCrash = "release") -> Sequence[RequestRecord]:
        return await self.left.interrupt_requests(
            node, partial(interrupt, now_ms=NOON_MS, is_charged=on_crash == "charge")
        )

    async def list_notes(self) -> list[str]:
        found = await self.store.connection.fetch("SELECT request_id FROM request_notes ORDER BY 1")
        return [each["request_id"] for each in found]

    async def list_rows(self) -> dict[str, RequestRecord]:
        return {each.row.id: each.row for each in await self.log.list_requests(RequestFilter(), 100)}

    async def audit(self) -> Sequence[KeyTotals]:
        """What each key was charged; balances and leases agree with it."""
        found = await self.ledger.audit_cluster()
        assert found is not None
        assert found.problems == []
        return found.totals

    async def check(self, *, charged: int, leased: int = 0) -> None:
        """Rows, entries, sums and balances agree, and come to ``charged``."""
        for total in await self.audit():
            assert (total.entries_nanos, total.usage_nanos, total.requests_nanos) == (charged,) * 3
        requests = await self.store.connection.fetchval("SELECT count(*) FROM requests")
        for sums in ("usage_days", "usage_hours WHERE span = 1"):
            summed = await self.store.connection.fetchval(f"SELECT coalesce(sum(requests), 0) FROM {sums}")  # noqa: S608
            assert summed == requests
        found = await self.store.connection.fetch(
            "SELECT settled + coalesce(sum(posted), 0)::bigint AS spent, leased FROM credit_balances"
            " LEFT JOIN credit_leases USING (owner, owner_id) GROUP BY settled, leased, owner, owner_id"
        )
        assert [(each["spent"], each["leased"]) for each in found] == [(charged, leased)] * 2


@pytest.fixture
async def cluster(shared_postgres: SharedPostgres) -> AsyncIterator[Cluster]:
    async with open_credit_store(shared_postgres) as store:
        database = await open_database(store.url)
        made = Cluster(store, database)
        await AccountRepository(database).add_account(Account(0, "acme", quota=capped(100_000, "daily")))
        await ApiKeyRepository(database).add_key(ApiKey(0, 1, "laptop", b"d", "last", quota=capped(50_000)))
        await made.register(A)
        await made.register(B, "disk")
        yield made
        await database.close()


@pytest.fixture
async def writer(cluster: Cluster) -> AsyncIterator[NoteWriter]:
    made = NoteWriter(Address(cluster.store.url), lambda: f"{A}:1")
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await made.close()


async def write_all(writer: NoteWriter, *rows: RequestRecord) -> None:
    await asyncio.gather(*(writer.write(begin(each)) for each in rows))


async def test_notes_are_committed_together_and_read_back_whole(
    cluster: Cluster, writer: NoteWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[int]()
    add = NoteWriter._insert

    async def count(self: NoteWriter, batch: Sequence[object]) -> None:
        sent.append(len(batch))
        await add(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(NoteWriter, "_insert", count)
    rows = [row(number, model="NUL \0") for number in range(200)]
    await write_all(writer, *rows)
    assert sum(sent) == 200
    assert len(sent) <= 2, "all that waits goes in one statement"
    found = {each.id: each for each in await find_own_notes(cluster.database, A)}
    assert found == {each.id: begin(each).interrupt() for each in rows}


async def test_a_request_is_not_sent_before_its_note_is_committed(cluster: Cluster, tmp_path: Path) -> None:
    writer = NoteWriter(Address(cluster.store.url), lambda: f"{A}:1")
    journal = StoreJournal(tmp_path / "requests.journal", writer)
    assert not journal.start_at_once(begin(row(1)))
    starting = asyncio.create_task(journal.start(begin(row(1))))
    await asyncio.sleep(0.05)
    assert not starting.done()
    journal.run()
    await starting
    assert await cluster.list_notes() == ["req_1"]
    journal.withdraw("req_1")
    await journal.stop()
    assert await cluster.list_notes() == []
    journal.close()


async def test_a_row_that_is_stored_takes_its_note_along(cluster: Cluster, writer: NoteWriter) -> None:
    await write_all(writer, row(1), row(2), row(3))
    await cluster.ledger.post([row(1)])
    await cluster.ledger.post([row(1), row(2)])  # the answer to the first commit was lost
    assert await cluster.list_notes() == ["req_3"]
    await write_all(writer, row(1))
    await cluster.ledger.post_again([row(1), row(3)])
    assert await cluster.list_notes() == []


async def test_a_request_that_no_longer_waits_leaves_no_note(cluster: Cluster, writer: NoteWriter) -> None:
    blocker = cluster.store.connection.transaction()
    await blocker.start()
    await cluster.store.connection.execute("LOCK TABLE request_notes IN EXCLUSIVE MODE")
    writing = asyncio.create_task(writer.write(begin(row(1))))
    await asyncio.sleep(0.2)
    writing.cancel()
    await blocker.rollback()
    await write_all(writer, row(2))
    await asyncio.sleep(0.2)
    assert await cluster.list_notes() == ["req_2"]


async def test_a_lost_answer_is_asked_for_again_and_writes_no_note_twice(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_notes, "STATEMENT_TIMEOUT_S", 0.4)
    parts = urlsplit(cluster.store.url)
    async with StoppableProxy(parts.port or 0) as proxy:
        url = cluster.store.url.replace(f":{parts.port}/", f":{proxy.port}/")
        writer = NoteWriter(Address(url), lambda: f"{A}:1")
        running = asyncio.create_task(writer.run())
        await write_all(writer, row(0))
        proxy.stop()
        writing = asyncio.gather(*(writer.write(begin(row(number))) for number in (1, 2)))
        await asyncio.sleep(1)
        assert not writing.done()
        proxy.go_on()
        await asyncio.wait_for(writing, 20)
        assert await cluster.list_notes() == ["req_0", "req_1", "req_2"]
        running.cancel()
        await writer.close()


_END_WRITERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE query LIKE '%INSERT INTO request_notes%' AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()
"""


async def test_a_connection_that_the_server_ends_in_the_middle_of_a_statement_is_replaced(
    cluster: Cluster, writer: NoteWriter
) -> None:
    """As a restart of the server does to the statements that it has."""
    await write_all(writer, row(0))
    for number in (1, 2):
        blocker = cluster.store.connection.transaction()
        await blocker.start()
        await cluster.store.connection.execute("SELECT 1 FROM nodes WHERE id = $1 FOR UPDATE", A)
        writing = asyncio.create_task(write_all(writer, row(number)))
        async with asyncio.timeout(20):
            while not await cluster.store.connection.fetchval(_END_WRITERS):  # noqa: ASYNC110 - a lock has no event
                await asyncio.sleep(0.01)
        await blocker.rollback()
        await asyncio.wait_for(writing, 20)
    assert await cluster.list_notes() == ["req_0", "req_1", "req_2"]


async def test_a_store_that_does_not_answer_refuses_the_request(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_notes, "WAIT_S", 0.3)
    writer = NoteWriter(Address(cluster.store.url.replace("127.0.0.1", "127.0.0.2")), lambda: f"{A}:1")
    running = asyncio.create_task(writer.run())
    with pytest.raises(StoreUnavailable):
        await writer.write(begin(row(1)))
    running.cancel()
    await writer.close()


async def test_a_node_that_is_dead_begins_nothing(cluster: Cluster, writer: NoteWriter) -> None:
    await cluster.end(A)
    with pytest.raises(StoreUnavailable):
        await writer.write(begin(row(1)))
    assert await cluster.list_notes() == []


@pytest.mark.parametrize("on_crash", ["release", "charge"])
async def test_what_a_dead_node_has_begun_is_interrupted_and_what_it_may_still_cost_stays_set_aside(
    cluster: Cluster, writer: NoteWriter, on_crash: OnCrash
) -> None:
    await cluster.take(A, 5_000)
    await write_all(writer, row(1), row(2), row(3))
    cluster.speak_for(A)
    await cluster.ledger.post([row(1)])
    cluster.speak_for(B)
    assert await cluster.left.find_nodes() == []
    assert await cluster.settle(A) == (), "it lives"
    await cluster.end(A)
    assert await cluster.left.find_nodes() == [A]
    assert sorted(each.id for each in await cluster.settle(A, on_crash)) == ["req_2", "req_3"]
    rows = await cluster.list_rows()
    assert [rows[name].outcome for name in ("req_1", "req_2", "req_3")] == ["completed", "interrupted", "interrupted"]
    kept = 0 if on_crash == "charge" else 5_000
    await cluster.check(charged=COST + (2 * RESERVED if on_crash == "charge" else 0), leased=kept)
    assert (await cluster.left.find_nodes(), await cluster.list_notes()) == ([], [])
    assert await cluster.list_nodes() == {A: ("gone", 2 * max(0, kept - COST)), B: ("live", 0)}
    if kept:
        assert await list_orphaned_nodes(cluster.database, 0) == [A]
        await end_orphans(cluster.database, A, on_crash, NOON)
        await cluster.check(charged=COST)
    assert await list_orphaned_nodes(cluster.database, 0) == []


async def test_a_node_without_a_disk_that_leaves_nothing_is_not_missed(cluster: Cluster, writer: NoteWriter) -> None:
    await cluster.take(A, 5_000)  # idle credit
    await write_all(writer, row(1))
    cluster.speak_for(A)
    await cluster.ledger.post([row(1)])
    cluster.speak_for(B)
    await cluster.end(A)
    assert await cluster.left.find_nodes() == [A]
    assert await cluster.settle(A) == []
    await cluster.check(charged=COST)
    assert await cluster.left.find_nodes() == []
    assert (await cluster.list_nodes())[A] == ("gone", 0)


async def test_a_node_is_listed_until_its_credit_is_settled(cluster: Cluster) -> None:
    await cluster.take(B, 5_000)
    for name in (A, B):
        await cluster.end(name, "gone")
    assert set(await cluster.list_nodes()) == {A, B}
    await cluster.store.connection.execute("UPDATE beats SET at_ms = at_ms - 86400000")
    assert await cluster.list_nodes() == {B: ("gone", 10_000)}
    await cluster.end(A)
    assert set(await cluster.list_nodes()) == {A, B}, "the metric counts it"


async def test_the_leases_of_a_dead_node_with_a_disk_wait_for_it(cluster: Cluster) -> None:
    await cluster.take(B, 5_000)
    await cluster.end(B)
    assert await cluster.left.find_nodes() == []
    await cluster.check(charged=0, leased=5_000)


@pytest.mark.parametrize("on_crash", ["release", "charge"])
async def test_a_node_that_was_cut_off_replaces_what_was_recorded_for_it(
    cluster: Cluster, writer: NoteWriter, on_crash: OnCrash
) -> None:
    await cluster.take(A, 5_000)
    await write_all(writer, row(1), row(2))
    await cluster.end(A)
    await cluster.settle(A, on_crash)
    await cluster.end(A, "live")
    cluster.speak_for(A)
    later = row(1, settled_ms=NOON_MS + 86_400_000)
    assert await cluster.ledger.find_stored_ids(["req_1", "req_2"]) == set(), "their true rows are still to be posted"
    for _ in range(2):
        await cluster.ledger.post([later, row(3)])
    rows = await cluster.list_rows()
    assert rows["req_1"] == later
    assert rows["req_2"].outcome == "interrupted"
    still = RESERVED if on_crash == "charge" else 0
    for total in await cluster.audit():
        assert (total.entries_nanos, total.usage_nanos, total.requests_nanos) == (2 * COST + still,) * 3


async def test_a_row_that_is_known_to_be_interrupted_is_posted_once(cluster: Cluster, writer: NoteWriter) -> None:
    await cluster.take(A, 5_000)
    await write_all(writer, row(1))
    await cluster.end(A)
    (settled,) = await cluster.settle(A, "charge")
    await cluster.ledger.post_again([settled])
    await cluster.check(charged=RESERVED)


async def test_a_row_that_the_database_refuses_is_kept_in_it(cluster: Cluster, tmp_path: Path) -> None:
    ledger = cluster.make_ledger(UnstorableFile(tmp_path / "requests.unstorable"))
    await cluster.store.connection.execute("ALTER TABLE requests ADD CHECK (model <> 'refused')")
    await ledger.post([row(1, model="refused"), row(2)])
    assert set(await cluster.list_rows()) == {"req_2"}
    kept = await cluster.store.connection.fetchrow("SELECT * FROM request_notes")
    assert (kept["request_id"], kept["node"]) == ("req_1", "refused")
    assert b'"model": "refused"' in kept["note"]
    assert await cluster.left.find_nodes() == []


async def test_an_older_note_has_fewer_fields_and_a_newer_one_more(cluster: Cluster) -> None:
    start = attrs.evolve(row(1), client_request_id=None)
    note = b'{"new":1,' + orjson.dumps(begin(start)._asdict())[1:].replace(b',"batch_multiplier_ppm":1000000', b"")
    assert request_notes.parse_note(note) == begin(start).interrupt()
