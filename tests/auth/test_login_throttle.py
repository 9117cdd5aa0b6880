"""Who guesses waits, and nobody else."""

from contextlib import ExitStack, suppress

import pytest

from gateway.auth.login_throttle import FORGOTTEN_S, OF_ADDRESS, OF_NAME, OF_PAIR, LoginThrottle
from gateway.domain.member import SecondFactorNeeded, WrongPassphrase
from gateway.errors import RateLimited, StoreUnavailable

HOME, AWAY = "192.0.2.1", "198.51.100.7"


class Door:
    """Somebody tries at a clock that stands still between."""

    def __init__(self, **options: int) -> None:
        self.now = 1000.0
        self.delays = LoginThrottle(lambda: self.now, **options)

    def try_in(self, name: str = "ann", address: str = HOME, why: type[Exception] | None = WrongPassphrase) -> int:
        """One try that ends so; how long it is told to wait instead, 0 where it was looked at."""
        try:
            with self.delays.attempt(name, address):
                if why is not None:
                    raise why("") if why is StoreUnavailable else why()
        except RateLimited as limited:
            return limited.retry_after_s or 0
        except (WrongPassphrase, SecondFactorNeeded, StoreUnavailable):
            pass
        return 0

    def guess(self, count: int, name: str = "ann", address: str = HOME) -> None:
        """So many wrong tries, each when it may."""
        for _ in range(count):
            while wait := self.try_in(name, address):
                self.now += wait


def test_five_tries_are_free_and_then_each_waits_twice_as_long() -> None:
    door, waits = Door(), []
    for _ in range(16):
        wait = door.try_in()
        waits.append(wait)
        if wait:
            door.now += wait
            assert door.try_in() == 0
    assert waits[:5] == [0] * 5
    assert waits[5:] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_the_right_passphrase_is_not_looked_at_meanwhile() -> None:
    door = Door()
    door.guess(OF_PAIR.free)
    assert door.try_in(why=None) == 1
    door.now += 0.5
    assert door.try_in(why=None) == 1
    door.now += 0.5
    assert door.try_in(why=None) == 0


def test_asking_too_early_makes_it_no_longer() -> None:
    door = Door()
    door.guess(OF_PAIR.free)
    assert {door.try_in() for _ in range(50)} == {1}
    door.now += 1
    assert door.try_in() == 0


def test_a_right_one_forgives_what_was_wrong_before() -> None:
    door = Door()
    for _ in range(3):
        door.guess(OF_PAIR.free - 1)
        assert door.try_in(why=None) == 0


def test_wrong_ones_are_forgotten_after_a_while() -> None:
    door = Door()
    door.guess(OF_PAIR.free + 3)
    door.now += FORGOTTEN_S
    assert [door.try_in() for _ in range(OF_PAIR.free + 1)] == [0] * OF_PAIR.free + [1]


def test_what_is_nobodys_mistake_counts_for_nothing() -> None:
    door = Door()
    for why in (SecondFactorNeeded, StoreUnavailable) * 20:
        assert door.try_in(why=why) == 0


def test_a_code_that_is_asked_for_does_not_forgive_wrong_ones() -> None:
    """Whoever knows the passphrase still has no more than so many guesses at the code."""
    door, looked_at = Door(), 0
    for _ in range(20):
        door.try_in(why=SecondFactorNeeded)
        looked_at += door.try_in() == 0
    assert looked_at == OF_PAIR.free


def test_asking_for_a_code_after_a_wait_does_not_begin_it_anew() -> None:
    door = Door()
    door.guess(OF_PAIR.free)
    door.now += 1
    assert door.try_in(why=SecondFactorNeeded) == 0
    assert door.try_in(why=None) == 0


def test_tries_at_once_get_no_more_than_tries_in_turn() -> None:
    door, inside = Door(), 0
    with suppress(RateLimited), ExitStack() as tries:
        for _ in range(20):
            tries.enter_context(door.delays.attempt("ann", HOME))
            inside += 1
    assert inside == OF_PAIR.free
    assert door.try_in() == 0, "and what came to nothing counts for nothing"


def test_others_from_elsewhere_do_not_wait() -> None:
    door = Door()
    door.guess(OF_PAIR.free + 4)
    assert door.try_in() > 0
    assert door.try_in("bob") == 0
    assert door.try_in("ann", AWAY) == 0


def test_many_addresses_guess_at_one_name_no_faster() -> None:
    door = Door()
    waits = [door.try_in("ann", f"203.0.{n // 256}.{n % 256}") for n in range(OF_NAME.free + 5)]
    assert waits[: OF_NAME.free] == [0] * OF_NAME.free
    assert all(waits[OF_NAME.free :])
    for n in range(200):
        door.now += door.try_in("ann", f"203.1.0.{n}")
    assert 0 < door.try_in("ann", AWAY) <= OF_NAME.longest_s


def test_a_member_gets_in_from_home_whoever_guesses_elsewhere() -> None:
    """Nobody shuts a member out for ever by guessing at its name."""
    door = Door()
    assert door.try_in(why=None) == 0
    for n in range(OF_NAME.free * 3):
        door.try_in("ann", f"203.0.113.{n}")
    assert door.try_in("ann", AWAY, why=None) > 0
    assert door.try_in(why=None) == 0


def test_one_address_guesses_at_many_names_no_faster() -> None:
    door = Door()
    waits = [door.try_in(f"name-{n}") for n in range(OF_ADDRESS.free + 5)]
    assert waits == [0] * OF_ADDRESS.free + [1] * 5
    assert door.try_in("name-0", AWAY) == 0


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
def test_an_address_that_a_caller_chooses_by_itself_is_no_other(one: str, other: str, *, same: bool) -> None:
    door = Door()
    door.guess(OF_PAIR.free, address=one)
    assert (door.try_in(address=other) > 0) is same


def test_what_is_remembered_is_bounded_and_the_newest_stay() -> None:
    door = Door(most=50)
    for n in range(200):
        door.try_in(f"home-{n}", f"10.1.{n}.1", why=None)
        door.try_in(f"name-{n}", f"10.0.{n}.1")
    tables = (door.delays._pairs, door.delays._names, door.delays._addresses)
    assert [len(table._counts) for table in tables] == [50, 50, 50]
    assert len(door.delays._at_home) == 50
    door.guess(OF_PAIR.free - 1, "name-199", "10.0.199.1")
    assert door.try_in("name-199", "10.0.199.1") == 1
    door.guess(OF_PAIR.free - 1, "name-0", "10.0.0.1")
    assert door.try_in("name-0", "10.0.0.1") == 0


def test_what_was_typed_for_a_name_is_not_kept() -> None:
    door = Door()
    door.try_in("correct horse battery")
    kept = repr([table._counts for table in (door.delays._pairs, door.delays._names)])
    assert "horse" not in kept
