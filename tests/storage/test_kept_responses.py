"""Kept responses: a conversation in pieces, of which none is lost while a later response needs it."""

import zlib

import pytest
from sqlalchemy import insert, select

from gateway.domain.account import Account
from gateway.domain.kept_response import KeptResponse
from gateway.storage.accounts import AccountRepository
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox
from gateway.storage.kept_responses import ROW_BYTES, KeptResponseRepository, ResponseTooLarge
from gateway.storage.schema import kept_responses

LATER = 10**15
BOX = SecretBox(bytes(range(32)))


def make(name: str, before: str | None = None, expires_ms: int = LATER, created_ms: int = 1) -> KeptResponse:
    body, items = f'{{"output":["{name}"]}}'.encode(), f'["ask {name}"]'.encode()
    return KeptResponse(name, 1, created_ms, expires_ms, body, items, before, 100, 10)


@pytest.fixture
async def store(database: Database) -> KeptResponseRepository:
    await AccountRepository(database).add_account(Account(0, "acme"))
    return KeptResponseRepository(database, BOX)


async def list_ids(database: Database) -> list[str]:
    return sorted(row.id for row in await database.read(select(kept_responses.c.id)))


async def test_a_response_stays_while_another_continues_it(store: KeptResponseRepository, database: Database) -> None:
    for response in (make("a", expires_ms=50), make("b", "a"), make("c", "b"), make("d", "b")):
        assert await store.put_response(response) is not None
    assert [one.id for one in await store.list_chain("c", 10)] == ["c", "b", "a"]
    assert [one.id for one in await store.list_chain("c", 2)] == ["c", "b"]
    await store.delete_response("b", now_ms=100)
    assert await store.sweep_responses(100) == 0
    assert [one.id for one in await store.find_responses(["b"]) if one.expires_ms > 100] == []
    chain = await store.list_chain("c", 10)
    loaded = await store.load(chain, 1000, items=True)
    assert [(one.body, one.items) for one in loaded] == [
        (make(name).body, make(name).items) for name in ("c", "b", "a")
    ]
    assert [one.items for one in await store.load(chain, 1000, items=False)] == [b""] * 3
    await store.delete_response("c", now_ms=100)
    assert await list_ids(database) == ["a", "b", "d"]
    await store.delete_response("d", now_ms=100)
    assert await store.sweep_responses(100) == 2
    assert await list_ids(database) == []
    assert await store.put_response(make("e", "d")) is None


async def test_a_row_of_an_earlier_version_is_read(store: KeptResponseRepository, database: Database) -> None:
    body, items = b'{"output":[]}', b'["a","b"]'
    plain = len(body).to_bytes(4, "big") + body + items
    sealed = BOX.derive("responses").seal(zlib.compress(plain), context="response:old")
    row = {"id": "old", "account_id": 1, "created_ms": 1, "expires_ms": LATER, "sealed": sealed}
    await database.change(insert(kept_responses).values(row))
    found = await store.find_response("old")
    assert found is not None
    assert (found.before_id, found.body_memory, found.items_memory) == (None, None, None)
    (loaded,) = await store.load([found], 1000, items=True)
    assert (loaded.body, loaded.items) == (body, items)
    with pytest.raises(ResponseTooLarge):
        await store.load([found], 5, items=True)


async def test_the_oldest_make_room(store: KeptResponseRepository, database: Database) -> None:
    for number in range(120):
        await store.put_response(make(f"{number:03}", f"{number - 1:03}" if number == 1 else None, created_ms=number))
    assert await store.sum_account(1) == 120 * ROW_BYTES
    assert await store.make_room(1, 500, 80 * ROW_BYTES) == 70 * ROW_BYTES
    assert await list_ids(database) == [f"{number:03}" for number in range(50, 120)]
    assert await store.make_room(1, 500, 70 * ROW_BYTES) == 70 * ROW_BYTES
