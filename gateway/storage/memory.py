"""Every port in memory: a store that leaves nothing behind. It ships, and keeps the same contract as the database."""

from collections.abc import Sequence

import attrs

from gateway.domain.account import Account, ApiKey
from gateway.domain.audit_log import AuditRow
from gateway.domain.channel import Channel
from gateway.errors import Conflict, GatewayError, NotFound
from gateway.storage.memory_books import MemoryBooks


class MemoryStore(MemoryBooks):
    """``AccountStore``, ``KeyStore``, ``ChannelStore``, and what ``MemoryBooks`` is, in dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self._accounts: dict[int, Account] = {}
        self._keys: dict[int, ApiKey] = {}
        self._channels: dict[int, Channel] = {}

    async def list_accounts(self) -> Sequence[Account]:
        """Every account, by id."""
        return list(self._accounts.values())

    async def add_account(self, account: Account, audit: AuditRow | None = None) -> Account:
        """Store a new account and return it with its id."""
        account = attrs.evolve(account, id=self._next_id())
        self._check_account(account)
        self._accounts[account.id] = account
        self.trail.note(audit and attrs.evolve(audit, account_id=account.id))
        return account

    async def put_account(self, account: Account, audit: AuditRow | None = None) -> None:
        """Replace the account of the same id."""
        if account.id not in self._accounts:
            raise NotFound(f"No account has the id {account.id}")
        self._check_account(account)
        self._accounts[account.id] = account
        self.trail.note(audit)

    async def delete_account(self, account_id: int, audit: AuditRow | None = None) -> None:
        """Remove the account and its keys."""
        if self._accounts.pop(account_id, None) is None:
            raise NotFound(f"No account has the id {account_id}")
        self._keys = {key.id: key for key in self._keys.values() if key.account_id != account_id}
        self.trail.note(audit)

    async def list_keys(self) -> Sequence[ApiKey]:
        """Every key, by id."""
        return list(self._keys.values())

    async def add_key(self, key: ApiKey, audit: AuditRow | None = None) -> ApiKey:
        """Store a new key and return it with its id."""
        key = attrs.evolve(key, id=self._next_id())
        self._check_key(key)
        self._keys[key.id] = key
        self.trail.note(audit)
        return key

    async def put_key(self, key: ApiKey, audit: AuditRow | None = None) -> None:
        """Replace the key of the same id."""
        if key.id not in self._keys:
            raise NotFound(f"No key has the id {key.id}")
        self._check_key(key)
        self._keys[key.id] = key
        self.trail.note(audit)

    async def delete_key(self, key_id: int, audit: AuditRow | None = None) -> None:
        """Remove the key."""
        if self._keys.pop(key_id, None) is None:
            raise NotFound(f"No key has the id {key_id}")
        self.trail.note(audit)

    async def list_channels(self) -> Sequence[Channel]:
        """Every channel, by id."""
        return list(self._channels.values())

    async def add_channel(self, channel: Channel, audit: AuditRow | None = None) -> Channel:
        """Store a new channel and return it with its id."""
        channel = attrs.evolve(channel, id=self._next_id(), origin="stored")
        self._check_channel(channel)
        self._channels[channel.id] = channel
        self.trail.note(audit)
        return channel

    async def put_channel(self, channel: Channel, audit: AuditRow | None = None) -> None:
        """Replace the channel of the same id."""
        await self.put_channels([channel], audit)

    async def put_channels(self, changed: Sequence[Channel], audit: AuditRow | None = None) -> None:
        """Replace several."""
        before = dict(self._channels)
        try:
            for channel in changed:
                if channel.id not in self._channels:
                    raise NotFound(f"No channel has the id {channel.id}")
                self._check_channel(channel)
                self._channels[channel.id] = attrs.evolve(channel, origin="stored")
        except GatewayError:
            self._channels = before
            raise
        self.trail.note(audit)

    async def delete_channel(self, channel_id: int, audit: AuditRow | None = None) -> None:
        """Remove the channel."""
        if self._channels.pop(channel_id, None) is None:
            raise NotFound(f"No channel has the id {channel_id}")
        self.trail.note(audit)

    def _check_account(self, account: Account) -> None:
        if any(other.name == account.name and other.id != account.id for other in self._accounts.values()):
            raise Conflict(f"An account called {account.name!r} exists already", param="name")

    def _check_channel(self, channel: Channel) -> None:
        if any(other.name == channel.name and other.id != channel.id for other in self._channels.values()):
            raise Conflict(f"A channel called {channel.name!r} exists already", param="name")

    def _check_key(self, key: ApiKey) -> None:
        if key.account_id not in self._accounts:
            raise NotFound(f"No account has the id {key.account_id}")
        for other in self._keys.values():
            if other.id == key.id:
                continue
            digests = {digest for digest in (key.digest, key.former_digest) if digest is not None}
            if digests & {other.digest, other.former_digest}:
                raise Conflict("This key's secret is in use already", param="secret")
            if (other.account_id, other.name) == (key.account_id, key.name):
                raise Conflict(f"The account has a key called {key.name!r} already", param="name")
