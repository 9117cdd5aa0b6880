"""Two gateways that change one PostgreSQL database at the same moment: nothing is lost, done twice, or locked out."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import attrs
import pytest

from gateway.domain.account import Account, ApiKey
from gateway.domain.balance import Quota
from gateway.domain.channel import Channel
from gateway.domain.ledger import LedgerEntry
from gateway.domain.member import Member
from gateway.domain.setting import Setting
from gateway.errors import Conflict, NotFound
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.channels import ChannelRepository
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox
from gateway.storage.ledger import LedgerRepository
from gateway.storage.members import MemberRepository
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.database import PostgresDatabase
from gateway.storage.settings import SettingRepository
from tests.support.any_user import AnyUser
from tests.support.postgres import SharedPostgres

ROUNDS = 10
BOX = SecretBox(bytes(range(32)))
CHANNEL = Channel("up", "openai", "https://api.openai.com/v1", api_keys=("sk-1",))

Pair = tuple[Database, Database]


@pytest.fixture
async def pair(shared_postgres: SharedPostgres) -> AsyncIterator[Pair]:
    url = await shared_postgres.empty()
    pair = tuple(PostgresDatabase(Address(url), AnyUser()) for _ in range(2))
    yield pair  # type: ignore[misc]
    for database in pair:
        await database.close()


async def at_once(*changes: Awaitable[Any]) -> list[Any]:
    """What each gives or raises; a ``Conflict`` or ``NotFound`` by its type, anything else that is raised fails."""
    done = await asyncio.gather(*changes, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException) and not isinstance(result, Conflict | NotFound):
            raise result
    return [_find_kind(result) if isinstance(result, BaseException) else result for result in done]


def _find_kind(error: BaseException) -> type[BaseException]:
    return Conflict if isinstance(error, Conflict) else type(error)


@pytest.mark.parametrize("how", ["both demote", "both delete", "one of each"])
async def test_an_administrator_is_always_left(pair: Pair, how: str) -> None:
    account = await AccountRepository(pair[0]).add_account(Account(0, "acme"))
    here, there = (MemberRepository(database) for database in pair)
    for number in range(ROUNDS):
        one, two = [
            await here.add_member(Member(0, account.id, f"{name}-{number}", "administrator", passphrase="x"))
            for name in ("one", "two")
        ]
        for member in await here.list_members():
            if member not in (one, two):
                await here.delete_member(member.id)
        demote = [store.put_member(who, attrs.evolve(who, role="viewer")) for store, who in ((here, two), (there, one))]
        delete = [store.delete_member(who.id) for store, who in ((here, two), (there, one))]
        changes = {"both demote": demote, "both delete": delete, "one of each": [demote[0], delete[1]]}[how]
        done = await at_once(*changes)
        for unused in {*demote, *delete} - set(changes):
            unused.close()
        assert done.count(Conflict) == 1
        assert await here.is_administered()


async def test_no_change_of_an_account_is_lost(pair: Pair) -> None:
    here, there = (AccountRepository(database) for database in pair)
    for number in range(ROUNDS):
        before = await here.add_account(Account(0, f"acme-{number}", quota=Quota(1)))
        rpm = attrs.evolve(before, limits=attrs.evolve(before.limits, rpm=5))
        quota = attrs.evolve(before, quota=Quota(7))
        same = attrs.evolve(before, quota=Quota(9))
        done = await at_once(here.put_account(rpm, original=before), there.put_account(quota, original=before))
        assert done == [None, None]
        now = {account.id: account for account in await there.list_accounts()}[before.id]
        assert (now.limits.rpm, now.quota.limit_nanos) == (5, 7)
        assert await at_once(there.put_account(same, original=before)) == [Conflict]


async def test_of_two_who_change_the_same_field_one_is_refused(pair: Pair) -> None:
    account = await AccountRepository(pair[0]).add_account(Account(0, "acme"))
    keys = [ApiKeyRepository(database) for database in pair]
    channels = [ChannelRepository(database, BOX) for database in pair]
    for number in range(ROUNDS):
        key = await keys[0].add_key(ApiKey(0, account.id, f"k-{number}", number.to_bytes(32, "big"), "last"))
        fresh = [attrs.evolve(key, models=(name,)) for name in ("a", "b")]
        done = await at_once(*(store.put_key(after, original=key) for store, after in zip(keys, fresh, strict=True)))
        assert sorted(map(str, done)) == sorted(map(str, [None, Conflict]))
        stored = {one.id: one for one in await keys[0].list_keys()}[key.id]
        assert stored == fresh[done.index(None)]
        channel = await channels[0].add_channel(attrs.evolve(CHANNEL, name=f"c-{number}"))
        secrets = [attrs.evolve(channel, api_keys=(secret,)) for secret in ("sk-2", "sk-3")]
        done = await at_once(
            *(store.put_channel(after, original=channel) for store, after in zip(channels, secrets, strict=True))
        )
        assert sorted(map(str, done)) == sorted(map(str, [None, Conflict]))


async def test_a_credit_with_one_reference_is_added_once(pair: Pair) -> None:
    ledgers = [LedgerRepository(database) for database in pair]
    for number in range(ROUNDS):
        credit = LedgerEntry(0, 1_000, "top_up", 1, None, 5, reference=f"payment-{number}")
        done = await at_once(*(ledger.add_credit(credit) for ledger in ledgers))
        assert sorted(added for _, added in done) == [False, True]
        assert done[0][0] == done[1][0]
    assert len(await ledgers[0].list_credits(1, None, 100)) == ROUNDS


async def test_names_and_settings_are_taken_once(pair: Pair) -> None:
    accounts = [AccountRepository(database) for database in pair]
    settings = [SettingRepository(database) for database in pair]
    for number in range(ROUNDS):
        done = await at_once(*(store.add_account(Account(0, f"acme-{number}")) for store in accounts))
        assert [type(one) for one in done].count(Account) == 1
        assert done.count(Conflict) == 1
        values = [Setting("routing.retry_ratio", value, number) for value in (0.25, 0.75)]
        puts = (s.change_settings({v.path: v.value}, v.changed_ms) for s, v in zip(settings, values, strict=True))
        assert await at_once(*puts) == [None, None]
        (stored,) = await settings[0].list_settings()
        assert stored in values
