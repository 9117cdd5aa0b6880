"""A PostgreSQL database is upgraded in use: nothing waits long for the upgrade, and one that dies is taken up."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import asyncpg
import pytest
import structlog
from sqlalchemy import Connection, MetaData, insert, text
from sqlalchemy.ext.asyncio import create_async_engine

import gateway.storage.migrations.online  # noqa: F401 - else the first older database has conditions of indexes with casts
from gateway.doctor.postgres_check import check_server
from gateway.storage.database import Database, DatabaseStartupError
from gateway.storage.migrations import backfill
from gateway.storage.migrations.backfill import run_part
from gateway.storage.migrations.run import list_created_tables
from gateway.storage.postgres.address import NODE_PREFIX, Address
from gateway.storage.postgres.database import open_address
from gateway.storage.postgres.lock_numbers import UPGRADE_LOCK
from gateway.storage.postgres.migration import list_attempts
from gateway.storage.row_mapping import build_request_row
from gateway.storage.schema import OLDEST, REVISION
from tests.support.any_user import AnyUser
from tests.support.gateway_process import eventually
from tests.support.postgres import PostgresServer, SharedPostgres, owning_server
from tests.support.request_records import make_row
from tests.support.schema_fixtures import migrate

OLDER = "0027"
"""The schema of 0.9.0, whose nodes go on beside this version."""
WITHIN_S = 60.0
_ENTRY = "INSERT INTO entries (account_id, kind, amount_nanos, at_ms) VALUES (1, 'top_up', 5, 7)"
_UPGRADER = f"""
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = {UPGRADE_LOCK} AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""  # noqa: S608 - our own number
UPGRADE = """
import asyncio, sys
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.database import open_address
from tests.support.any_user import AnyUser
asyncio.run(open_address(Address(sys.argv[1]), AnyUser(), None, None))
"""
"""The program of a process that upgrades a database."""
PEOPLE = (
    {"end_user": "ada", "session": "", "tags": "team=x"},
    {"end_user": "bob", "session": "", "tags": ""},
    {"end_user": "ada", "session": "", "tags": "team=y"},
)
_REVISION = "SELECT version_num FROM alembic_version"
_UNFINISHED = "SELECT count(*) FROM cluster WHERE starts_with(name, 'unfinished ')"
_SHAPE = {
    "columns": """
        SELECT table_name, column_name, data_type, collation_name, is_nullable FROM information_schema.columns
        WHERE table_schema = current_schema() AND table_name <> 'alembic_version' ORDER BY 1, 2
    """,
    "indexes": """
        SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid), indisvalid FROM pg_index
        WHERE indrelid IN (SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace) ORDER BY 1
    """,
    "functions": """
        SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = current_schema()::regnamespace ORDER BY 1
    """,
}


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    """A database of the older version with a request and an entry."""
    return await make_older_database(await shared_postgres.get_server())


async def make_older_database(
    server: PostgresServer, revision: str = OLDER, people: Sequence[Mapping[str, str]] = ({},)
) -> str:
    """Make a database with a request of each of ``people``; return its URL."""
    made = await server.make_database()
    await server.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public", made.rpartition("/")[2])
    engine = create_async_engine(made.replace("postgresql://", "postgresql+asyncpg://"))
    async with engine.begin() as connection:
        await connection.run_sync(make_older, revision, people)
    await engine.dispose()
    return made


def make_older(connection: Connection, revision: str, people: Sequence[Mapping[str, str]]) -> None:
    migrate(connection, revision)
    tables = MetaData()
    tables.reflect(connection, only=["requests"])
    requests = tables.tables["requests"]
    for number, attribution in enumerate(people):
        row = build_request_row(make_row(f"older{number}", **attribution))
        connection.execute(insert(requests), [{name: value for name, value in row.items() if name in requests.c}])
    connection.exec_driver_sql(_ENTRY)


@pytest.fixture
async def observer(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that sees the database, and another node's part in it."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


@pytest.fixture
async def other(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


async def open_node(url: str) -> Database:
    return await open_address(Address(url), AnyUser(), None, None)


async def read_shape(connection: asyncpg.Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {name: [tuple(row) for row in await connection.fetch(query)] for name, query in _SHAPE.items()}


async def find_table(connection: asyncpg.Connection, table: str) -> int:
    """Return the number of a table's file, which changes if the table is written anew."""
    number: int = await connection.fetchval("SELECT pg_relation_filenode($1::regclass)", table)
    return number


async def test_an_upgraded_database_is_the_one_that_is_made_now_and_no_table_is_written_anew(
    url: str, observer: asyncpg.Connection, shared_postgres: SharedPostgres
) -> None:
    before = [await find_table(observer, table) for table in ("requests", "entries", "keys")]
    await (await open_node(url)).close()
    assert [await find_table(observer, table) for table in ("requests", "entries", "keys")] == before
    made = await asyncpg.connect(await (await shared_postgres.get_server()).make_database())
    assert await read_shape(observer) == await read_shape(made)
    await made.close()
    assert (await observer.fetchval(_REVISION), await observer.fetchval(_UNFINISHED)) == (REVISION, 0)
    assert await observer.fetchval("SELECT count(*) FROM requests") == 1


async def test_nodes_that_start_together_upgrade_a_database_once(url: str, observer: asyncpg.Connection) -> None:
    nodes = await asyncio.gather(*(open_node(url) for _ in range(3)))
    for node in nodes:
        await node.check_writable()
        await node.close()
    assert (await observer.fetchval(_REVISION), await observer.fetchval(_UNFINISHED)) == (REVISION, 0)


async def test_an_upgrade_that_waits_for_a_table_holds_up_no_other(
    url: str, observer: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    """A long read has the table. What another node reads and writes meanwhile ends before the read does."""
    async with other.transaction():
        await other.execute("SELECT count(*) FROM requests")
        upgrade = asyncio.create_task(open_node(url))
        await eventually(lambda: observer.fetchval(_UPGRADER), WITHIN_S)
        async with asyncio.timeout(WITHIN_S):
            for _ in range(20):
                async with observer.transaction():
                    await observer.execute("SELECT pg_advisory_xact_lock_shared(7130001)")
                    await observer.execute(_ENTRY)
                    await observer.execute("SELECT count(*) FROM requests")
                await asyncio.sleep(0.1)  # the upgrade tries again and again
        assert not upgrade.done()
        assert await observer.fetchval(_REVISION) == OLDER
    await (await upgrade).close()
    assert await observer.fetchval(_REVISION) == REVISION


async def wait_at_a_table(other: asyncpg.Connection) -> None:
    await other.execute("SELECT count(*) FROM keys")  # 0035 changes the table


async def wait_at_the_functions(other: asyncpg.Connection) -> None:
    await other.execute("SELECT pg_advisory_xact_lock_shared(7130001)")


async def wait_at_an_index(other: asyncpg.Connection) -> None:
    await other.execute("SELECT 1")  # what it sees, an index must have


HELD_UP: dict[str, tuple[Callable[[asyncpg.Connection], Awaitable[None]], str, str]] = {
    "table": (wait_at_a_table, "0034", "SELECT true"),
    "functions": (wait_at_the_functions, REVISION, "SELECT true"),
    "index": (wait_at_an_index, REVISION, "SELECT count(*) > 0 FROM pg_index WHERE NOT indisvalid"),
}
"""What holds the upgrade up; the schema that is reached by then, and what else tells that."""


@pytest.mark.parametrize(("state", "reached"), [("live", OLDER), ("gone", "0034")])
async def test_a_node_that_cannot_go_on_meets_no_migration_that_is_half_done(
    url: str, observer: asyncpg.Connection, other: asyncpg.Connection, state: str, reached: str
) -> None:
    """A version between let it go on with its schema; this one does not."""
    too_old = f"{int(OLDEST) - 1:04}"
    await observer.execute(
        "INSERT INTO nodes (id, epoch, state, url, version, schema, config_digest, started_ms) "
        "VALUES ('a', 1, $1, '', '0.0', $2, '', 0)",
        state,
        too_old,
    )
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with other.transaction():
        await wait_at_a_table(other)
        upgrade = asyncio.create_task(open_node(url))
        await eventually(lambda: observer.fetchval(waits), WITHIN_S)
        assert await observer.fetchval(_REVISION) == reached
    await (await upgrade).close()
    assert (await observer.fetchval(_REVISION), await observer.fetchval(_UNFINISHED)) == (REVISION, 0)
    assert await observer.fetchval("SELECT convert_from(value, 'UTF8') FROM cluster WHERE name = 'oldest'") == OLDEST


@pytest.mark.parametrize("place", HELD_UP)
async def test_an_upgrade_that_dies_half_way_is_taken_up(
    url: str, observer: asyncpg.Connection, other: asyncpg.Connection, shared_postgres: SharedPostgres, place: str
) -> None:
    hold_up, reached, is_there = HELD_UP[place]

    async def has_come_so_far() -> bool:
        return await observer.fetchval(_REVISION) == reached and bool(await observer.fetchval(is_there))

    async with other.transaction(isolation="repeatable_read"):
        await hold_up(other)
        upgrade = asyncio.create_task(open_node(url))
        await eventually(has_come_so_far, WITHIN_S)
        await observer.execute("SELECT pg_terminate_backend($1)", await observer.fetchval(_UPGRADER))
        with pytest.raises(DatabaseStartupError):
            await upgrade
        assert await observer.fetchval(_REVISION) == reached
        assert await observer.fetchval(_UNFINISHED)
        (found,) = [each for each in await asyncio.to_thread(list, check_server(url)) if each.check == "database"]
        assert (found.state, reached in found.text) == ("warning", True)
    await (await open_node(url)).close()
    made = await asyncpg.connect(await (await shared_postgres.get_server()).make_database())
    assert await read_shape(observer) == await read_shape(made)
    await made.close()
    assert (await observer.fetchval(_REVISION), await observer.fetchval(_UNFINISHED)) == (REVISION, 0)


async def test_an_index_that_the_server_has_finished_alone_is_taken_as_it_is(
    url: str, observer: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    """The node is killed while it builds an index; the server goes on to the end of the statement."""
    async with other.transaction(isolation="repeatable_read"):
        await wait_at_an_index(other)
        upgrade = asyncio.create_task(open_node(url))
        await eventually(lambda: observer.fetchval("SELECT count(*) > 0 FROM pg_index WHERE NOT indisvalid"), WITHIN_S)
        await observer.execute("SELECT pg_terminate_backend($1)", await observer.fetchval(_UPGRADER))
        with pytest.raises(DatabaseStartupError):
            await upgrade
    name = await observer.fetchval("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid")
    row_name = f"unfinished {name}"
    statement = await observer.fetchval("SELECT convert_from(value, 'UTF8') FROM cluster WHERE name = $1", row_name)
    await observer.execute(f"DROP INDEX {name}")
    await observer.execute(statement)
    number = await observer.fetchval("SELECT $1::regclass::oid", name)
    await (await open_node(url)).close()
    assert await observer.fetchval("SELECT $1::regclass::oid", name) == number
    assert await observer.fetchval(_UNFINISHED) == 0


async def test_the_server_ends_the_statement_of_a_killed_node(
    url: str, observer: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    """The node's statement waits for a transaction that goes on after the node is killed."""
    async with other.transaction(isolation="repeatable_read"):
        await wait_at_an_index(other)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", UPGRADE, url)
        try:
            found = "SELECT count(*) > 0 FROM pg_index WHERE NOT indisvalid"
            await eventually(lambda: observer.fetchval(found), WITHIN_S)
        finally:
            process.kill()
            await process.wait()
        assert await observer.fetchval(_UPGRADER)

        async def is_unlocked() -> bool:
            return await observer.fetchval(_UPGRADER) is None

        await eventually(is_unlocked, WITHIN_S)
    await (await open_node(url)).close()
    assert await observer.fetchval(_UNFINISHED) == 0


def test_attempts_hold_others_up_for_an_eighth_of_the_time_at_most() -> None:
    attempts = list(islice(list_attempts(), 100))
    waits_s = sum(wait_s for wait_s, _ in attempts)
    assert waits_s / (waits_s + sum(pause_s for _, pause_s in attempts)) < 1 / 8
    assert max(wait_s for wait_s, _ in attempts) > 1.0  # or the server would not end a vacuum of its own


async def test_the_log_names_the_step_the_table_and_who_holds_up_the_upgrade(
    url: str, observer: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    """A read has a table; then an old transaction an index. Another node waits for the one that upgrades."""
    with structlog.testing.capture_logs() as logs:

        def find_waits() -> list[Any]:
            return [line for line in logs if line["event"] == "store_migration_waits"]

        async def has_waited(**values: str) -> bool:
            return any(line.items() >= {**values, "pid": pid}.items() for line in find_waits())

        async with other.transaction(isolation="repeatable_read"):
            pid = await other.fetchval("SELECT pg_backend_pid()")
            await wait_at_a_table(other)
            upgrades = [asyncio.create_task(open_node(url))]
            await eventually(lambda: has_waited(job="tables", lock="keys", state="idle in transaction"), WITHIN_S)
            pid = await observer.fetchval(_UPGRADER)
            upgrades.append(asyncio.create_task(open_node(url)))
            await eventually(lambda: has_waited(lock="the upgrade"), WITHIN_S)
            holder = next(line for line in find_waits() if line["lock"] == "the upgrade")
            assert holder["application_name"].startswith("gateway upgrade ")
        for upgrade in upgrades:
            await (await upgrade).close()


async def test_the_log_names_the_transaction_that_an_index_waits_for(url: str, other: asyncpg.Connection) -> None:
    with structlog.testing.capture_logs() as logs:

        async def has_waited() -> bool:
            return any(line["event"] == "store_migration_waits" and line.get("pid") == pid for line in logs)

        async with other.transaction(isolation="repeatable_read"):
            await wait_at_an_index(other)
            pid = await other.fetchval("SELECT pg_backend_pid()")
            upgrade = asyncio.create_task(open_node(url))
            await eventually(has_waited, WITHIN_S)
        await (await upgrade).close()


def test_nodes_that_end_a_former_process_leave_the_upgrade_of_its_successor() -> None:
    address = Address("postgresql://there/gateway", "abc123")
    assert address.user.startswith(f"{NODE_PREFIX}abc123 ")
    assert address.upgrade_user.startswith(NODE_PREFIX)
    assert not address.upgrade_user.startswith(f"{NODE_PREFIX}abc123 ")


async def test_a_newer_database_is_refused_without_a_command_that_a_server_has_not(
    url: str, observer: asyncpg.Connection
) -> None:
    await observer.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseStartupError, match="newer version") as refused:
        await open_node(url)
    assert "downgrade" not in str(refused.value)


async def test_tables_of_a_newer_version_are_named_before_the_first_step(
    url: str, observer: asyncpg.Connection
) -> None:
    """A dump from before an upgrade was restored into a database that was not emptied."""
    await observer.execute("CREATE TABLE subject_usage (name text)")  # 0033 makes it
    with pytest.raises(DatabaseStartupError, match="subject_usage"):
        await open_node(url)
    assert await observer.fetchval(_REVISION) == OLDER
    await observer.execute("DROP TABLE subject_usage")
    await (await open_node(url)).close()
    assert await observer.fetchval(_REVISION) == REVISION


def test_each_table_is_created_by_one_migration() -> None:
    """Or a database that has the table of the first one would be refused."""
    names = list_created_tables(None)
    assert len(set(names)) == len(names) > 1
    assert set(names) >= {"subject_usage", "failure_hours", "speed_hours", "rollups"}


async def test_failures_count_in_hours_and_in_days(url: str, observer: asyncpg.Connection) -> None:
    await observer.execute("UPDATE requests SET outcome = 'failed', error_code = 'upstream_timeout'")
    at_ms = await observer.fetchval("SELECT settled_ms FROM requests")
    await (await open_node(url)).close()
    rows = await observer.fetch("SELECT span, hour, outcome, code, requests FROM failure_hours ORDER BY span")
    hour = at_ms // 3_600_000
    assert [tuple(row) for row in rows] == [
        (1, hour, "failed", "upstream_timeout", 1),
        (24, hour // 24 * 24, "failed", "upstream_timeout", 1),
    ]


def interrupt_after(parts: int, counted: list[int]) -> Callable[[Connection, str], bool]:
    """Return a ``run_part`` that adds ``parts`` parts, and fails when it has written one more."""

    def run_some(connection: Connection, revision: str) -> bool:
        has_more = run_part(connection, revision)
        if revision != "0054":
            return has_more
        counted.append(int(connection.execute(text("SELECT sum(requests) FROM failure_hours")).scalar_one() or 0))
        if len(counted) > parts:
            raise ConnectionError("this process has ended")
        return has_more

    return run_some


async def test_sums_that_were_interrupted_go_on_after_their_last_part(
    url: str, observer: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = "UPDATE requests SET outcome = 'failed', error_code = 'upstream_timeout', sequence = 3"
    await observer.execute(failed)
    names = "SELECT string_agg(column_name, ', ') FROM information_schema.columns WHERE table_name = 'requests' AND "
    others = await observer.fetchval(f"{names} column_name NOT IN ('id', 'sequence')")
    await observer.execute(
        f"INSERT INTO requests (sequence, id, {others}) SELECT 9 * n, 'r' || n, {others} "  # noqa: S608 - of the schema
        "FROM requests, generate_series(1, 6) n"
    )
    monkeypatch.setattr(backfill, "PART_ROWS", 2)
    counted: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(backfill, "run_part", interrupt_after(2, counted))
        with pytest.raises(DatabaseStartupError):
            await open_node(url)
    assert counted == [2 * 2, 4 * 2, 6 * 2], "two requests a part, each in its hour and its day"
    noted = "SELECT convert_from(value, 'UTF8') FROM cluster WHERE name = 'unfinished backfill 0054'"
    assert await observer.fetchval(noted) == str(9 * 3)
    await (await open_node(url)).close()
    assert [row["requests"] for row in await observer.fetch("SELECT requests FROM failure_hours")] == [7, 7]
    assert await observer.fetchval(_UNFINISHED) == 0


async def test_sums_of_users_that_are_made_in_parts_are_those_of_one_part(
    shared_postgres: SharedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = []
    for part_rows in (1, 100):
        monkeypatch.setattr(backfill, "PART_ROWS", part_rows)
        url = await make_older_database(await shared_postgres.get_server(), "0032", PEOPLE)
        await (await open_node(url)).close()
        connection = await asyncpg.connect(url)
        found = [
            await connection.fetch(f"SELECT * FROM {table} ORDER BY kind, name, day")  # noqa: S608 - our own name
            for table in ("subject_usage", "subject_counts")
        ]
        sums.append([[tuple(row) for row in rows] for rows in found])
        await connection.close()
    assert sums[0] == sums[1]
    usage, counts = sums[0]
    assert [row[:2] + row[3:4] for row in counts] == [("tag", "", 1), ("tag", "team", 2), ("user", "", 2)]
    assert {(row[0], row[3]): row[6] for row in usage} == {
        ("tag", "x"): 1, ("tag", "y"): 1, ("user", "ada"): 2, ("user", "bob"): 1,
    }  # fmt: skip


async def test_an_upgrade_ends_if_its_server_falls_silent() -> None:
    async with owning_server() as server:
        url = await make_older_database(server)
        observer, other = await asyncpg.connect(url), await asyncpg.connect(url)
        found = "SELECT count(*) > 0 FROM pg_index WHERE NOT indisvalid"
        await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await wait_at_an_index(other)
        upgrade = asyncio.create_task(open_node(url))
        await eventually(lambda: observer.fetchval(found), WITHIN_S)
        server.signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(WITHIN_S):
                with pytest.raises(DatabaseStartupError):
                    await upgrade
        finally:
            server.signal(signal.SIGCONT)
            other.terminate()
            observer.terminate()


@pytest.mark.parametrize("own", [None, OLDER, REVISION])
@pytest.mark.parametrize("others", [OLDER, REVISION])
async def test_another_gateway_in_the_search_path_keeps_its_schema(
    own: str | None, others: str, shared_postgres: SharedPostgres
) -> None:
    """In each of the two schemas is an older gateway, one of today or, in the own one, none."""
    server = await shared_postgres.get_server()
    made = await make_older_database(server)
    name = made.rpartition("/")[2]
    if own is not None:
        await server.execute("ALTER SCHEMA public RENAME TO own; CREATE SCHEMA public", name)
        if own == REVISION:
            await server.execute(f"ALTER DATABASE {name} SET search_path = own", name)
            await (await open_node(made)).close()
            await server.execute(f"ALTER DATABASE {name} RESET search_path", name)
        if others == OLDER:
            engine = create_async_engine(made.replace("postgresql://", "postgresql+asyncpg://"))
            async with engine.begin() as connection:
                await connection.run_sync(make_older, OLDER, ())
            await engine.dispose()
    else:
        await server.execute("CREATE SCHEMA own", name)
    if others == REVISION:
        await (await open_node(made)).close()
    observer = await asyncpg.connect(made, server_settings={"search_path": "public"})
    before = await read_shape(observer)
    await server.execute(f"ALTER DATABASE {name} SET search_path = own, public", name)
    await (await open_node(made)).close()
    assert (await observer.fetchval(_REVISION), await read_shape(observer)) == (others, before)
    await observer.close()
    owner = await asyncpg.connect(made, server_settings={"search_path": "own"})
    new = await asyncpg.connect(await server.make_database())
    expected, found = await read_shape(new), await read_shape(owner)
    found["indexes"] = [
        (name, index.replace(" ON own.", " ON public."), valid) for name, index, valid in found["indexes"]
    ]
    found["functions"] = [(text.replace("FUNCTION own.", "FUNCTION public."),) for (text,) in found["functions"]]
    assert (await owner.fetchval(_REVISION), found) == (REVISION, expected)
    await owner.close()
    await new.close()
