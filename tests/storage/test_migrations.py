"""The migrations make what the schema says."""

import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Column, Connection, Index, Integer, MetaData, Table, create_engine, insert, text

import gateway.storage.migrations
from gateway.domain.account import Account, ApiKey
from gateway.domain.balance import parse_day
from gateway.domain.request_log import RequestFilter, RequestRecord
from gateway.domain.traffic import TrafficAxis, TrafficFilter
from gateway.storage.accounts import AccountRepository
from gateway.storage.database import DatabaseStartupError
from gateway.storage.ledger import LedgerRepository
from gateway.storage.migrations.run import upgrade
from gateway.storage.open import open_database
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.row_mapping import Values, build_account, build_key, build_request
from gateway.storage.schema import REVISION, metadata
from gateway.storage.traffic import TrafficRepository
from tests.support.ledger_balances import ALWAYS, AXES, read_spending, read_totals
from tests.support.repositories import Repositories
from tests.support.request_records import ROW, make_row, refuse
from tests.support.schema_fixtures import open_scripts


def find_differences(connection: Connection, wanted: MetaData) -> list[object]:
    options = {"compare_type": True, "compare_server_default": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), wanted))


def test_the_newest_migration_is_the_schemas_revision() -> None:
    assert open_scripts().get_heads() == [REVISION]


def test_migrations_are_one_line_of_growing_numbers() -> None:
    revisions = [script.revision for script in open_scripts().walk_revisions()]
    assert revisions == sorted(revisions, reverse=True)
    assert all(len(revision) == 4 and revision.isdigit() for revision in revisions)


def test_the_migrations_make_exactly_the_schema(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        upgrade(connection)
        assert find_differences(connection, metadata) == []
    engine.dispose()


@pytest.mark.parametrize("what", ["column", "table", "index", "nothing"])
def test_a_difference_would_be_found(tmp_path: Path, what: str) -> None:
    wanted = MetaData()
    for table in metadata.tables.values():
        table.to_metadata(wanted)
    if what == "column":
        wanted.tables["accounts"].append_column(Column("extra", Integer))
    elif what == "table":
        Table("extra", wanted, Column("id", Integer, primary_key=True))
    elif what == "index":
        Index("extra", wanted.tables["requests"].c.status)
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        upgrade(connection)
        assert bool(find_differences(connection, wanted)) == (what != "nothing")
    engine.dispose()


def read_definitions(path: Path) -> dict[str, list[str]]:
    """What SQLite was told, part by part: constraints that a comparison of tables does not see are in it.

    White space is left out, and the order of columns: one that a migration adds comes last, and none is found by place.
    """
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: split(sql) for name, sql in rows if not name.startswith(("alembic", "sqlite"))}


def split(sql: str) -> list[str]:
    head, _, rest = "".join(sql.split()).partition("(")
    body, _, tail = rest.rpartition(")")
    parts = re.split(r",(?![^(]*\))", body)
    return [head, *(sorted(parts) if head.startswith("CREATETABLE") else parts), tail]


def test_constraints_and_counters_are_the_schemas_too(tmp_path: Path) -> None:
    migrated, made = tmp_path / "migrated.db", tmp_path / "made.db"
    for path, build in ((migrated, upgrade), (made, metadata.create_all)):
        engine = create_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            build(connection)
        engine.dispose()
    assert read_definitions(migrated) == read_definitions(made)
    definitions = {name: " ".join(parts) for name, parts in read_definitions(made).items()}
    assert "AUTOINCREMENT" in definitions["keys"]
    assert "ONDELETECASCADE" in definitions["keys"]
    assert definitions["usage_days"].endswith("WITHOUTROWID")
    assert "ONDELETECASCADE" in definitions["video_prompts"]
    assert definitions["entries_of_credit"].endswith("key_id sequence WHEREkind!='charge'")


def test_migrating_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = create_engine(f"sqlite:///{path}")
    for _ in range(2):
        with engine.begin() as connection:
            upgrade(connection)
    engine.dispose()
    assert read_definitions(path).keys() >= {"accounts", "keys", "requests"}


DAY_MS = 86_400_000
MIDNIGHT_MS = round(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
FIRST_ROWS = [
    make_row("acme", key_id=1, account="acme"),
    make_row("renamed", key_id=1, account="acme's old name"),
    make_row("beta", key_id=2, account="beta", cost_nanos=2**53 + 1),
    make_row("key deleted", key_id=9, account="acme", cost_nanos=40),
    make_row("account deleted", key_id=8, account="gone", cost_nanos=50),
    make_row("free", key_id=1, account="acme", cost_nanos=0, channel=None, first_byte_ms=None),
    refuse(make_row("refused", key_id=1, account="acme", model="")),
    make_row("late", key_id=2, account="beta", started_ms=MIDNIGHT_MS - 1, total_ms=1, model="n"),
    make_row("early", key_id=2, account="beta", started_ms=MIDNIGHT_MS - 2, total_ms=1, model="n"),
]
"""Rows as the first version wrote them: of keys and accounts that are there, and of some that are not."""
FIRST_ACCOUNTS = {"acme": 1, "acme's old name": 1, "beta": 2, "gone": 0}


@pytest.fixture
def first_path(tmp_path: Path) -> Path:
    """A database of the first version, in use."""
    path = tmp_path / "first.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        upgrade_to(connection, "0001")
        tables = MetaData()
        tables.reflect(connection)
        accounts, keys, requests = (tables.tables[name] for name in ("accounts", "keys", "requests"))
        for number, name in ((1, "acme"), (2, "beta")):
            account = {**build_account(Account(0, name)), "id": number}
            connection.execute(insert(accounts).values(fit(account, accounts)))
            key = {**build_key(ApiKey(0, number, name, bytes([number] * 32), "0000")), "id": number}
            connection.execute(insert(keys).values(fit(key, keys)))
        for row in FIRST_ROWS:
            connection.execute(insert(requests).values(fit(build_request(row), requests)))
    engine.dispose()
    return path


def upgrade_to(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", next(iter(gateway.storage.migrations.__path__)))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def fit(values: Values, table: Table) -> Values:
    """What of ``values`` the table has a column for; up to 0.7 the outcome of a request was its ``ending``."""
    former = {"failed": "upstream_failed"}
    ending = {"ending": former.get(values["outcome"], values["outcome"])} if "outcome" in values else {}
    return {name: value for name, value in {**values, **ending}.items() if name in table.c}


UNTOLD: dict[str, Any] = {
    "tried": "",
    "images": 0,
    "duration_ms": 0,
    "characters": 0,
    "error": "",
    "unpriced": False,
    "batch_id": None,
    "batch_multiplier_ppm": 1_000_000,
    "adapted": "",
    "served_model": "",
    "units": "",
}
"""What earlier versions did not write down."""


def bring_up(row: RequestRecord) -> RequestRecord:
    """A row of the first version as it should be now: no more is known of its account, its hold and its attempts."""
    return attrs.evolve(
        row,
        settled_ms=row.started_ms + row.total_ms,
        account_id=FIRST_ACCOUNTS[row.account],
        reserved_nanos=0,
        overrun_nanos=0,
        **UNTOLD,
    )


async def test_what_the_first_version_stored_is_charged_as_if_it_came_now(first_path: Path) -> None:
    expected = [bring_up(row) for row in FIRST_ROWS]
    again = Repositories()
    await again.post(expected)
    database = await open_database(f"sqlite:///{first_path}")
    ledger = LedgerRepository(database)
    stored = await RequestLogRepository(database).list_requests(RequestFilter(), 100)
    assert [item.row for item in stored] == expected
    for moment_ms in (ROW.settled_ms, MIDNIGHT_MS, MIDNIGHT_MS - 1, MIDNIGHT_MS + 31 * DAY_MS):
        day = parse_day(moment_ms / 1000)
        assert await read_spending(ledger, day) == await read_spending(again, day)
    for axis in AXES:
        assert await ledger.list_usage(axis, ALWAYS) == await again.list_usage(axis, ALWAYS)
    assert await read_totals(ledger) == await read_totals(again)
    charges = [row for row in expected if row.cost_nanos]
    entries = [tuple(entry)[1:] for entry in await database.read(text("SELECT * FROM entries ORDER BY sequence"))]
    assert entries == [
        (row.settled_ms, "charge", row.account_id, row.key_id, row.cost_nanos, row.id, None, None) for row in charges
    ]
    await database.close()


async def test_a_migrated_database_is_the_one_that_is_made_now(first_path: Path, tmp_path: Path) -> None:
    await (await open_database(f"sqlite:///{first_path}")).close()
    made = tmp_path / "made.db"
    await (await open_database(f"sqlite:///{made}")).close()
    assert read_definitions(first_path) == read_definitions(made)


async def test_a_migrated_database_goes_on(first_path: Path) -> None:
    """Ids are not given again, what was stored is known, and new charges come on top."""
    database = await open_database(f"sqlite:///{first_path}")
    ledger, accounts = LedgerRepository(database), AccountRepository(database)
    before = await read_totals(ledger)
    row = bring_up(FIRST_ROWS[0])
    await ledger.post([row, attrs.evolve(row, id="new", cost_nanos=1)])
    old, new = ({total[:2]: total[2] for total in totals} for totals in (before, await read_totals(ledger)))
    assert new == {**old, (1, 1): old[1, 1] + 1}
    assert [account.name for account in await accounts.list_accounts()] == ["acme", "beta"]
    assert (await accounts.add_account(Account(0, "gamma"))).id == 3
    await database.close()


async def test_a_migration_that_fails_leaves_the_version_that_was_there(first_path: Path) -> None:
    with closing(sqlite3.connect(first_path)) as other:
        other.execute("CREATE TABLE usage_days (theirs TEXT)")
        other.commit()
    before = read_definitions(first_path)
    with pytest.raises(DatabaseStartupError):
        await open_database(f"sqlite:///{first_path}")
    assert read_definitions(first_path) == before
    with closing(sqlite3.connect(first_path)) as other:
        assert other.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
        other.execute("DROP TABLE usage_days")
        other.commit()
    database = await open_database(f"sqlite:///{first_path}")
    assert len(await RequestLogRepository(database).list_requests(RequestFilter(), 100)) == len(FIRST_ROWS)
    await database.close()


HOUR_MS = 3_600_000
FIFTH_ROWS = [
    make_row("at midnight", settled_ms=MIDNIGHT_MS),
    make_row("a moment before", settled_ms=MIDNIGHT_MS - 1),
    make_row("an hour later", settled_ms=MIDNIGHT_MS + HOUR_MS, channel="other"),
    make_row("the same hour", settled_ms=MIDNIGHT_MS + HOUR_MS + 5, channel="other", cost_nanos=7),
    make_row("who left", settled_ms=MIDNIGHT_MS, status=499, outcome="client_closed"),
    make_row("broken off", settled_ms=MIDNIGHT_MS, outcome="failed"),
    refuse(make_row("limited", settled_ms=MIDNIGHT_MS, error_code="rate_limit_exceeded")),
    refuse(make_row("no model", settled_ms=MIDNIGHT_MS, model="gpt-x", error_code="model_not_found")),
    refuse(make_row("no such", settled_ms=MIDNIGHT_MS, model="gpt-y", error_code="model_not_allowed")),
    make_row("theirs", settled_ms=MIDNIGHT_MS, model="gpt-z", error_code="model_not_found", outcome="refused"),
]
"""Rows as the fifth version wrote them: it had no text of errors."""


async def test_what_the_fifth_version_stored_is_summed_by_hour_and_by_day_as_if_it_came_now(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'fifth.db'}")
    with engine.begin() as connection:
        upgrade_to(connection, "0005")
        tables = MetaData()
        tables.reflect(connection)
        there = tables.tables["requests"]
        connection.execute(insert(there), [fit(build_request(row), there) for row in FIFTH_ROWS])
        assert "error" not in there.c
    engine.dispose()
    again = Repositories()
    await again.post([attrs.evolve(row, error="") for row in FIFTH_ROWS])
    database = await open_database(f"sqlite:///{tmp_path / 'fifth.db'}")
    traffic, log, everything = TrafficRepository(database), RequestLogRepository(database), TrafficFilter(0, 10**6)
    for axis in get_args(TrafficAxis):
        assert await traffic.list_traffic(axis, everything) == await again.traffic.list_traffic(axis, everything)
    assert [line.requests for line in await traffic.list_traffic("hour", everything)] == [1, 7, 2]
    for wanted in (RequestFilter(), RequestFilter(verdict="error"), RequestFilter(account_id=ROW.account_id)):
        found = [[one.row for one in await place.list_requests(wanted, 100)] for place in (log, again)]
        assert found[0] == found[1]
    await database.close()


@pytest.mark.parametrize(
    ("ending", "error_code", "outcome"),
    [
        ("completed", None, "completed"),
        ("client_closed", None, "client_closed"),
        ("interrupted", None, "interrupted"),
        ("interrupted", "request_cancelled", "cancelled"),
        ("interrupted", "cancelled", "cancelled"),
        ("upstream_failed", "upstream_error", "failed"),
        ("upstream_failed", "content_policy_violation", "blocked"),
        ("failed", "internal_error", "failed"),
        ("refused", "sensitive_words_detected", "blocked"),
        ("refused", "rate_limit_exceeded", "refused"),
    ],
)
async def test_an_ending_of_a_former_version_becomes_an_outcome(
    tmp_path: Path, ending: str, error_code: str | None, outcome: str
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'former.db'}")
    with engine.begin() as connection:
        upgrade_to(connection, "0012")
        tables = MetaData()
        tables.reflect(connection)
        there = tables.tables["requests"]
        row = {**fit(build_request(make_row("one", error_code=error_code)), there), "ending": ending}
        connection.execute(insert(there), [row])
    engine.dispose()
    database = await open_database(f"sqlite:///{tmp_path / 'former.db'}")
    (found,) = await RequestLogRepository(database).list_requests(RequestFilter(), 9)
    await database.close()
    assert found.row == make_row("one", error_code=error_code, outcome=outcome)


TABLES = ("accounts", "keys", "requests", "entries", "usage_days", "channels")
NEWEST_TABLES = ("videos", "video_prompts", "deliveries", "replays", "retired", "members", "audit", "settings")
NEW_COLUMNS: dict[str, dict[str, Any]] = {
    "requests": UNTOLD,
    "keys": {"webhook_url": None, "former_digest": None, "former_until_s": None, "locked": [], "burst": None},
    "accounts": {"burst": None},
}


def read_tables(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """Every row of ``TABLES``, as far as they are there."""
    there = MetaData()
    there.reflect(connection)
    rows = {name: connection.execute(there.tables[name].select()) for name in TABLES if name in there.tables}
    return {name: [dict(row) for row in found.mappings()] for name, found in rows.items()}


def rename_ending(row: dict[str, Any]) -> dict[str, Any]:
    outcome = {"upstream_failed": "failed"}
    return {
        "outcome" if name == "ending" else name: outcome.get(value, value) if name == "ending" else value
        for name, value in row.items()
    }


@pytest.mark.parametrize("revision", ["0002", "0003", "0004"])
async def test_what_later_versions_stored_stays_as_it_is(first_path: Path, revision: str) -> None:
    """Of what a version did not write down nothing is known: no trail, no errors, no webhook, no videos, nobody."""
    url = f"sqlite:///{first_path}"
    engine = create_engine(url)
    with engine.begin() as connection:
        upgrade_to(connection, revision)
        if revision >= "0003":
            connection.execute(text("INSERT INTO channels VALUES (7, 'up', 'active', 'demo', '', '{}', x'00ff', 1)"))
        before = read_tables(connection)
    await (await open_database(url)).close()
    with engine.begin() as connection:
        after = read_tables(connection)
        assert not any(connection.execute(metadata.tables[name].select()).all() for name in NEWEST_TABLES)
    engine.dispose()
    for name, rows in before.items():
        assert rows
        assert after[name] == [{**NEW_COLUMNS.get(name, {}), **rename_ending(row)} for row in rows]
    assert after["channels"] == before.get("channels", [])
