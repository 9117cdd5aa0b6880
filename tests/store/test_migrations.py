"""The migrations make what the schema says."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Connection, Index, Integer, MetaData, Table, create_engine

import gateway.store.migrations
from gateway.store.migrations.run import upgrade
from gateway.store.schema import REVISION, metadata


def open_scripts() -> ScriptDirectory:
    config = Config()
    (folder,) = gateway.store.migrations.__path__
    config.set_main_option("script_location", folder)
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


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


def read_definitions(path: Path) -> dict[str, str]:
    """What SQLite was told, without white space: constraints that a comparison of tables does not see are in it."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: "".join(sql.split()) for name, sql in rows if not name.startswith(("alembic", "sqlite"))}


def test_constraints_and_counters_are_the_schemas_too(tmp_path: Path) -> None:
    migrated, made = tmp_path / "migrated.db", tmp_path / "made.db"
    for path, build in ((migrated, upgrade), (made, metadata.create_all)):
        engine = create_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            build(connection)
        engine.dispose()
    assert read_definitions(migrated) == read_definitions(made)
    assert "AUTOINCREMENT" in read_definitions(made)["keys"]
    assert "ONDELETECASCADE" in read_definitions(made)["keys"]


def test_migrating_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = create_engine(f"sqlite:///{path}")
    for _ in range(2):
        with engine.begin() as connection:
            upgrade(connection)
    engine.dispose()
    assert read_definitions(path).keys() >= {"accounts", "keys", "requests"}
