"""A line that is admitted is settled, however its batch ends."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from gateway.batches.line_request import LineRequest, WaitFunction
from gateway.batches.run import BatchDependencies, BatchRun
from gateway.batches.slots import LineSlots, Slot
from gateway.domain.batch import Batch, BatchLine
from gateway.domain.price import ONE_PPM
from gateway.storage.batches import BatchRepository, find_no_process
from gateway.storage.file_folder import FileFolder, make_client_id
from tests.support.repositories import Repositories


class AdmittedLine(LineRequest):
    """Says once what became of it."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    @override
    async def send(self, wait: WaitFunction) -> None:
        self.ends.append("sent")

    @override
    def give_up(self) -> None:
        self.ends.append("given up")


async def test_a_line_that_is_stopped_before_its_claim_is_durable_is_given_up(tmp_path: Path) -> None:
    slots, store = LineSlots(lambda: 2), BatchRepository(Repositories().database, find_no_process)
    files: Any = SimpleNamespace(folder=FileFolder(tmp_path))
    lines: Any = SimpleNamespace(gate=SimpleNamespace(open=True))
    services = BatchDependencies(store, files, lines, slots, 1_000, lambda: ONE_PPM, lambda: 1.0)
    run = BatchRun(services, Batch(make_client_id("batch_"), 1, 1, 0, 9_000, "/v1/embeddings", "file-1", "in_progress"))
    line, requests = BatchLine("a", {}), [AdmittedLine(), AdmittedLine()]
    sending = []
    for request in requests:
        slot = Slot(slots)
        assert await slot.acquire(asyncio.Event())
        assert await run._own_slots.acquire(asyncio.Event())
        sending.append(asyncio.create_task(run._send(1, line, request, slot)))
    await asyncio.sleep(0)  # nothing writes its journal: the database is away
    sending[0].cancel()
    await asyncio.sleep(0)
    run._journal.close()
    await asyncio.wait(sending)
    run._expiry_timer.cancel()
    assert [task.cancelled() for task in sending] == [True, False]
    assert [request.ends for request in requests] == [["given up"]] * 2
    assert (slots._used_slots, run._own_slots._used_slots) == (0, 0)
    assert sending[1].exception() is not None
