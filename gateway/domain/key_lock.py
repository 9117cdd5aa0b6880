"""Locks: a member can neither change a field that an administrator has set on a key, nor delete the key."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs

from gateway.domain.account import ApiKey
from gateway.domain.account_spec import KeySpec, build_key_fields
from gateway.domain.member import Forbidden

_FREE = {"name", "account", "secret", "webhook_url"}
LOCKABLE = tuple([field.name for field in attrs.fields(KeySpec) if field.name not in _FREE])
"""Every field that restricts a key."""
_TOGETHER = ("quota_usd", "quota_period")
"""An amount depends on its period."""
_UNSET: Mapping[str, Any] = build_key_fields(ApiKey(0, 0, "", b"", ""), "")


def lock_fields(key: ApiKey, named: Iterable[str]) -> ApiKey:
    """Return ``key`` with the fields in ``named`` locked if they restrict the key, unlocked if they were reset."""
    names = set(named)
    if names & set(_TOGETHER):
        names |= set(_TOGETHER)
    shown = build_key_fields(key, "")
    kept = set(key.locked) - names | {name for name in names & set(LOCKABLE) if shown[name] != _UNSET[name]}
    return attrs.evolve(key, locked=tuple([name for name in LOCKABLE if name in kept]))


def check_locks(before: ApiKey, after: ApiKey) -> None:
    """Raise ``Forbidden``, naming the field, if a member's change touches a locked field."""
    was, will = build_key_fields(before, ""), build_key_fields(after, "")
    for name in before.locked:
        if was[name] != will[name]:
            raise Forbidden(
                f"An administrator has set {name} of this key: only an administrator changes it", param=name
            )


def check_deletable(locked: Collection[str]) -> None:
    """Raise ``Forbidden`` if the key is locked: a member could otherwise replace it."""
    if locked:
        names = ", ".join(locked)
        raise Forbidden(f"An administrator has set {names} of this key: only an administrator deletes it")
