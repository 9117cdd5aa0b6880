"""The sums above the request list: those of all rows that its filters match, where stored sums have them."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from gateway.domain.attribution import find_tag_problem
from gateway.domain.traffic import DAY_HOURS, HOUR_MS
from gateway.server.admin.usage import UsageReport
from gateway.server.console.page import ask_admin_api
from gateway.server.console.periods import NAMED_PERIODS
from gateway.server.console.routes import mark
from gateway.server.query import is_number, parse_moment

PERIOD_NAMES: Mapping[str, str] = {
    "15m": mark("Last 15 minutes"),
    **{value: period.name for value, period in NAMED_PERIODS.items()},
}
"""The English name of each value of the list's filter ``last``."""
_MINUTES = {"15m": 15}
_SUBJECTS = {"end_user": "user", "session": "session", "tag": "tag"}
"""The axis of the usage report for each filter by end user, session or tag."""
_SUMMED_FILTERS = frozenset({"account", "key", "model", "channel", "status"})
_DAY_MS = DAY_HOURS * HOUR_MS


def find_since(period: str, now_s: float) -> str | None:
    """Return the beginning of a period of ``PERIOD_NAMES`` that ends now, as an ISO time; None for other periods.

    A period of an hour or more begins with a minute, hour or day, as on the overview: both have the same requests.
    """
    if period in NAMED_PERIODS:
        start = NAMED_PERIODS[period].list_starts(now_s)[0]
    elif period in _MINUTES:
        start = datetime.fromtimestamp(now_s, UTC) - timedelta(minutes=_MINUTES[period])
    else:
        return None
    return start.strftime("%Y-%m-%dT%H:%M:%SZ")


async def load_sums(request: web.Request, filters: Mapping[str, str]) -> UsageReport | None:
    """Return the sums of all requests that the filters match; None if no sums are stored for exactly these filters.

    Sums are stored for whole hours, and for whole days of end users, sessions and tags. Without a period the page does
    not wait for sums of all times.
    """
    times = {name: filters[name] for name in ("since", "until") if name in filters}
    others = {name: value for name, value in filters.items() if name not in times}
    subjects = [name for name in _SUBJECTS if name in others]
    if "since" not in times or not _are_aligned(times, _DAY_MS if subjects else HOUR_MS):
        return None
    query = _write_subject_query(subjects, others) if subjects else _write_traffic_query(others)
    if query is None:
        return None
    report: UsageReport = await ask_admin_api(request, "/usage", **query, **times)
    return report


def _are_aligned(times: Mapping[str, str], unit_ms: int) -> bool:
    moments = (parse_moment(times, "since"), parse_moment(times, "until", is_end=True))
    return all(moment is None or moment % unit_ms == 0 for moment in moments)


def _write_traffic_query(filters: Mapping[str, str]) -> dict[str, Any] | None:
    if not filters.keys() <= _SUMMED_FILTERS:
        return None
    status = filters.get("status", "")
    query = {name: value for name, value in filters.items() if name != "status"}
    if is_number(status):
        query["status"] = status
    elif status not in {"", "error"}:
        return None
    return {"by": "day", **query}


def _write_subject_query(subjects: list[str], filters: Mapping[str, str]) -> dict[str, Any] | None:
    others = {name: value for name, value in filters.items() if name not in _SUBJECTS}
    if len(subjects) > 1 or not others.keys() <= {"account", "key"}:
        return None
    (name,) = subjects
    value = filters[name]
    if name != "tag":
        return {"by": _SUBJECTS[name], "value": value, **others}
    tag, _, tag_value = value.partition("=")
    if find_tag_problem(tag, tag_value) is not None:
        return None  # no request has it
    return {"by": f"tag:{tag}", "value": tag_value, **others}
