"""Merges changes to a row that others may have changed since it was read."""

from typing import TypeVar

import attrs

from gateway.domain.account import Account, ApiKey
from gateway.domain.channel import Channel
from gateway.errors import Conflict

CHANGED_MEANWHILE = "Another user has changed the same settings: reload and try again"


class ChangedMeanwhile(Conflict):
    """A field to be changed was changed by others since it was read, or both changes together are not valid."""


T = TypeVar("T", Account, ApiKey, Channel)


def merge_change(original: T, changed: T, stored: T) -> T:
    """Return ``stored`` with the change from ``original`` to ``changed``. Raises ``ChangedMeanwhile`` on conflict."""
    names = [field.name for field in attrs.fields(type(original)) if field.init]
    changes = {name: getattr(changed, name) for name in names if getattr(changed, name) != getattr(original, name)}
    if any(getattr(stored, name) not in (getattr(original, name), change) for name, change in changes.items()):
        raise ChangedMeanwhile(CHANGED_MEANWHILE)
    return attrs.evolve(stored, **changes)
