"""Lists of end users and of values of a tag, in every database: searched, sorted and paged as Python would do it."""

import random
from typing import Any

import attrs
import pytest

from gateway.domain.request_log import RequestRecord
from gateway.domain.subject_usage import SubjectFilter
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.subject_list import (
    SORT_KEYS,
    SubjectPage,
    find_first_day,
    list_subjects,
    list_tag_names,
    split_words,
)
from tests.support.subject_rows import TODAY, ask, restart

NAMES = ("ann", "Bob", "50 %_off", "bob@example.org", "张伟", "zoë")


def make_rows(seed: int) -> list[RequestRecord]:
    dice = random.Random(seed)  # noqa: S311 - rows, not secrets
    return [
        ask(
            f"{seed}-{number}",
            dice.randrange(1_000),
            days=dice.randrange(3),
            key=dice.choice([11, 21]),
            end_user=dice.choice(NAMES),
            prompt_tokens=dice.randrange(100),
        )
        for number in range(60)
    ]


def describe(page: SubjectPage) -> list[tuple[Any, ...]]:
    return [
        (row.sums.label, row.sums.requests, row.sums.failed, row.sums.prompt_tokens, row.sums.cost_nanos, row.last_day)
        for row in page.rows
    ]


def expect(rows: list[RequestRecord], sort: str) -> list[tuple[Any, ...]]:
    """What a list of all rows says, summed and sorted here."""
    lines, tokens = [], dict[str, int]()
    for name in {row.end_user for row in rows}:
        own = [row for row in rows if row.end_user == name]
        tokens[name] = sum(row.prompt_tokens + row.completion_tokens for row in own)
        sums = [sum(getattr(row, field) for row in own) for field in ("prompt_tokens", "cost_nanos")]
        last_day = max(row.settled_ms for row in own) // 86_400_000
        lines.append((name, len(own), 0, *sums, last_day))
    index = {"name": 0, "requests": 1, "failed": 2, "cost_usd": 4, "last_used_on": 5}
    field = sort.removeprefix("-")
    lines.sort(key=lambda line: line[0].encode())
    lines.sort(
        key=lambda line: (
            tokens[line[0]] if field == "tokens" else line[0].encode() if field == "name" else line[index[field]]
        ),
        reverse=sort.startswith("-"),
    )
    return lines


@pytest.mark.parametrize("sort", [name for field in SORT_KEYS for name in (field, f"-{field}")])
async def test_a_list_is_sorted_and_its_pages_are_the_whole(database: Database, sort: str) -> None:
    rows = make_rows(7)
    await LedgerRepository(database).post(rows)
    days = SubjectFilter("user", "", TODAY, TODAY + 2)
    whole = await list_subjects(database, days, (), sort, start=0, limit=50)
    assert whole.total == len(NAMES)
    assert describe(whole) == expect(rows, sort)
    paged = [await list_subjects(database, days, (), sort, start=start, limit=2) for start in (0, 2, 4)]
    assert [line for page in paged for line in describe(page)] == describe(whole)
    assert {page.total for page in paged} == {len(NAMES)}
    assert await list_subjects(database, days, (), sort, start=6, limit=2) == SubjectPage([], 0)


async def test_a_search_finds_each_word_in_any_case_and_nothing_is_a_wildcard(database: Database) -> None:
    rows = [ask(number, 1, end_user=name) for number, name in enumerate(NAMES)]
    await LedgerRepository(database).post(rows)
    days = SubjectFilter("user", "", TODAY, TODAY)
    for search, expected in (
        ("bob", ["Bob", "bob@example.org"]),
        ("ORG bob", ["bob@example.org"]),
        ("%", ["50 %_off"]),
        ("_", ["50 %_off"]),
        ("伟", ["张伟"]),
        ("nobody", []),
        ("", sorted(NAMES)),
    ):
        found = await list_subjects(database, days, split_words(search), "name", start=0, limit=50)
        assert [row.sums.label for row in found.rows] == expected, search
        assert found.total == len(expected)


async def test_accounts_keys_and_days_restrict_a_list(database: Database) -> None:
    mine: dict[str, Any] = {"account_id": 1}
    theirs: dict[str, Any] = {"account_id": 2, "account": "other"}
    rows = [
        attrs.evolve(ask(1, 5, end_user="ann", tags="team=web"), **mine),
        attrs.evolve(ask(2, 7, end_user="ann", tags="secret=plan", key=21), **theirs),
        attrs.evolve(ask(3, 9, days=3, end_user="old", tags="later=yes"), **mine),
    ]
    await LedgerRepository(database).post(rows)

    async def read(**whose: Any) -> dict[str, int]:
        days = SubjectFilter("user", "", TODAY, TODAY, **whose)
        page = await list_subjects(database, days, (), "name", start=0, limit=50)
        return {row.sums.label: row.sums.cost_nanos for row in page.rows}

    assert await read() == {"ann": 12}
    assert await read(account_id=1) == {"ann": 5}
    assert await read(key_id=21) == {"ann": 7}
    assert await read(account_id=1, key_id=21) == {}
    for account_id, names in ((None, ["secret", "team"]), (1, ["team"]), (3, [])):
        assert await list_tag_names(database, SubjectFilter("tag", "", TODAY, TODAY, account_id)) == names


async def test_what_is_only_counted_together_is_no_line(database: Database) -> None:
    restart(database, 2)
    await LedgerRepository(database).post([ask(number, 1, end_user=f"u{number}") for number in range(5)])
    page = await list_subjects(database, SubjectFilter("user", "", TODAY, TODAY), (), "name", start=0, limit=50)
    assert (page.total, len(page.rows)) == (2, 2)
    assert all(row.sums.label for row in page.rows)


async def test_the_newest_days_are_those_with_few_enough_subjects(database: Database) -> None:
    rows = make_rows(3)
    await LedgerRepository(database).post([*rows, ask("tag", tags="team=web"), ask("old", days=-9, end_user="ann")])
    users = [len({row.end_user for row in rows if row.settled_ms // 86_400_000 == TODAY + day}) for day in range(3)]
    wanted = SubjectFilter("user", "", TODAY, TODAY + 2)
    found = {}
    for max_values in range(sum(users) + 2):
        days = [day for day in range(3) if sum(users[day:]) <= max_values]
        found[max_values] = min(days, default=2)
        assert await find_first_day(database, wanted, max_values) == TODAY + found[max_values], max_values
    assert set(found.values()) == {0, 1, 2}
    assert await find_first_day(database, attrs.evolve(wanted, name="none"), 0) == TODAY
