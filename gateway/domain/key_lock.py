"""Locks: a member can neither change a field that an administrator has set on a key, nor delete the key."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs

from gateway.domain.account import ApiKey
from gateway.domain.account_spec import KeySpec, build_key_fields
from gateway.domain.member import Forbidden

_UNLOCKABLE_FIELDS = {"name", "account", "secret", "webhook_url"}
LOCKABLE_FIELDS = tuple([field.name for field in attrs.fields(KeySpec) if field.name not in _UNLOCKABLE_FIELDS])
"""Every field of a key that can be locked."""
_QUOTA_FIELDS = ("quota_usd", "quota_period")
"""Fields that are locked together, because an amount depends on its period."""
_DEFAULT_FIELDS: Mapping[str, Any] = build_key_fields(ApiKey(0, 0, "", b"", ""), "")


def lock_fields(key: ApiKey, names_to_lock: Iterable[str]) -> ApiKey:
    """Return ``key`` with each field in ``names_to_lock`` locked, or unlocked if the field has its default value."""
    names = set(names_to_lock)
    if names & set(_QUOTA_FIELDS):
        names |= set(_QUOTA_FIELDS)
    key_fields = build_key_fields(key, "")
    locked_names = set(key.locked) - names | {
        name for name in names & set(LOCKABLE_FIELDS) if key_fields[name] != _DEFAULT_FIELDS[name]
    }
    return attrs.evolve(key, locked=tuple([name for name in LOCKABLE_FIELDS if name in locked_names]))


def check_locks(current_key: ApiKey, changed_key: ApiKey) -> None:
    """Raise ``Forbidden``, naming the field, if a member's change touches a locked field."""
    old_fields, new_fields = build_key_fields(current_key, ""), build_key_fields(changed_key, "")
    for name in current_key.locked:
        if old_fields[name] != new_fields[name]:
            raise Forbidden(
                f"An administrator has set {name} of this key: only an administrator changes it", param=name
            )


def check_deletable(locked: Collection[str]) -> None:
    """Raise ``Forbidden`` if the key is locked: a member could otherwise replace it."""
    if locked:
        names = ", ".join(locked)
        raise Forbidden(f"An administrator has set {names} of this key: only an administrator deletes it")
