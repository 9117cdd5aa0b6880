"""The owners of responses, and of other objects that providers created for one account, in the database."""

from collections.abc import Collection, Mapping

import attrs
from sqlalchemy import delete, select

from gateway.domain.response_owner import ResponseOwner
from gateway.storage.database import Database
from gateway.storage.dialect import insert_for
from gateway.storage.schema import response_owners


class ResponseOwnerRepository:
    """The ``response_owners`` table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_owners(self, owners: Mapping[str, ResponseOwner], now_ms: int) -> None:
        """Store the owner of a response and of the objects in it; the first owner of an id stays."""
        rows = [
            {"id": response_id, **attrs.asdict(owner), "created_ms": now_ms} for response_id, owner in owners.items()
        ]
        statement = insert_for(self._database.kind, response_owners).values(rows)
        if self._database.kept is not None:  # before the commit: the client has the response
            self._database.kept.keep("response_owner", next(iter(owners)), {"rows": rows})
        await self._database.change(statement.on_conflict_do_nothing(index_elements=["id"]))

    async def find_owners(self, ids: Collection[str]) -> dict[str, ResponseOwner]:
        rows = await self._database.read(select(response_owners).where(response_owners.c.id.in_(ids)))
        self._database.check_found(found=len(rows) == len(ids))
        return {row.id: ResponseOwner(row.account_id, row.channel, row.tokens) for row in rows}

    async def delete_owner(self, response_id: str) -> None:
        await self._database.change(delete(response_owners).where(response_owners.c.id == response_id))
        if self._database.kept is not None:
            self._database.kept.keep("response_owner", response_id, {"deleted": response_id})

    async def sweep_owners(self, before_ms: int) -> int:
        return await self._database.change(delete(response_owners).where(response_owners.c.created_ms < before_ms))
