"""What every driver promises of the audit trail: a change that is made leaves one row, one that is not leaves none."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
from sqlalchemy import text

from gateway.domain.account import Account, ApiKey
from gateway.domain.audit_log import FILE, GATEWAY, OPERATOR, Actor, AuditFilter, AuditRow
from gateway.domain.channel import Channel
from gateway.domain.ledger import LedgerEntry
from gateway.errors import Conflict, GatewayError, NotFound, StoreUnavailable
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.channels import ChannelRepository
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox
from gateway.storage.ledger import LedgerRepository
from gateway.storage.videos import VideoRepository
from tests.support.request_records import make_row
from tests.support.video_records import JOB

ADA = Actor("member", "ada", 7, 3, 3, "10.0.0.9")
ROW = ADA.build_audit_row("key.edited", "acme/ci", 1_750_000_000_123, account_id=3, detail='{"rpm":[60,"日本"]}')
UP = Channel("up", "custom", "http://up/v1", models=("m",))
CREDIT = LedgerEntry(0, 5, "top_up", 1, None, 100, reference="pay-1")


@attrs.frozen
class Storage:
    """Every repository whose changes are in the audit log, and the log."""

    accounts: AccountRepository
    keys: ApiKeyRepository
    channels: ChannelRepository
    ledger: LedgerRepository
    videos: VideoRepository
    audit_log: AuditLogRepository

    async def list_actions(self) -> list[str]:
        """What was done, in order."""
        return [row.action for row in reversed(await self.audit_log.list_audit(AuditFilter(), 100))]


def open_storage(database: Database) -> Storage:
    return Storage(
        AccountRepository(database),
        ApiKeyRepository(database),
        ChannelRepository(database, SecretBox(bytes(32))),
        LedgerRepository(database),
        VideoRepository(database),
        AuditLogRepository(database),
    )


@pytest.fixture
def store(database: Database) -> Storage:
    return open_storage(database)


async def list_audit(store: Storage, limit: int = 100, **wanted: Any) -> list[AuditRow]:
    return list(await store.audit_log.list_audit(AuditFilter(**wanted), limit))


async def test_a_row_is_read_back_as_it_was_written_with_its_place(store: Storage) -> None:
    bare = GATEWAY.build_audit_row("setting.edited", "", 0)
    assert await list_audit(store) == []
    for row in (ROW, bare):
        await store.audit_log.add_audit(attrs.evolve(row, sequence=77))
    second, first = await list_audit(store)
    assert (first, second) == (attrs.evolve(ROW, sequence=first.sequence), attrs.evolve(bare, sequence=second.sequence))
    assert 0 < first.sequence < second.sequence


async def test_rows_are_found_by_whose_they_are_who_did_it_and_what_and_paged(store: Storage) -> None:
    reported = [
        (ADA, "key.created", 3),
        (OPERATOR, "keyring.made", None),
        (FILE, "account.created", 4),
        (GATEWAY, "key.deleted", 4),
        (attrs.evolve(ADA, name="file"), "key", 3),
    ]
    for number, (actor, action, account_id) in enumerate(reported):
        await store.audit_log.add_audit(actor.build_audit_row(action, str(number), number, account_id=account_id))
    places = {row.subject: row.sequence for row in await list_audit(store)}
    wanted: list[tuple[dict[str, Any], str]] = [
        ({}, "43210"),
        ({"limit": 2}, "43"),
        ({"limit": 0}, ""),
        ({"before": places["2"]}, "10"),
        ({"before": places["4"], "limit": 1}, "3"),
        ({"account_id": 3}, "40"),
        ({"account_id": 5}, ""),
        ({"actor": "ada"}, "0"),
        ({"actor": "Ada"}, ""),
        ({"actor": "token"}, "1"),
        ({"actor": "file"}, "42"),
        ({"actor": "member"}, ""),
        ({"actor": ""}, ""),
        ({"action": "key"}, "430"),
        ({"action": "Key"}, ""),
        ({"action": "key.created"}, "0"),
        ({"action": "ke"}, ""),
        ({"action": "%"}, ""),
        ({"action": "key", "account_id": 3, "actor": "ada", "before": places["4"]}, "0"),
    ]
    for filters, expected in wanted:
        assert "".join(row.subject for row in await list_audit(store, **filters)) == expected, filters


Change = Callable[[AuditRow | None], Awaitable[Any]]


def note(action: str) -> AuditRow:
    return OPERATOR.build_audit_row(action, "it", 5)


async def furnish(store: Storage) -> tuple[Account, list[ApiKey], list[Channel]]:
    """An account, two keys and two channels of which nobody says who has made them."""
    account = await store.accounts.add_account(Account(0, "acme"))
    keys = [
        await store.keys.add_key(ApiKey(0, account.id, name, name.encode() * 32, "0000")) for name in ("one", "two")
    ]
    channels = [await store.channels.add_channel(attrs.evolve(UP, name=name)) for name in ("a", "b")]
    await store.videos.create(JOB)
    return account, keys, channels


async def list_changes(store: Storage) -> list[Change]:
    """Every change that a store has a verb for; each can be made, one after another."""
    account, (one, two), (a, b) = await furnish(store)
    ended, row = attrs.evolve(JOB, state="failed"), make_row("v")
    accounts, keys, channels = store.accounts, store.keys, store.channels
    return [
        lambda audit: accounts.add_account(Account(0, "new"), audit),
        lambda audit: accounts.put_account(attrs.evolve(account, status="disabled"), audit),
        lambda audit: keys.add_key(ApiKey(0, account.id, "three", b"3" * 32, "0000"), audit),
        lambda audit: keys.put_key(attrs.evolve(one, status="disabled"), audit),
        lambda audit: keys.delete_key(two.id, audit),
        lambda audit: channels.add_channel(attrs.evolve(UP, name="c"), audit),
        lambda audit: channels.put_channel(attrs.evolve(a, weight=2), audit),
        lambda audit: channels.put_channels([attrs.evolve(a, weight=3), attrs.evolve(b, weight=3)], audit),
        lambda audit: channels.delete_channel(b.id, audit),
        lambda audit: store.ledger.add_credit(attrs.evolve(CREDIT, account_id=account.id), audit),
        lambda audit: store.videos.finish(ended, row, None, audit),
        lambda audit: accounts.delete_account(account.id, audit),
    ]


async def test_a_change_that_is_made_leaves_exactly_one_row_and_none_where_nobody_is_named(store: Storage) -> None:
    changes = await list_changes(store)
    assert await store.list_actions() == []
    for number, change in enumerate(changes):
        await change(note(f"change.{number}") if number % 2 else None)
    assert await store.list_actions() == [f"change.{number}" for number in range(1, len(changes), 2)]


async def test_a_new_accounts_row_has_its_id(store: Storage) -> None:
    made = await store.accounts.add_account(Account(0, "acme"), note("account.created"))
    (row,) = await list_audit(store, account_id=made.id)
    assert row.action == "account.created"


async def test_a_change_that_fails_leaves_no_row(store: Storage) -> None:
    account, (one, two), (a, b) = await furnish(store)
    credit = attrs.evolve(CREDIT, account_id=account.id)
    await store.ledger.add_credit(credit)
    gone, no_key = attrs.evolve(account, id=99, name="x"), ApiKey(99, 99, "k", b"9" * 32, "")
    accounts, keys, channels = store.accounts, store.keys, store.channels
    refused: list[tuple[type[GatewayError], Callable[[AuditRow], Awaitable[Any]]]] = [
        (Conflict, lambda audit: accounts.add_account(Account(0, "acme"), audit)),
        (NotFound, lambda audit: accounts.put_account(gone, audit)),
        (NotFound, lambda audit: accounts.delete_account(99, audit)),
        (Conflict, lambda audit: keys.add_key(attrs.evolve(one, name="x"), audit)),
        (NotFound, lambda audit: keys.add_key(no_key, audit)),
        (Conflict, lambda audit: keys.put_key(attrs.evolve(two, name="one"), audit)),
        (NotFound, lambda audit: keys.put_key(attrs.evolve(no_key, account_id=account.id), audit)),
        (NotFound, lambda audit: keys.delete_key(99, audit)),
        (Conflict, lambda audit: channels.add_channel(attrs.evolve(UP, name="a"), audit)),
        (Conflict, lambda audit: channels.put_channel(attrs.evolve(b, name="a"), audit)),
        (NotFound, lambda audit: channels.put_channels([attrs.evolve(a, weight=9), attrs.evolve(b, id=99)], audit)),
        (NotFound, lambda audit: channels.delete_channel(99, audit)),
        (Conflict, lambda audit: store.ledger.add_credit(attrs.evolve(credit, amount_nanos=1), audit)),
    ]
    for kind, change in refused:
        with pytest.raises(kind):
            await change(note("never.made"))
    assert await store.ledger.add_credit(attrs.evolve(credit, at_ms=9), note("never.made")) != (credit, True)
    assert not await store.videos.finish(attrs.evolve(JOB, id="video_none"), make_row("v"), None, note("never.made"))
    assert await store.list_actions() == []
    assert [channel.weight for channel in await store.channels.list_channels()] == [1, 1], "all of them or none"


async def test_a_change_that_cannot_be_put_on_record_is_not_made(database: Database) -> None:
    """There is one commit: nothing that happens between the two can leave one without the other."""
    store = open_storage(database)
    changes = await list_changes(store)
    before = await read_all(database)
    await database.change(text("ALTER TABLE audit RENAME TO elsewhere"))
    for change in changes:
        with pytest.raises(StoreUnavailable):
            await change(note("never.recorded"))
    assert await read_all(database) == before
    await database.change(text("ALTER TABLE elsewhere RENAME TO audit"))
    for change in changes:
        await change(note("was.made"))
    assert await store.list_actions() == ["was.made"] * len(changes)
    assert await read_all(database) != before


async def read_all(database: Database) -> list[Any]:
    tables = ("accounts", "keys", "channels", "entries", "videos", "requests")
    return [list(await database.read(text(f"SELECT * FROM {table}"))) for table in tables]  # noqa: S608 - from above
