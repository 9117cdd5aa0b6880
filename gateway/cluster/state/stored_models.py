"""The models that each channel's provider last listed, to whichever node. Only PostgreSQL has this table."""

from collections.abc import Collection, Sequence
from typing import Any

import attrs
import orjson
from sqlalchemy import String, bindparam, text

from gateway.domain.model_description import list_known_properties
from gateway.domain.model_info import ModelInfo, ModelList
from gateway.formats.model_lists.listed_description import parse_description
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
_DESCRIPTIONS_SUFFIX = ":descriptions"
"""Ends the name of the row that has the descriptions of a channel's models, as text in the place of their owners.

No channel has such a name. Nodes of version 0.9.0 accept only three values for a model and ignore this row.
"""
_DELETE_OLD_LISTS = text("DELETE FROM model_lists WHERE fetched_ms < :before_ms")


class ModelListRepository:
    """The ``model_lists`` table: for each channel, the list that a node of the cluster has fetched last."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_models(self, channels: Collection[str] | None = None) -> Sequence[ModelList]:
        """Return the lists of these channels, or of all, with the descriptions of their models."""
        if channels is not None:
            names = {name.removesuffix(_DESCRIPTIONS_SUFFIX) for name in channels}
            if not names:
                return []
            statement = _LIST_NAMED.bindparams(names=sorted(names | {name + _DESCRIPTIONS_SUFFIX for name in names}))
        else:
            statement = _LIST_ALL
        lists = {model_list.channel: model_list for model_list in map(_parse, await self._database.read(statement))}
        return [
            _describe(model_list, lists.get(name + _DESCRIPTIONS_SUFFIX))
            for name, model_list in lists.items()
            if not name.endswith(_DESCRIPTIONS_SUFFIX)
        ]

    async def put_list(self, model_list: ModelList) -> None:
        models = model_list.models
        models_json = None if models is None else [(model.id, model.created_s, model.owned_by) for model in models]
        values = {
            "channel": model_list.channel,
            "provider": model_list.provider,
            "base_url": model_list.base_url,
            "models": orjson.dumps(models_json).decode(),
            "fetched_ms": model_list.fetched_ms,
            "error": model_list.error,
        }

        described_rows = [
            [model.id, 0, orjson.dumps(list_known_properties(model.description)).decode()]
            for model in models or ()
            if model.description is not None
        ]
        described_values = values | {
            "channel": model_list.channel + _DESCRIPTIONS_SUFFIX,
            "models": orjson.dumps(described_rows).decode(),
        }

        async def put(connection: AsyncConnection) -> None:
            await connection.execute(_PUT_LIST, values)
            await connection.execute(_PUT_LIST, described_values)

        await self._database.write(put)

    async def sweep(self, now_ms: int) -> None:
        async def sweep(connection: AsyncConnection) -> None:
            await connection.execute(_DELETE_OLD_LISTS, {"before_ms": now_ms - RETENTION_MS})

        await self._database.write(sweep)


def _parse(row: Any) -> ModelList:
    channel, provider, base_url, models, fetched_ms, error = row
    fields = orjson.loads(models)
    model_infos = None if fields is None else tuple(ModelInfo(*model) for model in fields)
    return ModelList(channel, provider, base_url, model_infos, fetched_ms, error)


def _describe(model_list: ModelList, description_list: ModelList | None) -> ModelList:
    """Return a list with the descriptions of its models, if they were stored with it."""
    if model_list.models is None or description_list is None or description_list.fetched_ms != model_list.fetched_ms:
        return model_list
    descriptions = {
        model.id: parse_description(orjson.loads(model.owned_by)) for model in description_list.models or ()
    }
    models = (attrs.evolve(model, description=descriptions.get(model.id)) for model in model_list.models)
    return attrs.evolve(model_list, models=tuple(models))
