"""A gateway whose database is on a PostgreSQL server, which is restarted, is away, and belongs to another gateway."""

import asyncio
from pathlib import Path

import pytest

from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.postgres import SharedPostgres, owning_server
from tests.support.scripted_upstream import DONE
from tests.support.small_disk import disk_test

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


async def test_a_server_that_is_away_ends_new_work_and_one_that_is_back_has_everything(tmp_path: Path) -> None:
    """Without the server, new requests are refused and streams end well; once it is back, every row is stored."""
    async with owning_server() as server:
        store = {"url": await server.make_database()}
        async with disk_test(tmp_path / "data", store=store) as s:
            assert [(await s.call())[0] for _ in range(3)] == [200] * 3
            await eventually(s.is_stored, 5)
            await asyncio.to_thread(server.restart)
            await s.check_recovered()
            streaming = await s.begin_stream()
            await asyncio.to_thread(server.stop)

            async def is_refused() -> bool:
                return (await s.call())[0] == 503

            await eventually(is_refused, 15)
            await s.check_refused(30)
            assert await s.is_not_ready()
            s.go_on.set()
            assert (await streaming).endswith(DONE)
            await asyncio.to_thread(server.start)
            await s.check_recovered()


async def test_a_second_gateway_is_refused_and_says_which_has_the_database(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url = await shared_postgres.empty()
    async with GatewayProcess(tmp_path / "first", {"store": {"url": url}}) as first:
        second = GatewayProcess(tmp_path / "second", {"store": {"url": url}})
        second.launch()
        assert await second.wait() != 0
        error = second.err.read_text()
        assert f"Another gateway uses the database {url.replace('gateway:hidden@', '')}" in error
        assert "Traceback" not in error
        health = await first.ask("health")
        assert (health["store"]["database"], health["store"]["writable"]) == ("postgresql", True)
        settings = await first.ask("settings")
    shown = f"{settings}{first.err.read_text()}{error}"
    assert "hidden" not in shown
