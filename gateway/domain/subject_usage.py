"""Usage of subjects: requests summed by end user, session and tag, for each day, account and key.

The sums are written in the transaction of their rows, like those of ``domain.traffic``, and outlive the rows.
"""

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Literal, NamedTuple

from gateway.domain.attribution import split_tags
from gateway.domain.ledger import day_of
from gateway.domain.request_log import RequestRecord, has_failed
from gateway.domain.traffic import SUMMED_FIELDS, Sums, TrafficLine, add_sums
from gateway.frozen import frozen

SubjectKind = Literal["user", "session", "tag"]

OTHER_VALUES = ""
"""The value of the row that sums all values beyond ``attribution.max_values``; no user, session or tag is empty."""
MAX_TAG_NAMES = 100
"""The maximum number of tag names that have sums on one day: clients may invent names."""

_get_amounts = attrgetter(*SUMMED_FIELDS[2:])


class SubjectGroup(NamedTuple):
    """The users, the sessions or the values of one tag on a day: at most ``attribution.max_values`` of them have sums.

    Attributes:
        kind: what is summed.
        name: the name of the tag; empty for users and sessions. With the kind ``tag`` and no name, the values are the
            names of the day's tags.
        day: the UTC day, as a number since 1970.
    """

    kind: SubjectKind
    name: str
    day: int


class SubjectKey(NamedTuple):
    """The key of a sum. ``value`` is the user, the session or the tag's value; ``OTHER_VALUES`` beyond the bound."""

    kind: SubjectKind
    name: str
    day: int
    value: str
    account_id: int
    key_id: int

    @property
    def group(self) -> SubjectGroup:
        return SubjectGroup(self.kind, self.name, self.day)


@frozen
class SubjectFilter:
    """A filter for the usage of subjects: what is summed, and the days (inclusive), account, key and ``values``.

    Without values, all of them are meant.
    """

    kind: SubjectKind
    name: str
    since: int
    until: int
    account_id: int | None = None
    key_id: int | None = None
    values: tuple[str, ...] = ()


@frozen
class SubjectUsage:
    """The usage of subjects: the most expensive ones, and the sums of the rest.

    Attributes:
        lines: users, sessions or values of a tag, by cost, highest first; their number is limited.
        unlisted: the sum of those beyond that limit.
        other: the sum of those without sums of their own, because there were more on a day than may be stored.
    """

    lines: tuple[TrafficLine, ...]
    unlisted: TrafficLine
    other: TrafficLine


def sum_subjects(rows: Iterable[RequestRecord]) -> Mapping[SubjectKey, Sums]:
    """Return the amounts to add to the sums of subjects, in a fixed order against deadlocks."""
    sums_by_key: dict[SubjectKey, Sums] = {}
    for row in rows:
        sums = (1, int(has_failed(row)), *_get_amounts(row))
        for kind, name, value in _list_subjects(row):
            subject_key = SubjectKey(kind, name, day_of(row), value, row.account_id, row.key_id)
            sums_by_key[subject_key] = add_sums(sums_by_key[subject_key], sums) if subject_key in sums_by_key else sums
    return dict(sorted(sums_by_key.items()))


def _list_subjects(row: RequestRecord) -> Iterator[tuple[SubjectKind, str, str]]:
    if row.end_user:
        yield "user", "", row.end_user
    if row.session:
        yield "session", "", row.session
    for name, value in split_tags(row.tags):
        yield "tag", name, value
