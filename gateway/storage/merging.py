"""Merges changes to a row that others may have changed since it was read."""

from typing import TypeVar

import attrs

from gateway.domain.account import Account, ApiKey
from gateway.domain.channel import Channel
from gateway.errors import Conflict

CHANGED_MEANWHILE = "Another user has changed the same settings: reload and try again"


class ChangedMeanwhile(Conflict):
    """A field to be changed was changed by others since it was read."""


T = TypeVar("T", Account, ApiKey, Channel)


def merge_change(before: T, after: T, now: T) -> T:
    """Return ``now`` with the change from ``before`` to ``after``. Raises ``ChangedMeanwhile`` on conflict."""
    names = [field.name for field in attrs.fields(type(before)) if field.init]
    changes = {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}
    if any(getattr(now, name) not in (getattr(before, name), change) for name, change in changes.items()):
        raise ChangedMeanwhile(CHANGED_MEANWHILE)
    return attrs.evolve(now, **changes)
