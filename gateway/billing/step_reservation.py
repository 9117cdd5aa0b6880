"""Lowers the reservation of a request that goes on to a cheaper step of its route."""

from gateway.request_context import RequestContext


def lower_reservation(ctx: RequestContext) -> None:
    """Release what no step ahead can cost. Nothing is released while a failed attempt may have to be charged."""
    reservation = ctx.reservation
    if reservation is None or not ctx.attempts or any(attempt.pending for attempt in ctx.attempts):
        return
    ahead = ctx.target_list.list_ahead()
    reservation.lower(max((target.find_reservation(ctx.inference) for target in ahead), default=reservation.nanos))
