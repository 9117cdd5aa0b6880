"""Nodes of a cluster have the same secrets; a folder or master key that does not fit is refused."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
from sqlalchemy import Executable, text
from sqlalchemy.exc import IntegrityError

from gateway.cluster.membership.session import NodeSession
from gateway.cluster.state.secrets import SHARED_SECRETS, check_shared_secrets, share_secrets
from gateway.domain.node import Node
from gateway.errors import StoreUnavailable
from gateway.storage.async_engine import AsyncConnection, create_async_engine
from gateway.storage.data_folder import SECRETS, DataFolder, DataFolderDamaged
from gateway.storage.database import Database, DatabaseStartupError
from gateway.storage.identity import MASTER_KEY_NAME as MASTER_FILE
from gateway.storage.identity import check_secrets
from gateway.storage.open import open_database
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.database import open_address
from gateway.storage.schema import REVISION
from tests.support.postgres import SharedPostgres

MASTER, OTHER = bytes(range(32)), bytes(range(1, 33))
OpenFolder = Callable[[str], DataFolder]


@pytest.fixture
def open_folder(tmp_path: Path) -> OpenFolder:
    return lambda name: DataFolder(tmp_path / name)


def read_files(folder: DataFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.path.iterdir() if path.name != "gateway.lock"}


async def count_rows(database: Database) -> int:
    ((count,),) = await database.read(text("SELECT count(*) FROM cluster"))
    return int(count)


async def test_a_later_node_gets_what_the_first_one_has(database: Database, open_folder: OpenFolder) -> None:
    first, second = open_folder("first"), open_folder("second")
    await share_secrets(first, database, MASTER)
    await check_secrets(first, database, master_key=MASTER)
    own_token = second.admin_token()
    for _ in range(2):
        await share_secrets(second, database, MASTER)
        await check_secrets(second, database, master_key=MASTER)
    shared, copied = read_files(first), read_files(second)
    assert {name: shared[name] for name in SHARED_SECRETS} == {name: copied[name] for name in SHARED_SECRETS}
    assert second.admin_token() == first.admin_token() != own_token
    stored = b"".join(bytes(row.value) for row in await database.read(text("SELECT value FROM cluster")))
    assert not any(shared[name] in stored for name in SHARED_SECRETS)


async def test_a_gateway_that_was_alone_becomes_the_first_node_with_its_own_secrets(
    database: Database, open_folder: OpenFolder
) -> None:
    alone = open_folder("alone")
    await check_secrets(alone, database, master_key=MASTER)
    before = read_files(alone)
    await share_secrets(alone, database, MASTER)
    assert before.items() <= read_files(alone).items()


async def test_another_folder_than_the_databases_does_not_become_the_first_node(
    database: Database, open_folder: OpenFolder
) -> None:
    await check_secrets(open_folder("alone"), database, master_key=MASTER)
    empty, foreign = open_folder("empty"), open_folder("foreign")
    with pytest.raises(DataFolderDamaged, match="is missing"):
        await share_secrets(empty, database, MASTER)
    for name in SHARED_SECRETS:
        (foreign.path / name).write_bytes(OTHER)
    with pytest.raises(DataFolderDamaged, match="was made with other secrets"):
        await share_secrets(foreign, database, MASTER)
    assert await count_rows(database) == 0


async def test_another_master_key_and_other_files_are_refused_and_stay(
    database: Database, open_folder: OpenFolder
) -> None:
    await share_secrets(open_folder("first"), database, MASTER)
    foreign = open_folder("foreign")
    with pytest.raises(DataFolderDamaged, match=r"store\.master_key is not the one"):
        await share_secrets(foreign, database, OTHER)
    assert read_files(foreign) == {}
    (foreign.path / "webhook.key").write_bytes(OTHER)
    with pytest.raises(DataFolderDamaged, match=r"webhook\.key is not the one"):
        await share_secrets(foreign, database, MASTER)
    assert read_files(foreign) == {"webhook.key": OTHER}


async def test_secrets_of_another_gateway_in_the_search_path_are_not_read(
    shared_postgres: SharedPostgres, open_folder: OpenFolder
) -> None:
    server = await shared_postgres.get_server()
    url, other, own = await server.make_database(), open_folder("other"), open_folder("own")
    database = await open_database(url)
    await share_secrets(other, database, OTHER)
    await database.close()
    name = url.rpartition("/")[2]
    await server.execute(f"CREATE SCHEMA own; ALTER DATABASE {name} SET search_path = own, public", name)
    address = Address(url, "0123456789abcdef")
    check = partial(check_shared_secrets, folder=own, database=address.name, master_key=MASTER)
    session = NodeSession(address, Node("0123456789abcdef"), lambda _: None)
    await (await open_address(address, session, check, None)).close()


@pytest.mark.parametrize("is_cluster", [True, False], ids=["cluster", "one gateway"])
async def test_a_node_that_does_not_fit_neither_migrates_nor_registers(
    shared_postgres: SharedPostgres, open_folder: OpenFolder, *, is_cluster: bool
) -> None:
    url, first, foreign = await shared_postgres.empty(), open_folder("first"), open_folder("foreign")
    database = await open_database(url)
    await (share_secrets(first, database, MASTER) if is_cluster else check_secrets(first, database, master_key=MASTER))
    await database.close()

    async def start(folder: DataFolder, master_key: bytes) -> None:
        address = Address(url, "0123456789abcdef")
        check = partial(check_shared_secrets, folder=folder, database=address.name, master_key=master_key)
        await open_address(address, NodeSession(address, Node("0123456789abcdef"), lambda _: None), check, None)

    observer = await asyncpg.connect(url)
    await observer.execute("UPDATE alembic_version SET version_num = '0021'")  # to migrate it again fails
    try:
        before = await read_everything(observer)
        with pytest.raises(DataFolderDamaged, match=r"store\.master_key"):
            await start(first, OTHER)
        for name in SECRETS.keys() - {MASTER_FILE}:
            (foreign.path / name).write_bytes(OTHER if name == "pepper" else first.secret(name))
        with pytest.raises(DataFolderDamaged, match="foreign/pepper is not"):
            await start(foreign, MASTER)
        assert await read_everything(observer) == before
        with pytest.raises(DatabaseStartupError, match="already exists"):
            await start(first, MASTER)
    finally:
        await observer.execute("UPDATE alembic_version SET version_num = $1", REVISION)
        await observer.close()


async def read_everything(connection: asyncpg.Connection) -> list[tuple[str, str]]:
    """All rows of all tables."""
    names = await connection.fetch("SELECT relname FROM pg_stat_user_tables ORDER BY relname")
    rows = "SELECT '{0}', (SELECT array_agg(t ORDER BY t::text)::text FROM {0} t)"
    return [tuple(row) for row in await connection.fetch(" UNION ALL ".join(rows.format(name) for (name,) in names))]


class InterruptedConnection:
    """A connection that lets ``event`` happen before the statement with the number ``step``."""

    def __init__(self, connection: AsyncConnection, step: int, event: Callable[[], Awaitable[None]]) -> None:
        self._connection, self._step, self._event = connection, step, event

    async def execute(self, statement: Executable) -> Any:
        await self._count()
        return await self._connection.execute(statement)

    async def run_sync(self, read: Callable[..., Any], *args: Any) -> Any:
        await self._count()
        return await self._connection.run_sync(read, *args)

    async def _count(self) -> None:
        if self._step == 0:
            await self._event()
        self._step -= 1


@pytest.mark.parametrize("step", range(4))
async def test_a_node_starts_while_the_first_one_stores_its_secrets(
    shared_postgres: SharedPostgres, open_folder: OpenFolder, step: int
) -> None:
    url = await shared_postgres.empty()
    database = await open_database(url)
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    try:
        store = partial(share_secrets, open_folder("first"), database, MASTER)
        async with engine.connect() as connection:
            interrupted = cast("AsyncConnection", InterruptedConnection(connection, step, store))
            await check_shared_secrets(interrupted, open_folder("second"), "gateway", MASTER)
        assert await count_rows(database) == len(SHARED_SECRETS) + 1
    finally:
        await engine.dispose()
        await database.close()


@pytest.mark.parametrize(
    "change", ["UPDATE cluster SET value = 'x' WHERE name = 'pepper'", "DELETE FROM cluster WHERE name = 'pepper'"]
)
async def test_secrets_that_were_changed_are_refused(database: Database, open_folder: OpenFolder, change: str) -> None:
    await share_secrets(open_folder("first"), database, MASTER)
    await database.change(text(change))
    with pytest.raises(DataFolderDamaged, match="were changed"):
        await share_secrets(open_folder("second"), database, MASTER)


async def test_the_secrets_and_their_fingerprints_are_stored_together(
    database: Database, open_folder: OpenFolder
) -> None:
    """A second node that saw the fingerprints alone would be refused, because its folder is empty."""
    await database.write(
        lambda each: each.execute(text("ALTER TABLE cluster ADD CONSTRAINT c CHECK (false) NOT VALID"))
    )
    with pytest.raises((StoreUnavailable, IntegrityError)):
        await share_secrets(open_folder("first"), database, MASTER)
    assert (await database.read(text("SELECT count(*) FROM fingerprints")))[0][0] == 0
