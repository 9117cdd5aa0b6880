"""Named calls: made once, answered alike, and free again where nothing came of them."""

import asyncio

import attrs
import pytest
from structlog.testing import capture_logs

from gateway.domain.idempotency import KEEP_MS, MAX_ANSWER_BYTES, IdempotencyRecord
from gateway.errors import IdempotencyConflict, StoreUnavailable
from gateway.proxy.idempotency import IdempotencyService
from gateway.storage.idempotency import IdempotencyRepository
from tests.support.repositories import LazyDatabase

NOW_S = 1_750_000_000.5
NAME = (5, "order-1")


@attrs.define
class Clock:
    now_s: float = NOW_S

    def __call__(self) -> float:
        return self.now_s


class UnreliableReplays(IdempotencyRepository):
    """A repository that fails while ``failing`` is set."""

    failing = False

    def __init__(self) -> None:
        super().__init__(LazyDatabase())

    async def end_replay(self, replay: IdempotencyRecord) -> None:
        if self.failing:
            raise StoreUnavailable("not now")
        await super().end_replay(replay)

    async def forget_replay(self, replay: IdempotencyRecord) -> None:
        if self.failing:
            raise StoreUnavailable("not now")
        await super().forget_replay(replay)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def idempotency(clock: Clock) -> IdempotencyService:
    return IdempotencyService(UnreliableReplays(), "me", clock)


async def begin(
    idempotency: IdempotencyService, request: str = "req_1", *, digest: str = "ab", key: int = 5
) -> IdempotencyRecord:
    mine, known = await idempotency.begin(key, "order-1", digest, request)
    assert known is None
    return mine


async def refuse(idempotency: IdempotencyService, digest: str = "ab") -> IdempotencyConflict:
    with pytest.raises(IdempotencyConflict) as refused:
        await idempotency.begin(*NAME, digest, "req_another")
    assert (refused.value.status, refused.value.param) == (409, "Idempotency-Key")
    return refused.value


async def test_a_call_that_is_made_again_has_the_answer_of_the_first(idempotency: IdempotencyService) -> None:
    mine = await begin(idempotency)
    assert mine == IdempotencyRecord(5, "order-1", "ab", "req_1", int(NOW_S * 1000), "me")
    await idempotency.record_answer(mine, status=200, media_type="application/json", body=b"{}")
    for _ in range(3):
        again, known = await idempotency.begin(*NAME, "ab", "req_2")
        assert known == attrs.evolve(mine, state="answered", status=200, media_type="application/json", body=b"{}")
        assert again.request_id == "req_2"


async def test_a_call_under_way_is_waited_for_by_asking_again(idempotency: IdempotencyService) -> None:
    await begin(idempotency)
    refused = await refuse(idempotency)
    assert (refused.retry_after_s, refused.should_retry) == (1, None)


@pytest.mark.parametrize("answered", [False, True])
async def test_another_body_under_the_same_name_is_another_call(
    idempotency: IdempotencyService, answered: bool
) -> None:
    mine = await begin(idempotency)
    if answered:
        await idempotency.record_answer(mine, status=200, media_type="application/json", body=b"{}")
    refused = await refuse(idempotency, "cd")
    assert (refused.retry_after_s, refused.should_retry) == (None, False)


async def test_a_name_is_one_of_its_key_alone(idempotency: IdempotencyService) -> None:
    await begin(idempotency)
    await begin(idempotency, "req_2", key=6, digest="cd")


async def test_a_call_that_came_to_nothing_may_be_made_again(idempotency: IdempotencyService) -> None:
    await idempotency.delete(await begin(idempotency))
    await begin(idempotency, "req_2", digest="another body, too")


async def test_an_answer_is_kept_for_a_day(idempotency: IdempotencyService, clock: Clock) -> None:
    mine = await begin(idempotency)
    await idempotency.record_answer(mine, status=200, media_type="application/json", body=b"{}")
    clock.now_s += KEEP_MS / 1000 - 1
    assert (await idempotency.begin(*NAME, "ab", "req_2"))[1] is not None
    clock.now_s += 1
    await begin(idempotency, "req_3", digest="cd")


async def test_what_is_too_large_is_not_kept_and_not_made_twice(idempotency: IdempotencyService) -> None:
    mine = await begin(idempotency)
    await idempotency.record_answer(mine, status=200, media_type="application/json", body=b"x" * (MAX_ANSWER_BYTES + 1))
    refused = await refuse(idempotency)
    assert refused.should_retry is False
    assert "too large" in refused.message


async def test_the_largest_answer_is_kept(idempotency: IdempotencyService) -> None:
    body = b"x" * MAX_ANSWER_BYTES
    await idempotency.record_answer(await begin(idempotency), status=200, media_type="application/json", body=body)
    known = (await idempotency.begin(*NAME, "ab", "req_2"))[1]
    assert known is not None
    assert known.body == body


async def test_a_lost_call_is_taken_by_one_of_those_who_ask_for_it(idempotency: IdempotencyService) -> None:
    mine = await begin(idempotency)
    await idempotency.mark_lost(mine)
    one, lost = await idempotency.begin(*NAME, "ab", "req_2")
    other, same = await idempotency.begin(*NAME, "ab", "req_3")
    assert lost is not None
    assert lost == same == attrs.evolve(mine, state="lost")
    outcomes = await asyncio.gather(
        idempotency.claim_lost(one, lost), idempotency.claim_lost(other, lost), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), IdempotencyConflict]
    await refuse(idempotency)
    await idempotency.record_answer(one, status=200, media_type="application/json", body=b"{}")
    assert (await idempotency.begin(*NAME, "ab", "req_4"))[1] is not None


async def test_calls_of_a_process_that_died_are_lost_and_this_ones_are_not(clock: Clock) -> None:
    store = UnreliableReplays()
    before, after = IdempotencyService(store, "before", clock), IdempotencyService(store, "after", clock)
    await before.open()
    await begin(before)
    await after.begin(5, "order-2", "ab", "req_9")
    await after.open()
    _, lost = await after.begin(*NAME, "ab", "req_2")
    assert lost is not None
    assert lost.state == "lost"
    with pytest.raises(IdempotencyConflict):
        await after.begin(5, "order-2", "ab", "req_3")


async def test_what_is_said_of_a_call_that_was_taken_over_changes_nothing(idempotency: IdempotencyService) -> None:
    mine = await begin(idempotency)
    await idempotency.mark_lost(mine)
    other, lost = await idempotency.begin(*NAME, "ab", "req_2")
    assert lost is not None
    await idempotency.claim_lost(other, lost)
    await idempotency.record_answer(mine, status=200, media_type="text/plain", body=b"late")
    await idempotency.delete(mine)
    await refuse(idempotency)


async def test_old_calls_are_swept(idempotency: IdempotencyService) -> None:
    await idempotency.record_answer(await begin(idempotency), status=200, media_type="application/json", body=b"{}")
    assert await idempotency.sweep(int(NOW_S * 1000)) == 0
    assert await idempotency.sweep(int(NOW_S * 1000) + 1) == 1
    await begin(idempotency, "req_2")


async def test_an_answer_that_cannot_be_kept_is_its_callers_all_the_same(clock: Clock) -> None:
    store = UnreliableReplays()
    idempotency = IdempotencyService(store, "me", clock)
    mine = await begin(idempotency)
    store.failing = True
    with capture_logs() as lines:
        await idempotency.record_answer(mine, status=200, media_type="application/json", body=b"{}")
        await idempotency.mark_lost(mine)
        await idempotency.delete(mine)
    assert [(line["event"], line["request_id"]) for line in lines] == [("idempotency_record_not_stored", "req_1")] * 3
