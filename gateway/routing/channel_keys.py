"""Changes of the keys of a channel, one by one. Pure functions: they return a changed channel.

A key is addressed by its number, counted from 1 in the order of ``Channel.api_keys``, and by its last four characters:
a number alone would address another key after a removal by another administrator.
"""

import attrs

from gateway.domain.account import Status
from gateway.domain.channel import Channel
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.frozen import frozen
from gateway.parsing import must
from gateway.routing.channel_spec import API_KEY
from gateway.routing.channel_tester import format_last4

MAX_KEYS = 1_000
_MAX_NAME_CHARS = 64
_KEY_NAME = must(
    f"a printable name of at most {_MAX_NAME_CHARS} characters",
    lambda value: len(value) <= _MAX_NAME_CHARS and value.isprintable(),
    trims=True,
)


@frozen
class ChannelKeySpec:
    """A key of a channel.

    In a change, a ``key`` replaces the old one, whose name and status stay. A null ``name`` removes the name.
    """

    key: str | None = attrs.field(default=None, repr=False, metadata=API_KEY)
    name: str | None = attrs.field(default=None, metadata=_KEY_NAME)
    status: Status = "active"


def find_key(channel: Channel, number: int, last4: str | None) -> str:
    """Return the key with this number. Raises ``NotFound``, and ``Conflict`` if it does not end in ``last4``."""
    if not 1 <= number <= len(channel.api_keys):
        raise NotFound(f"The channel {channel.name!r} has no key {number}")
    key = channel.api_keys[number - 1]
    if last4 is not None and last4 != format_last4(key):
        raise Conflict(
            f"The keys of the channel {channel.name!r} have changed: key {number} is another one", param="last4"
        )
    return key


def add_key(channel: Channel, spec: ChannelKeySpec) -> Channel:
    """Append a key.

    Raises ``InvalidRequest`` if the key is missing, is there already or is one too many, and ``Conflict`` if no key
    could be used.
    """
    if not spec.key:
        raise InvalidRequest("'key' is missing", param="key")
    if spec.key in channel.api_keys:
        raise InvalidRequest(f"The channel {channel.name!r} has this key already", param="key")
    if len(channel.api_keys) >= MAX_KEYS:
        raise InvalidRequest(f"A channel has at most {MAX_KEYS} keys", param="key")
    changed_channel = attrs.evolve(channel, api_keys=(*channel.api_keys, spec.key))
    return _set_status(_set_name(changed_channel, spec.key, spec.name), spec.key, spec.status)


def edit_key(channel: Channel, key: str, spec: ChannelKeySpec, field_names: frozenset[str]) -> Channel:
    """Change the fields in ``field_names`` of a key.

    Raises ``InvalidRequest`` if the new key is missing or is there already, and ``Conflict`` if no key could be used.
    """
    if "key" in field_names:
        if not spec.key:
            raise InvalidRequest("'key' must be the new key: remove the key instead", param="key")
        if spec.key != key and spec.key in channel.api_keys:
            raise InvalidRequest(f"The channel {channel.name!r} has this key already", param="key")
        channel = _replace_key(channel, key, spec.key)
        key = spec.key
    if "name" in field_names:
        channel = _set_name(channel, key, spec.name)
    return _set_status(channel, key, spec.status) if "status" in field_names else channel


def remove_key(channel: Channel, key: str) -> Channel:
    """Remove a key; requests that run with it finish. Raises ``Conflict`` if no key could be used."""
    return _check_usable(
        attrs.evolve(
            _set_name(channel, key, None),
            api_keys=tuple(other_key for other_key in channel.api_keys if other_key != key),
            disabled_keys=tuple(other_key for other_key in channel.disabled_keys if other_key != key),
        )
    )


def drop_former_keys(channel: Channel) -> Channel:
    """Forget names and states of keys that are no longer there. Raises ``Conflict`` if all keys left are disabled."""
    disabled_keys = tuple(key for key in channel.disabled_keys if key in channel.api_keys)
    key_names = tuple(pair for pair in channel.key_names if pair[0] in channel.api_keys)
    if (disabled_keys, key_names) == (channel.disabled_keys, channel.key_names):
        return channel
    pruned_channel = attrs.evolve(channel, disabled_keys=disabled_keys, key_names=key_names)
    return _check_usable(pruned_channel) if pruned_channel.api_keys else pruned_channel


def _replace_key(channel: Channel, key: str, new_key: str) -> Channel:
    return attrs.evolve(
        channel,
        api_keys=tuple(new_key if other_key == key else other_key for other_key in channel.api_keys),
        disabled_keys=tuple(new_key if other_key == key else other_key for other_key in channel.disabled_keys),
        key_names=tuple((new_key if other_key == key else other_key, name) for other_key, name in channel.key_names),
    )


def _set_name(channel: Channel, key: str, name: str | None) -> Channel:
    other_names = tuple(pair for pair in channel.key_names if pair[0] != key)
    return attrs.evolve(channel, key_names=(*other_names, (key, name)) if name else other_names)


def _set_status(channel: Channel, key: str, status: Status) -> Channel:
    other_keys = tuple(other_key for other_key in channel.disabled_keys if other_key != key)
    return _check_usable(
        attrs.evolve(channel, disabled_keys=(*other_keys, key) if status == "disabled" else other_keys)
    )


def _check_usable(channel: Channel) -> Channel:
    if not channel.usable_keys:
        raise Conflict(
            f"The channel {channel.name!r} would have no usable key left: add another key first, or disable the channel"
        )
    return channel
