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
_PAIR_LENGTH = 2
_QUOTA_PERIODS = ("none", "daily", "monthly", "lifetime")
"""Periods of quotas: of two equal amounts, the one with the later period in this list allows less."""


@frozen
class LostChange:
    """A change that the store has lost.

    ``applied`` is JSON of the fields that were changed again, with their values before and after; ``{}`` if no field
    was. ``reason`` is why the other fields were not changed again; empty if all were. ``found_ms`` is when a node found
    the loss, in Unix milliseconds.
    """

    row: AuditRow
    applied: str = "{}"
    reason: str = ""
    found_ms: int = 0


@frozen
class ReplacedStore:
    """The last time that another server, or an older state, replaced the store. ``changes`` are the lost ones."""

    generation: str = ""
    found_ms: int = 0
    changes: tuple[LostChange, ...] = ()


def find_edits(detail: Fields) -> dict[str, tuple[Any, Any]]:
    """Return the edited fields of an audit row's ``detail``, each with its values before and after the edit.

    Fields whose values are not logged, such as secrets, are left out.
    """
    return {
        name: (pair[0], pair[1])
        for name, pair in detail.items()
        if isinstance(pair, list) and len(pair) == _PAIR_LENGTH
    }


def find_restrictions(stored_fields: Fields, detail: Fields) -> dict[str, Any]:
    """Return the new values of the fields that take rights away.

    ``stored_fields`` is the account or key as it is now, as JSON. ``detail`` is that of the audit row of the lost edit.
    The result allows only what both the stored values and the edit allow. A group, and a list that has nothing in
    common with the stored one, are taken from the edit.
    """
    edits = find_edits(detail)
    new_values = {
        name: value
        for name, (old_value, new_value) in edits.items()
        if name in _RULES_BY_FIELD and name in stored_fields
        for value in _RULES_BY_FIELD[name](old_value, new_value, stored_fields[name])
    }
    if "quota_usd" in edits or "quota_period" in edits:
        new_values |= _find_lower_quota(stored_fields, edits)
    return new_values


def _find_lower_quota(stored_fields: Fields, edits: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    names = ("quota_usd", "quota_period")
    new_quota = {name: edits[name][1] if name in edits else stored_fields[name] for name in names}
    usd, old_usd = (_read_unlimited(fields["quota_usd"]) for fields in (new_quota, stored_fields))
    period, old_period = (_QUOTA_PERIODS.index(fields["quota_period"]) for fields in (new_quota, stored_fields))
    is_same = (usd, period) == (old_usd, old_period)
    return {} if is_same or usd > old_usd or period < old_period else new_quota


def _read_unlimited(amount: float | None) -> float:
    return float("inf") if amount is None else amount


def _disable(_old_value: Any, new_value: Any, stored_value: Any) -> tuple[Any, ...]:
    return (new_value,) if new_value == "disabled" != stored_value else ()


def _lower(_old_value: Any, new_value: Any, stored_value: Any) -> tuple[Any, ...]:
    return (new_value,) if new_value is not None and (stored_value is None or new_value < stored_value) else ()


def _leave_group(old_value: Any, new_value: Any, stored_value: Any) -> tuple[Any, ...]:
    return (new_value,) if old_value is not None and stored_value == old_value != new_value else ()


def _add_locks(old_names: Sequence[str], new_names: Sequence[str], stored_names: Sequence[str]) -> tuple[Any, ...]:
    added_names = [name for name in new_names if name not in old_names and name not in stored_names]
    return ([*stored_names, *added_names],) if added_names else ()


def _make_narrower(covers: Callable[[str, str], bool]) -> Callable[[Any, Any, Any], tuple[Any, ...]]:
    """Return the rule for a list of what is allowed; an empty list allows everything.

    ``covers(wide, narrow)`` says whether the first value allows all that the second one does.
    """

    def is_in(value: str, allowed_values: Sequence[str]) -> bool:
        return not allowed_values or any(covers(allowed_value, value) for allowed_value in allowed_values)

    def keep_common(_old_values: Any, new_values: Sequence[str], stored_values: Sequence[str]) -> tuple[Any, ...]:
        if not new_values or (stored_values and all(is_in(value, new_values) for value in stored_values)):
            return ()
        common_values = [value for value in stored_values if is_in(value, new_values)]
        common_values += [value for value in new_values if is_in(value, stored_values) and value not in common_values]
        return (common_values or list(new_values),)  # an empty list would allow everything

    return keep_common


def _covers_network(outer_network: str, inner_network: str) -> bool:
    outer, inner = ip_network(outer_network, strict=False), ip_network(inner_network, strict=False)
    return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def _covers_name(outer_name: str, inner_name: str) -> bool:
    return fnmatchcase(inner_name, outer_name)


_RULES_BY_FIELD: Mapping[str, Callable[[Any, Any, Any], tuple[Any, ...]]] = {
    "status": _disable,
    "expires_at": _lower,
    **dict.fromkeys(("rpm", "tpm", "max_concurrency", "burst"), _lower),
    **dict.fromkeys(("models", "groups"), _make_narrower(_covers_name)),
    "allow_ips": _make_narrower(_covers_network),
    "group": _leave_group,
    "locked": _add_locks,
}
"""For each field, the rule that returns the field's new value, or no value if the edit takes no right away. A rule gets
the values before and after the lost edit, and the stored value."""
