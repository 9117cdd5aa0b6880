"""Named requests are brought back into a database that lacks them: none runs twice."""

from collections.abc import Awaitable, Callable

import attrs
import pytest
from sqlalchemy import select

from gateway.cluster.kept.kept_changes import ChangeFile
from gateway.cluster.kept.restore import restore_changes
from gateway.domain.idempotency import IdempotencyRecord
from gateway.errors import StoreUnavailable
from gateway.storage.database import Database
from gateway.storage.idempotency import IdempotencyRepository
from gateway.storage.row_mapping import REPLAY_COLUMNS, parse_replay
from gateway.storage.schema import replays
from tests.support.lacking_stores import Work, open_lacking
from tests.support.postgres import SharedPostgres

RUNS = IdempotencyRecord(1, "name one", "d", "req_1", 10**12, "me:1")
ANSWERED = attrs.evolve(RUNS, state="answered", status=200, media_type="application/json", body=b"\xff\x00{}")
LOST = attrs.evolve(RUNS, state="lost")
AGAIN = attrs.evolve(RUNS, request_id="req_2", created_ms=RUNS.created_ms + 1, owner="me:1")
Step = Callable[[IdempotencyRepository], Awaitable[object]]


def use(*steps: Step) -> Work:
    async def work(database: Database) -> None:
        for step in steps:
            await step(IdempotencyRepository(database))

    return work


async def begin(store: IdempotencyRepository) -> None:
    assert await store.begin_replay(RUNS) is None


def end(record: IdempotencyRecord) -> Step:
    return lambda store: store.end_replay(record)


async def take(store: IdempotencyRepository) -> None:
    assert await store.take_replay(LOST, AGAIN)


async def forget(store: IdempotencyRepository) -> None:
    await store.forget_replay(RUNS)


@pytest.mark.parametrize(
    ("known", "lost", "expected"),
    [
        (use(), use(begin), RUNS),
        (use(), use(begin, end(ANSWERED)), ANSWERED),
        (use(begin), use(begin, end(ANSWERED)), ANSWERED),
        (use(begin, end(ANSWERED)), use(begin), ANSWERED),  # another node knows less
        (use(), use(end(ANSWERED)), ANSWERED),  # the answer came when the database was lost
        (use(begin, end(LOST)), use(begin, end(LOST), take), AGAIN),
        (use(begin, end(LOST), take), use(begin, end(LOST)), AGAIN),
        (use(begin), use(begin, forget), None),
        (use(), use(begin, forget, begin), RUNS),
    ],
)
async def test_a_named_request_is_as_its_node_knows_it(
    shared_postgres: SharedPostgres, known: Work, lost: Work, expected: IdempotencyRecord | None
) -> None:
    async with open_lacking(shared_postgres, known, lost) as database:
        for _ in range(2):
            await restore_changes(database, "", "me:1")
            assert await list_records(database) == ([] if expected is None else [expected])


async def list_records(database: Database) -> list[IdempotencyRecord]:
    columns = [replays.c[name] for name in REPLAY_COLUMNS]
    return [parse_replay(row) for row in await database.read(select(*columns))]


async def test_a_request_that_its_node_was_answering_when_it_was_killed_is_lost(
    shared_postgres: SharedPostgres,
) -> None:
    async with open_lacking(shared_postgres, use(), use(begin)) as database:
        await restore_changes(database, "", "me:2")
        assert await list_records(database) == [LOST]


async def test_no_name_is_new_before_all_nodes_have_restored(shared_postgres: SharedPostgres) -> None:
    async with open_lacking(shared_postgres, use(begin, end(ANSWERED)), use()) as database:
        restoring = [True]
        database.keep_changes(ChangeFile(None, lambda: "", lambda: "", find_restoring=lambda: restoring[0]))
        store = IdempotencyRepository(database)
        assert await store.begin_replay(AGAIN) == ANSWERED
        other = attrs.evolve(RUNS, name="two")
        with pytest.raises(StoreUnavailable):
            await store.begin_replay(other)
        assert await list_records(database) == [ANSWERED]
        restoring[0] = False
        assert await store.begin_replay(other) is None
