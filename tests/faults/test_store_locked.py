"""P5: another process has the database locked. At a start it is said; under a running gateway it is waited for."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_process import eventually
from tests.support.scripted_upstream import DONE
from tests.support.small_disk import disk_test

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@contextlib.contextmanager
def locked(data: Path) -> Iterator[None]:
    """What a careless backup does: a write transaction that stays open."""
    with contextlib.closing(sqlite3.connect(data / "gateway.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


async def test_a_start_over_a_locked_database_says_so_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with disk_test(data) as s:
        assert [(await s.call())[0] for _ in range(3)] == [200] * 3
        assert await s.gateway.end() == 0
        content = (data / "gateway.db").read_bytes()
        with locked(data):
            s.gateway.launch()
            assert await s.gateway.wait() != 0
        text = s.gateway.err.read_text()
        assert "gateway.db" in text
        assert "locked" in text
        assert "Traceback" not in text
        assert (data / "gateway.db").read_bytes() == content
        await s.gateway.start()
        assert await s.is_stored()
        await s.gateway.check_books()


async def test_a_lock_on_the_database_of_a_running_gateway_is_waited_for_and_then_ends_new_work(tmp_path: Path) -> None:
    """Calls are noted in the journal meanwhile; when the store has refused rows, none is begun till it is free."""
    async with disk_test(tmp_path / "data") as s:
        streaming = await s.begin_stream()
        with locked(s.gateway.data):
            assert [(await s.call())[0] for _ in range(10)] == [200] * 10

            async def is_refused() -> bool:
                return (await s.call())[0] == 503

            await eventually(is_refused, 15)
            await s.check_refused(30)
            s.go_on.set()
            assert (await streaming).endswith(DONE)
        await s.check_recovered()
