"""Keeps the reservation of a request for a route and the prices of the steps ahead in agreement."""

from gateway.billing.quota import find_highest
from gateway.formats.references.provider_reads import find_reads
from gateway.request_context import RequestContext


def lower_reservation(ctx: RequestContext) -> None:
    """Release the part of a reservation that no step ahead can cost.

    Nothing is released while a failed attempt may have to be charged. A video's reservation is stored with its job, and
    a line of a batch may begin again at the first step: both stay.
    """
    reservation = ctx.reservation
    if reservation is None or not ctx.attempts or any(attempt.pending for attempt in ctx.attempts):
        return
    if ctx.batch.id or ctx.inference.video is not None:
        return
    ahead, inference = ctx.target_list.list_ahead(), ctx.inference
    if not ahead:
        return
    reservation.lower(max(target.find_reservation(inference) for target in ahead))
    if reservation.extra_nanos:
        reads = find_reads(inference)
        reservation.lower_extra(max(find_highest(inference, target, reads) for target in ahead))


def keep_reserved(ctx: RequestContext) -> None:
    """Drop the targets of a new list that cost more than what is reserved, if they are those of a route."""
    reservation = ctx.reservation
    if reservation is not None:
        ctx.target_list.drop_unaffordable(reservation.nanos - reservation.extra_nanos)
