"""Budgets of sessions, and ended sessions, are brought back into a database that lacks them."""

from collections.abc import Awaitable, Callable

import pytest

from gateway.cluster.kept.kept_changes import ChangeFile
from gateway.cluster.kept.restore import restore_changes
from gateway.domain.account import Account
from gateway.domain.audit_log import AuditRow
from gateway.domain.request_budget import SessionState
from gateway.errors import StoreUnavailable
from gateway.storage.accounts import AccountRepository
from gateway.storage.database import Database
from gateway.storage.session_states import SessionStateRepository
from tests.support.lacking_stores import Work, open_lacking
from tests.support.postgres import SharedPostgres

RUN = "1:run"
AUDIT = AuditRow(0, 1_000, "token", "op", None, "", "request.session_ended", 1, "run")
Step = Callable[[SessionStateRepository], Awaitable[object]]


def use(*steps: Step, account: bool = True) -> Work:
    async def work(database: Database) -> None:
        if account:
            await AccountRepository(database).add_account(Account(1, "acme"))
        for step in steps:
            await step(SessionStateRepository(database))

    return work


def put(limit_nanos: int, now_ms: int) -> Step:
    return lambda states: states.put_budget(SessionState(RUN, limit_nanos, 429), now_ms, lambda _: True)


def end(now_ms: int) -> Step:
    return lambda states: states.end(RUN, now_ms, AUDIT)


@pytest.mark.parametrize(
    ("known", "lost", "expected"),
    [
        (use(), use(put(5, 1)), SessionState(RUN, 5, 429)),
        (use(put(5, 1)), use(put(5, 1), put(9, 2)), SessionState(RUN, 9, 429)),
        (use(put(5, 1), put(3, 3)), use(put(5, 1), put(9, 2)), SessionState(RUN, 3, 429)),
        (use(put(5, 1)), use(put(5, 1), end(2)), SessionState(RUN, 5, 429, 2)),
        (use(put(5, 1), end(2)), use(put(5, 1), put(7, 3)), SessionState(RUN, 7, 429, 2)),
        (use(put(5, 1), put(7, 3)), use(put(5, 1), end(2)), SessionState(RUN, 7, 429, 2)),
        (use(), use(end(2)), SessionState(RUN, ended_ms=2)),
        (use(account=False), use(put(5, 1)), SessionState(RUN)),
    ],
    ids=[
        "opened",
        "raised",
        "lowered-later",
        "ended",
        "stays-ended",
        "ended-before-the-raise",
        "ended-only",
        "account-gone",
    ],
)
async def test_a_session_is_as_its_node_knows_it(
    shared_postgres: SharedPostgres, known: Work, lost: Work, expected: SessionState
) -> None:
    async with open_lacking(shared_postgres, known, lost) as database:
        for _ in range(2):
            await restore_changes(database, "", "me:1")
            assert await SessionStateRepository(database).find(RUN) == expected


async def test_a_request_of_an_unknown_session_waits_until_all_nodes_have_restored(
    shared_postgres: SharedPostgres,
) -> None:
    async with open_lacking(shared_postgres, use(put(5, 1)), use()) as database:
        restoring = [True]
        database.keep_changes(ChangeFile(None, lambda: "", lambda: "", find_restoring=lambda: restoring[0]))
        states = SessionStateRepository(database)
        assert (await states.look_up(RUN)).limit_nanos == 5
        with pytest.raises(StoreUnavailable):
            await states.look_up("1:other")
        restoring[0] = False
        assert await states.look_up("1:other") == SessionState("1:other")
