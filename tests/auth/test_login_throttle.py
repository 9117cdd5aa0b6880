"""Who guesses waits, and nobody else: counted by one process, and by the nodes of a cluster."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress

import pytest
from sqlalchemy import text

from gateway.auth.login_throttle import ADDRESS_PACE, COUNTER_TTL_S, NAME_PACE, PAIR_PACE, LoginThrottle, Throttle
from gateway.cluster.state.failed_sign_ins import FailedSignIns
from gateway.cluster.state.sign_in_throttle import SharedThrottle
from gateway.cluster.state.values import SharedValues
from gateway.domain.member import SecondFactorNeeded, WrongPassphrase
from gateway.errors import RateLimited, StoreUnavailable
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox
from gateway.storage.open import open_database
from tests.support.postgres import SharedPostgres

HOME, AWAY = "192.0.2.1", "198.51.100.7"


class Door:
    """Somebody tries at a clock that stands still between, at one of some nodes after the other."""

    def __init__(self, throttles: Sequence[Throttle] = ()) -> None:
        self.now = 1000.0
        self.throttles = list(throttles)
        self._tries = 0

    def clock(self) -> float:
        return self.now

    def next(self) -> Throttle:
        self._tries += 1
        return self.throttles[self._tries % len(self.throttles)]

    async def try_in(
        self, name: str = "ann", address: str = HOME, why: type[Exception] | None = WrongPassphrase
    ) -> int:
        """One try that ends so; how long it is told to wait instead, 0 where it was looked at."""
        try:
            async with self.next().attempt(name, address):
                if why is not None:
                    raise why("") if why is StoreUnavailable else why()
        except RateLimited as limited:
            return limited.retry_after_s or 0
        except (WrongPassphrase, SecondFactorNeeded, StoreUnavailable):
            pass
        return 0

    async def guess(self, count: int, name: str = "ann", address: str = HOME) -> None:
        """So many wrong tries, each when it may."""
        for _ in range(count):
            while wait := await self.try_in(name, address):
                self.now += wait


class Shared:
    """The counts of two nodes on one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def open(self, door: Door) -> Throttle:
        values = SharedValues(self.database, SecretBox(bytes(32)), door.clock)
        return SharedThrottle(FailedSignIns(self.database, int(COUNTER_TTL_S * 1000)), values, door.clock)


@pytest.fixture
async def shared(shared_postgres: SharedPostgres) -> AsyncIterator[Shared]:
    database = await open_database(await shared_postgres.empty())
    yield Shared(database)
    await database.close()


@pytest.fixture(params=["memory", "shared"])
def door(request: pytest.FixtureRequest) -> Door:
    made = Door()
    if request.param == "memory":
        made.throttles = [LoginThrottle(made.clock)]
    else:
        nodes: Shared = request.getfixturevalue("shared")
        made.throttles = [nodes.open(made), nodes.open(made)]
    return made


async def test_five_tries_are_free_and_then_each_waits_twice_as_long(door: Door) -> None:
    waits = []
    for _ in range(16):
        wait = await door.try_in()
        waits.append(wait)
        if wait:
            door.now += wait
            assert await door.try_in() == 0
    assert waits[:5] == [0] * 5
    assert waits[5:] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


async def test_the_right_passphrase_is_not_looked_at_meanwhile(door: Door) -> None:
    await door.guess(PAIR_PACE.free_attempts)
    assert await door.try_in(why=None) == 1
    door.now += 0.5
    assert await door.try_in(why=None) == 1
    door.now += 0.5
    assert await door.try_in(why=None) == 0


async def test_asking_too_early_makes_it_no_longer(door: Door) -> None:
    await door.guess(PAIR_PACE.free_attempts)
    assert {await door.try_in() for _ in range(50)} == {1}
    door.now += 1
    assert await door.try_in() == 0


async def test_a_right_one_forgives_what_was_wrong_before(door: Door) -> None:
    for _ in range(3):
        await door.guess(PAIR_PACE.free_attempts - 1)
        assert await door.try_in(why=None) == 0


async def test_wrong_ones_are_forgotten_after_a_while(door: Door) -> None:
    await door.guess(PAIR_PACE.free_attempts + 3)
    door.now += COUNTER_TTL_S
    assert [await door.try_in() for _ in range(PAIR_PACE.free_attempts + 1)] == [0] * PAIR_PACE.free_attempts + [1]


async def test_what_is_nobodys_mistake_counts_for_nothing(door: Door) -> None:
    for why in (SecondFactorNeeded, StoreUnavailable) * 20:
        assert await door.try_in(why=why) == 0


async def test_a_code_that_is_asked_for_does_not_forgive_wrong_ones(door: Door) -> None:
    """Whoever knows the passphrase still has no more than so many guesses at the code."""
    looked_at = 0
    for _ in range(20):
        await door.try_in(why=SecondFactorNeeded)
        looked_at += await door.try_in() == 0
    assert looked_at == PAIR_PACE.free_attempts


async def test_asking_for_a_code_after_a_wait_does_not_begin_it_anew(door: Door) -> None:
    await door.guess(PAIR_PACE.free_attempts)
    door.now += 1
    assert await door.try_in(why=SecondFactorNeeded) == 0
    assert await door.try_in(why=None) == 0


async def test_tries_at_once_get_no_more_than_tries_in_turn(door: Door) -> None:
    inside = 0
    with suppress(RateLimited):
        async with AsyncExitStack() as tries:
            for _ in range(20):
                await tries.enter_async_context(door.next().attempt("ann", HOME))
                inside += 1
    assert inside == PAIR_PACE.free_attempts
    assert await door.try_in() == 0, "and what came to nothing counts for nothing"


async def test_others_from_elsewhere_do_not_wait(door: Door) -> None:
    await door.guess(PAIR_PACE.free_attempts + 4)
    assert await door.try_in() > 0
    assert await door.try_in("bob") == 0
    assert await door.try_in("ann", AWAY) == 0


async def test_many_addresses_guess_at_one_name_no_faster(door: Door) -> None:
    waits = [await door.try_in("ann", f"203.0.{n // 256}.{n % 256}") for n in range(NAME_PACE.free_attempts + 5)]
    assert waits[: NAME_PACE.free_attempts] == [0] * NAME_PACE.free_attempts
    assert all(waits[NAME_PACE.free_attempts :])
    for n in range(200):
        door.now += await door.try_in("ann", f"203.1.0.{n}")
    assert 0 < await door.try_in("ann", AWAY) <= NAME_PACE.max_wait_s


async def test_a_member_gets_in_from_home_whoever_guesses_elsewhere(door: Door) -> None:
    """Nobody shuts a member out for ever by guessing at its name."""
    assert await door.try_in(why=None) == 0
    for n in range(NAME_PACE.free_attempts * 3):
        await door.try_in("ann", f"203.0.113.{n}")
    assert await door.try_in("ann", AWAY, why=None) > 0
    assert await door.try_in(why=None) == 0


async def test_one_address_guesses_at_many_names_no_faster(door: Door) -> None:
    waits = [await door.try_in(f"name-{n}") for n in range(ADDRESS_PACE.free_attempts + 5)]
    assert waits == [0] * ADDRESS_PACE.free_attempts + [1] * 5
    assert await door.try_in("name-0", AWAY) == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("", "no address", True),
    ],
)
async def test_an_address_that_a_caller_chooses_by_itself_is_no_other(
    door: Door, one: str, other: str, *, same: bool
) -> None:
    await door.guess(PAIR_PACE.free_attempts, address=one)
    assert (await door.try_in(address=other) > 0) is same


async def test_what_is_remembered_is_bounded_and_the_newest_stay() -> None:
    door = Door()
    delays = LoginThrottle(door.clock, max_counters=50)
    door.throttles = [delays]
    for n in range(200):
        await door.try_in(f"home-{n}", f"10.1.{n}.1", why=None)
        await door.try_in(f"name-{n}", f"10.0.{n}.1")
    tables = (delays._pairs, delays._names, delays._addresses)
    assert [len(table._counts) for table in tables] == [50, 50, 50]
    assert len(delays._known_pairs) == 50
    await door.guess(PAIR_PACE.free_attempts - 1, "name-199", "10.0.199.1")
    assert await door.try_in("name-199", "10.0.199.1") == 1
    await door.guess(PAIR_PACE.free_attempts - 1, "name-0", "10.0.0.1")
    assert await door.try_in("name-0", "10.0.0.1") == 0


async def test_what_was_typed_for_a_name_is_not_kept() -> None:
    door = Door()
    delays = LoginThrottle(door.clock)
    door.throttles = [delays]
    await door.try_in("correct horse battery")
    kept = repr([table._counts for table in (delays._pairs, delays._names)])
    assert "horse" not in kept


async def test_what_is_forgotten_leaves_the_database(shared: Shared) -> None:
    door = Door()
    door.throttles = [shared.open(door)]
    await door.guess(2)
    door.now += COUNTER_TTL_S + 1
    await door.try_in("bob", AWAY)
    ((rows,),) = await shared.database.read(text("SELECT count(*) FROM failed_sign_ins"))
    assert rows == 3, "one name, one address, and both together"
