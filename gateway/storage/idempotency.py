"""Idempotency records in the database: of an API key's requests with the same name, only one starts.

The name is the value of the header ``Idempotency-Key``.
"""

from functools import cache

from sqlalchemy import ColumnElement, and_, bindparam, delete, select, update
from sqlalchemy.sql.dml import ReturningInsert

from gateway.domain.idempotency import KEEP_MS, IdempotencyRecord
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.dialect import insert_for
from gateway.storage.kept_changes import encode_bytes
from gateway.storage.row_mapping import REPLAY_COLUMNS, build_replay_row, parse_replay
from gateway.storage.schema import RUNNING, replays

_COLUMNS = tuple(replays.c[name] for name in REPLAY_COLUMNS)


class IdempotencyRepository:
    """The ``replays`` table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin_replay(self, replay: IdempotencyRecord, expired_ms: int | None = None) -> IdempotencyRecord | None:
        """Store the record and return None; if the API key has one of the same name, return that one instead.

        Records created at ``expired_ms`` or before do not count; by default that is ``KEEP_MS`` before the new record.
        """
        expired_ms = replay.created_ms - KEEP_MS if expired_ms is None else expired_ms

        async def work(connection: AsyncConnection) -> IdempotencyRecord | None:
            values = {**build_replay_row(replay), "expired_ms": expired_ms}
            is_same_call = and_(replays.c.key_id == replay.key_id, replays.c.name == replay.name)
            while not (await connection.execute(_write_begin(connection.dialect.name), values)).first():
                earlier_row = (await connection.execute(select(*_COLUMNS).where(is_same_call))).first()
                if earlier_row is not None:  # otherwise another node has deleted it meanwhile
                    earlier_replay = parse_replay(earlier_row)
                    self._database.check_found(found=earlier_replay.state == "answered")
                    return earlier_replay
            self._database.check_found(found=False)  # a replaced database may lack the first request of this name
            return None

        earlier_replay = await self._database.write_shared(work)
        if earlier_replay is None:
            self._keep(replay)
        return earlier_replay

    async def take_replay(self, old_record: IdempotencyRecord, new_record: IdempotencyRecord) -> bool:
        query = update(replays).where(*_is_call(old_record), replays.c.state == old_record.state)
        is_taken = bool(await self._database.change(query.values(build_replay_row(new_record))))
        if is_taken:
            self._keep(new_record)
        return is_taken

    async def end_replay(self, replay: IdempotencyRecord) -> None:
        self._keep(replay)  # first: the answer counts even if the database is lost now
        await self._database.change(update(replays).where(*_is_call(replay)).values(build_replay_row(replay)))

    async def forget_replay(self, replay: IdempotencyRecord) -> None:
        """Delete the record of a request without a result, so that a client may repeat it under the same name."""
        self._keep(replay, removed=True)
        await self._database.change(delete(replays).where(*_is_call(replay)))

    def _keep(self, replay: IdempotencyRecord, *, removed: bool = False) -> None:
        if self._database.kept is not None:
            row = build_replay_row(replay) | {"body": encode_bytes(replay.body)}
            self._database.kept.keep(
                "named_request", f"{replay.key_id} {replay.name}", {"row": row, "removed": removed}
            )

    async def interrupt_replays(self, process: str) -> int:
        """Mark running requests of other processes as ``lost``; return their number.

        No other process may use the database.
        """
        query = update(replays).where(RUNNING, replays.c.owner != process)
        return await self._database.change(query.values(state="lost"))

    async def sweep_replays(self, before_ms: int) -> int:
        return await self._database.change(delete(replays).where(replays.c.created_ms < before_ms))


@cache
def _write_begin(dialect: str) -> ReturningInsert[tuple[str]]:
    insertion = insert_for(dialect, replays)
    return insertion.on_conflict_do_update(
        index_elements=("key_id", "name"),
        set_={name: insertion.excluded[name] for name in REPLAY_COLUMNS},
        where=replays.c.created_ms <= bindparam("expired_ms"),
    ).returning(replays.c.name)


def _is_call(replay: IdempotencyRecord) -> tuple[ColumnElement[bool], ...]:
    """Match the record of this particular request, not of another one under the same name."""
    return (replays.c.key_id == replay.key_id, replays.c.name == replay.name, replays.c.request_id == replay.request_id)
