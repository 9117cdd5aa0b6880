"""A sink delivers every row at least once, in order, whatever its receiver does."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import attrs
import pytest
from sqlalchemy import delete

from gateway.domain.kept_body import BodyPart
from gateway.domain.request_log import RequestFilter
from gateway.sinks.batch import BatchRefused, SinkAnswer, SinkBatch
from gateway.sinks.source import MAX_BATCH_BYTES, PAGE_ROWS, KeptBodies, matches
from gateway.sinks.worker import MAX_BACKOFF_S, POLL_S
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.retention import RetentionRepository
from gateway.storage.schema import requests
from gateway.storage.sinks import LostRequests, SinkRepository
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.sink_receivers import KINDS, SinkReceiver, open_receiver
from tests.support.sink_workers import SinkScene, make_named_rows, open_scene

OUTAGE_S = 600.0
_ALL = RequestFilter()


async def test_a_new_sink_begins_after_the_newest_row_and_delivers_in_order(database: Database) -> None:
    ledger = LedgerRepository(database)
    await ledger.post(make_named_rows(["early"]))
    async with open_receiver() as receiver, open_scene(database, receiver.spec()) as scene:
        assert await scene.step() == POLL_S
        names = list(range(PAGE_ROWS * 2 + 5))
        await ledger.post(make_named_rows(names))
        await scene.drain()
        assert receiver.list_ids() == [f"req_{name}" for name in names]
        state = await scene.find_state()
        assert (state.delivered, state.lost, state.error) == (len(names), 0, "")
        await scene.step()
        await ledger.post(make_named_rows(["late"]))
        await scene.drain()
        assert receiver.list_ids()[len(names) :] == ["req_late"]


@SQLITE_ONLY  # what a receiver answers is the same over each kind
@pytest.mark.parametrize("receiver_kind", KINDS)
@pytest.mark.parametrize("status", [503, 0])
async def test_ten_minutes_of_failures_lose_and_double_nothing(
    database: Database, receiver_kind: str, status: int
) -> None:
    """Status 0: the receiver takes the batch, and the connection breaks before its answer."""
    ledger = LedgerRepository(database)
    async with open_receiver() as receiver, open_scene(database, receiver.spec(receiver_kind)) as scene:
        await scene.step()
        started_s = scene.clock.now_s
        receiver.decide = lambda _: status if scene.clock.now_s - started_s < OUTAGE_S else 200
        names: list[str] = []
        waits = []
        for number in range(10):
            names += [f"{number}.{index}" for index in range(30)]
            await ledger.post(make_named_rows(names[-30:]))
            waits.append(await scene.step())
        await scene.drain()
        assert waits[:4] == [2.0, 4.0, 8.0, 16.0]
        assert max(waits) <= MAX_BACKOFF_S
        expected = {f"req_{name}" for name in names}
        assert set(receiver.list_accepted_ids()) == expected
        assert max(Counter(receiver.list_accepted_ids()).values()) == 1
        assert len(receiver.keys) == len(expected)
        assert (await scene.find_state()).delivered == len(expected)


async def test_an_attempt_is_repeated_as_it_was(database: Database) -> None:
    """The id of a webhook stays although rows have come: a receiver can drop what it has by that id alone."""
    ledger = LedgerRepository(database)
    async with open_receiver() as receiver, open_scene(database, receiver.spec()) as scene:
        await scene.step()
        await ledger.post(make_named_rows("ab"))
        receiver.decide = lambda _: 0
        await scene.step()
        await ledger.post(make_named_rows("cd"))
        receiver.decide = lambda _: 200
        await scene.drain()
        assert sorted(receiver.posts.values()) == [1, 2]
        assert receiver.list_ids() == ["req_a", "req_b", "req_a", "req_b", "req_c", "req_d"]


async def test_another_process_goes_on_where_the_cursor_is(database: Database) -> None:
    ledger = LedgerRepository(database)
    async with open_receiver() as receiver:
        spec = receiver.spec("traces")
        async with open_scene(database, spec) as scene:
            await scene.step()
            await ledger.post(make_named_rows(range(450)))
            await scene.step()
            assert len(receiver.accepted) == PAGE_ROWS
            receiver.decide = lambda _: 0
            await scene.step()
        receiver.decide = lambda _: 200
        async with open_scene(database, spec) as scene:
            await scene.drain()
        assert receiver.list_accepted_ids() == [f"req_{number}" for number in range(450)]
        assert len(receiver.keys) == 450


async def test_two_processes_at_once_deliver_everything_and_the_cursor_never_goes_back(database: Database) -> None:
    ledger = LedgerRepository(database)
    async with open_receiver() as receiver:
        spec = receiver.spec("traces")
        async with open_scene(database, spec) as first, open_scene(database, spec) as second:
            await first.step()
            await ledger.post(make_named_rows(range(900)))
            delivered = []
            for _ in range(8):
                await asyncio.gather(first.step(), second.step())
                delivered.append((await first.find_state()).delivered)
            assert delivered == sorted(delivered)
            assert len(receiver.keys) == 900
            assert (await first.find_state()).waiting_ms is None
            assert max(Counter(receiver.list_accepted_ids()).values()) <= 2


async def test_what_is_deleted_before_an_attempt_is_not_in_it(database: Database) -> None:
    ledger = LedgerRepository(database)
    async with open_receiver() as receiver, open_scene(database, receiver.spec()) as scene:
        await scene.step()
        await ledger.post(make_named_rows("abc"))
        receiver.decide = lambda _: 503
        await scene.step()
        await database.change(delete(requests).where(requests.c.id == "req_b"))
        receiver.decide = lambda _: 200
        await scene.drain()
        assert receiver.list_accepted_ids() == ["req_a", "req_c"]
        await ledger.post(make_named_rows("de"))
        receiver.decide = lambda _: 503
        await scene.step()
        await database.change(delete(requests).where(requests.c.id.in_(["req_d", "req_e"])))
        await scene.drain()
        assert receiver.list_accepted_ids() == ["req_a", "req_c"]


async def test_retention_that_overtakes_a_sink_is_counted_and_nothing_of_it_is_sent(database: Database) -> None:
    ledger = LedgerRepository(database)
    async with open_receiver() as receiver:
        spec = receiver.spec("traces", filter={"models": ["m*"]})
        async with open_scene(database, spec) as scene:
            lost_requests = LostRequests({spec.name: partial(matches, spec.filter)}, scene.clock)
            retention = RetentionRepository(database, lost_requests.count)
            await scene.step()
            await ledger.post(make_named_rows(range(250)))
            await scene.step()  # a page of 200, and its cursor is in the middle of a window
            assert len(receiver.accepted) == PAGE_ROWS
            await ledger.post(make_named_rows(["x", "y"], model="other"))
            receiver.decide = lambda _: 503
            await scene.step()
            batch = await retention.retire_requests(2**60, 0, 500)
            assert batch.retired == 252
            state = await scene.find_state()
            assert (state.delivered, state.lost) == (PAGE_ROWS, 50)
            assert state.lost_ms == int(scene.clock.now_s * 1000)
            receiver.decide = lambda _: 200
            await scene.drain()
            assert len(receiver.accepted) == PAGE_ROWS
            await retention.retire_requests(2**60, 0, 500)
            assert (await scene.find_state()).lost == 50


async def test_a_refused_row_is_lost_and_the_others_arrive(database: Database) -> None:
    ledger = LedgerRepository(database)
    async with open_receiver() as receiver, open_scene(database, receiver.spec("traces")) as scene:
        await scene.step()
        bad = {"req_17", "req_150"}
        receiver.decide = lambda ids: 400 if bad & set(ids) else 200
        await ledger.post(make_named_rows(range(PAGE_ROWS)))
        await scene.drain()
        state = await scene.find_state()
        assert (state.delivered, state.lost) == (PAGE_ROWS - 2, 2)
        assert receiver.list_accepted_ids() == [
            f"req_{number}" for number in range(PAGE_ROWS) if f"req_{number}" not in bad
        ]


@SQLITE_ONLY
async def test_a_receiver_that_refuses_everything_loses_nothing(database: Database) -> None:
    ledger = LedgerRepository(database)
    async with open_receiver() as receiver, open_scene(database, receiver.spec("traces")) as scene:
        await scene.step()
        receiver.decide = lambda _: 400
        await ledger.post(make_named_rows(range(PAGE_ROWS)))
        for _ in range(3):
            await scene.step()
        assert len(receiver.sizes) <= 3 * 40
        state = await scene.find_state()
        assert (state.delivered, state.lost) == (0, 0)
        assert state.error == "127.0.0.1 answered with status 400: not now"
        assert state.find_lag_s(scene.clock.now_s) > 900
        receiver.decide = lambda ids: 400 if ids == ["req_0"] else 200
        await ledger.post(make_named_rows(["more"]))
        await scene.drain()
        assert (await scene.find_state()).delivered == PAGE_ROWS + 1


async def test_one_row_that_is_refused_alone_waits_for_another(database: Database) -> None:
    """A receiver with a wrong setting may refuse everything; a row is given up only if another one is taken."""
    ledger = LedgerRepository(database)
    async with open_receiver() as receiver, open_scene(database, receiver.spec("traces")) as scene:
        await scene.step()
        receiver.decide = lambda ids: 422 if "req_bad" in ids else 200
        await ledger.post(make_named_rows(["bad"]))
        for _ in range(3):
            await scene.step()
        state = await scene.find_state()
        assert (state.lost, state.waiting_ms) == (0, 1_799_999_000_000)
        await ledger.post(make_named_rows(["good"]))
        await scene.drain()
        state = await scene.find_state()
        assert (state.delivered, state.lost) == (1, 1)
        assert receiver.list_accepted_ids() == ["req_good"]


async def test_spans_that_are_rejected_in_a_successful_answer_count_as_lost(database: Database) -> None:
    async with open_receiver() as receiver, open_scene(database, receiver.spec("traces")) as scene:
        await scene.step()
        receiver.answer = '{"partialSuccess": {"rejectedSpans": "1", "errorMessage": "too old"}}'
        await LedgerRepository(database).post(make_named_rows("abc"))
        await scene.drain()
        state = await scene.find_state()
        assert (state.delivered, state.lost, len(receiver.taken)) == (2, 1, 3)


async def test_rows_that_a_filter_leaves_out_move_the_cursor_without_many_writes(database: Database) -> None:
    ledger, log = LedgerRepository(database), RequestLogRepository(database)
    async with open_receiver() as receiver:
        spec = receiver.spec("traces", filter={"accounts": ["acme"], "only_errors": True, "tags": ["team=web"]})
        async with open_scene(database, spec) as scene:
            await scene.step()
            first_cursor = (await scene.find_state()).cursor
            await ledger.post(make_named_rows(["fine"]))
            await scene.step()
            assert (await scene.find_state()).cursor in {first_cursor, (await log.list_requests(_ALL, 1)).newest}
            failed = {"outcome": "failed", "error_code": "upstream_error"}
            await ledger.post(make_named_rows(["wrong"], **failed))
            await ledger.post(make_named_rows(["tagless"], tags="team=webb", **failed))
            await scene.drain()
            assert receiver.list_accepted_ids() == ["req_wrong"]
            scene.clock.now_s += 100
            await scene.step()
            stored_cursor = (await scene.find_state()).cursor
            assert stored_cursor != first_cursor
            after = await log.list_requests(RequestFilter(after=stored_cursor), 10)
            assert after.rows == ()


async def test_a_cursor_of_another_kind_of_database_begins_with_the_oldest_row(database: Database) -> None:
    foreign = {"sqlite": "t12.13", "postgresql": "nonsense"}[database.kind]
    await LedgerRepository(database).post(make_named_rows("ab"))
    await SinkRepository(database).begin("traces", foreign)
    async with open_receiver() as receiver, open_scene(database, receiver.spec("traces")) as scene:
        await scene.step()
        await scene.step()
        assert receiver.list_accepted_ids() == ["req_a", "req_b"]


def make_bodies(size: int) -> list[BodyPart]:
    return [BodyPart("request", b"x" * size, "text/plain", size)]


@SQLITE_ONLY
async def test_many_refused_rows_first_do_not_stop_a_sink(database: Database) -> None:
    async with open_receiver() as receiver, open_scene(database, receiver.spec("traces")) as scene:
        await scene.step()
        bad = {f"req_{number}" for number in range(30)}
        receiver.decide = lambda ids: 400 if bad & set(ids) else 200
        await LedgerRepository(database).post(make_named_rows(range(PAGE_ROWS)))
        await until_delivered(scene)
        state = await scene.find_state()
        assert (state.delivered, state.lost) == (PAGE_ROWS - 30, 30)


async def until_delivered(scene: SinkScene) -> None:
    for _ in range(20):
        await scene.step()
        state = await scene.find_state()
        if state.delivered:
            return


async def test_bodies_that_are_refused_are_left_out_and_their_row_arrives(database: Database) -> None:
    """Each request is a batch alone: nothing of the page was taken when the first one is refused."""
    taken: list[tuple[str, int]] = []

    async def read(request_id: str) -> Sequence[BodyPart]:
        return make_bodies(MAX_BATCH_BYTES + 1 if request_id == "req_a" else 10)

    async def send(batch: SinkBatch) -> SinkAnswer:
        sizes = [sum(len(body.content) for body in entry.bodies) for entry in batch.entries]
        if sum(sizes) > MAX_BATCH_BYTES:
            raise BatchRefused("too large")
        taken.extend(zip([entry.row.id for entry in batch.entries], sizes, strict=True))
        return SinkAnswer("")

    bodies = KeptBodies(read, lambda _: False, time.time)
    async with open_scene(database, SinkReceiver("http://unused.example").spec(), bodies=bodies, send=send) as scene:
        await scene.step()
        await LedgerRepository(database).post(make_named_rows("ab"))
        await scene.step()
        assert taken == [("req_a", 0), ("req_b", 10)]
        assert (await scene.find_state()).lost == 0


async def test_an_error_of_the_gateway_is_noted_and_nothing_is_passed(database: Database) -> None:
    taken: list[str] = []
    is_broken = True

    async def send(batch: SinkBatch) -> SinkAnswer:
        if is_broken:
            raise TypeError("'int' object is not iterable")
        taken.extend(entry.row.id for entry in batch.entries)
        return SinkAnswer("")

    async with open_scene(database, SinkReceiver("http://unused.example").spec(), send=send) as scene:
        await scene.step()
        await LedgerRepository(database).post(make_named_rows("ab"))
        await scene.step()
        state = await scene.find_state()
        assert (state.error, state.lost) == ("the gateway failed: TypeError", 0)
        assert state.find_lag_s(scene.clock.now_s) > 900
        is_broken = False
        await scene.drain()
        assert taken == ["req_a", "req_b"]


async def test_what_is_deleted_between_two_attempts_at_a_part_is_not_sent(database: Database) -> None:
    attempts: list[list[str]] = []

    async def send(batch: SinkBatch) -> SinkAnswer:
        attempts.append([entry.row.id for entry in batch.entries])
        if len(attempts) == 1:
            await database.change(delete(requests).where(requests.c.id == "req_c"))
            raise BatchRefused("no")
        return SinkAnswer("")

    async with open_scene(database, SinkReceiver("http://unused.example").spec(), send=send) as scene:
        await scene.step()
        await LedgerRepository(database).post(make_named_rows("abcd"))
        await scene.step()
        assert attempts == [["req_a", "req_b", "req_c", "req_d"], ["req_a", "req_b"], ["req_d"]]


async def test_what_is_deleted_before_the_first_attempt_is_not_sent(database: Database) -> None:
    async def read(request_id: str) -> Sequence[BodyPart]:
        if request_id == "req_a":  # the page is read by then
            await database.change(delete(requests).where(requests.c.id == request_id))
        return ()

    bodies = KeptBodies(read, lambda _: False, time.time)
    async with open_receiver() as receiver, open_scene(database, receiver.spec(), bodies=bodies) as scene:
        await scene.step()
        await LedgerRepository(database).post(make_named_rows("ab"))
        await scene.step()
        assert receiver.list_ids() == ["req_b"]


async def test_rows_with_bodies_of_other_nodes_wait_until_these_are_moved(database: Database) -> None:
    read_at: list[float] = []

    async def read(_request_id: str) -> Sequence[BodyPart]:
        read_at.append(scene.clock())
        return ()

    bodies = KeptBodies(read, lambda _: False, lambda: scene.clock.now_s, settled_for_s=30)
    async with open_receiver() as receiver, open_scene(database, receiver.spec(), bodies=bodies) as scene:
        await scene.step()
        young = [attrs.evolve(row, settled_ms=int(scene.clock() * 1000)) for row in make_named_rows("ab")]
        await LedgerRepository(database).post(young)
        started_s = scene.clock()
        await scene.step()
        assert receiver.list_ids() == ["req_a", "req_b"]
        assert all(30 <= at_s - started_s < 32 for at_s in read_at)
