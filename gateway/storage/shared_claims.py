"""Claims of video jobs and webhook deliveries in a cluster: a node claims only from its share.

Claims of other nodes count against the limits, too, because shares move when a node joins or leaves.
"""

from functools import cache

from sqlalchemy import BigInteger, ColumnElement, Select, Table, Update, and_, bindparam, case, func, select, update

from gateway.domain.video import UNACCEPTED_STATES
from gateway.storage.row_mapping import DELIVERY_COLUMNS, VIDEO_COLUMNS
from gateway.storage.schema import HAS_DUE_TIME, deliveries, videos

_NOW = bindparam("now_ms", type_=BigInteger)


@cache
def write_video_claim(*, fetching: bool) -> Update:
    """Return the statement that claims up to ``most`` due jobs of the channels in ``only``, longest due first.

    A channel gets up to ``each`` jobs, including those in progress, and none if it is in ``full``. All these are
    parameters of the statement.
    """
    is_claimable_state = videos.c.state == "fetching" if fetching else videos.c.state != "fetching"
    is_submitted = and_(
        videos.c.state.in_(UNACCEPTED_STATES), videos.c.lease_until_ms > _NOW
    )  # by a request, not by a poller
    is_claimable = and_(is_claimable_state, _is_in(videos.c.channel), ~_is_in(videos.c.channel, "full"), ~is_submitted)
    return _write_claim(videos, videos.c.channel, is_claimable).returning(
        *(videos.c[name] for name in VIDEO_COLUMNS), videos.c.sequence
    )


@cache
def write_claimable_video_query(*, fetching: bool) -> Select[tuple[int]]:
    """Return the statement that finds a job which ``write_video_claim`` may claim."""
    is_claimable_state = videos.c.state == "fetching" if fetching else videos.c.state != "fetching"
    is_claimable = and_(is_claimable_state, _is_in(videos.c.channel), ~_is_in(videos.c.channel, "full"))
    return select(videos.c.sequence).where(_is_free(videos), is_claimable).limit(1)


@cache
def write_delivery_claim() -> Update:
    """Return the statement that claims up to ``most`` due deliveries of the accounts in ``only``, longest due first.

    An account gets up to ``each`` deliveries, including those in progress. All these are parameters of the statement.
    """
    claim = _write_claim(deliveries, deliveries.c.account_id, _is_in(deliveries.c.account_id))
    return claim.returning(*(deliveries.c[name] for name in DELIVERY_COLUMNS), deliveries.c.sequence)


@cache
def write_due_accounts() -> Select[tuple[int, bool]]:
    """Return the statement that lists the accounts with pending deliveries.

    The second column says whether a node other than the parameter ``by`` is sending some.
    """
    is_claimed_elsewhere = and_(deliveries.c.lease_until_ms > _NOW, deliveries.c.owner != bindparam("by"))
    has_elsewhere = func.max(case((is_claimed_elsewhere, 1), else_=0)) > 0
    return select(deliveries.c.account_id, has_elsewhere).where(HAS_DUE_TIME).group_by(deliveries.c.account_id)


def _is_in(column: ColumnElement[object], name: str = "only") -> ColumnElement[bool]:
    return column.in_(bindparam(name, expanding=True))


def _is_free(table: Table) -> ColumnElement[bool]:
    return and_(table.c.due_ms <= _NOW, table.c.lease_until_ms <= _NOW)


def _write_claim(table: Table, group: ColumnElement[object], is_claimable: ColumnElement[bool]) -> Update:
    """Return the statement that claims due rows of ``is_claimable``: up to ``most``, and up to ``each`` of a group.

    Rows of the group that are claimed already count towards ``each``.
    """
    due_ms, sequence, lease_until_ms = table.c.due_ms, table.c.sequence, table.c.lease_until_ms
    by_age = (case((lease_until_ms <= _NOW, 1), else_=0), due_ms, sequence)
    rank = func.row_number().over(partition_by=group, order_by=by_age).label("place")
    ranked_rows = select(due_ms, sequence, lease_until_ms, rank).where(due_ms <= _NOW, is_claimable).subquery()
    query = (
        select(ranked_rows.c.sequence)
        .where(ranked_rows.c.lease_until_ms <= _NOW, ranked_rows.c.place <= bindparam("each"))
        .order_by(ranked_rows.c.place, ranked_rows.c.due_ms, ranked_rows.c.sequence)
        .limit(bindparam("most"))
    )
    locked_rows = select(sequence).where(sequence.in_(query), _is_free(table)).with_for_update(skip_locked=True)
    return (
        update(table)
        .where(sequence.in_(locked_rows))
        .values(owner=bindparam("by"), lease_until_ms=bindparam("until_ms"))
    )
