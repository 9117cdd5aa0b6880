"""What tests of several nodes ask of their database: a caller with limits, the audit, and what was charged."""

import random

from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.balance import Quota
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from tests.support.credit_gateway import LeasedGateway
from tests.support.credit_nodes import World, look
from tests.support.credit_store import CreditStore


async def add_caller(gateway: LeasedGateway, account: Quota, key: Quota) -> Caller:
    owner = await AccountRepository(gateway.database).add_account(Account(0, "acme", quota=account))
    stored = ApiKey(0, owner.id, "laptop", b"digest", "last", quota=key)
    return Caller(owner, await ApiKeyRepository(gateway.database).add_key(stored))


async def audit(store: CreditStore, *, overruns: bool = False) -> None:
    """Every equation of ``credit_sql`` holds, and nothing is above a limit unless there were ``overruns``."""
    world = World(store.url, random.Random(0), overruns=overruns)  # noqa: S311 - no secret
    await look(store.connection, world)
    assert world.wrong == []
    assert world.done["looked"] > 0


async def spent(store: CreditStore) -> int:
    return int(
        await store.connection.fetchval("SELECT coalesce(sum(amount_nanos), 0) FROM entries WHERE kind = 'charge'")
    )
