"""A database of every released schema is brought up to date with every row and every nano-dollar."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway import __version__
from gateway.cli.main import main
from gateway.storage.backup import BackupSource, write_backup
from gateway.storage.database import DatabaseStartupError
from gateway.storage.downgrade import open_transaction
from gateway.storage.open import open_database
from gateway.storage.restore import restore_backup
from gateway.storage.schema import REVISION, metadata
from gateway.storage.schema_version import parse_user_version
from tests.support.command_line import run_many
from tests.support.schema_fixtures import (
    RELEASED,
    REVISIONS,
    load_fixture,
    make_folder,
    migrate,
    open_scripts,
    read_rows,
    read_shape,
)

RENAMED_BY = "0013"
"""The migration that ``RENAMED`` and ``CHANGED`` tell of."""
RENAMED = {"requests": {"ending": "outcome"}}
CHANGED = {"requests": {"outcome": {"upstream_failed": "failed"}}}
"""Values that a migration replaces."""
Row = dict[str, Any]


def bring_up(table: str, row: Row) -> Row:
    """What a row must be after the upgrade."""
    renamed, changed = RENAMED.get(table, {}), CHANGED.get(table, {})
    named = {renamed.get(name, name): value for name, value in row.items()}
    return {name: changed.get(name, {}).get(value, value) for name, value in named.items()}


def contains(rows: list[Row], wanted: Row) -> bool:
    return any(wanted.items() <= row.items() for row in rows)


def check_kept(before: Mapping[str, list[Row]], after: Mapping[str, list[Row]]) -> None:
    """Every row of ``before`` is in ``after``, and nothing else in its table."""
    for table, rows in before.items():
        for row in rows:
            assert contains(after[table], row), (table, row)
        assert len(after[table]) == len(rows), table


def sum_up(rows: Mapping[str, list[Row]], table: str, column: str) -> dict[tuple[int, int | None], int]:
    """The sum of a column for each account and key."""
    sums: dict[tuple[int, int | None], int] = {}
    for row in rows[table]:
        if row.get("kind") != "top_up" and row.get("span", 24) == 24:
            owner = row["account_id"], row["key_id"]
            sums[owner] = sums.get(owner, 0) + row[column]
    return {owner: amount for owner, amount in sums.items() if amount}


def test_every_migration_has_a_fixture_with_rows_in_every_table(tmp_path: Path) -> None:
    revisions = sorted(script.revision for script in open_scripts().walk_revisions())
    assert list(REVISIONS) == revisions, "run scripts/make_schema_fixtures.py"
    for revision in REVISIONS:
        rows = read_rows(load_fixture(revision, tmp_path / f"{revision}.db"))
        assert all(rows.values()), revision
    assert set(rows) == set(metadata.tables)


def test_each_migration_keeps_every_row_and_leads_back_to_the_same_schema(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """One step from what each schema has stored, which is something in every table, and back."""
    for revision, following in pairwise(REVISIONS):
        with subtests.test(f"{revision} to {following}"):
            path = load_fixture(revision, tmp_path / f"{revision}.db")
            before, shape = read_rows(path), read_shape(path)
            with open_transaction(path) as connection:
                migrate(connection, following)
            renamed = following == RENAMED_BY
            wanted = {name: [bring_up(name, row) if renamed else row for row in before[name]] for name in before}
            check_kept(wanted, read_rows(path))
            with open_transaction(path) as connection:
                migrate(connection, revision)
            assert read_shape(path) == shape
            assert read_rows(path) == before


@pytest.mark.parametrize("revision", RELEASED)
async def test_an_upgrade_keeps_every_row_and_every_amount(revision: str, tmp_path: Path) -> None:
    path = load_fixture(revision, tmp_path / "x.db")
    before = read_rows(path)
    await (await open_database(f"sqlite:///{path}")).close()
    after = read_rows(path)
    check_kept({table: [bring_up(table, row) for row in rows] for table, rows in before.items()}, after)
    with closing(sqlite3.connect(path)) as database:
        ((schema,),) = database.execute("SELECT version_num FROM alembic_version")
        ((version,),) = database.execute("PRAGMA user_version")
        assert not list(database.execute("PRAGMA foreign_key_check"))
    assert schema == REVISION
    assert parse_user_version(version) == ("" if revision == REVISION else __version__)
    charged = sum_up(after, "entries", "amount_nanos")
    assert charged == sum_up(after, "usage_days", "cost_nanos") == sum_up(after, "usage_hours", "cost_nanos")
    spent = sum_up(after, "requests", "cost_nanos")
    for owner, amount in sum_up(after, "retired", "cost_nanos").items():
        spent[owner] += amount
    assert spent == charged
    assert any(amount > 2**53 for amount in charged.values())


def test_the_ledger_of_every_released_schema_agrees(tmp_path: Path) -> None:
    folders = [make_folder(revision, tmp_path / revision) for revision in RELEASED]
    done = run_many(tmp_path, *(["verify", "--json", "--data", str(folder)] for folder in folders))
    for revision, (code, out, err) in zip(RELEASED, done, strict=True):
        assert code == 0, (revision, out, err)
        report = json.loads(out)
        assert report["ok"]
        with closing(sqlite3.connect(load_fixture(revision, tmp_path / f"{revision}.db"))) as database:
            ((charged,),) = database.execute("SELECT SUM(amount_nanos) FROM entries WHERE kind = 'charge'")
        assert report["charged_nanos"] == charged


@pytest.mark.parametrize("revision", [REVISIONS[0], REVISIONS[-1]])
def test_a_backup_of_an_older_schema_is_restored_and_then_brought_up(revision: str, tmp_path: Path) -> None:
    folder = make_folder(revision, tmp_path / "old")
    manifest = write_backup(BackupSource(folder, folder / "gateway.db"), tmp_path / "b.gwb")
    assert manifest["schema"] == revision
    restore_backup(tmp_path / "b.gwb", tmp_path / "new")
    restored_rows, rows = read_rows(tmp_path / "new/gateway.db"), read_rows(folder / "gateway.db")
    rows.pop("body_store_marks", None)
    assert not restored_rows.pop("body_store_marks", None)  # a copy must not delete what its original keeps elsewhere
    assert restored_rows == rows
    ((code, out, err),) = run_many(tmp_path, ["verify", "--data", str(tmp_path / "new")])
    assert code == 0, (out, err)


@pytest.mark.parametrize(
    ("user_version", "message"),
    [(9_010_002, r"Install version 9\.10\.2 or newer"), (0, "Install the version that wrote it")],
)
def test_an_older_program_says_which_version_a_newer_database_needs(
    tmp_path: Path, user_version: int, message: str
) -> None:
    folder = make_folder(REVISION, tmp_path / "data")
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.execute(f"PRAGMA user_version = {user_version}")
        database.commit()
    before = read_rows(folder / "gateway.db")
    for words in (["verify"], ["accounts"]):
        refused = CliRunner().invoke(main, [*words, "--data", str(folder)], env={"GATEWAY_DISCOVER": "0"})
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert message.replace("\\", "") in refused.stderr
        assert f"this one, {__version__}, knows {REVISION}" in refused.stderr
        assert f"gateway downgrade {__version__}" in refused.stderr
    assert read_rows(folder / "gateway.db") == before


async def test_an_upgrade_records_the_version_that_its_schema_needs(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    await (await open_database(f"sqlite:///{path}")).close()
    with closing(sqlite3.connect(path)) as database:
        ((version,),) = database.execute("PRAGMA user_version")
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.commit()
    assert parse_user_version(version) == __version__
    with pytest.raises(DatabaseStartupError, match=f"Install version {__version__} or newer"):
        await open_database(f"sqlite:///{path}")
