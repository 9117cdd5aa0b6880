"""Claims of video jobs and webhook deliveries in a cluster: a node claims only from its share.

Claims of other nodes count against the limits, too, because shares move when a node joins or leaves.
"""

from functools import cache

from sqlalchemy import BigInteger, ColumnElement, Select, Table, Update, and_, bindparam, case, func, select, update

from gateway.domain.video import UNSENT
from gateway.storage.row_mapping import DELIVERY_COLUMNS, VIDEO_COLUMNS
from gateway.storage.schema import DUE, deliveries, videos

_NOW = bindparam("now_ms", type_=BigInteger)


@cache
def write_video_claim(*, fetching: bool) -> Update:
    """Claim the longest due jobs of each channel in ``only``, up to ``each`` including those in progress."""
    fits = videos.c.state == "fetching" if fetching else videos.c.state != "fetching"
    is_submitted = and_(videos.c.state.in_(UNSENT), videos.c.lease_until_ms > _NOW)  # by a request, not by a poller
    wanted = and_(fits, _is_in(videos.c.channel), ~_is_in(videos.c.channel, "full"), ~is_submitted)
    return _write_claim(videos, videos.c.channel, wanted).returning(
        *(videos.c[name] for name in VIDEO_COLUMNS), videos.c.sequence
    )


@cache
def write_some_videos(*, fetching: bool) -> Select[tuple[int]]:
    """Select a job that ``write_video_claim`` may take."""
    fits = videos.c.state == "fetching" if fetching else videos.c.state != "fetching"
    wanted = and_(fits, _is_in(videos.c.channel), ~_is_in(videos.c.channel, "full"))
    return select(videos.c.sequence).where(_is_free(videos), wanted).limit(1)


@cache
def write_delivery_claim() -> Update:
    """Claim the longest due deliveries of each account in ``only``, up to ``each`` including those in progress."""
    claim = _write_claim(deliveries, deliveries.c.account_id, _is_in(deliveries.c.account_id))
    return claim.returning(*(deliveries.c[name] for name in DELIVERY_COLUMNS), deliveries.c.sequence)


@cache
def write_due_accounts() -> Select[tuple[int, bool]]:
    """Select the accounts with pending deliveries, and whether a node other than ``by`` is sending some."""
    elsewhere = and_(deliveries.c.lease_until_ms > _NOW, deliveries.c.owner != bindparam("by"))
    busy = func.max(case((elsewhere, 1), else_=0)) > 0
    return select(deliveries.c.account_id, busy).where(DUE).group_by(deliveries.c.account_id)


def _is_in(column: ColumnElement[object], name: str = "only") -> ColumnElement[bool]:
    return column.in_(bindparam(name, expanding=True))


def _is_free(table: Table) -> ColumnElement[bool]:
    return and_(table.c.due_ms <= _NOW, table.c.lease_until_ms <= _NOW)


def _write_claim(table: Table, group: ColumnElement[object], wanted: ColumnElement[bool]) -> Update:
    """Claim rows of ``wanted``. Rows that are already claimed take the first places of their group."""
    due_ms, sequence, lease_until_ms = table.c.due_ms, table.c.sequence, table.c.lease_until_ms
    by_age = (case((lease_until_ms <= _NOW, 1), else_=0), due_ms, sequence)
    place = func.row_number().over(partition_by=group, order_by=by_age).label("place")
    ranked = select(due_ms, sequence, lease_until_ms, place).where(due_ms <= _NOW, wanted).subquery()
    chosen = (
        select(ranked.c.sequence)
        .where(ranked.c.lease_until_ms <= _NOW, ranked.c.place <= bindparam("each"))
        .order_by(ranked.c.place, ranked.c.due_ms, ranked.c.sequence)
        .limit(bindparam("most"))
    )
    locked = select(sequence).where(sequence.in_(chosen), _is_free(table)).with_for_update(skip_locked=True)
    return update(table).where(sequence.in_(locked)).values(owner=bindparam("by"), lease_until_ms=bindparam("until_ms"))
