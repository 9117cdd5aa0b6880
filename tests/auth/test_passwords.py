"""Passphrases are hashed at OWASP's cost, in few threads, and it takes no longer where there is no such name."""

import asyncio
import threading
from typing import Any

import pytest
from argon2 import extract_parameters
from argon2.low_level import Type

from gateway.auth.passwords import MAX_PARALLEL_HASHES, MAX_QUEUED_HASHES, OWASP, HashCost, PasswordService
from gateway.errors import RateLimited

CHEAP = HashCost(8, 1, 1)
FROGS = "four green frogs sing"


@pytest.fixture
def passphrases() -> PasswordService:
    return PasswordService(CHEAP)


async def test_a_hash_is_argon2id_at_the_cost_that_owasp_asks_for() -> None:
    real = PasswordService()
    made = extract_parameters(await real.hash(FROGS))
    assert (made.type, made.memory_cost, made.time_cost, made.parallelism) == (Type.ID, 19_456, 2, 1)
    assert (made.hash_len, made.salt_len) == (32, 16)
    real.close()


async def test_a_hash_fits_what_it_was_made_of_alone(passphrases: PasswordService) -> None:
    kept = await passphrases.hash(FROGS)
    assert await passphrases.matches(kept, FROGS)
    assert kept != await passphrases.hash(FROGS), "each has its own salt"
    for other in (FROGS.upper(), FROGS + " ", FROGS[:-1], "", FROGS + "\0"):
        assert not await passphrases.matches(kept, other)


async def test_one_word_is_one_word_on_every_keyboard(passphrases: PasswordService) -> None:
    kept = await passphrases.hash("Ame\u0301lie a\u0300 la plage")
    assert await passphrases.matches(kept, "Am\u00e9lie \u00e0 la plage")


@pytest.mark.parametrize("kept", ["", "no hash", "$argon2id$v=19$m=8,t=1,p=1$", "$2b$12$abcdefghijklmnopqrstuv"])
async def test_what_is_no_hash_fits_nothing(passphrases: PasswordService, kept: str) -> None:
    for typed in (FROGS, "", "\ud800", kept):
        assert not await passphrases.matches(kept, typed)


async def test_who_is_not_there_costs_what_somebody_costs(passphrases: PasswordService) -> None:
    """The hash that an unknown name is compared with takes the whole work, and fits nothing."""
    for cost in (CHEAP, OWASP):
        one = PasswordService(cost)
        made = extract_parameters(one._decoy_hash)
        assert (made.memory_cost, made.time_cost, made.parallelism) == (cost.memory_kib, cost.passes, cost.lanes)
        assert (made.hash_len, made.salt_len) == (32, 16)
    for typed in ("", "\0", FROGS):
        assert not await passphrases.matches(None, typed)


async def test_what_was_made_at_another_cost_is_worn(passphrases: PasswordService) -> None:
    kept = await passphrases.hash(FROGS)
    assert not passphrases.needs_rehash(kept)
    dearer = PasswordService(HashCost(16, 1, 1))
    assert dearer.needs_rehash(kept)
    assert await dearer.matches(kept, FROGS), "and still good"
    dearer.close()


async def test_only_so_many_are_worked_on_or_wait(passphrases: PasswordService) -> None:
    """Whoever comes then is told to come again, also where those before have given up waiting."""
    go_on, running, most = threading.Event(), 0, 0

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        go_on.wait(5)
        running -= 1

    tasks: list[asyncio.Task[Any]] = [
        asyncio.ensure_future(passphrases._run(work))  # type: ignore[arg-type]
        for _ in range(MAX_PARALLEL_HASHES + MAX_QUEUED_HASHES)
    ]
    await asyncio.sleep(0.01)
    for task in tasks[:4]:
        task.cancel()
    with pytest.raises(RateLimited) as refused:
        await passphrases.matches(None, FROGS)
    assert refused.value.retry_after_s == 2
    go_on.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not await passphrases.matches(None, FROGS), "and then there is room again"
    assert most <= MAX_PARALLEL_HASHES
    passphrases.close()


async def test_who_never_signs_in_costs_no_thread() -> None:
    before = threading.active_count()
    idle = PasswordService()
    idle.close()
    assert "_pool" not in vars(idle)
    assert threading.active_count() <= before
