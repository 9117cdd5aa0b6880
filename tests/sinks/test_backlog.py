"""A sink that is far behind: 4,800 rows leave in bounded memory, 100,000 in `make soak`."""

import tracemalloc

import pytest

from gateway.sinks.batch import SinkAnswer, SinkBatch
from gateway.sinks.json_rows import build_event
from gateway.sinks.source import PAGE_ROWS
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.sink_receivers import SinkReceiver
from tests.support.sink_workers import make_named_rows, open_scene

STEP = 800
MAX_GROWTH_BYTES = 3 * 1024 * 1024


@SQLITE_ONLY
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("rows", [4_800, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_a_backlog_is_drained_in_bounded_memory(database: Database, rows: int) -> None:
    ledger = LedgerRepository(database)
    seen_ids: set[int] = set()
    most = 0

    async def send(batch: SinkBatch) -> SinkAnswer:
        nonlocal most
        most = max(most, len(build_event(batch.entries, 0)))
        seen_ids.update(int(entry.row.id.removeprefix("req_")) for entry in batch.entries)
        return SinkAnswer("taken")

    spec = SinkReceiver("http://unused.example").spec()
    async with open_scene(database, spec, send=send) as scene:
        await scene.step()
        for start in range(0, rows, STEP):
            await ledger.post(make_named_rows(range(start, start + STEP)))
        seen_ids.update(range(-1, rows, 2))  # the set of the test itself has its size from here on
        seen_ids.clear()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(rows // PAGE_ROWS // 2):
                assert await scene.step() == 0.0
            half = len(seen_ids)
            seen_ids.clear()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert half == rows // 2
        assert peak - before < MAX_GROWTH_BYTES
        await scene.drain()
        assert len(seen_ids) == rows // 2
        assert most < 1024 * 1024
        state = await scene.find_state()
        assert (state.delivered, state.lost, state.waiting_ms) == (rows, 0, None)
