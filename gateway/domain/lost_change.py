"""Changes that a replaced store has lost, and which of their fields take rights away.

An audit row describes an edit by the values of its fields before and after, as the admin API writes them. Only what
takes rights away is applied again without an operator: the rest of a lost change may have been made for a reason that
has passed.
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_network
from typing import Any

from gateway.domain.audit_log import AuditRow
from gateway.frozen import frozen

Fields = Mapping[str, Any]
_PAIR = 2
_PERIODS = ("none", "daily", "monthly", "lifetime")
"""Periods of quotas. Of equal amounts the later one allows less."""


@frozen
class LostChange:
    """A change that the store has lost.

    ``applied``: JSON of the fields that were changed again, with their values before and after; ``{}`` if none was.
    ``reason``: why nothing more was applied; empty if all of it was. ``found_ms``: when a node found the loss.
    """

    row: AuditRow
    applied: str = "{}"
    reason: str = ""
    found_ms: int = 0


@frozen
class ReplacedStore:
    """The last time that another server, or an older state, replaced the store. ``changes``: the lost ones."""

    generation: str = ""
    found_ms: int = 0
    changes: tuple[LostChange, ...] = ()


def find_edits(detail: Fields) -> dict[str, tuple[Any, Any]]:
    """Return the fields of an audit row's ``detail`` before and after; without those whose values are not logged."""
    return {name: (pair[0], pair[1]) for name, pair in detail.items() if isinstance(pair, list) and len(pair) == _PAIR}


def find_taken(stored: Fields, detail: Fields) -> dict[str, Any]:
    """Return the new values of the fields that take rights away.

    ``stored``: the account or key as it is now, as JSON. ``detail``: of the audit row of the lost edit. The result
    never allows more than ``stored``.
    """
    edits = find_edits(detail)
    taken = {
        name: value
        for name, (before, after) in edits.items()
        if name in _RULES and name in stored
        for value in _RULES[name](before, after, stored[name])
    }
    if "quota_usd" in edits or "quota_period" in edits:
        taken |= _find_lower_quota(stored, edits)
    return taken


def _find_lower_quota(stored: Fields, edits: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    names = ("quota_usd", "quota_period")
    new = {name: edits[name][1] if name in edits else stored[name] for name in names}
    usd, was_usd = (_read_unlimited(each["quota_usd"]) for each in (new, stored))
    period, was_period = (_PERIODS.index(each["quota_period"]) for each in (new, stored))
    is_same = (usd, period) == (was_usd, was_period)
    return {} if is_same or usd > was_usd or period < was_period else new


def _read_unlimited(amount: float | None) -> float:
    return float("inf") if amount is None else amount


def _disable(_before: Any, after: Any, stored: Any) -> tuple[Any, ...]:
    return (after,) if after == "disabled" != stored else ()


def _lower(_before: Any, after: Any, stored: Any) -> tuple[Any, ...]:
    return (after,) if after is not None and (stored is None or after < stored) else ()


def _leave_group(before: Any, after: Any, stored: Any) -> tuple[Any, ...]:
    return (after,) if before is not None and stored == before != after else ()


def _add_locks(before: Sequence[str], after: Sequence[str], stored: Sequence[str]) -> tuple[Any, ...]:
    added = [name for name in after if name not in before and name not in stored]
    return ([*stored, *added],) if added else ()


def _make_narrower(covers: Callable[[str, str], bool]) -> Callable[[Any, Any, Any], tuple[Any, ...]]:
    """Return the rule for a list of what is allowed; an empty list allows everything.

    ``covers(wide, narrow)``: whether the first value allows all that the second one does.
    """

    def is_in(value: str, allowed: Sequence[str]) -> bool:
        return not allowed or any(covers(wide, value) for wide in allowed)

    def narrow(_before: Any, after: Sequence[str], stored: Sequence[str]) -> tuple[Any, ...]:
        if not after or (stored and all(is_in(value, after) for value in stored)):
            return ()
        both = [value for value in stored if is_in(value, after)]
        both += [value for value in after if is_in(value, stored) and value not in both]
        return (both or list(after),)  # an empty list would allow everything

    return narrow


def _covers_network(wide: str, narrow: str) -> bool:
    outer, inner = ip_network(wide, strict=False), ip_network(narrow, strict=False)
    return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def _covers_name(wide: str, narrow: str) -> bool:
    return fnmatchcase(narrow, wide)


_RULES: Mapping[str, Callable[[Any, Any, Any], tuple[Any, ...]]] = {
    "status": _disable,
    "expires_at": _lower,
    **dict.fromkeys(("rpm", "tpm", "max_concurrency", "burst"), _lower),
    **dict.fromkeys(("models", "groups"), _make_narrower(_covers_name)),
    "allow_ips": _make_narrower(_covers_network),
    "group": _leave_group,
    "locked": _add_locks,
}
"""For each field the rule that returns its new value, from those before and after the lost edit and the stored one; no
value if the edit takes no right away."""
