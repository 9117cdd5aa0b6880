"""Values in a request's query."""

from collections.abc import Mapping
from datetime import UTC, date, datetime

from gateway.domain.balance import DAY_S
from gateway.errors import InvalidRequest

MOST_DIGITS = 18
"""Of any integer of 64 bits."""
_FIRST, _LAST = date(1970, 1, 1), date(9998, 12, 31)
_EPOCH = _FIRST.toordinal()


def parse_number(query: Mapping[str, str], name: str) -> int | None:
    """A whole number, None where it is not there. Raises ``InvalidRequest``."""
    text = query.get(name)
    if text is None:
        return None
    if not is_number(text):
        raise InvalidRequest(f"'{name}' must be a whole number", param=name)
    return int(text)


def is_number(text: str) -> bool:
    """Whether ``text`` is a whole number of 64 bits, written plainly."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def parse_date(query: Mapping[str, str], name: str) -> date | None:
    """A day such as 2027-01-31, None where it is not there. Raises ``InvalidRequest``."""
    text = query.get(name)
    if text is None:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = date.min
    if not _FIRST <= day <= _LAST:
        raise InvalidRequest(f"'{name}' must be a date such as 2027-01-31", param=name)
    return day


def parse_moment(query: Mapping[str, str], name: str, *, ends: bool = False) -> int | None:
    """A time such as 2027-01-31T12:00:00Z, in Unix milliseconds; without a zone it is UTC. None where it is not there.

    A day such as 2027-01-31 is its beginning, or with ``ends`` its end. Raises ``InvalidRequest``.
    """
    text = query.get(name)
    if text is None:
        return None
    try:
        moment: datetime | None = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or not _FIRST <= moment.date() <= _LAST:
        raise InvalidRequest(f"'{name}' must be a time such as 2027-01-31T12:00:00Z, or a day", param=name)
    whole = ends and len(text) <= len("2027-01-31")
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(int(zoned.timestamp() * 1000), 0) + whole * DAY_S * 1000


def number_of_day(day: date) -> int:
    """A day as the ledger counts it: days since 1970."""
    return day.toordinal() - _EPOCH


def day_of_number(number: int) -> date:
    """The day of a number of days since 1970."""
    return date.fromordinal(number + _EPOCH)


def day_of_time(now_s: float) -> date:
    """The day, in UTC, of Unix seconds."""
    return datetime.fromtimestamp(now_s // DAY_S * DAY_S, UTC).date()
