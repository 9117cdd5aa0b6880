"""Where nodes reach each other: what a node publishes, and which of the others use it."""

from typing import Any

import asyncpg
import attrs
import pytest

from gateway.cluster.own_url import find_own_url
from gateway.config.schema import Config
from gateway.storage.nodes import list_nodes, read_machine
from gateway.storage.open import open_database
from tests.support.postgres import SharedPostgres

HERE, ELSEWHERE = f"#{read_machine()}", "#0123456789abcdef"


def make_config(host: str, url: str = "", **server: Any) -> Config:
    default = Config()
    return attrs.evolve(
        default,
        server=attrs.evolve(default.server, **{"host": host, "port": 8081, **server}),
        cluster=attrs.evolve(default.cluster, enabled=True, url=url),
        store=attrs.evolve(default.store, url="postgresql://127.0.0.1/gateway", master_key="5a" * 32),
    )


@pytest.mark.parametrize(
    ("config", "url"),
    [
        (make_config("127.0.0.1"), f"http://127.0.0.1:8081{HERE}"),
        (make_config("::1"), f"http://[::1]:8081{HERE}"),
        (make_config("0.0.0.0"), f"http://127.0.0.1:8081{HERE}"),  # noqa: S104 - not bound
        (make_config("192.0.2.7"), "http://192.0.2.7:8081"),
        (make_config("127.0.0.1", "https://node1.example.com/"), "https://node1.example.com"),
        (make_config("127.0.0.1", port=0), ""),
        (make_config("192.0.2.7", tls_certificate="/c", tls_key="/k"), ""),
    ],
)
async def test_a_node_finds_its_own_url(config: Config, url: str) -> None:
    assert await find_own_url(config) == url


async def test_a_url_of_a_machine_is_for_the_nodes_of_that_machine(shared_postgres: SharedPostgres) -> None:
    url = await shared_postgres.empty()
    stored = {"a": f"http://127.0.0.1:1{HERE}", "b": f"http://127.0.0.1:1{ELSEWHERE}", "c": "http://node:1", "d": ""}
    connection, database = await asyncpg.connect(url), await open_database(url)
    for node, its_url in stored.items():
        await connection.execute("INSERT INTO nodes VALUES ($1, 1, 'live', $2, '', '', '', 0)", node, its_url)
        await connection.execute("INSERT INTO beats VALUES ($1, 1, 0, 0)", node)
    await connection.close()
    found = {node.id: node.url for node in await list_nodes(database)}
    await database.close()
    assert found == {"a": "http://127.0.0.1:1", "b": "", "c": "http://node:1", "d": ""}
