"""``gateway store copy``: everything arrives, in both directions, or nothing does."""

import asyncio
import json
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main
from gateway.storage import schema
from gateway.storage.data_folder import SECRETS, DataFolder
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.sole_user import SoleUser
from tests.support.gateway_process import eventually
from tests.support.postgres import PostgresServer, SharedPostgres
from tests.support.schema_fixtures import make_folder

NOWHERE = "postgresql://me:hidden@127.0.0.1:1/gateway"
HIGHEST = 9_000
"""The last id that a table has given, to a row that is deleted."""


@pytest.fixture
async def server(shared_postgres: SharedPostgres) -> PostgresServer:
    return await shared_postgres.get_server()


@pytest.fixture
async def url(server: PostgresServer) -> str:
    return await server.make_database()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with rows in every table."""
    folder = make_folder(schema.REVISION, tmp_path / "data")
    change(folder, "UPDATE sqlite_sequence SET seq = ? WHERE name = 'requests'", HIGHEST)
    return folder


def change(folder: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        database.execute(statement, values)
        database.commit()


def read(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every value with its type, in the order of the rows' keys."""
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        found = {}
        for table in schema.metadata.sorted_tables:
            values = ", ".join(f'quote("{column.name}")' for column in table.columns)
            order = ", ".join(f'"{column.name}"' for column in table.primary_key.columns)
            statement = f"SELECT {values} FROM {table.name} ORDER BY {order}"  # noqa: S608 - our own words
            found[table.name] = database.execute(statement).fetchall()
        found["sequences"] = database.execute("SELECT * FROM sqlite_sequence ORDER BY name").fetchall()
    return found


def command(*words: str, **environ: str) -> Result:
    result = CliRunner().invoke(main, [*words], env={"GATEWAY_DISCOVER": "0", "GATEWAY_SERVER__PORT": "0", **environ})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "hidden" not in result.output
    return result


async def copy(source: object, target: object, *words: str) -> Result:
    return await asyncio.to_thread(command, "store", "copy", "--from", str(source), "--to", str(target), *words)


async def audit(folder: Path, url: str = "") -> dict[str, object]:
    result = await asyncio.to_thread(command, "verify", "--json", "--data", str(folder), GATEWAY_STORE__URL=url)
    return dict(json.loads(result.stdout))


async def test_a_folder_goes_to_a_server_and_back_with_every_row(folder: Path, url: str, tmp_path: Path) -> None:
    before = read(folder)
    assert all(before.values()), "a table of the fixture has no row"
    result = await copy(folder, url)
    assert (result.exit_code, f"requests: {len(before['requests'])} rows" in result.stderr) == (0, True), result.output
    assert "Start the gateway with store.url = postgresql://127.0.0.1" in result.stdout
    assert read(folder) == before
    report = json.loads((await copy(url, tmp_path / "back", "--json")).stdout)
    assert (report["rows"], report["ledger_agrees"], report["mended_rows"]) == (
        sum(len(rows) for name, rows in before.items() if name != "sequences"), True, 0,
    )  # fmt: skip
    back = tmp_path / "back"
    after = read(back)
    assert {name: after[name] for name in before} == before
    assert sorted(path.name for path in back.iterdir()) == ["gateway.db", "gateway.lock"]
    assert ((back / "gateway.db").stat().st_mode & 0o777, back.stat().st_mode & 0o777) == (0o600, 0o700)
    for name in SECRETS:
        (back / name).write_bytes((folder / name).read_bytes())
    audits = [await audit(folder), await audit(folder, url), await audit(back)]
    assert audits == [audits[0]] * 3
    assert audits[0]["ok"], audits[0]


async def test_ids_go_on_after_the_last_one_that_was_given(folder: Path, url: str) -> None:
    assert (await copy(folder, url)).exit_code == 0
    connection = await asyncpg.connect(url)
    numbers = {
        table: await connection.fetchval(f"SELECT nextval(pg_get_serial_sequence('{table}', '{column}'))")
        for table, column in (("requests", "sequence"), ("accounts", "id"))
    }
    await connection.close()
    assert numbers == {"requests": HIGHEST + 1, "accounts": 3}


async def test_a_text_that_a_server_does_not_store_is_mended_and_reported(folder: Path, url: str) -> None:
    change(folder, "UPDATE requests SET error = 'a' || char(0) || 'b' WHERE sequence = 1")
    result = await copy(folder, url)
    assert (result.exit_code, "it was left out. Rows: 1" in result.stderr) == (0, True), result.output


async def run_gateway_on(folder: Path, url: str) -> Callable[[], Awaitable[None]]:
    user = SoleUser(Address(url))
    await user.acquire()
    return user.close


async def test_what_is_in_use_or_has_data_is_refused(folder: Path, url: str, tmp_path: Path) -> None:
    before = read(folder)
    locked = DataFolder(folder)
    assert "A gateway is running already" in (await copy(folder, url)).stderr
    assert "A gateway is running already" in (await copy(url, folder)).stderr
    locked.close()
    close = await run_gateway_on(folder, url)
    assert "Another gateway uses the database" in (await copy(folder, url)).stderr
    assert "Another gateway uses the database" in (await copy(url, tmp_path / "new")).stderr
    await close()
    assert "has a database already" in (await copy(url, folder)).stderr
    assert (await copy(folder, url)).exit_code == 0
    again = await copy(folder, url)
    assert (again.exit_code, "has data already" in again.stderr) == (1, True)
    assert read(folder) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("missing", NOWHERE, "There is no database"),
        ("data", NOWHERE, "postgresql://127.0.0.1:1/gateway cannot be used"),
        (NOWHERE, "new", "postgresql://127.0.0.1:1/gateway cannot be used"),
        ("data", "new", "'gateway backup' and 'gateway restore'"),
        (NOWHERE, NOWHERE, "the same database"),
        (NOWHERE, "mysql://me:hidden@127.0.0.1/gateway", "A store at mysql:// is not known"),
    ],
    ids=["no folder", "no target", "no source", "two folders", "one server", "another program"],
)
async def test_a_place_that_cannot_be_copied_is_refused(
    folder: Path, tmp_path: Path, source: str, target: str, reason: str
) -> None:
    places = [place if "://" in place else tmp_path / place for place in (source, target)]
    result = await copy(*map(str, places))
    assert (result.exit_code, reason in result.stderr) == (1, True), result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


async def test_a_source_of_another_schema_is_refused(folder: Path, url: str) -> None:
    change(folder, "UPDATE alembic_version SET version_num = '0001'")
    assert "has schema 0001" in (await copy(folder, url)).stderr
    change(folder, "UPDATE alembic_version SET version_num = '9999'")
    assert "of a newer version" in (await copy(folder, url)).stderr


async def test_a_folder_with_other_secrets_is_no_target(folder: Path, url: str, tmp_path: Path) -> None:
    assert (await copy(folder, url)).exit_code == 0
    other = DataFolder(tmp_path / "other")
    other.make_secret("pepper")
    other.close()
    assert "is not the secret that" in (await copy(url, other.path)).stderr
    assert not (other.path / "gateway.db").exists()
    (folder / "gateway.db").unlink()
    (folder / "gateway.db-wal").unlink(missing_ok=True)
    assert (await copy(url, folder)).exit_code == 0


async def test_a_copy_that_fails_in_the_middle_leaves_an_empty_target(folder: Path, url: str, tmp_path: Path) -> None:
    change(folder, "UPDATE videos SET progress = 'far'")  # the last tables; SQLite stores it, and no server does
    result = await copy(folder, url)
    assert (result.exit_code, "refuses a row of videos" in result.stderr) == (1, True), result.output
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("SELECT count(*) FROM requests") == 0
    await connection.close()
    change(folder, "UPDATE videos SET progress = 0")
    assert (await copy(folder, url)).exit_code == 0
    # A copy that was killed has left its draft.
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / ".copy-gateway.db").write_bytes(b"half")
    assert (await copy(url, tmp_path / "back")).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["gateway.db", "gateway.lock"]


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def test_a_copy_that_is_killed_leaves_an_empty_target(folder: Path, url: str) -> None:
    """It is killed while it waits for a table that others have locked: most tables are written by then."""
    holder, watcher = await asyncpg.connect(url), await asyncpg.connect(url)
    async with holder.transaction():
        await holder.execute("LOCK TABLE video_prompts IN SHARE MODE")
        words = ("-m", "gateway", "store", "copy", "--from", str(folder), "--to", url)
        copying = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.DEVNULL)

        async def is_waiting() -> bool:
            return bool(await watcher.fetchval(WAITING))

        try:
            await eventually(is_waiting, 60)
        finally:
            copying.kill()
            await copying.wait()
        assert await watcher.fetchval("SELECT count(*) FROM requests") == 0
    again = await copy(folder, url)
    assert again.exit_code == 0, again.output
    assert await watcher.fetchval("SELECT count(*) FROM requests") == len(read(folder)["requests"])
    await holder.close()
    await watcher.close()


async def find_missing(source: str, other: str, *words: str) -> Result:
    return await asyncio.to_thread(command, "store", "missing", "--from", source, "--in", other, *words)


async def test_what_another_database_lacks_is_counted_by_key_and_exported(
    folder: Path, server: PostgresServer, tmp_path: Path
) -> None:
    one, other = [await server.make_database() for _ in range(2)]
    for url in (one, other):
        assert (await copy(folder, url)).exit_code == 0
    await server.execute("DELETE FROM requests WHERE sequence IN (1, 3, 4)", other.rpartition("/")[2])
    await server.execute("UPDATE requests SET cost_nanos = 1 WHERE sequence = 7", other.rpartition("/")[2])
    file = tmp_path / "missing.jsonl"
    report = json.loads(
        (await find_missing(one, other, "--since", "2026-03-01T12:00", "--json", "--export", str(file))).stdout
    )
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["sequence"] for row in rows] == [1, 3, 4]
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        amounts = "SELECT account, key_name, count(*), sum(cost_nanos) FROM requests"
        stored = database.execute(f"{amounts} WHERE sequence IN (1, 3, 4) GROUP BY account, key_name").fetchall()
    assert [tuple(key.values()) for key in report["keys"]] == sorted(stored)
    assert (report["requests"], report["differing_requests"]) == (3, 1)
    assert report["charged_nanos"] == sum(row["cost_nanos"] for row in rows) == sum(key[3] for key in stored) > 2**53
    by_time = sorted(rows, key=lambda row: int(row["settled_ms"]))
    moment = datetime.fromtimestamp(by_time[1]["settled_ms"] / 1000, UTC).isoformat()
    late = await find_missing(one, other, "--since", moment)
    assert "Missing are 2 requests" in late.stdout
    assert f"({sum(row['cost_nanos'] for row in by_time[1:])} nano-USD)" in late.stdout
    assert "both have with different charges, not counted: 1" in late.stderr
    assert (await find_missing(other, one, "--since", "2026-03-02")).stderr.startswith("No request is missing.")
    again = await find_missing(one, other, "--since", "2026-03-02", "--export", str(file))
    assert (again.exit_code, "File exists" in again.stderr) == (1, True)


async def test_databases_that_cannot_be_compared_are_refused(
    folder: Path, server: PostgresServer, tmp_path: Path
) -> None:
    one, other = [await server.make_database() for _ in range(2)]
    assert (await copy(folder, one)).exit_code == 0
    refused = await find_missing(one, other, "--since", "1h")
    assert (refused.exit_code, "not databases of the same gateway" in refused.stderr) == (1, True)
    assert (await copy(folder, other)).exit_code == 0
    assert (
        "has already deleted requests of that time" in (await find_missing(one, other, "--since", "2026-02-01")).stderr
    )
    assert "127.0.0.1:1/gateway cannot be used" in (await find_missing(one, NOWHERE, "--since", "1h")).stderr
    assert "no tables of a gateway" in (await find_missing(one, server.name_url("postgres"), "--since", "1h")).stderr
    assert "'since' must be a time" in (await find_missing(one, other, "--since", "soon")).stderr
