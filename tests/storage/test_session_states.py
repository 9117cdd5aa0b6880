"""Old budgets of sessions are deleted unless something needs them, on both databases."""

from unittest.mock import ANY

import attrs

from gateway.domain.account import Account
from gateway.domain.audit_log import AuditRow
from gateway.domain.limit import build_charges
from gateway.domain.request_budget import SESSION_BUDGET, SessionState
from gateway.storage.accounts import AccountRepository
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.limit_counters import LimitCounters
from gateway.storage.session_states import SessionStateRepository
from tests.support.request_records import charge

ACCOUNT = 1
"""Of the key 11."""
SUBJECTS = tuple(f"{ACCOUNT}:{name}" for name in ("unused:1", "used", "ended", "new"))


def allow(_former: SessionState) -> bool:
    return True


async def test_only_old_sessions_without_requests_and_end_are_unused(database: Database) -> None:
    states = SessionStateRepository(database)
    for subject in (*SUBJECTS, "2:used"):
        await states.put_budget(SessionState(subject, 5), 2_000 if subject == SUBJECTS[3] else 1_000, allow)
    audit = AuditRow(0, 1_000, "token", "op", None, "", "request.session_ended", ACCOUNT, "ended")
    await states.end(SUBJECTS[2], 1_000, audit)
    await LedgerRepository(database).post([attrs.evolve(charge(1, 3), session="used")])
    assert await states.list_unused(2_000) == [SUBJECTS[0], "2:used"]
    assert [await states.delete_unused(subject, 2_000) for subject in SUBJECTS] == [True, False, False, False]
    assert set(await states.list_states(SUBJECTS)) == set(SUBJECTS[1:])


async def test_only_sums_of_budgets_that_are_gone_are_deleted(database: Database) -> None:
    """A limit of sessions counts for itself: its sums stay."""
    states, ledger, counters = SessionStateRepository(database), LedgerRepository(database), LimitCounters(database)
    budget, limit = SESSION_BUDGET.counter, "each run|session|lifetime|UTC"
    await states.put_budget(SessionState(SUBJECTS[1], 5), 1_000, allow)
    charges = [(counter, subject, 0) for counter in (budget, limit) for subject in SUBJECTS[:2]]
    await ledger.post([attrs.evolve(charge(1, 3), limit_charges=build_charges(charges))])
    assert await states.list_unneeded_sums() == [SUBJECTS[0]]
    assert await states.delete_unneeded_sums(SUBJECTS) == 1
    assert await counters.list_all() == dict.fromkeys(charges[1:], 3)


async def test_a_sum_stays_while_a_request_of_its_session_is_stored(database: Database) -> None:
    """``gateway verify`` compares the sums with the requests."""
    states, ledger = SessionStateRepository(database), LedgerRepository(database)
    names = ("12:run:1", "run:1")
    subjects = [f"{ACCOUNT}:{name}" for name in (*names, "gone")] + ["2:run:1"]
    for number, (subject, name) in enumerate(zip(subjects, (*names, "", ""), strict=True)):
        charges = build_charges([(SESSION_BUDGET.counter, subject, 0)])
        await ledger.post([attrs.evolve(charge(number, 3), session=name, limit_charges=charges)])
    assert await states.list_unneeded_sums() == ["1:gone", "2:run:1"]
    assert await states.list_unneeded_sums("1:gone") == ["2:run:1"]
    assert await states.delete_unneeded_sums(subjects) == 2
    assert {subject for _, subject, _ in await LimitCounters(database).list_all()} == set(subjects[:2])


async def test_what_a_session_has_spent_is_deleted_with_its_budget(database: Database) -> None:
    states, ledger, counters = SessionStateRepository(database), LedgerRepository(database), LimitCounters(database)
    charges = [(SESSION_BUDGET.counter, subject, 0) for subject in SUBJECTS[:2]]
    await ledger.post([attrs.evolve(charge(1, 3), limit_charges=build_charges(charges))])
    await states.put_budget(SessionState(SUBJECTS[0], 5), 1_000, allow)
    assert await states.delete_unused(SUBJECTS[0], 2_000)
    assert await counters.list_all() == {charges[1]: 3}


async def test_the_sessions_of_a_deleted_account_are_deleted(database: Database) -> None:
    accounts, states = AccountRepository(database), SessionStateRepository(database)
    account = await accounts.add_account(Account(0, "acme"))
    mine, other = f"{account.id}:run1", f"{account.id + 1}:run1"
    for subject in (mine, other):
        await states.put_budget(SessionState(subject, 5), 1_000, allow)
    await accounts.delete_account(account.id)
    assert await states.list_states([mine, other]) == {other: ANY}


async def test_a_budget_is_stored_only_if_it_may_replace_the_stored_one(database: Database) -> None:
    states, seen = SessionStateRepository(database), list[SessionState]()

    def refuse_more_than_five(former: SessionState) -> bool:
        seen.append(former)
        return former.limit_nanos is None

    first = SessionState(SUBJECTS[0], 5)
    assert await states.put_budget(first, 1_000, refuse_more_than_five) == first
    assert await states.put_budget(attrs.evolve(first, limit_nanos=6), 1_000, refuse_more_than_five) == first
    assert await states.find(SUBJECTS[0]) == first == seen[-1]
    assert await states.put_budget(SessionState("1:none", 6), 1_000, lambda _former: False) == SessionState("1:none")
    assert await states.list_states(["1:none"]) == {}
