"""The migrations make what the schema says."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Connection, Index, Integer, MetaData, Table, create_engine, insert

from gateway.domain.account import Account
from gateway.domain.request_log import RequestFilter
from gateway.storage.accounts import AccountRepository
from gateway.storage.database import DatabaseStartupError
from gateway.storage.ledger import LedgerRepository
from gateway.storage.migrations.run import upgrade
from gateway.storage.open import open_database
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.row_mapping import Values, build_request_row
from gateway.storage.schema import REVISION, metadata
from gateway.storage.schema_upgrade import create_schema
from tests.support.ledger_balances import read_totals
from tests.support.request_records import make_row
from tests.support.schema_fixtures import REVISIONS, load_fixture, migrate, open_scripts


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


def test_a_difference_would_be_found(tmp_path: Path, subtests: pytest.Subtests) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        upgrade(connection)
        for what in ("column", "table", "index", "nothing"):
            with subtests.test(what):
                assert bool(find_differences(connection, extend_schema(what))) == (what != "nothing")
    engine.dispose()


def extend_schema(what: str) -> MetaData:
    """The schema with something that no migration makes."""
    wanted = MetaData()
    for table in metadata.tables.values():
        table.to_metadata(wanted)
    if what == "column":
        wanted.tables["accounts"].append_column(Column("extra", Integer))
    elif what == "table":
        Table("extra", wanted, Column("id", Integer, primary_key=True))
    elif what == "index":
        Index("extra", wanted.tables["requests"].c.status)
    return wanted


def read_definitions(path: Path) -> dict[str, list[str]]:
    """What SQLite was told, part by part: constraints that a comparison of tables does not see are in it.

    White space is left out, and the order of columns: one that a migration adds comes last, and none is found by place.
    """
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: split(sql) for name, sql in rows if not name.startswith("sqlite")}


def count_rows(path: Path) -> dict[str, int]:
    """How many rows are in each table that has any."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        counts = {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}  # noqa: S608
    return {name: count for name, count in counts.items() if count}


def split(sql: str) -> list[str]:
    head, _, rest = "".join(sql.split()).partition("(")
    body, _, tail = rest.rpartition(")")
    parts = re.split(r",(?![^(]*\))", body)
    return [head, *(sorted(parts) if head.startswith("CREATETABLE") else parts), tail]


def test_an_empty_file_gets_the_tables_that_migrations_make(tmp_path: Path) -> None:
    migrated, made = tmp_path / "migrated.db", tmp_path / "made.db"
    for path, build in ((migrated, upgrade), (made, create_schema)):
        engine = create_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            build(connection)
        engine.dispose()
    assert read_definitions(migrated) == read_definitions(made)
    assert count_rows(migrated) == count_rows(made) == {"alembic_version": 1}
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


@pytest.fixture
def oldest_path(tmp_path: Path) -> Path:
    """A database of the oldest schema that is brought up to date, in use."""
    return load_fixture(REVISIONS[0], tmp_path / "oldest.db")


def fit(values: Values, table: Table) -> Values:
    """What of ``values`` the table has a column for; up to 0.7 the outcome of a request was its ``ending``."""
    former = {"failed": "upstream_failed"}
    ending = {"ending": former.get(values["outcome"], values["outcome"])} if "outcome" in values else {}
    return {name: value for name, value in {**values, **ending}.items() if name in table.c}


async def test_a_migrated_database_is_the_one_that_is_made_now(oldest_path: Path, tmp_path: Path) -> None:
    await (await open_database(f"sqlite:///{oldest_path}")).close()
    made = tmp_path / "made.db"
    await (await open_database(f"sqlite:///{made}")).close()
    assert read_definitions(oldest_path) == read_definitions(made)


async def test_a_migrated_database_goes_on(oldest_path: Path) -> None:
    """Ids are not given again, what was stored is known, and new charges come on top."""
    database = await open_database(f"sqlite:///{oldest_path}")
    ledger, accounts = LedgerRepository(database), AccountRepository(database)
    before = await read_totals(ledger)
    await ledger.post([make_row("new", cost_nanos=1, account_id=1, key_id=1)])
    old, new = ({total[:2]: total[2] for total in totals} for totals in (before, await read_totals(ledger)))
    assert new == {**old, (1, 1): old[1, 1] + 1}
    known = await accounts.list_accounts()
    assert {"acme", "beta"} <= {account.name for account in known}
    assert (await accounts.add_account(Account(0, "gamma"))).id == max(account.id for account in known) + 1
    await database.close()


async def test_a_migration_that_fails_leaves_the_version_that_was_there(oldest_path: Path) -> None:
    with closing(sqlite3.connect(oldest_path)) as other:
        other.execute("CREATE TABLE fingerprints (theirs TEXT)")
        other.commit()
        ((rows,),) = other.execute("SELECT COUNT(*) FROM requests")
    before = read_definitions(oldest_path)
    with pytest.raises(DatabaseStartupError):
        await open_database(f"sqlite:///{oldest_path}")
    assert read_definitions(oldest_path) == before
    with closing(sqlite3.connect(oldest_path)) as other:
        assert other.execute("SELECT version_num FROM alembic_version").fetchall() == [(REVISIONS[0],)]
        other.execute("DROP TABLE fingerprints")
        other.commit()
    database = await open_database(f"sqlite:///{oldest_path}")
    assert len(await RequestLogRepository(database).list_requests(RequestFilter(), 100)) == rows
    await database.close()


async def test_a_database_that_is_older_is_left_alone_and_the_version_between_is_named(oldest_path: Path) -> None:
    with closing(sqlite3.connect(oldest_path)) as other:
        other.execute("UPDATE alembic_version SET version_num = '0005'")
        other.commit()
    before = read_definitions(oldest_path)
    with pytest.raises(DatabaseStartupError, match=r"schema 0005.*Install version 0\.8\.0, start it once"):
        await open_database(f"sqlite:///{oldest_path}")
    assert read_definitions(oldest_path) == before


ENDINGS = [
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
]
"""The former ending of a request, its error code, and the outcome that both become."""


async def test_an_ending_of_a_former_version_becomes_an_outcome(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'former.db'}")
    with engine.begin() as connection:
        migrate(connection, "0012")
        tables = MetaData()
        tables.reflect(connection)
        there = tables.tables["requests"]
        for number, (ending, code, _) in enumerate(ENDINGS):
            values = build_request_row(make_row(number, error_code=code))
            connection.execute(insert(there), [{**fit(values, there), "ending": ending}])
    engine.dispose()
    database = await open_database(f"sqlite:///{tmp_path / 'former.db'}")
    stored = await RequestLogRepository(database).list_requests(RequestFilter(), 99)
    await database.close()
    of_later_schemas: dict[str, Any] = {
        **dict.fromkeys(("route", "end_user", "session", "tags", "limit_charges"), ""),
        "queued_ms": 0,
    }
    assert [item.row for item in stored] == [
        make_row(number, error_code=code, outcome=outcome, **of_later_schemas)
        for number, (_, code, outcome) in enumerate(ENDINGS)
    ]
