"""Batches are brought back into a database that lacks their progress: no line is forgotten that may have been sent."""

from collections.abc import Awaitable, Callable

import attrs
import pytest
from sqlalchemy import select

from gateway.cluster.kept.kept_changes import ChangeFile
from gateway.cluster.kept.restore import restore_changes
from gateway.domain.account import Account
from gateway.domain.batch import Batch, BatchTally
from gateway.errors import StoreUnavailable
from gateway.storage.accounts import AccountRepository
from gateway.storage.batches import BatchRepository
from gateway.storage.database import Database
from gateway.storage.schema import batches
from tests.support.lacking_stores import Work, open_lacking
from tests.support.postgres import SharedPostgres

OURS, THEIRS = "me:1", "you:7"
NEW = Batch("batch_1", 1, 2, 5, 10**13, "/v1/chat/completions", "file-1", metadata={"a": "b"})
RUNS = attrs.evolve(NEW, status="in_progress", total=9, claimed=5, returned=(4,), tally=BatchTally(completed=3))
RUNS_ON = attrs.evolve(RUNS, returned=())
DONE = attrs.evolve(RUNS, status="completed", claimed=9, returned=(), tally=BatchTally(8, 1), output_file_id="file-2")
MOVED = attrs.evolve(NEW, moves=1)
Step = Callable[[BatchRepository], Awaitable[object]]


def use(*steps: Step, unseen: Step | None = None) -> Work:
    """``steps`` of our node, after one that another node has taken."""

    async def work(database: Database) -> None:
        await AccountRepository(database).add_account(Account(0, "acme"))
        kept, database.kept = database.kept, None
        if unseen is not None:
            await unseen(BatchRepository(database, lambda: THEIRS))
        database.kept = kept
        for step in steps:
            await step(BatchRepository(database, lambda: OURS))

    return work


def save(batch: Batch) -> Step:
    return lambda store: store.save_batch(batch)


async def add(store: BatchRepository) -> None:
    await store.add_batch(NEW)


async def add_free(store: BatchRepository) -> None:
    await store.add_batch(NEW, is_own=False)


async def cancel(store: BatchRepository) -> None:
    assert await store.cancel_batch(NEW.id)


async def claim(store: BatchRepository) -> None:
    assert await store.claim_batch(NEW) == MOVED


async def remove(store: BatchRepository) -> None:
    assert await store.delete_batch(NEW.id)


nothing = use()


@pytest.mark.parametrize(
    ("known", "lost", "expected"),
    [
        (nothing, use(add), (NEW, OURS)),
        (nothing, use(add, save(RUNS)), (RUNS, OURS)),
        (use(add), use(add, save(RUNS)), (RUNS, OURS)),
        (use(add, save(RUNS)), use(add, save(RUNS), save(RUNS_ON)), (RUNS_ON, OURS)),
        (use(add, save(RUNS)), use(add, save(DONE)), (DONE, OURS)),
        (use(add, save(DONE)), use(add, save(RUNS)), (DONE, OURS)),  # another node knows less
        (use(add_free), use(claim, unseen=add_free), (MOVED, OURS)),
        (use(unseen=add), use(claim, unseen=add_free), (MOVED, OURS)),
        (use(claim, unseen=add_free), use(unseen=add), (MOVED, OURS)),
        (nothing, use(cancel, unseen=add), (attrs.evolve(NEW, status="cancelling"), THEIRS)),
        (use(add, save(RUNS)), use(cancel, unseen=add), (attrs.evolve(RUNS, status="cancelling"), OURS)),
        (use(add, save(DONE)), use(cancel, unseen=add), (DONE, OURS)),
        (use(add, save(DONE)), use(add, save(DONE), remove), None),
    ],
)
async def test_a_batch_is_as_its_node_knows_it(
    shared_postgres: SharedPostgres, known: Work, lost: Work, expected: tuple[Batch, str] | None
) -> None:
    async with open_lacking(shared_postgres, known, lost) as database:
        for _ in range(2):
            await restore_changes(database, "", OURS)
            found = await BatchRepository(database, lambda: OURS).find_batch(NEW.id, None)
            owners = await database.read(select(batches.c.owner))
            assert (found, *(row.owner for row in owners)) == (expected or (None,))


async def test_a_batch_of_a_process_that_has_ended_is_free(shared_postgres: SharedPostgres) -> None:
    async with open_lacking(shared_postgres, nothing, use(add, save(RUNS))) as database:
        await restore_changes(database, "", "me:2")
        assert await BatchRepository(database, lambda: THEIRS).list_free() == [RUNS]


async def test_no_node_claims_a_batch_before_all_have_restored(shared_postgres: SharedPostgres) -> None:
    async with open_lacking(shared_postgres, use(add_free), nothing) as database:
        restoring = [True]
        database.keep_changes(ChangeFile(None, lambda: "", lambda: "", find_restoring=lambda: restoring[0]))
        store = BatchRepository(database, lambda: OURS)
        for refused in (store.claim_batch(NEW), store.find_batch("batch_2", None), store.is_own("batch_2")):
            with pytest.raises(StoreUnavailable):
                await refused
        restoring[0] = False
        assert await store.list_free() == [NEW]
        await claim(store)
