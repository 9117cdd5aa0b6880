"""What a store has lost is applied again as far as it takes rights away, and audited with its author and time."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import orjson
import pytest

from gateway.auth.account_register import AccountRegister
from gateway.cluster.reapply import (
    FORMER_KEY_VALID,
    FORMER_SIGN_IN_VALID,
    KIND_NOT_REAPPLIED,
    NOTHING_TO_REAPPLY,
    OBJECT_MISSING,
    OTHER_FIELDS_SKIPPED,
    Reapplication,
)
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.account_spec import AccountSpec, KeySpec
from gateway.domain.audit_log import Actor
from gateway.domain.balance import Quota
from gateway.domain.lost_change import LostChange
from gateway.domain.member import LAST_ADMINISTRATOR, InviteLink, Member
from gateway.domain.member_spec import MemberSpec
from gateway.domain.rate_limit import Limits
from tests.support.session_services import FROGS, HOME, SessionServices

BOSS = Actor("member", "boss", 1, 1, None, "192.0.2.9")
KEY = ApiKey(0, 0, "k", b"k" * 32, "kkkk", limits=Limits(60), models=("m-*",), created_ms=1)
LINK = InviteLink(b"l" * 32, "invite", 1, "viewer", 1, 10**14, None, "boss")


class Store:
    """A store with an account, a key and members; ``lost`` and the store that replaces it begin alike."""

    def __init__(self) -> None:
        self.services = SessionServices()
        self.repositories = self.services.accounts
        self.register = AccountRegister(self.repositories, self.repositories, clock=self.services.clock)

    async def fill(self) -> None:
        self.account = await self.services.add_account("acme", quota=Quota(5 * 10**9, "lifetime"), created_ms=1)
        self.key = await self.repositories.add_key(attrs.evolve(KEY, account_id=self.account.id))
        self.boss = await self.services.add("boss", role="administrator")
        self.ann = await self.services.add("ann")
        await self.services.store.add_link(LINK)
        await self.services.sign_in("ann")
        self.began = len(await self.services.list_audit_trail())
        self.services.now_s += 60

    async def find_key(self) -> ApiKey | None:
        return next(iter(await self.repositories.list_keys()), None)

    async def find_account(self) -> Account:
        return (await self.repositories.list_accounts())[0]

    async def find_ann(self) -> Member | None:
        return await self.services.store.find_member(self.ann.id)

    async def edit_key(self, **fields: Any) -> None:
        key = await self.find_key()
        assert key is not None
        await self.register.put_key(key, attrs.evolve(key, **fields), await self.find_account(), BOSS)

    async def edit_account(self, **fields: Any) -> None:
        account = await self.find_account()
        await self.register.put_account(account, attrs.evolve(account, **fields), BOSS)

    async def edit_ann(self, **fields: Any) -> None:
        await self.services.members.edit(self.ann.id, MemberSpec(**fields), BOSS)


Change = Callable[[Store], Awaitable[object]]


@pytest.fixture
async def lost() -> Store:
    store = Store()
    await store.fill()
    return store


@pytest.fixture
async def new() -> Store:
    store = Store()
    await store.fill()
    return store


async def reapply(lost: Store, new: Store, caller: Caller | None = None) -> Sequence[LostChange]:
    rows = (await lost.services.list_audit_trail())[lost.began :]
    return await Reapplication(new.repositories.database, lambda _: caller, new.services.now_ms + 5_000).run(rows)


async def test_a_key_gets_its_lower_limits_and_the_row_names_its_author_and_time(lost: Store, new: Store) -> None:
    await lost.edit_key(status="disabled", limits=Limits(6, 100), models=("m-1", "x"), name="renamed")
    await lost.edit_key(expires_s=2_000_000_000, webhook_url="https://example.org")
    first, second = await reapply(lost, new)
    key = await new.find_key()
    assert key is not None
    assert (key.status, key.limits, key.models, key.name) == ("disabled", Limits(6, 100), ("m-1",), "k")
    assert (key.expires_s, key.webhook_url, key.digest) == (2_000_000_000, None, KEY.digest)
    assert (first.reason, second.reason) == (OTHER_FIELDS_SKIPPED, OTHER_FIELDS_SKIPPED)
    row = (await new.services.list_audit_trail())[-2]
    assert (row.action, row.actor, row.address, row.at_ms) == ("key.edited", "boss", "192.0.2.9", lost.services.now_ms)
    detail = orjson.loads(row.detail)
    assert detail.pop("reapplied_at") == [None, "2027-01-15T08:01:05Z"]
    assert detail == orjson.loads(first.applied)
    assert detail["status"] == ["active", "disabled"]
    written = len(await new.services.list_audit_trail())
    assert [each.reason for each in await reapply(lost, new)] == [
        NOTHING_TO_REAPPLY,
        NOTHING_TO_REAPPLY,
    ]  # as after a crash in between
    assert len(await new.services.list_audit_trail()) == written


async def delete_key(store: Store) -> None:
    key = await store.find_key()
    assert key is not None
    await store.register.delete_key(key, BOSS)


async def add_key(store: Store) -> None:
    fresh = attrs.evolve(KEY, account_id=store.account.id, digest=b"n" * 32, created_ms=store.services.now_ms)
    await store.register.add_key(KeySpec("new", "acme"), fresh, store.account, BOSS)


async def sign_out(store: Store) -> None:
    entry = await store.services.sign_in("ann")
    await store.services.sessions.sign_out(entry.user, HOME)


async def change_passphrase(store: Store) -> None:
    entry = await store.services.sign_in("ann")
    await store.services.sessions.change_passphrase(entry.user, FROGS, "seven quiet snails dance", HOME)


async def toggle(store: Store) -> None:
    await store.edit_key(status="disabled")
    await store.edit_key(status="active")


async def replace_key(store: Store) -> None:
    await add_key(store)
    await store.edit_key(limits=Limits(6))


async def test_what_takes_rights_away_is_applied(lost: Store, new: Store) -> None:
    steps: list[Change] = [
        lambda store: store.edit_account(quota=Quota(10**9, "lifetime"), groups=("a",)),
        lambda store: store.services.members.delete_link(LINK.id, BOSS),
        lambda store: store.edit_ann(role="viewer"),
        lambda store: store.edit_ann(status="disabled"),
        delete_key,
    ]
    for step in steps:
        await step(lost)
    assert [change.reason for change in await reapply(lost, new)] == [""] * len(steps)
    account, ann = await new.find_account(), await new.find_ann()
    assert (account.quota, account.groups) == (Quota(10**9, "lifetime"), ("a",))
    assert ann is not None
    assert (ann.role, ann.status) == ("viewer", "disabled")
    assert await new.services.store.list_sessions(ann.id) == []
    assert (await new.find_key(), list(await new.services.store.list_links())) == (None, [])


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (sign_out, [KIND_NOT_REAPPLIED, ""]),
        (change_passphrase, [KIND_NOT_REAPPLIED, FORMER_SIGN_IN_VALID, KIND_NOT_REAPPLIED]),
    ],
)
async def test_ended_sessions_end_again(lost: Store, new: Store, change: Change, reasons: list[str]) -> None:
    await change(lost)
    assert [each.reason for each in await reapply(lost, new)] == reasons
    assert await new.services.store.list_sessions(new.ann.id) == []


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (add_key, [KIND_NOT_REAPPLIED]),
        (toggle, [NOTHING_TO_REAPPLY, NOTHING_TO_REAPPLY]),
        (lambda store: store.edit_key(limits=Limits(600), status="active", models=()), [NOTHING_TO_REAPPLY]),
        (lambda store: store.edit_account(quota=Quota()), [NOTHING_TO_REAPPLY]),
        (lambda store: store.edit_ann(role="administrator"), [NOTHING_TO_REAPPLY]),
        (lambda store: store.register.add_account(AccountSpec("more"), BOSS), [KIND_NOT_REAPPLIED]),
        (lambda store: store.edit_account(status="disabled"), [LAST_ADMINISTRATOR]),
    ],
)  # fmt: skip
async def test_all_else_is_listed(lost: Store, new: Store, change: Change, reasons: list[str]) -> None:
    before = await new.find_key(), await new.find_account(), await new.find_ann()
    await change(lost)
    assert [each.reason for each in await reapply(lost, new)] == reasons
    assert (await new.find_key(), await new.find_account(), await new.find_ann()) == before


async def test_what_was_created_after_the_loss_is_not_taken_for_what_was_lost(lost: Store, new: Store) -> None:
    await delete_key(lost)
    key = await new.find_key()
    assert key is not None
    await new.repositories.put_key(attrs.evolve(key, created_ms=lost.services.now_ms + 1))
    assert [each.reason for each in await reapply(lost, new)] == [OBJECT_MISSING]
    assert await new.find_key() is not None


async def test_a_rotated_secret_is_replaced_again_if_the_node_knows_the_new_one(lost: Store, new: Store) -> None:
    key = lost.key
    rotated = attrs.evolve(key, digest=b"r" * 32, last4="rrrr")
    await lost.register.put_key(key, rotated, lost.account, BOSS, action="key.rotated")
    assert [each.reason for each in await reapply(lost, new)] == [FORMER_KEY_VALID]
    assert [each.reason for each in await reapply(lost, new, Caller(lost.account, rotated))] == [""]
    assert await new.find_key() == attrs.evolve(new.key, digest=b"r" * 32, last4="rrrr")
