"""Sums by user, session and tag: which values have sums of their own, and what a reversal undoes."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from sqlalchemy import select

from gateway.domain.request_log import RequestRecord
from gateway.domain.subject_usage import MAX_TAG_NAMES, SubjectFilter, SubjectKind, SubjectUsage
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.ledger_rows import reverse_rows
from gateway.storage.schema import subject_counts, subject_usage
from gateway.storage.subject_sums import SubjectSums
from gateway.storage.subject_usage import SubjectUsageRepository
from tests.support.subject_rows import TODAY, ask, restart


async def read_costs(
    database: Database, kind: SubjectKind = "user", name: str = "", days: int = 1, **whose: Any
) -> dict[str, int]:
    """The cost of each subject in the days from today on; with ``other``, what has no sums of its own."""
    usage = await find_usage(database, kind, name, days, **whose)
    costs = {line.label: line.cost_nanos for line in usage.lines}
    return costs | ({"OTHER": usage.other.cost_nanos} if usage.other.requests else {})


async def find_usage(
    database: Database, kind: SubjectKind, name: str = "", days: int = 1, **whose: Any
) -> SubjectUsage:
    wanted = SubjectFilter(kind, name, TODAY, TODAY + days - 1, **whose)
    return await SubjectUsageRepository(database).find_usage(wanted, max_lines=1_000)


async def test_a_row_is_summed_by_its_user_its_session_and_each_tag(database: Database) -> None:
    ledger = LedgerRepository(database)
    who: dict[str, Any] = {"end_user": "ann", "session": "run-1", "tags": "feature=a b,team=web"}
    for rows in (
        [ask(1, 5, **who), ask(2, 7, end_user="bob", outcome="failed", saved_nanos=-3)],
        [ask(3, 11, **who), ask(4, 13, key=21, **who), ask(5, 17, days=1, end_user="ann")],
        [ask(6, 19)],
    ):
        await ledger.post(rows)
    assert await read_costs(database) == {"ann": 29, "bob": 7}
    assert await read_costs(database, days=2) == {"ann": 46, "bob": 7}
    assert await read_costs(database, "session") == {"run-1": 29}
    assert await read_costs(database, "tag", "team") == {"web": 29}
    assert await read_costs(database, "tag", "feature") == {"a b": 29}
    assert await read_costs(database, "tag", "other") == {}
    assert await read_costs(database, key_id=21) == {"ann": 13}
    assert await read_costs(database, account_id=1) == {"ann": 16, "bob": 7}
    ann, bob = (await find_usage(database, "user")).lines
    assert attrs.astuple(ann) == ("ann", 3, 0, 300, 30, 3, 29, ann.total_ms, 0)
    assert (bob.requests, bob.failed, bob.saved_nanos) == (1, 1, -3)


async def test_some_subjects_are_summed_alone_and_by_day(database: Database) -> None:
    rows = [
        ask(1, 5, end_user="ann"),
        ask(2, 7, end_user="bob"),
        ask(3, 11, days=2, end_user="ann"),
        ask(4, 13, key=21),
    ]
    await LedgerRepository(database).post([*rows, ask(5, 17, key=21, end_user="ann"), ask(6, 19, end_user="hmac:0f")])
    names = ("ann", "hmac:0f")
    assert await read_costs(database, days=3, values=names, key_id=11) == {"ann": 16, "hmac:0f": 19}
    subject_filter = SubjectFilter("user", "", TODAY, TODAY + 2, key_id=11, values=names)
    days = await SubjectUsageRepository(database).list_days(subject_filter)
    assert [(line.label, line.requests, line.cost_nanos) for line in days] == [
        (str(TODAY), 2, 24),
        (str(TODAY + 2), 1, 11),
    ]


async def test_lines_beyond_the_limit_are_summed(database: Database) -> None:
    await LedgerRepository(database).post([ask(number, number, end_user=f"u{number}") for number in range(1, 6)])
    usage = await SubjectUsageRepository(database).find_usage(SubjectFilter("user", "", TODAY, TODAY), max_lines=2)
    assert [line.label for line in usage.lines] == ["u5", "u4"]
    assert (usage.unlisted.requests, usage.unlisted.cost_nanos, usage.other.requests) == (3, 6, 0)


async def test_values_beyond_the_bound_of_a_day_are_summed_as_other(database: Database) -> None:
    restart(database, 2)
    ledger = LedgerRepository(database)
    await ledger.post([ask(1, 1, end_user="c"), ask(2, 10, end_user="a")])
    await ledger.post([ask(3, 100, end_user="b"), ask(4, 1_000, end_user="a"), ask(5, 5, end_user="b", days=1)])
    expected = {"a": 1_010, "c": 1, "OTHER": 100}
    assert await read_costs(database) == expected
    restart(database, 5)  # the day's bound stays
    for number in (6, 7, 8):  # decided by the database, and then from memory
        await ledger.post([ask(number, 1, end_user="b"), ask(f"{number}d", 1, end_user="d")])
    assert await read_costs(database) == {**expected, "OTHER": 106}
    await ledger.post([ask(f"n{name}", 1, end_user=name, days=2) for name in "abcdef"])
    usage = await SubjectUsageRepository(database).find_usage(SubjectFilter("user", "", TODAY + 2, TODAY + 2), 10)
    assert (len(usage.lines), usage.other.requests) == (5, 1)


async def test_two_processes_keep_one_bound(database: Database) -> None:
    ledger, first, second = LedgerRepository(database), SubjectSums(lambda: 3), SubjectSums(lambda: 3)
    for number, (process, users) in enumerate(
        [(first, "ab"), (second, "bc"), (first, "cd"), (second, "da"), (first, "cd"), (second, "dabc"), (first, "cd")]
    ):
        database.subjects = process
        await ledger.post([ask(f"{number}{name}", 1, end_user=name) for name in users])
    assert await read_costs(database) == {"a": 3, "b": 3, "c": 5, "OTHER": 5}


async def test_names_of_tags_are_bounded(database: Database) -> None:
    ledger = LedgerRepository(database)
    names = [f"t{number:03}" for number in range(MAX_TAG_NAMES + 5)]
    for start in range(0, len(names), 7):
        await ledger.post([ask(name, 1, tags=f"{name}=x") for name in names[start : start + 7]])
    for attempt in "ab":
        await ledger.post([ask(f"{name}{attempt}", 1, tags=f"{name}=x") for name in names])
    costs = [await read_costs(database, "tag", name) for name in (names[0], names[MAX_TAG_NAMES - 1], names[-1])]
    assert costs == [{"x": 3}, {"x": 3}, {}]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_reversal_undoes_the_same_sums(database: Database, *, restarts: bool) -> None:
    restart(database, 1)
    rows = [ask(name, 9, end_user=name, session="s", tags="team=web") for name in ("a", "b", "c")]
    for row in rows:
        await LedgerRepository(database).post([row])
    if restarts:
        restart(database, 100)
    await database.write(lambda connection: reverse_rows(connection, rows[:2], database.subjects))
    assert await read_costs(database) == {"a": 0, "OTHER": 9}
    assert await read_costs(database, "session") == {"s": 9}
    assert await read_costs(database, "tag", "team") == {"web": 9}
    await LedgerRepository(database).post(rows[:2])
    assert await read_costs(database) == {"a": 9, "OTHER": 18}


async def test_rows_that_are_stored_already_are_summed_once(database: Database) -> None:
    ledger = LedgerRepository(database)
    rows = [ask(name, 9, end_user=name) for name in ("a", "b")]
    await ledger.post(rows[:1])
    await ledger.post(rows)
    await ledger.post_again(rows)
    assert await read_costs(database) == {"a": 9, "b": 9}


async def test_unattributed_rows_write_no_sums(database: Database) -> None:
    rows: Sequence[RequestRecord] = [ask(1), ask(2)]
    assert database.subjects.list_inserts(rows) == ()
    await LedgerRepository(database).post(rows)
    for table in (subject_usage, subject_counts):
        assert await database.read(select(table)) == []
