"""Nodes that start at once on an empty database, and a node that is older than the database."""

from pathlib import Path

import asyncpg
import pytest

from gateway.storage.schema import REVISION
from tests.support.cluster import make_node, start_nodes
from tests.support.gateway import channel
from tests.support.postgres import SharedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TABLES = {"channel": [channel("http://127.0.0.1:9/v1")]}
_STATE = """
SELECT (SELECT count(*) FROM accounts) AS accounts, (SELECT count(*) FROM keys) AS keys,
  (SELECT count(*) FROM nodes WHERE state = 'live') AS nodes, (SELECT string_agg(version_num, ' ') FROM alembic_version)
  AS schema, (SELECT count(*) FROM cluster) AS shared
"""


@pytest.mark.parametrize("starts", [1, pytest.param(20, marks=pytest.mark.soak)])
async def test_four_first_starts_at_once_make_one_cluster(
    tmp_path: Path, shared_postgres: SharedPostgres, starts: int
) -> None:
    server, found = await shared_postgres.get_server(), []
    for number in range(starts):
        name = f"first_{starts}_{number}"
        await server.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        url = server.name_url(name)
        folder = tmp_path / str(number)
        folder.mkdir()
        async with start_nodes(folder, [url] * 4, TABLES) as nodes:
            connection = await asyncpg.connect(url)
            try:
                found.append(tuple(await connection.fetchrow(_STATE)))
            finally:
                await connection.close()
            migrated = [line for node in nodes for line in node.read_log("store_migrated")]
            assert len(migrated) == 1, migrated
            assert [(await node.probe())[0] for node in nodes] == [200] * 4
        await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    assert set(found) == {(1, 1, 4, REVISION, found[0][-1])}


async def test_a_node_that_is_older_than_the_database_is_refused_and_the_others_go_on(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url = await shared_postgres.empty()
    async with start_nodes(tmp_path, [url], TABLES) as (first,):
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("UPDATE alembic_version SET version_num = '9999'")
            late = make_node(tmp_path / "late", url, TABLES)
            late.launch()
            assert await late.wait() != 0
            assert "newer" in late.err.read_text()
            assert "Traceback" not in late.err.read_text()
            assert await connection.fetchval("SELECT count(*) FROM nodes") == 1
            assert (await first.ask("nodes"))["data"][0]["state"] == "live"
        finally:
            await connection.execute("UPDATE alembic_version SET version_num = $1", REVISION)
            await connection.close()
