"""The models that each channel's provider last listed, to whichever node. Only PostgreSQL has this table."""

from collections.abc import Collection, Sequence
from typing import Any

import attrs
import orjson
from sqlalchemy import String, bindparam, text

from gateway.domain.model_info import ModelInfo, ModelList
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database

RETENTION_MS = 7 * 24 * 3_600 * 1000
"""How long lists of channels that are no longer asked are kept."""
_COLUMNS = "SELECT channel, provider, base_url, models::text, fetched_ms, error FROM model_lists"
_LIST_ALL = text(_COLUMNS)
_LIST_NAMED = text(f"{_COLUMNS} WHERE channel IN :names").bindparams(bindparam("names", type_=String, expanding=True))
# A failure keeps the models that the same provider listed before.
_PUT_LIST = text("""
INSERT INTO model_lists AS m (channel, provider, base_url, models, fetched_ms, error)
VALUES (:channel, :provider, :base_url, CAST(:models AS jsonb), :fetched_ms, :error)
ON CONFLICT (channel) DO UPDATE SET provider = excluded.provider, base_url = excluded.base_url,
  fetched_ms = excluded.fetched_ms, error = excluded.error,
  models = CASE WHEN excluded.error IS NULL OR (m.provider, m.base_url) <> (excluded.provider, excluded.base_url)
    THEN excluded.models ELSE m.models END
WHERE excluded.fetched_ms > m.fetched_ms
""")
_DELETE_OLD_LISTS = text("DELETE FROM model_lists WHERE fetched_ms < :before_ms")


class ModelListRepository:
    """The ``model_lists`` table. Every method raises ``StoreUnavailable`` if the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_models(self, channels: Collection[str] | None = None) -> Sequence[ModelList]:
        if channels is not None and not channels:
            return []
        statement = _LIST_ALL if channels is None else _LIST_NAMED.bindparams(names=sorted(channels))
        return [_parse(row) for row in await self._database.read(statement)]

    async def put_list(self, model_list: ModelList) -> None:
        models = None if model_list.models is None else [attrs.astuple(model)[:3] for model in model_list.models]
        values = {
            "channel": model_list.channel,
            "provider": model_list.provider,
            "base_url": model_list.base_url,
            "models": orjson.dumps(models).decode(),
            "fetched_ms": model_list.fetched_ms,
            "error": model_list.error,
        }

        async def put(connection: AsyncConnection) -> None:
            await connection.execute(_PUT_LIST, values)

        await self._database.write(put)

    async def sweep(self, now_ms: int) -> None:
        async def sweep(connection: AsyncConnection) -> None:
            await connection.execute(_DELETE_OLD_LISTS, {"before_ms": now_ms - RETENTION_MS})

        await self._database.write(sweep)


def _parse(row: Any) -> ModelList:
    channel, provider, base_url, models, fetched_ms, error = row
    fields = orjson.loads(models)
    parsed = None if fields is None else tuple(ModelInfo(*model) for model in fields)
    return ModelList(channel, provider, base_url, parsed, fetched_ms, error)
