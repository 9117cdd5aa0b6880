"""What every driver of the store of replays promises: one suite, run over each of them."""

import asyncio
from typing import Any

import attrs
import pytest

from gateway.domain.idempotency import KEEP_MS, IdempotencyRecord, ReplayState
from gateway.storage.idempotency import IdempotencyRepository
from tests.support.stores import Archive
from tests.support.video_records import NOW, REPLAY

STATES: tuple[ReplayState, ...] = ("running", "answered", "lost")


@pytest.fixture
def replays(archive: Archive) -> IdempotencyRepository:
    return archive.replays


def make_replay(request: object = 1, **values: Any) -> IdempotencyRecord:
    """A call under way."""
    fresh = IdempotencyRecord(5, "order-1", "ab", f"req_{request}", NOW, "me")
    return attrs.evolve(fresh, **values)


async def look(replays: IdempotencyRepository, name: str = "order-1", key_id: int = 5) -> IdempotencyRecord | None:
    """What is under a name now, which stays so."""
    probe = make_replay("probe", name=name, key_id=key_id)
    found = await replays.begin_replay(probe)
    if found is None:
        await replays.forget_replay(probe)
    return found


async def test_the_first_call_of_a_name_begins_and_every_other_finds_it(replays: IdempotencyRepository) -> None:
    first = make_replay(1)
    assert await replays.begin_replay(first) is None
    assert await replays.begin_replay(make_replay(2, digest="cd", owner="other")) == first
    assert await replays.begin_replay(make_replay(1)) == first


async def test_a_call_is_read_back_as_it_was_written(replays: IdempotencyRepository) -> None:
    assert await replays.begin_replay(REPLAY) is None
    assert await look(replays, REPLAY.name) == REPLAY


async def test_a_name_is_its_keys_own_to_the_letter(replays: IdempotencyRepository) -> None:
    for other in (make_replay(), make_replay(key_id=6), make_replay(name="Order-1"), make_replay(name="order-1 ")):
        assert await replays.begin_replay(other) is None


async def test_of_many_calls_at_once_one_begins(replays: IdempotencyRepository) -> None:
    calls = [make_replay(number) for number in range(10)]
    found = await asyncio.gather(*map(replays.begin_replay, calls))
    won = found.index(None)
    assert [one for one in found if one is not None] == [calls[won]] * 9


@pytest.mark.parametrize("state", STATES)
async def test_a_name_is_free_again_after_its_time(replays: IdempotencyRepository, state: ReplayState) -> None:
    first = make_replay(1, state=state, body=b"old")
    await replays.begin_replay(first)
    assert await replays.begin_replay(make_replay(2, created_ms=NOW + KEEP_MS - 1)) == first
    later = make_replay(3, created_ms=NOW + KEEP_MS)
    assert await replays.begin_replay(later) is None
    assert await look(replays) == later


async def test_an_answer_is_kept(replays: IdempotencyRepository) -> None:
    record = make_replay()
    await replays.begin_replay(record)
    answered = attrs.evolve(record, state="answered", status=200, media_type="application/json", body=b"\xff" * 100_000)
    await replays.end_replay(answered)
    assert await look(replays) == answered


async def test_who_was_forgotten_or_replaced_neither_ends_nor_forgets_anything(replays: IdempotencyRepository) -> None:
    old, new = make_replay(1), make_replay(2)
    await replays.begin_replay(old)
    await replays.forget_replay(old)
    await replays.end_replay(attrs.evolve(old, state="answered"))
    assert await look(replays) is None
    await replays.begin_replay(new)
    await replays.end_replay(attrs.evolve(old, state="answered"))
    await replays.forget_replay(old)
    assert await look(replays) == new


async def test_what_came_to_nothing_may_be_called_again(replays: IdempotencyRepository) -> None:
    record, other = make_replay(1), make_replay(2, name="order-2")
    for one in (record, other):
        await replays.begin_replay(one)
    await replays.forget_replay(record)
    assert await look(replays) is None
    assert await look(replays, "order-2") == other


@pytest.mark.parametrize("state", STATES)
async def test_a_call_takes_the_place_of_one_that_is_as_it_was(
    replays: IdempotencyRepository, state: ReplayState
) -> None:
    before = make_replay(1, state=state)
    await replays.begin_replay(before)
    after = make_replay(2, created_ms=NOW + 5, owner="other", digest="cd")
    for changed in STATES:
        if changed != state:
            assert not await replays.take_replay(attrs.evolve(before, state=changed), after)
    assert not await replays.take_replay(attrs.evolve(before, request_id="req_other"), after)
    assert not await replays.take_replay(attrs.evolve(before, name="order-2"), attrs.evolve(after, name="order-2"))
    assert await look(replays) == before
    assert await replays.take_replay(before, after)
    assert not await replays.take_replay(before, make_replay(3))
    assert await look(replays) == after


async def test_of_many_that_take_a_place_one_does(replays: IdempotencyRepository) -> None:
    before = make_replay(1, state="lost")
    await replays.begin_replay(before)
    calls = [make_replay(number) for number in range(2, 7)]
    taken = await asyncio.gather(*(replays.take_replay(before, record) for record in calls))
    assert taken.count(True) == 1
    assert await look(replays) == calls[taken.index(True)]


async def test_calls_under_way_of_other_processes_are_lost_and_no_others(replays: IdempotencyRepository) -> None:
    mine = make_replay(name="mine")
    theirs, third = (make_replay(name=name, owner=name) for name in ("theirs", "third"))
    done = make_replay(name="done", owner="theirs", state="answered")
    for record in (mine, theirs, third, done):
        await replays.begin_replay(record)
    assert await replays.interrupt_replays("me") == 2
    for record in (theirs, third):
        assert await look(replays, record.name) == attrs.evolve(record, state="lost")
    assert [await look(replays, record.name) for record in (mine, done)] == [mine, done]
    assert await replays.interrupt_replays("me") == 0


async def test_only_what_came_before_then_is_forgotten(replays: IdempotencyRepository) -> None:
    old, fresh = make_replay(name="old", created_ms=NOW - 1), make_replay(name="fresh", state="answered")
    for record in (old, fresh):
        await replays.begin_replay(record)
    assert await replays.sweep_replays(NOW) == 1
    assert await look(replays, "old") is None
    assert await look(replays, "fresh") == fresh
    assert await replays.sweep_replays(NOW) == 0
