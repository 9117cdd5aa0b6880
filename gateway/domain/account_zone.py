"""The time zone of an account: when the days and months of its quotas, and the windows of its limits, begin and end.

A zone may change while windows run. Even then, windows of one kind follow each other without a gap or an overlap. So
each cost counts in exactly one of them. The window that runs at a change ends on the same date as before, at the
midnight of the new zone. If that midnight has passed already, the window ends at the change, and the rest of the new
zone's window follows. Which window a moment is in depends on nothing but the moment and the changes, so restarts change
nothing.
"""

from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import attrs

from gateway.domain.limit_window import DAY_S, HOURS_BY_KIND, Window, find_midnight, parse_window
from gateway.domain.zone_periods import ZonePeriods
from gateway.errors import Conflict
from gateway.frozen import quick_frozen

MAX_CHANGES = 20
"""How many periods an account may have: one more than the changes of its zone within ``_KEPT_S``."""
_UTC = "UTC"
_MACHINE_NAMES = frozenset({"localtime", "posixrules", "Factory"})
_MINUTE_S = 60
MIN_NOTICE_S = 60
"""The time until a change takes effect, in seconds: by then each process that counts costs knows the change."""
_KEPT_S = 200 * DAY_S
"""How long former zones are kept, in seconds: two quarters and a little more."""
_DAY, _MONTH = parse_window("day"), parse_window("month")


@quick_frozen
class LocalDay:
    """A day of an account and its month, in Unix seconds; ends are exclusive."""

    start_s: int
    end_s: int
    month_start_s: int
    month_end_s: int

    def contains(self, now_s: int) -> bool:
        """Return whether ``now_s`` is in this day and in this month."""
        return self.start_s <= now_s < self.end_s and self.month_start_s <= now_s < self.month_end_s


@attrs.define(eq=False)
class AccountZone:
    """The time zones of all accounts with the same ``periods``. There is at least one period."""

    periods: ZonePeriods
    _zones: tuple[ZoneInfo, ...] = attrs.field(init=False)
    _last_day: LocalDay | None = attrs.field(default=None, init=False)

    @_zones.default
    def _find_zones(self) -> tuple[ZoneInfo, ...]:
        return tuple([ZoneInfo(name) for _, name in self.periods])

    def find(self, window: Window, now_s: float) -> tuple[int, int]:
        """Return start and end (Unix seconds) of the window of ``now_s``; for a rolling window, of its slice."""
        if not window.has_zone:
            return window.find(now_s, self._zones[0])
        index = 0
        while index + 1 < len(self.periods) and self.periods[index + 1][0] <= now_s:
            index += 1
        start_s, end_s = self._find_window_under(window, now_s, index)
        return start_s, self._find_end(window, start_s, end_s, index)

    def find_local_day(self, now_s: int) -> LocalDay:
        """Return the account's day at ``now_s``. Many balances ask for the same day."""
        day = self._last_day
        if day is None or not day.contains(now_s):
            day = self._last_day = LocalDay(*self.find(_DAY, now_s), *self.find(_MONTH, now_s))
        return day

    def _find_window_under(self, window: Window, at_s: float, index: int) -> tuple[int, int]:
        """Return the window of ``at_s`` as if no change followed that of the period ``index``."""
        if not index:
            return window.find(at_s, self._zones[0])
        changed_s = self.periods[index][0]
        start_s, former_end_s = self._find_window_under(window, changed_s, index - 1)
        end_s = self._move_end(window, former_end_s, index)
        if end_s <= changed_s:
            start_s, end_s = changed_s, window.find(changed_s, self._zones[index])[1]
        return (start_s, end_s) if at_s < end_s else window.find(at_s, self._zones[index])

    def _find_end(self, window: Window, start_s: int, end_s: int, index: int) -> int:
        """Return the end of a window of the period ``index``, after the changes that follow while the window runs."""
        while index + 1 < len(self.periods) and self.periods[index + 1][0] < end_s:
            index += 1
            changed_s = self.periods[index][0]
            next_start_s, end_s = self._find_window_under(window, changed_s, index)
            if next_start_s != start_s:
                return changed_s
        return end_s

    def _move_end(self, window: Window, end_s: int, index: int) -> int:
        """Return when a window ends in the zone of the period ``index``; in the zone before, its end was ``end_s``."""
        if window.kind in HOURS_BY_KIND:
            return window.find(self.periods[index][0], self._zones[index])[1]
        return find_midnight(datetime.fromtimestamp(end_s, self._zones[index - 1]).date(), self._zones[index])


@lru_cache(4_096)
def make_zone(periods: ZonePeriods) -> AccountZone:
    """Return the zone of accounts with these periods: usually the same object for the same periods.

    Raises ``ZoneInfoNotFoundError`` if this machine does not know a time zone.
    """
    return AccountZone(periods)


def make_known_zone(periods: ZonePeriods) -> AccountZone:
    """Return the zone as ``make_zone`` does, but without the time zones that this machine does not know.

    In place of such a time zone, the one before it goes on; UTC if there is none.
    """
    try:
        return make_zone(periods)
    except ZoneInfoNotFoundError:
        known_periods = [period for period in periods if is_known_zone(period[1])]
        return make_zone(((0, known_periods.pop(0)[1] if periods[0] in known_periods else _UTC), *known_periods))


def change_zone(periods: ZonePeriods, name: str | None, now_s: float | None) -> ZonePeriods:
    """Return ``periods`` with the zone ``name`` (None: UTC) from soon after ``now_s`` on, without outdated periods.

    ``now_s`` None stands for a new account, which has the zone from the beginning. A pending change is withdrawn,
    unless it takes effect in less than the notice (``MIN_NOTICE_S``): processes may count costs by such a change before
    they know that it was withdrawn. Raises ``Conflict`` after too many changes.
    """
    new_name = name or _UTC
    if now_s is None:
        return () if new_name == _UTC else ((0, new_name),)
    noticed_s = int(now_s) + MIN_NOTICE_S
    known_periods = [period for period in periods or ((0, _UTC),) if period[0] <= noticed_s]
    if known_periods[-1][1] != new_name:
        known_periods.append((noticed_s // _MINUTE_S * _MINUTE_S + _MINUTE_S, new_name))
    while len(known_periods) > 1 and known_periods[1][0] < now_s - _KEPT_S:
        known_periods.pop(0)
    if len(known_periods) > MAX_CHANGES:
        days = _KEPT_S // DAY_S
        raise Conflict(f"The time zone was changed {MAX_CHANGES - 1} times in {days} days: no more", param="timezone")
    known_periods[0] = (0, known_periods[0][1])
    return tuple(known_periods)


def is_known_zone(name: str) -> bool:
    """Return whether this machine knows the time zone.

    False for the machine's own time (``localtime``), which differs between machines, and for the copies of all zones in
    ``right/`` and ``posix/``.
    """
    if name in _MACHINE_NAMES or name.startswith(("right/", "posix/")):
        return False
    try:
        ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return False
    return True
