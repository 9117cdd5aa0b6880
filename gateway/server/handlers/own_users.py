"""Usage of a key by end user, and of one of its users by day: part of ``GET /v1/key/usage``."""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, Literal

import attrs

from gateway.domain.attribution import HASH_PREFIX, build_stored_user
from gateway.domain.ledger import UsageFilter, UsageLine
from gateway.domain.subject_usage import SubjectFilter
from gateway.domain.traffic import DAY_HOURS, SUMMED_FIELDS, TrafficFilter, TrafficLine, add_lines
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.server.context import Services

MAX_USERS_LISTED = 1_000
_NO_TRAFFIC = TrafficLine("", *(0 for _ in SUMMED_FIELDS))


@frozen
class UserUsage:
    """What users of a key have used. Refused requests count, too.

    ``rest`` are named sums of requests that are in the total and in no line.
    """

    lines: Sequence[UsageLine]
    total: UsageLine
    rest: dict[str, UsageLine] = attrs.Factory(dict)


async def find_usage(
    services: Services, axis: Literal["day", "model", "user"], user: str, usage_filter: UsageFilter
) -> UserUsage:
    """Return the usage of ``user`` by day or as a whole; without a user, the usage of all users.

    Raises ``InvalidRequest`` for the usage of a user by model, of which there are no sums.
    """
    if axis == "model":
        raise InvalidRequest("The usage of a user is not summed by model: leave 'user' out", param="user")
    subjects = services.admin.history.subjects
    subject_filter = SubjectFilter(
        "user",
        "",
        usage_filter.since,
        usage_filter.until,
        usage_filter.account_id,
        usage_filter.key_id,
        _list_stored_names(services, user) if user else (),
    )
    if axis == "day":
        lines = await subjects.list_days(subject_filter)
        return UserUsage(list(map(_build_line, lines)), _build_line(reduce(add_lines, lines, _NO_TRAFFIC)))
    usage = await subjects.find_usage(subject_filter, MAX_USERS_LISTED)
    listed = list(map(_build_line, usage.lines))
    if user:
        return UserUsage(listed, _build_line(reduce(add_lines, usage.lines, _NO_TRAFFIC)))
    hours = TrafficFilter(
        usage_filter.since * DAY_HOURS,
        (usage_filter.until + 1) * DAY_HOURS,
        account_id=usage_filter.account_id,
        key_id=usage_filter.key_id,
    )
    total = reduce(add_lines, await services.admin.history.traffic.list_traffic("account", hours), _NO_TRAFFIC)
    attributed = (*usage.lines, usage.unlisted, usage.other)
    rest = {
        "unlisted": usage.unlisted,
        "other": usage.other,
        "unattributed": reduce(partial(add_lines, sign=-1), attributed, total),
    }
    return UserUsage(listed, _build_line(total), {name: _build_line(line) for name, line in rest.items()})


def _list_stored_names(services: Services, user: str) -> tuple[str, ...]:
    """Return the names under which a user may be stored: as text, as a hash, and ``user`` if that is a hash."""
    rules: Any = services.live_config.attribution
    names = {build_stored_user(user, attrs.evolve(rules, users=users)) for users in ("text", "hash")}
    return tuple(sorted(names | ({user} if user.startswith(HASH_PREFIX) else set())))


def _build_line(line: TrafficLine) -> UsageLine:
    return UsageLine(
        line.label, line.requests, line.prompt_tokens, line.completion_tokens, line.cached_tokens, line.cost_nanos
    )
