"""Responses in the database that the gateway keeps for clients: compressed, and encrypted like provider keys."""

import asyncio
import zlib
from typing import Any

from sqlalchemy import delete, select

from gateway.domain.kept_response import KeptResponse
from gateway.storage.database import Database
from gateway.storage.dialect import insert_for
from gateway.storage.encryption import SecretBox
from gateway.storage.schema import kept_responses

_PURPOSE = "responses"
_LEVEL = 3
_LENGTH = 4
"""Bytes of the length of the body, before body and items."""


class KeptResponseRepository:
    """The ``kept_responses`` table. Every method raises ``StoreUnavailable`` if the database does not answer."""

    def __init__(self, database: Database, seal: SecretBox) -> None:
        self._database = database
        self._seal = seal.derive(_PURPOSE)

    async def put_response(self, response: KeptResponse) -> None:
        """Store a response; it replaces an earlier state of itself."""
        row = {
            "id": response.id,
            "account_id": response.account_id,
            "created_ms": response.created_ms,
            "expires_ms": response.expires_ms,
            "sealed": await asyncio.to_thread(self._pack, response),
        }
        new = {name: value for name, value in row.items() if name != "id"}
        statement = insert_for(self._database.kind, kept_responses).values(row)
        await self._database.change(statement.on_conflict_do_update(index_elements=["id"], set_=new))

    async def find_response(self, response_id: str) -> KeptResponse | None:
        """Return a response. Raises ``DecryptionFailed`` if it was encrypted with another secret."""
        found = await self._database.read(select(kept_responses).where(kept_responses.c.id == response_id))
        return await asyncio.to_thread(self._unpack, found[0]) if found else None

    async def delete_response(self, response_id: str) -> None:
        """Delete a response."""
        await self._database.change(delete(kept_responses).where(kept_responses.c.id == response_id))

    async def sweep_responses(self, now_ms: int) -> int:
        """Delete the responses that have expired; return how many."""
        return await self._database.change(delete(kept_responses).where(kept_responses.c.expires_ms <= now_ms))

    def _pack(self, response: KeptResponse) -> bytes:
        plain = len(response.body).to_bytes(_LENGTH, "big") + response.body + response.items
        return self._seal.seal(zlib.compress(plain, _LEVEL), about=_write_about(response.id))

    def _unpack(self, row: Any) -> KeptResponse:
        plain = zlib.decompress(self._seal.open(row.sealed, about=_write_about(row.id)))
        end = _LENGTH + int.from_bytes(plain[:_LENGTH], "big")
        return KeptResponse(row.id, row.account_id, row.created_ms, row.expires_ms, plain[_LENGTH:end], plain[end:])


def _write_about(response_id: str) -> str:
    return f"response:{response_id}"
