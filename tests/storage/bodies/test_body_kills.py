"""A process that is killed while it keeps bodies: what is shown afterwards is whole.

``make soak ARGS=tests/storage/bodies/test_body_kills.py`` kills 200 times in each place; ``GATEWAY_TEST_KILLS`` is
another number.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import func, select

from gateway.storage.bodies.open_store import open_segment_store
from gateway.storage.database import Database
from gateway.storage.media_location import parse_location
from gateway.storage.open import open_database
from gateway.storage.schema_bodies import bodies, body_segments
from tests.support.body_stores import add_accounts, make_parts, open_moving_store
from tests.support.s3_server import start_s3_server

KILLS = int(os.environ.get("GATEWAY_TEST_KILLS") or 200)
WRITER = """
import asyncio, sys
from pathlib import Path
from gateway.domain.kept_body import BodyFilter
from gateway.storage.open import open_database
from tests.support.body_stores import keep, make_owner, open_moving_store as open_store

async def main(path, folder, start, shared):
    store = open_store(await open_database(f"sqlite:///{path}"), Path(folder), shared)
    jobs = [asyncio.create_task(store.run()), asyncio.create_task(store.run_moves())]
    for number in range(start, start + 100_000):
        keep(store, make_owner(number), f"{number}:" + str(number * 7919) * (number % 300))
        if number % 10 == 0:
            await store.write_waiting()
            if number % 50 == 0:
                await store.delete(BodyFilter(request_id=f"req_{number - 7:04}"))
            print(number, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
"""


@pytest.fixture(params=["data folder", "shared folder", "bucket"])
async def location(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Where segments are moved to, as ``store.bodies_url`` names it; empty: they stay in the data folder."""
    if request.param != "bucket":
        (tmp_path / "shared").mkdir()
        yield "" if request.param == "data folder" else str(tmp_path / "shared")
        return
    async with start_s3_server() as server:
        yield server.media_url


@pytest.mark.timeout(240)
async def test_no_body_that_is_shown_is_torn(database_path: Path, tmp_path: Path, location: str) -> None:
    await kill_often(database_path, tmp_path, 3, location, max_batches=10)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_no_body_that_is_shown_is_torn_by_many_kills(database_path: Path, tmp_path: Path, location: str) -> None:
    await kill_often(database_path, tmp_path, KILLS, location)


async def kill_often(database_path: Path, tmp_path: Path, kills: int, location: str, max_batches: int = 40) -> None:
    first = await open_database(f"sqlite:///{database_path}")
    await add_accounts(first, 1)
    await first.close()
    random = Random(20)  # noqa: S311 - numbers of batches, not secrets
    folder, start, shown, moved = tmp_path / "bodies", 0, 0, 0
    for _ in range(kills):
        arguments, batches = [database_path, folder, start, location], random.randint(1, max_batches)
        written = await asyncio.to_thread(_write_until_killed, arguments, batches)
        database = await open_database(f"sqlite:///{database_path}")
        store = open_moving_store(database, folder, location)
        await store.sweep()
        numbers = {int(row.request_id.removeprefix("req_")) for row in await database.read(select(bodies))}
        deleted = {number for number in range(start, written + 1) if number % 50 == 43 and number + 7 <= written}
        assert numbers >= set(range(start, written + 1)) - deleted, "a body that was written is lost"
        assert not numbers & deleted, "a body that was deleted is back"
        await check_objects(database, location)
        for number in sorted(numbers)[-400:]:
            found = await store.read(f"req_{number:04}")
            assert found is not None
            assert found[1] == make_parts(f"{number}:" + str(number * 7919) * (number % 300))
            shown += 1
        start = max(numbers) + 1
        moved = (await database.read(select(func.count()).select_from(body_segments)))[0][0]
        await store.close()
        await database.close()
    sys.stderr.write(f"{kills} kills: {start} bodies kept, {shown} read, each whole\n")
    assert shown > kills
    assert moved > 0 or not location, "nothing was moved"


async def check_objects(database: Database, location: str) -> None:
    """Fail if a copy of a segment is left that the index does not know: deleted bodies may be in it."""
    parsed = parse_location(location)
    if parsed is not None:
        stored = await open_segment_store(parsed).list_older(-3_600)
        named = {row.name for row in await database.read(select(body_segments))}
        assert set(stored) == named


def _write_until_killed(arguments: Sequence[object], batches: int) -> int:
    """Kill a writer after so many batches; return the last number that it reported."""
    command = [sys.executable, "-c", WRITER, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        with closing(writer.stdout):
            last = [int(writer.stdout.readline()) for _ in range(batches)][-1]
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().split()
    return int(rest[-1]) if rest else last
