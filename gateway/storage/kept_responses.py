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
_COMPRESSION_LEVEL = 3
_LENGTH_BYTES = 4
"""Bytes of the length prefix before body and items."""
ROW_BYTES = 512
"""The least size that a row counts as, so that a limit of bytes also bounds the number of rows."""
_BYTES_COLUMNS = ("sealed", "inputs")
_ROWS_PER_EVICTION = 50
"""Responses deleted per step to make room."""

_table = kept_responses
_FACT_COLUMNS = tuple(_table.c[name] for name in (
    "id", "account_id", "created_ms", "expires_ms", "before_id", "body_memory", "inputs_memory", "stored_bytes",
))  # fmt: skip


class ResponseTooLarge(Exception):
    """A response has more bytes than its reader has room for."""


class KeptResponseRepository:
    """The ``kept_responses`` table."""

    def __init__(self, database: Database, secret_box: SecretBox) -> None:
        self._database = database
        self._secret_box = secret_box.derive(_PURPOSE)

    async def put_response(self, response: KeptResponse) -> KeptResponse | None:
        """Store a response and return it with its size; None if the response that it continues does not exist."""
        row = await asyncio.to_thread(self._pack, response)
        new_values = {name: value for name, value in row.items() if name != "id"}
        statement = insert_for(self._database.kind, _table).values(row)
        statement = statement.on_conflict_do_update(index_elements=["id"], set_=new_values)

        async def put(connection: AsyncConnection) -> bool:
            if response.before_id is not None:
                earlier_rows = await connection.execute(select(_table.c.id).where(_table.c.id == response.before_id))
                if earlier_rows.first() is None:
                    return False
            await connection.execute(statement)
            return True

        if (kept_changes := self._database.kept) is not None:
            # Before the commit: the client has the response even if the database is lost now.
            kept_changes.keep(
                "response", response.id, {"row": row | {name: encode_bytes(row[name]) for name in _BYTES_COLUMNS}}
            )
        is_stored = await self._database.write_shared(put)
        return attrs.evolve(response, stored_bytes=row["stored_bytes"]) if is_stored else None

    async def find_response(self, response_id: str) -> KeptResponse | None:
        responses = await self.find_responses([response_id])
        return responses[0] if responses else None

    async def find_responses(self, ids: Iterable[str]) -> list[KeptResponse]:
        sorted_ids = sorted(ids)
        rows = await self._database.read(select(*_FACT_COLUMNS).where(_table.c.id.in_(sorted_ids)))
        self._database.check_found(found=len(rows) == len(sorted_ids))
        return [_parse(row) for row in rows]

    async def list_chain(self, response_id: str, max_responses: int) -> list[KeptResponse]:
        """Return a response and those that it continues, the oldest last, without their bodies and items.

        At most ``max_responses`` are returned.
        """
        first_query = select(_table.c.id, _table.c.before_id, literal(0).label("depth")).where(
            _table.c.id == response_id
        )
        chain = first_query.cte("chain", recursive=True)
        following_query = select(_table.c.id, _table.c.before_id, chain.c.depth + 1).where(
            _table.c.id == chain.c.before_id, chain.c.depth < max_responses - 1
        )
        chain = chain.union_all(following_query)
        statement = select(*_FACT_COLUMNS).join(chain, chain.c.id == _table.c.id).order_by(chain.c.depth)
        responses = [_parse(row) for row in await self._database.read(statement)]
        self._database.check_found(found=bool(responses) and responses[-1].before_id is None)
        return responses

    async def load(self, responses: Sequence[KeptResponse], max_bytes: int, *, items: bool) -> list[KeptResponse]:
        """Return ``responses`` with their bodies and, if asked, their ``items``, in the same order.

        A response that no longer exists is left out. ``max_bytes`` limits each response after decompression, because a
        row of an earlier version does not give its size.

        Raises:
            DecryptionFailed: a response was encrypted with another secret.
            ResponseTooLarge: a response is larger than ``max_bytes``.
        """
        columns = (_table.c.id, _table.c.sealed, *((_table.c.inputs,) if items else ()))
        statement = select(*columns).where(_table.c.id.in_([response.id for response in responses]))
        rows = {row.id: row for row in await self._database.read(statement)}

        def unpack() -> list[KeptResponse]:
            return [
                self._unpack(response, rows[response.id], max_bytes, items=items)
                for response in responses
                if response.id in rows
            ]

        return await asyncio.to_thread(unpack)

    async def delete_response(self, response_id: str, now_ms: int) -> None:
        """Delete a response. Its row stays, hidden, while other responses continue it."""
        await self._database.change(update(_table).where(_table.c.id == response_id).values(expires_ms=now_ms))
        await self._database.change(_delete_ended_responses(now_ms).where(_table.c.id == response_id))
        if self._database.kept is not None:
            self._database.kept.keep("response", response_id, {"deleted": response_id, "deleted_ms": now_ms})

    async def sweep_responses(self, now_ms: int) -> int:
        return await self._sweep(_delete_ended_responses(now_ms))

    async def sum_account(self, account_id: int) -> int:
        total = func.coalesce(func.sum(_table.c.stored_bytes), 0)
        return int((await self._database.read(select(total).where(_table.c.account_id == account_id)))[0][0])

    async def make_room(self, account_id: int, now_ms: int, max_bytes: int) -> int:
        """Delete an account's oldest responses until ``max_bytes`` or less remain, if possible.

        Return the remaining bytes. Responses that others continue are only hidden from clients, and their bytes still
        count.
        """
        is_live = _table.c.account_id == account_id, _table.c.expires_ms > now_ms
        oldest_ids = select(_table.c.id).where(*is_live).order_by(_table.c.created_ms).limit(_ROWS_PER_EVICTION)
        while (held_bytes := await self.sum_account(account_id)) > max_bytes:
            expiry_query = update(_table).where(_table.c.id.in_(oldest_ids)).values(expires_ms=now_ms)
            expired_count = await self._database.change(expiry_query)
            deleted_count = await self._sweep(_delete_ended_responses(now_ms).where(_table.c.account_id == account_id))
            if not expired_count and not deleted_count:
                break
        return held_bytes

    async def _sweep(self, statement: Any) -> int:
        total_count = deleted_count = await self._database.change(statement)
        while deleted_count:  # then the responses before the deleted ones
            total_count += (deleted_count := await self._database.change(statement))
        return total_count

    def _pack(self, response: KeptResponse) -> dict[str, Any]:
        context, plaintext = (
            _build_associated_data(response.id),
            len(response.body).to_bytes(_LENGTH_BYTES, "big") + response.body,
        )
        sealed = self._secret_box.seal(zlib.compress(plaintext, _COMPRESSION_LEVEL), context=context)
        inputs = self._secret_box.seal(zlib.compress(response.items, _COMPRESSION_LEVEL), context=f"{context}:inputs")
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

    def _unpack(self, response: KeptResponse, row: Row[Any], max_bytes: int, *, items: bool) -> KeptResponse:
        context = _build_associated_data(row.id)
        plaintext = self._open(row.sealed, context, max_bytes)
        body_end = _LENGTH_BYTES + int.from_bytes(plaintext[:_LENGTH_BYTES], "big")
        inputs = plaintext[body_end:]  # of a row of an earlier version
        if items and row.inputs is not None:
            inputs = self._open(row.inputs, f"{context}:inputs", max_bytes)
        return attrs.evolve(response, body=plaintext[_LENGTH_BYTES:body_end], items=inputs)

    def _open(self, sealed: bytes, context: str, max_bytes: int) -> bytes:
        inflation = zlib.decompressobj()
        plaintext = inflation.decompress(self._secret_box.open(sealed, context=context), max_bytes + _LENGTH_BYTES + 1)
        if not inflation.eof:
            raise ResponseTooLarge
        return plaintext


def _delete_ended_responses(now_ms: int) -> Any:
    later_responses = _table.alias()
    return delete(_table).where(
        _table.c.expires_ms <= now_ms, ~exists().where(later_responses.c.before_id == _table.c.id)
    )


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
