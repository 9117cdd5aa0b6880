"""A database goes back to the schema of every released version with all rows that the version knows."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Connection

from gateway.cli.main import main
from gateway.storage import downgrade
from gateway.storage.data_folder import JOURNAL
from gateway.storage.downgrade import open_transaction
from gateway.storage.journal import RequestJournal
from gateway.storage.open import open_database
from gateway.storage.schema import REVISION
from gateway.storage.schema_version import RELEASES, parse_user_version
from tests.support.request_records import make_row
from tests.support.schema_fixtures import (
    RELEASED,
    REVISIONS,
    load_fixture,
    make_folder,
    open_scripts,
    read_rows,
    read_shape,
)

VERSIONS = {revision: version for version, revision in RELEASES.items()}


def take_back(folder: Path, version: str) -> Result:
    words = ["downgrade", version, "--data", str(folder)]
    return CliRunner().invoke(main, words, env={"GATEWAY_DISCOVER": "0"})


def test_every_migration_leads_back() -> None:
    scripts = list(open_scripts().walk_revisions())
    assert [script.revision for script in scripts if not hasattr(script.module, "downgrade")] == [REVISIONS[0]]


@pytest.mark.parametrize("revision", RELEASED[:-1])
async def test_what_was_upgraded_goes_back_to_the_same_rows_and_the_same_schema(revision: str, tmp_path: Path) -> None:
    """Through the command. Each migration by itself: ``test_upgrade.py``."""
    folder = make_folder(revision, tmp_path / "data")
    path = folder / "gateway.db"
    before, shape = read_rows(path), read_shape(path)
    await (await open_database(f"sqlite:///{path}")).close()
    newest = read_rows(path)
    version = VERSIONS[revision]
    done = take_back(folder, f"{version}.0")
    assert done.exit_code == 0, done.output
    assert f"schema {revision} (it was {REVISION})" in done.output
    copy = folder / f"gateway.db.schema-{REVISION}"
    assert read_rows(copy) == newest
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(path)) as database:
        assert parse_user_version(database.execute("PRAGMA user_version").fetchone()[0]) == f"{version}.0"
    assert read_shape(path) == shape
    assert read_rows(path) == before
    await (await open_database(f"sqlite:///{path}")).close()
    again = read_rows(path)
    assert {table: len(rows) for table, rows in again.items() if table in before} == {
        table: len(rows) for table, rows in newest.items() if table in before
    }


def test_the_newest_rows_go_back_with_every_amount(tmp_path: Path) -> None:
    revision = RELEASES["0.7"]
    folder = make_folder(REVISION, tmp_path / "data")
    newest = read_rows(folder / "gateway.db")
    assert take_back(folder, f"{VERSIONS[revision]}.0").exit_code == 0
    with closing(sqlite3.connect(load_fixture(revision, tmp_path / "known.db"))) as database:
        known = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    after = read_rows(folder / "gateway.db")
    for table, rows in after.items():
        assert table in known
        for old, new in zip(newest[table], rows, strict=True):
            shared = old.keys() & new.keys()
            assert {name: old[name] for name in shared} == {name: new[name] for name in shared}
    endings = {row["ending"] for row in after["requests"]}
    assert endings <= {"completed", "refused", "upstream_failed", "client_closed", "interrupted", "failed"}


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.5.0", "No version '0.5.0' is known; known: 0.6, 0.7, 0.8, 0.9"),
        ("0.10.0", "No version '0.10.0' is known"),
        ("last", "No version 'last' is known"),
    ],
)
def test_only_older_versions_are_known(version: str, message: str, tmp_path: Path) -> None:
    folder = make_folder(REVISION, tmp_path / "data")
    done = take_back(folder, version)
    assert done.exit_code != 0
    assert message in done.output
    assert sorted(path.name for path in folder.glob("gateway.db*")) == ["gateway.db"]


def test_requests_that_wait_in_the_journal_are_settled_first(tmp_path: Path) -> None:
    folder = make_folder(REVISION, tmp_path / "data")
    journal = RequestJournal(folder / JOURNAL)
    journal.close()
    assert take_back(folder, "0.7.0").exit_code == 0
    assert not (folder / JOURNAL).exists(), "an empty one has the fields of this version"

    folder = make_folder(REVISION, tmp_path / "other")
    journal = RequestJournal(folder / JOURNAL)
    journal.record_end(make_row("req_waiting"))
    journal.close()
    content = (folder / JOURNAL).read_bytes()
    refused = take_back(folder, "0.7.0")
    assert refused.exit_code != 0
    assert "requests wait to be settled" in refused.output
    assert (folder / JOURNAL).read_bytes() == content


def test_a_downgrade_that_fails_can_be_tried_again(tmp_path: Path) -> None:
    folder = make_folder(REVISION, tmp_path / "data")
    with closing(sqlite3.connect(folder / "gateway.db")) as connection:
        connection.execute("CREATE VIEW mine AS SELECT served_model FROM requests")  # a column that must go
    assert take_back(folder, "0.7.0").exit_code != 0
    assert not list(folder.glob("gateway.db.schema-*"))
    with closing(sqlite3.connect(folder / "gateway.db")) as connection:
        connection.execute("DROP VIEW mine")
    assert take_back(folder, "0.7.0").exit_code == 0


def test_ctrl_c_after_the_commit_leaves_the_copy_of_the_former_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def open_interrupted(database: Path) -> Iterator[Connection]:
        with open_transaction(database) as connection:
            yield connection
        raise KeyboardInterrupt

    folder = make_folder(REVISION, tmp_path / "data")
    newest = read_rows(folder / "gateway.db")
    RequestJournal(folder / JOURNAL).close()
    monkeypatch.setattr(downgrade, "open_transaction", open_interrupted)
    assert take_back(folder, "0.7.0").exit_code != 0
    with closing(sqlite3.connect(folder / "gateway.db")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (RELEASES["0.7"],)
    assert read_rows(folder / f"gateway.db.schema-{REVISION}") == newest
    assert not (folder / JOURNAL).exists()


def test_a_copy_that_exists_is_never_replaced_and_another_schema_is_left_alone(tmp_path: Path) -> None:
    folder = make_folder(REVISION, tmp_path / "data")
    copy = folder / f"gateway.db.schema-{REVISION}"
    copy.write_text("mine")
    refused = take_back(folder, "0.7.0")
    assert (refused.exit_code, copy.read_text()) == (1, "mine"), refused.output
    assert "exists already" in refused.output
    folder = make_folder("0009", tmp_path / "old")
    refused = take_back(folder, "0.7.0")
    assert "has schema 0009" in refused.output
    assert refused.exit_code == 1
    assert "No gateway here" in take_back(tmp_path / "nothing", "0.7.0").output
