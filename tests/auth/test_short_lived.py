"""Values that are kept for minutes, in memory and in the database of a cluster."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from gateway.auth.challenges import Challenges
from gateway.auth.short_lived import MemoryValues, ShortLived
from gateway.auth.sign_in_flow import FlowSigner
from gateway.cluster.state.values import SharedValues
from gateway.domain.passkey import CHALLENGE_MS
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox
from gateway.storage.open import open_database
from tests.support.postgres import SharedPostgres

KEY = bytes(range(32))


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s

    @property
    def ms(self) -> int:
        return int(self.now_s * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(shared_postgres: SharedPostgres) -> AsyncIterator[Database]:
    opened = await open_database(await shared_postgres.empty())
    yield opened
    await opened.close()


@pytest.fixture(params=["memory", "shared"])
def values(request: pytest.FixtureRequest, clock: Clock) -> ShortLived:
    if request.param == "memory":
        return MemoryValues(clock)
    return SharedValues(request.getfixturevalue("database"), SecretBox(KEY), clock)


async def test_a_value_is_kept_once_until_it_expires(values: ShortLived, clock: Clock) -> None:
    assert await values.put("a", b"name", b"first", clock.ms + 1000)
    assert not await values.put("a", b"name", b"second", clock.ms + 1000)
    assert await values.put("b", b"name", b"other", clock.ms + 9000)
    assert (await values.find("a", b"name"), await values.find("b", b"name")) == (b"first", b"other")
    assert await values.find("a", b"unknown") is None
    clock.now_s += 1
    assert await values.find("a", b"name") is None
    assert not await values.remove("a", b"name")
    assert await values.put("a", b"name", b"third", clock.ms + 1)
    assert await values.find("b", b"name") == b"other"


async def test_a_value_is_removed_once(values: ShortLived, clock: Clock) -> None:
    await values.put("a", b"name", b"value", clock.ms + 1000)
    assert [await values.remove("a", b"name") for _ in range(2)] == [True, False]
    assert await values.find("a", b"name") is None


async def test_values_are_counted_by_key(values: ShortLived, clock: Clock) -> None:
    assert await values.count_values("a", 1) == (0, 0, 0)
    for number, key_id in enumerate((1, 1, 2)):
        await values.put("a", bytes([number]), b"", clock.ms + 2000 - 500 * number, key_id)
    await values.put("b", b"name", b"", clock.ms + 1, 1)
    assert await values.count_values("a", 1) == (2, 3, clock.ms + 1500)
    assert await values.count_values("a", 3) == (0, 3, clock.ms + 1000)
    clock.now_s += 1.5
    assert await values.count_values("a", 1) == (1, 1, clock.ms + 500)


async def test_a_value_is_sealed_and_bound_to_its_name(database: Database, clock: Clock) -> None:
    values = SharedValues(database, SecretBox(KEY), clock)
    await values.put("a", b"name", b"plain words", clock.ms + 1000)
    ((kept,),) = await database.read(text("SELECT value FROM shared_values"))
    assert b"plain" not in bytes(kept)
    assert await SharedValues(database, SecretBox(bytes(32)), clock).find("a", b"name") is None
    await database.change(text("UPDATE shared_values SET name = 'moved'"))
    assert await values.find("a", b"moved") is None


async def test_what_has_expired_leaves_the_database(database: Database, clock: Clock) -> None:
    values = SharedValues(database, SecretBox(KEY), clock)
    await values.put("a", b"old", b"", clock.ms + 1000)
    clock.now_s += 2
    await values.put("b", b"new", b"", clock.ms + 1000)
    assert len(await database.read(text("SELECT kind FROM shared_values"))) == 1


async def test_a_flow_that_began_at_one_node_ends_once_at_any(values: ShortLived, clock: Clock) -> None:
    one, other = (FlowSigner(values, clock, key=KEY) for _ in range(2))
    flow, cookie = one.begin("corp", "http://localhost/callback", "/console/")
    assert other.open(cookie) == flow
    assert (other.derive_nonce(flow), other.derive_verifier(flow)) == (
        one.derive_nonce(flow),
        one.derive_verifier(flow),
    )
    assert [await signer.use_up(flow) for signer in (other, one)] == [True, False]
    assert FlowSigner(values, clock).open(cookie) is None, "another key"


async def test_a_challenge_of_one_node_is_used_once_at_any(values: ShortLived, clock: Clock) -> None:
    one, other = (Challenges(values, clock, key=KEY) for _ in range(2))
    challenge = one.make("sign in")
    assert not await other.use(challenge, "register")
    assert not await Challenges(values, clock).use(challenge, "sign in"), "another key"
    assert [await each.use(challenge, "sign in") for each in (other, one)] == [True, False]
    late = one.make("sign in")
    clock.now_s += CHALLENGE_MS / 1000
    assert not await other.use(late, "sign in")
