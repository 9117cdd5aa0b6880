"""Parse the query parameters of a request, and convert days to their numbers and back."""

from collections.abc import Mapping
from datetime import UTC, date, datetime

from gateway.domain.balance import DAY_S
from gateway.errors import InvalidRequest

MAX_DIGITS = 18
"""Maximum number of digits that always fit into a 64-bit integer."""
_MIN_DATE, _MAX_DATE = date(1970, 1, 1), date(9998, 12, 31)
_EPOCH_DAY = _MIN_DATE.toordinal()


def parse_number(query: Mapping[str, str], name: str) -> int | None:
    """Parse a whole number; None if the parameter is missing. Raises ``InvalidRequest``."""
    text = query.get(name)
    if text is None:
        return None
    if not is_number(text):
        raise InvalidRequest(f"'{name}' must be a whole number", param=name)
    return int(text)


def parse_flag(query: Mapping[str, str], name: str) -> bool:
    """Parse ``true`` or ``false``; a missing parameter is false. Raises ``InvalidRequest``."""
    text = query.get(name, "false")
    if text not in {"true", "false"}:
        raise InvalidRequest(f"'{name}' must be true or false", param=name)
    return text == "true"


def is_number(text: str) -> bool:
    """Return whether ``text`` is a whole number of at most ``MAX_DIGITS`` ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def parse_date(query: Mapping[str, str], name: str) -> date | None:
    """Parse a day such as 2027-01-31; None if the parameter is missing. Raises ``InvalidRequest``."""
    text = query.get(name)
    if text is None:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = date.min
    if not _MIN_DATE <= day <= _MAX_DATE:
        raise InvalidRequest(f"'{name}' must be a date such as 2027-01-31", param=name)
    return day


def parse_moment(query: Mapping[str, str], name: str, *, is_end: bool = False) -> int | None:
    """Parse a time such as 2027-01-31T12:00:00Z to Unix milliseconds; None if the parameter is missing.

    A time without a zone is UTC. A day means its beginning, or with ``is_end`` its end. Raises ``InvalidRequest``.
    """
    text = query.get(name)
    if text is None:
        return None
    try:
        moment: datetime | None = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or not _MIN_DATE <= moment.date() <= _MAX_DATE:
        raise InvalidRequest(f"'{name}' must be a time such as 2027-01-31T12:00:00Z, or a day", param=name)
    is_end_of_day = is_end and len(text) <= len("2027-01-31")
    zoned_moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(int(zoned_moment.timestamp() * 1000), 0) + is_end_of_day * DAY_S * 1000


def number_of_day(day: date) -> int:
    """Convert a day to the ledger's number: days since 1970."""
    return day.toordinal() - _EPOCH_DAY


def day_of_number(number: int) -> date:
    """Convert a number of days since 1970 to the day."""
    return date.fromordinal(number + _EPOCH_DAY)


def day_of_time(at_s: float) -> date:
    """Convert Unix seconds to the UTC day."""
    return datetime.fromtimestamp(at_s // DAY_S * DAY_S, UTC).date()
