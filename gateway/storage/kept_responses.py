"""Responses that the gateway keeps for clients in the database: compressed, and encrypted like provider keys.

A response is stored with its own input and a reference to the response before it. A deleted or expired response stays
in the database, hidden from clients, until no other response continues it.
"""

import asyncio
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
from sqlalchemy import Row, delete, exists, func, literal, select, update

from gateway.domain.kept_response import KeptResponse
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.dialect import insert_for
from gateway.storage.encryption import SecretBox
from gateway.storage.kept_changes import encode_bytes
from gateway.storage.schema import kept_responses

_PURPOSE = "responses"
_LEVEL = 3
_LENGTH = 4
"""Bytes of the length prefix before body and items."""
ROW_BYTES = 512
"""The least size that a row counts as, so that a limit of bytes also bounds the number of rows."""
_BYTES = ("sealed", "inputs")
_EVICTED = 50
"""Responses deleted per step to make room."""

_table = kept_responses
_FACTS = tuple(_table.c[name] for name in (
    "id", "account_id", "created_ms", "expires_ms", "before_id", "body_memory", "inputs_memory", "stored_bytes",
))  # fmt: skip


class TooLarge(Exception):
    """A response has more bytes than its reader has room for."""


class KeptResponseRepository:
    """The ``kept_responses`` table. Every method raises ``StoreUnavailable`` if the database does not answer."""

    def __init__(self, database: Database, seal: SecretBox) -> None:
        self._database = database
        self._seal = seal.derive(_PURPOSE)

    async def put_response(self, response: KeptResponse) -> KeptResponse | None:
        """Store a response and return it with its size. None if the response that it continues does not exist."""
        row = await asyncio.to_thread(self._pack, response)
        new = {name: value for name, value in row.items() if name != "id"}
        statement = insert_for(self._database.kind, _table).values(row)
        statement = statement.on_conflict_do_update(index_elements=["id"], set_=new)

        async def put(connection: AsyncConnection) -> bool:
            if response.before_id is not None:
                before = await connection.execute(select(_table.c.id).where(_table.c.id == response.before_id))
                if before.first() is None:
                    return False
            await connection.execute(statement)
            return True

        if (kept := self._database.kept) is not None:
            # Before the commit: the client has the response even if the database is lost now.
            kept.keep("response", response.id, {"row": row | {name: encode_bytes(row[name]) for name in _BYTES}})
        stored = await self._database.write_shared(put)
        return attrs.evolve(response, stored_bytes=row["stored_bytes"]) if stored else None

    async def find_response(self, response_id: str) -> KeptResponse | None:
        found = await self.find_responses([response_id])
        return found[0] if found else None

    async def find_responses(self, ids: Iterable[str]) -> list[KeptResponse]:
        wanted = sorted(ids)
        found = await self._database.read(select(*_FACTS).where(_table.c.id.in_(wanted)))
        self._database.check_found(found=len(found) == len(wanted))
        return [_parse(row) for row in found]

    async def list_chain(self, response_id: str, most: int) -> list[KeptResponse]:
        """Return a response and those that it continues, at most ``most``, oldest last, without bodies and items."""
        first = select(_table.c.id, _table.c.before_id, literal(0).label("depth")).where(_table.c.id == response_id)
        chain = first.cte("chain", recursive=True)
        following = select(_table.c.id, _table.c.before_id, chain.c.depth + 1).where(
            _table.c.id == chain.c.before_id, chain.c.depth < most - 1
        )
        chain = chain.union_all(following)
        statement = select(*_FACTS).join(chain, chain.c.id == _table.c.id).order_by(chain.c.depth)
        found = [_parse(row) for row in await self._database.read(statement)]
        self._database.check_found(found=bool(found) and found[-1].before_id is None)
        return found

    async def load(self, responses: Sequence[KeptResponse], room: int, *, items: bool) -> list[KeptResponse]:
        """Return ``responses`` with their bodies and, if asked, their ``items``, in the same order.

        A response that no longer exists is left out, and so are the items of a row of an earlier version. ``room``
        limits the bytes of a response of unknown size.

        Raises ``DecryptionFailed``: one was encrypted with another secret. Raises ``TooLarge``: one is larger than
        ``room``.
        """
        columns = (_table.c.id, _table.c.sealed, *((_table.c.inputs,) if items else ()))
        wanted = select(*columns).where(_table.c.id.in_([response.id for response in responses]))
        rows = {row.id: row for row in await self._database.read(wanted)}

        def unpack() -> list[KeptResponse]:
            return [self._unpack(one, rows[one.id], room, items=items) for one in responses if one.id in rows]

        return await asyncio.to_thread(unpack)

    async def delete_response(self, response_id: str, now_ms: int) -> None:
        """Delete a response. Its row stays, hidden, while other responses continue it."""
        await self._database.change(update(_table).where(_table.c.id == response_id).values(expires_ms=now_ms))
        await self._database.change(_delete_ended(now_ms).where(_table.c.id == response_id))
        if self._database.kept is not None:
            self._database.kept.keep("response", response_id, {"deleted": response_id, "deleted_ms": now_ms})

    async def sweep_responses(self, now_ms: int) -> int:
        return await self._sweep(_delete_ended(now_ms))

    async def sum_account(self, account_id: int) -> int:
        total = func.coalesce(func.sum(_table.c.stored_bytes), 0)
        return int((await self._database.read(select(total).where(_table.c.account_id == account_id)))[0][0])

    async def make_room(self, account_id: int, now_ms: int, most_bytes: int) -> int:
        """Delete an account's oldest responses until ``most_bytes`` or less remain; return the remaining bytes."""
        living = _table.c.account_id == account_id, _table.c.expires_ms > now_ms
        oldest = select(_table.c.id).where(*living).order_by(_table.c.created_ms).limit(_EVICTED)
        while (held := await self.sum_account(account_id)) > most_bytes:
            ended = update(_table).where(_table.c.id.in_(oldest)).values(expires_ms=now_ms)
            expired = await self._database.change(ended)
            gone = await self._sweep(_delete_ended(now_ms).where(_table.c.account_id == account_id))
            if not expired and not gone:
                break
        return held

    async def _sweep(self, statement: Any) -> int:
        swept = gone = await self._database.change(statement)
        while gone:  # then the responses before the deleted ones
            swept += (gone := await self._database.change(statement))
        return swept

    def _pack(self, response: KeptResponse) -> dict[str, Any]:
        about, plain = _build_associated_data(response.id), len(response.body).to_bytes(_LENGTH, "big") + response.body
        sealed = self._seal.seal(zlib.compress(plain, _LEVEL), context=about)
        inputs = self._seal.seal(zlib.compress(response.items, _LEVEL), context=f"{about}:inputs")
        return {
            "id": response.id,
            "account_id": response.account_id,
            "created_ms": response.created_ms,
            "expires_ms": response.expires_ms,
            "sealed": sealed,
            "inputs": inputs,
            "before_id": response.before_id,
            "body_memory": response.body_memory,
            "inputs_memory": response.items_memory,
            "stored_bytes": max(ROW_BYTES, len(sealed) + len(inputs)),
        }

    def _unpack(self, response: KeptResponse, row: Row[Any], room: int, *, items: bool) -> KeptResponse:
        about = _build_associated_data(row.id)
        plain = self._open(row.sealed, about, room)
        end = _LENGTH + int.from_bytes(plain[:_LENGTH], "big")
        inputs = plain[end:]  # of a row of an earlier version
        if items and row.inputs is not None:
            inputs = self._open(row.inputs, f"{about}:inputs", room)
        return attrs.evolve(response, body=plain[_LENGTH:end], items=inputs)

    def _open(self, sealed: bytes, about: str, room: int) -> bytes:
        inflation = zlib.decompressobj()
        plain = inflation.decompress(self._seal.open(sealed, context=about), room + _LENGTH + 1)
        if not inflation.eof:
            raise TooLarge
        return plain


def _delete_ended(now_ms: int) -> Any:
    later = _table.alias()
    return delete(_table).where(_table.c.expires_ms <= now_ms, ~exists().where(later.c.before_id == _table.c.id))


def _parse(row: Row[Any]) -> KeptResponse:
    return KeptResponse(
        row.id,
        row.account_id,
        row.created_ms,
        row.expires_ms,
        before_id=row.before_id,
        body_memory=row.body_memory,
        items_memory=row.inputs_memory,
        stored_bytes=row.stored_bytes,
    )


def _build_associated_data(response_id: str) -> str:
    return f"response:{response_id}"
