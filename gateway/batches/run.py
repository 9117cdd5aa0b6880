"""Runs one batch: checks its input, sends its lines, writes the result files. A restart continues where it stopped.

A line is durably marked before it is sent, and its result is durable soon afterwards. After a crash, marked lines
without a result are not sent again: it is unknown whether the provider has answered them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial

import attrs
import structlog

from gateway.background import TaskSet
from gateway.batches.input_file import ParsedLine, check_input, read_lines
from gateway.batches.journal import BatchGone, BatchJournal, BatchMoved
from gateway.batches.line_request import BatchStopped, LineRequest, LineServices
from gateway.batches.result_files import ResultFiles
from gateway.batches.slots import LineSlots, Slot
from gateway.domain.batch import MESSAGES_ENDPOINT, RUNNING_STATUSES, Batch, BatchError, BatchLine, BatchStatus
from gateway.domain.client_file import BATCH_OUTPUT, NewFile
from gateway.errors import NotFound, StoreUnavailable
from gateway.formats.batches.lines import find_line_format
from gateway.formats.batches.openai import LineError
from gateway.frozen import frozen
from gateway.media.client_files import ClientFiles
from gateway.storage.batches import BatchRepository
from gateway.storage.file_folder import make_client_id

COMMIT_LINES = 500
"""The results of lines that are not sent are committed at each line whose number is a multiple of this."""
MAX_EXPIRY_CHECK_S = 60.0
"""How often a batch checks whether it has expired: the system clock may change."""
STOP_CHECK_S = 1.0
"""How often a waiting line checks whether the gateway is shutting down."""
FINISH_TIMEOUT_S = 10.0
"""How long running lines may go on after the task of their batch was cancelled or has failed, in seconds."""
_EXPIRED_TEXT = "This request could not be executed before the completion window expired."
_CANCELLED_TEXT = "The batch was cancelled before this request was executed."
_INTERRUPTED_TEXT = "The gateway stopped while this request ran: it is unknown whether the provider answered it."
_FILE_KINDS = {True: "output", False: "errors"}

log = structlog.stdlib.get_logger(__name__)


@frozen
class BatchDependencies:
    """Dependencies of batches. ``find_multiplier_ppm`` returns a new batch's price factor, in parts per million."""

    store: BatchRepository
    files: ClientFiles
    lines: LineServices
    slots: LineSlots
    max_line_bytes: int
    find_multiplier_ppm: Callable[[], int]
    clock: Callable[[], float]


class BatchRun:
    """Runs one batch from the check of its input to its result files."""

    def __init__(self, services: BatchDependencies, batch: Batch) -> None:
        self._services = services
        self._format = find_line_format(batch.endpoint)
        self._files = ResultFiles(services.files.folder, batch.id, self._format.parse_result, batch.moves)
        if batch.status == "cancelling" and "cancelling_at" not in batch.times:  # another node received the request
            batch = batch.set_status("cancelling", self._now_s)
        self._stop_event = asyncio.Event()
        self._journal = BatchJournal(
            batch, self._files, services.store, lambda: self._now_s, on_cancelled=self._stop_event.set
        )
        self._tasks = TaskSet()
        self._own_slots = LineSlots(services.slots.limit)
        """Running lines, including those that wait without a slot."""
        self._is_closing = False
        if batch.status == "cancelling":
            self._stop_event.set()
        self._expiry_timer = asyncio.get_running_loop().call_soon(self.check_expiry)

    @property
    def batch(self) -> Batch:
        return self._journal.batch

    async def run(self) -> None:
        writer = asyncio.get_running_loop().create_task(self._journal.run())
        try:
            await self._advance()
        except BatchMoved:
            log.info("batch_moved", job=self.batch.id)
        except BatchGone:
            await asyncio.to_thread(self._files.remove)
        except (NotFound, FileNotFoundError):  # the input was deleted, or is only on a lost node
            await self._end_without_input()
        finally:
            self._expiry_timer.cancel()
            await self._tasks.close(FINISH_TIMEOUT_S)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self._journal.close()

    async def cancel(self) -> Batch:
        """Prevent further lines from beginning. Return the batch. Raises ``BatchGone``, ``StoreUnavailable``."""
        if self.batch.status in RUNNING_STATUSES:
            await self._journal.change(lambda batch: batch.set_status("cancelling", self._now_s))
        self._stop_event.set()
        return self.batch

    def close(self) -> None:
        """Prevent further lines from beginning because the gateway shuts down. ``run`` ends after the running lines."""
        self._is_closing = True
        self._stop_event.set()

    @property
    def _now_s(self) -> int:
        return int(self._services.clock())

    def check_expiry(self) -> None:
        """Prevent further lines from beginning if the batch has expired; else check again at the expiry or earlier."""
        left_s = self.batch.expires_ms / 1000 - self._services.clock()
        if left_s <= 0:
            self._stop_event.set()
        else:
            self._expiry_timer = asyncio.get_running_loop().call_later(
                min(left_s, MAX_EXPIRY_CHECK_S), self.check_expiry
            )

    async def _advance(self) -> None:
        if self.batch.moves:
            await asyncio.to_thread(self._files.copy_former)
        if self.batch.status == "validating" and not await self._validate():
            return
        if self.batch.status in {"in_progress", "cancelling"} and not self._is_written:
            done_ids, tally = await asyncio.to_thread(self._files.recover)
            self._journal.batch = attrs.evolve(self.batch, tally=tally)
            await self._send_lines(done_ids)
            await self._tasks.wait()
        if self._is_closing:
            await self._journal.change()
            return
        times = self.batch.times
        await self._finalize(
            "cancelled" if "cancelling_at" in times else "expired" if "expired_at" in times else "completed"
        )

    async def _end_without_input(self) -> None:
        if "cancelling_at" in self.batch.times:
            await self._finalize("cancelled")
        elif self.batch.expires_ms <= self._services.clock() * 1000:
            await self._finalize("expired")
        else:
            await self._finalize("failed", (BatchError("input_file_missing", "The input file was deleted."),))

    @property
    def _is_written(self) -> bool:
        return self.batch.status == "finalizing" or bool(self.batch.output_file_id or self.batch.error_file_id)

    async def _validate(self) -> bool:
        line_services = self._services.lines
        async with aclosing(self._open()) as input_lines:
            checked_input = await check_input(input_lines, lambda line: line_services.check_model(self.batch, line))
        if self.batch.status == "cancelling":
            return True
        status: BatchStatus = "failed" if checked_input.errors else "in_progress"
        await self._journal.change(
            lambda batch: attrs.evolve(
                batch.set_status(status, self._now_s),
                total=0 if checked_input.errors else checked_input.total,
                model=checked_input.model,
                errors=checked_input.errors,
            )
        )
        return not checked_input.errors

    async def _open(self) -> AsyncGenerator[ParsedLine, None]:
        batch, services = self.batch, self._services
        async with (
            services.files.folder.open_local(batch.input_file_id) as path,
            aclosing(read_lines(path, batch.endpoint, services.max_line_bytes, services.lines.memory)) as lines,
        ):
            async for parsed_line in lines:
                yield parsed_line

    async def _send_lines(self, done_ids: set[str]) -> None:
        """Start every line that has no result (its id is not in ``done_ids``) and is not marked as sent.

        A marked line gets an error as its result. So do the remaining lines of a batch that was cancelled or has
        expired.
        """
        number = 0
        async with aclosing(self._open()) as lines:
            async for _, line in lines:
                number += 1
                if isinstance(line, LineError) or line.custom_id in done_ids:
                    continue
                if number <= self.batch.claimed and number not in self.batch.returned:
                    await self._skip(number, line, "interrupted", _INTERRUPTED_TEXT)
                elif not await self._begin_line(number, line):
                    if self._is_closing or not self.batch.total:  # no total: the lines were not checked
                        return
                    await self._skip(number, line, *self._find_reason())

    def _find_reason(self) -> tuple[str, str]:
        """Return code and message for a line whose batch was cancelled or has expired; note the time of an expiry."""
        if "cancelling_at" in self.batch.times:
            return "batch_cancelled", _CANCELLED_TEXT
        if "expired_at" not in self.batch.times:
            self._journal.batch = attrs.evolve(self.batch, times={**self.batch.times, "expired_at": self._now_s})
        return "batch_expired", _EXPIRED_TEXT

    async def _skip(self, number: int, line: BatchLine, code: str, message: str) -> None:
        self._journal.add(self._format.build_unsent(self.batch.id, number, line.custom_id, code, message))
        if not number % COMMIT_LINES:
            await self._journal.change()

    async def _begin_line(self, number: int, line: BatchLine) -> bool:
        """Begin a line or store its refusal, once a slot and rate limits allow; return False if it may not begin."""
        slot, is_started = Slot(self._services.slots), False
        if self._is_stopping() or not await self._own_slots.acquire(self._stop_event):
            return False
        try:
            if not await slot.acquire(self._stop_event) or self._is_stopping():
                return False
            request = LineRequest(self._services.lines, self.batch, number, line)
            refusal = await request.admit(partial(self._wait, slot), self._tasks.__bool__)
            if refusal is None:
                self._tasks.start(self._send(number, line, request, slot))
                is_started = True
                return True
        except BatchStopped:
            return False
        finally:
            if not is_started:
                self._release_slots(slot)
        self._journal.add(refusal)
        return True

    def _release_slots(self, slot: Slot) -> None:
        slot.release()
        self._own_slots.release()

    def _is_stopping(self) -> bool:
        if not self._services.lines.gate.open:
            self.close()
        return self._stop_event.is_set()

    async def _send(self, number: int, line: BatchLine, request: LineRequest, slot: Slot) -> None:
        """Send an admitted line once its mark is durable."""
        try:
            try:
                await self._journal.mark_sent(number)
            except BatchGone:
                request.give_up()
                return
            except (StoreUnavailable, asyncio.CancelledError):  # the batch has ended, or was stopped, before its commit
                request.give_up()
                raise
            result = await request.send(partial(self._wait, slot))
        finally:
            self._release_slots(slot)
        if result is not None:
            self._journal.add(result)
        elif self._is_closing:
            self._journal.mark_unsent(number)
        else:
            self._journal.add(self._format.build_unsent(self.batch.id, number, line.custom_id, *self._find_reason()))

    async def _wait(self, slot: Slot, seconds: float) -> None:
        """Sleep without a slot, then take one again. Raises ``BatchStopped`` as soon as lines may no longer begin."""
        until_s = asyncio.get_running_loop().time() + seconds
        slot.release()
        while (left_s := until_s - asyncio.get_running_loop().time()) > 0 and not self._is_stopping():
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, STOP_CHECK_S)):
                    await self._stop_event.wait()
        if self._is_stopping() or not await slot.acquire(self._stop_event) or self._is_stopping():
            raise BatchStopped

    async def _finalize(self, status: BatchStatus, errors: tuple[BatchError, ...] = ()) -> None:
        """Publish the results as files and end the batch. Every step can be repeated."""
        await self._journal.change()
        if not self._is_written:
            tally = self.batch.tally
            in_output, in_errors = tally.completed, tally.failed
            if self.batch.endpoint == MESSAGES_ENDPOINT:  # it has a single result file
                in_output, in_errors = tally.completed + tally.failed, 0
            output = make_client_id("file-") if in_output else None
            error_file_id = make_client_id("file-") if in_errors else None
            await self._journal.change(
                lambda batch: attrs.evolve(
                    batch if batch.times.get("cancelling_at") else batch.set_status("finalizing", self._now_s),
                    output_file_id=output,
                    error_file_id=error_file_id,
                )
            )
        for is_output, file_id in ((True, self.batch.output_file_id), (False, self.batch.error_file_id)):
            if file_id is not None and not await self._publish(file_id, is_output=is_output):
                cleared_field = {"output_file_id" if is_output else "error_file_id": None}
                log.warning("batch_results_lost", job=self.batch.id)
                await self._journal.change(partial(attrs.evolve, **cleared_field))
        await self._journal.change(lambda batch: attrs.evolve(batch.set_status(status, self._now_s), errors=errors))
        tally = self.batch.tally
        rows = tally.completed + tally.failed
        log.info("batch_ended", job=self.batch.id, outcome=status, rows=rows, failures=tally.failed)

    async def _publish(self, file_id: str, *, is_output: bool) -> bool:
        """Store a result file as a file of the account; return False if it is missing from the folder."""
        batch, files = self.batch, self._services.files
        if await files.store.find_file(file_id, batch.account_id) is not None:
            return True
        name = (self._files.output if is_output else self._files.errors).name
        try:
            size = await asyncio.to_thread(files.folder.adopt, name, file_id)
        except FileNotFoundError:
            return False
        new_file = NewFile(f"{batch.id}_{_FILE_KINDS[is_output]}.jsonl", BATCH_OUTPUT, batch.kept_s)
        file = attrs.evolve(files.plan(new_file, batch.account_id, batch.key_id, size), id=file_id)
        await files.store.add_file(file, 0)
        return True
