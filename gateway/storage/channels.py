"""Channels in the database. Their secrets are encrypted, and each is bound to its own row."""

from collections.abc import Sequence
from typing import Any

import attrs
import orjson
from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.audit_log import AuditRow
from gateway.domain.channel import Channel, QueueSettings, Timeouts
from gateway.errors import Conflict, NotFound
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox
from gateway.storage.merging import CHANGED_MEANWHILE, ChangedMeanwhile, merge_change
from gateway.storage.row_mapping import Values
from gateway.storage.schema import channels

_FIELDS = tuple(field for field in attrs.fields(Channel) if field.init)
_SECRET_FIELDS = tuple(field.name for field in _FIELDS if field.repr is False)
_COLUMNS = tuple(field.name for field in _FIELDS if field.name in channels.c)
_SETTING_FIELDS = tuple(field.name for field in _FIELDS if field.name not in {*_SECRET_FIELDS, *_COLUMNS, "origin"})
"""Fields without a column of their own. A new field of ``Channel`` needs a default, but no migration."""
_LIST_CHANNELS = select(channels).order_by(channels.c.id)
PURPOSE = "channels"
"""The encryption purpose of channel secrets."""
_TIMEOUT_FIELDS = tuple(field.name for field in attrs.fields(Timeouts))
_QUEUE_FIELDS = tuple(field.name for field in attrs.fields(QueueSettings))


class ChannelRepository:
    """The ``channels`` table: channels added at run time. Names are unique; ``origin`` is ``stored``."""

    def __init__(self, database: Database, secret_box: SecretBox) -> None:
        self._database = database
        self._secret_box = secret_box.derive(PURPOSE)

    async def list_channels(self) -> Sequence[Channel]:
        """Return every channel, by id. Raises ``DecryptionFailed`` if one was encrypted with another master key."""
        rows = await self._database.read_first(_LIST_CHANNELS)
        return [self._parse(row) for row in rows]

    async def add_channel(self, channel: Channel, audit: AuditRow | None = None) -> Channel:
        """Store a new channel and return it with its id. Raises ``Conflict`` if its name is taken."""

        async def work(connection: AsyncConnection) -> int:
            # The encryption is bound to the row's id, which is known only after the insert.
            query = insert(channels).values(**_write_channel(channel), sealed=b"").returning(channels.c.id)
            channel_id: int = (await connection.execute(query)).scalar_one()
            seal_query = (
                update(channels)
                .where(channels.c.id == channel_id)
                .values(sealed=self._seal_secrets(channel, channel_id))
            )
            await connection.execute(seal_query)
            return channel_id

        try:
            channel_id = await self._database.write(work, audit)
        except IntegrityError:
            raise _make_name_conflict(channel) from None
        return attrs.evolve(channel, id=channel_id, origin="stored")

    async def put_channel(
        self, channel: Channel, audit: AuditRow | None = None, *, original: Channel | None = None
    ) -> None:
        """Replace the channel of the same id; with ``original``, only the fields that differ from it.

        Raises ``NotFound`` if the channel does not exist. Raises ``Conflict`` if its name is taken, if a field that
        differs was changed since ``original`` was read, or if both changes together leave no usable key.
        """
        await self.put_channels([channel], audit, originals=() if original is None else [original])

    async def put_channels(
        self, changed_channels: Sequence[Channel], audit: AuditRow | None = None, *, originals: Sequence[Channel] = ()
    ) -> None:
        """Replace channels in one commit, all or none. Of those in ``originals``, only differing fields change.

        Raises the errors of ``put_channel``.
        """
        earlier_channels = {channel.id: channel for channel in originals}

        async def work(connection: AsyncConnection) -> None:
            for channel in changed_channels:
                await self._put(connection, channel, earlier_channels.get(channel.id))

        await self._database.write(work, audit)

    async def _put(self, connection: AsyncConnection, channel: Channel, original: Channel | None) -> None:
        is_channel = channels.c.id == channel.id
        row = (await connection.execute(select(channels).where(is_channel).with_for_update())).first()
        if row is None:
            raise NotFound(f"No channel has the id {channel.id}")
        merged_channel = channel if original is None else merge_change(original, channel, self._parse(row))
        if channel.usable_keys and merged_channel.api_keys and not merged_channel.usable_keys:
            raise ChangedMeanwhile(CHANGED_MEANWHILE)
        values = {**_write_channel(merged_channel), "sealed": self._seal_secrets(merged_channel, merged_channel.id)}
        try:
            await connection.execute(update(channels).where(is_channel).values(values))
        except IntegrityError:
            raise _make_name_conflict(channel) from None

    async def delete_channel(self, channel_id: int, audit: AuditRow | None = None) -> None:
        if not await self._database.change(delete(channels).where(channels.c.id == channel_id), audit):
            raise NotFound(f"No channel has the id {channel_id}")

    def _parse(self, row: Row[Any]) -> Channel:
        return _read_channel(row, self._secret_box.open(row.sealed, context=build_associated_data(row.id)))

    def _seal_secrets(self, channel: Channel, channel_id: int) -> bytes:
        plaintext = orjson.dumps({name: getattr(channel, name) for name in _SECRET_FIELDS})
        return self._secret_box.seal(plaintext, context=build_associated_data(channel_id))


def build_associated_data(channel_id: int) -> str:
    """Return the context to which a channel's secrets are bound."""
    return f"channel:{channel_id}"


def _make_name_conflict(channel: Channel) -> Conflict:
    return Conflict(f"A channel called {channel.name!r} exists already", param="name")


def _write_channel(channel: Channel) -> Values:
    values = attrs.asdict(channel)
    columns = {name: values[name] for name in _COLUMNS if name != "id"}
    return {**columns, "settings": {name: values[name] for name in _SETTING_FIELDS}}


def _read_channel(row: Row[Any], secrets: bytes) -> Channel:
    """Build a channel from a row and its decrypted secrets. Fields unknown to this version are dropped."""
    columns = {name: getattr(row, name) for name in _COLUMNS}
    settings = _pick(row.settings, _SETTING_FIELDS)
    settings["timeouts"] = Timeouts(**_pick(row.settings["timeouts"], _TIMEOUT_FIELDS))
    if settings.get("queue") is not None:
        settings["queue"] = QueueSettings(**_pick(row.settings["queue"], _QUEUE_FIELDS))
    return Channel(**columns, **settings, **_pick(orjson.loads(secrets), _SECRET_FIELDS), origin="stored")


def _pick(values: Values, names: Sequence[str]) -> Values:
    return {name: _freeze(values[name]) for name in names if name in values}


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, list) else value
