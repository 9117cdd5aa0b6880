"""A node's credit of a limit's subject while the cap changes, and after the node has let go of the subject."""

import asyncio
from collections.abc import Sequence

import attrs
import pytest

from gateway.cluster.credit.keeper import SWEEP_INTERVAL_S
from gateway.domain.balance import Reservation, parse_day, reserve_all
from gateway.domain.credit import BalanceId, CreditGrant, CreditRequest, build_limit_id
from gateway.domain.leased_limit_balance import LeasedLimitBalance, LeasedLimitBook
from gateway.domain.limit import Limit
from gateway.domain.limit_balance import LimitReservation
from gateway.domain.limit_window import parse_window
from gateway.errors import StoreUnavailable
from tests.support.billing_services import NOON
from tests.support.credit_cluster import MemoryNode
from tests.support.credit_memory import MemoryCredit

TODAY = parse_day(NOON)
MIDNIGHT = int(TODAY.end_s)
LIMIT = Limit("each user", "user", cap_nanos=1_000, window=parse_window("day"))
RAISE = Limit("more", cap_nanos=9_000, raises=LIMIT.name, until_s=MIDNIGHT)
SUBJECT = "1:u-1"


class Scene:
    """A node with one limit. The judge in memory knows no terms: ``cap`` sets what it grants under."""

    def __init__(self) -> None:
        self.credit = MemoryCredit()
        self.node = MemoryNode(self.credit, "a")
        self.book = LeasedLimitBook(self.node.keeper, LIMIT, NOON)
        self.id: BalanceId = build_limit_id(LIMIT.counter, SUBJECT)
        self.credit.open(self.id, 1_000, TODAY)
        self.balance = self.open()

    def cap(self, nanos: int) -> None:
        self.credit.balances[self.id].limit = nanos

    def open(self) -> LeasedLimitBalance:
        balance = self.book.open(SUBJECT)
        assert isinstance(balance, LeasedLimitBalance)
        return balance

    def begin(self, nanos: int) -> "asyncio.Task[Reservation | None]":
        """A request that wants a reservation; its answer is None if the store has too little."""

        def reserve() -> Reservation | None:
            if not self.balance.covers(nanos):
                return None
            reservation = reserve_all([self.balance], nanos, TODAY, NOON, LimitReservation)
            assert isinstance(reservation, LimitReservation)
            reservation.use([self.balance])
            return reservation

        return asyncio.ensure_future(self.node.keeper.wait([self.balance], nanos, reserve, release=None))

    async def reserve(self, nanos: int) -> Reservation:
        task = self.begin(nanos)
        await self.node.step()
        reservation = await task
        assert reservation is not None
        return reservation

    def settle(self, reservation: Reservation, nanos: int) -> None:
        self.node.balances.settle(reservation, nanos, NOON)
        self.node.unposted[self.id] += nanos

    async def sweep(self) -> None:
        for _ in range(2):
            self.node.pulse += SWEEP_INTERVAL_S
            await self.node.step()
        assert self.node.keeper.find(self.id) is None

    @property
    def outstanding_nanos(self) -> int:
        """What the store has set aside for the node."""
        return self.credit.balances[self.id].leases["a"].outstanding


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_credit_of_a_raise_that_ends_at_midnight_is_not_spent_in_the_new_window(scene: Scene) -> None:
    scene.book.set_limit(LIMIT, [RAISE], NOON)
    scene.cap(10_000)
    await scene.reserve(900)
    assert scene.balance.room_nanos > 100
    scene.book.begin(MIDNIGHT)
    assert scene.book.cap_nanos == 1_000
    assert not scene.balance.covers(1)
    await scene.node.step()
    assert scene.outstanding_nanos == 900


async def test_an_extension_after_midnight_does_not_spend_credit_of_a_raise_that_has_ended(scene: Scene) -> None:
    """No other request has begun the new window: the credit is idle, and the extension alone must give it back."""
    scene.book.set_limit(LIMIT, [RAISE], NOON)
    scene.cap(10_000)
    reservation = await scene.reserve(900)
    granted_nanos = scene.balance.room_nanos
    assert granted_nanos > 100
    scene.cap(1_000)
    scene.node.now = MIDNIGHT + 1.0
    extending = asyncio.ensure_future(scene.node.balances.extend(reservation, 900 + granted_nanos))
    for _ in range(20):
        await scene.node.step()
        scene.node.pulse += 1.0
    await extending
    assert reservation.nanos <= 1_000
    assert scene.outstanding_nanos <= 1_000


async def test_credit_that_was_asked_for_under_a_higher_cap_goes_back_unspent(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = scene.node.authority.take

    async def take_while_the_cap_falls(requests: Sequence[CreditRequest], day: object) -> Sequence[CreditGrant]:
        grants = await take(requests, TODAY)
        scene.book.set_limit(attrs.evolve(LIMIT, cap_nanos=10), (), NOON)
        scene.cap(10)
        return grants

    monkeypatch.setattr(scene.node.authority, "take", take_while_the_cap_falls)
    task = scene.begin(100)
    for _ in range(3):
        await scene.node.step()
    assert await task is None
    assert scene.balance.room_nanos == scene.outstanding_nanos == 0


async def test_a_limit_that_is_made_again_with_a_lower_cap_does_not_find_the_credit_of_the_former_one(
    scene: Scene,
) -> None:
    reservation = await scene.reserve(100)
    scene.settle(reservation, 100)
    assert scene.balance.covers(100)
    scene.book = LeasedLimitBook(scene.node.keeper, attrs.evolve(LIMIT, cap_nanos=100), NOON)
    assert scene.open() is scene.balance
    assert not scene.balance.covers(1)


async def test_an_overrun_whose_lease_has_ended_is_not_set_aside_again(scene: Scene) -> None:
    reservation = await scene.reserve(100)
    scene.balance.return_credit(scene.balance.room_nanos)
    stored = scene.credit.balances[scene.id]
    stored.leases["a"].granted = 100
    scene.settle(reservation, 130)
    scene.node.post()
    stored.settled += stored.leases.pop("a").posted
    await scene.sweep()
    await scene.reserve(10)
    assert scene.outstanding_nanos == scene.balance.granted_nanos - scene.balance.used_nanos


async def test_a_job_that_is_not_stored_keeps_the_credit_of_a_subject_that_was_let_go_of(scene: Scene) -> None:
    reservation = await scene.reserve(100)
    scene.balance.return_credit(scene.balance.room_nanos)
    scene.credit.balances[scene.id].leases["a"].granted = 100

    async def fail_to_store() -> None:
        async with scene.node.balances.hand_over(reservation):
            await scene.sweep()
            raise StoreUnavailable("lost")

    with pytest.raises(StoreUnavailable):
        await fail_to_store()
    await scene.node.step()
    await scene.reserve(10)
    assert scene.outstanding_nanos == scene.balance.granted_nanos - scene.balance.used_nanos
