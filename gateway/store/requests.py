"""Request rows in the database."""

from collections.abc import Sequence

from sqlalchemy import Select, select

from gateway.domain.request import RequestFilter, StoredRequest
from gateway.store.engine import Database
from gateway.store.rows import read_request
from gateway.store.schema import requests


class SqlRequestLog:
    """``domain.request.RequestLog`` over the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_requests(self, wanted: RequestFilter, limit: int) -> Sequence[StoredRequest]:
        """The newest that match, oldest of them first; with ``after``, the oldest after it."""
        statement = _filter(select(requests), wanted)
        if wanted.after is not None:
            rows = await self._database.read(statement.order_by(requests.c.sequence).limit(limit))
            return [read_request(row) for row in rows]
        rows = await self._database.read(statement.order_by(requests.c.sequence.desc()).limit(limit))
        return [read_request(row) for row in reversed(rows)]


def _filter(statement: Select[tuple[object, ...]], wanted: RequestFilter) -> Select[tuple[object, ...]]:
    if wanted.key_id is not None:
        statement = statement.where(requests.c.key_id == wanted.key_id)
    if wanted.model is not None:
        statement = statement.where(requests.c.model == wanted.model)
    if wanted.status is not None:
        statement = statement.where(requests.c.status == wanted.status)
    if wanted.channel is not None:
        statement = statement.where(requests.c.channel == wanted.channel)
    if wanted.after is not None:
        statement = statement.where(requests.c.sequence > wanted.after)
    return statement
