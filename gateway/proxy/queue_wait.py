"""Waits for a place on channels that are full and have a queue; see ``routing/channel_queue.py``.

The request waits after its checks, with its cost reserved, in the queues of all channels that lack nothing but a place.
The first place counts. A request that leaves, for whatever reason, leaves all queues at once, and gives back a place
that it has got.

Comments in a stream contain the request's place in the queues, the first after ``KEEPALIVE_AFTER_S`` as for a silent
provider. The status 200 is sent with the first comment, so a later error becomes an error event. Other channels can
still be tried, because nothing of an answer was sent.
"""

import asyncio
from contextlib import suppress
from typing import Protocol

import attrs

from gateway.proxy.client_stream import ClientStream
from gateway.proxy.stream import EVENT_STREAM_TYPE, KEEPALIVE_AFTER_S
from gateway.request_context import RequestContext
from gateway.routing.channel_queue import Ticket
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.target import Attempt, Target

LOOK_S = 1.0
"""How often a waiting request looks whether another channel has become free."""
MIN_TOTAL_S = 0.001


class RunningProxy(Protocol):
    """The proxy of the request, ``failover.Proxy``, which imports this module when a request waits."""

    load_balancer: LoadBalancer

    def check_running(self) -> None: ...


class QueueWait:
    """The waits of one request. ``client``: the stream to which the place in the queues is sent; None without one."""

    def __init__(self, proxy: RunningProxy, ctx: RequestContext, client: ClientStream | None) -> None:
        self._proxy = proxy
        self._ctx = ctx
        self._client = client
        self._reported_at = proxy.load_balancer.now
        self._load_balancer = proxy.load_balancer
        self._started_at = proxy.load_balancer.now
        self._entered_at: dict[str, float] = {}
        """When the request began to wait for each channel: a return to its queue neither loses nor gains time."""
        self._tickets: dict[Ticket, Target] = {}
        self._woken = asyncio.Event()

    async def start_attempt(self, answer_id: str, now_s: int) -> Attempt | None:
        """Wait for a place, and start the attempt there. Return None if the channels must be looked at again.

        Raises ``ShuttingDown``.
        """
        targets, started_at = self._ctx.target_list, self._load_balancer.now
        try:
            ends_at = self._enter()
            if not self._tickets or ends_at <= started_at:
                targets.end_wait()
                return None
            await self._await_place(ends_at)
            self._proxy.check_running()
            return self._use_place(answer_id, now_s)
        finally:
            for ticket, target in self._tickets.items():
                self._load_balancer.leave_queue(target.state, ticket)
            self._tickets.clear()
            self._ctx.queued_s += self._load_balancer.now - started_at

    def _enter(self) -> float:
        """Enter the queue of every channel at which the request may wait, and return the end of the shortest wait."""
        caller, targets, now = self._ctx.caller, self._ctx.target_list, self._load_balancer.now
        earliest_end_at = now + targets.find_wait_s()
        self._woken.clear()
        for target in targets.list_queued_targets():
            channel = target.channel
            entered_at = self._entered_at.setdefault(channel.name, now)
            if channel.queue is None or entered_at + channel.queue.wait_s <= now:
                continue
            ticket = Ticket(
                target.endpoint_key, caller.account.id, caller.key.id, targets.low_priority, entered_at, self._woken.set
            )
            self._tickets[ticket] = target
            if self._load_balancer.enter_queue(target.state, ticket):
                ends_at = min(entered_at + channel.queue.wait_s, self._started_at + channel.timeouts.total_s)
                earliest_end_at = min(earliest_end_at, ends_at)
            else:
                del self._tickets[ticket]
        return earliest_end_at

    async def _await_place(self, ends_at: float) -> None:
        """Wait for a place until ``ends_at``, or until the tickets are dismissed or another channel is free."""
        targets = self._ctx.target_list
        while (
            not self._woken.is_set() and (left_s := ends_at - self._load_balancer.now) > 0 and not targets.is_any_free
        ):
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LOOK_S)):
                    await self._woken.wait()
            for target in self._tickets.values():
                self._load_balancer.grant_places(target.state)
            self._tell_place()

    def _tell_place(self) -> None:
        """Tell the client its place if it has changed, or if the client has received nothing for long.

        The first place is sent only after such a silence, and begins the response.
        """
        now, ctx, client = self._load_balancer.now, self._ctx, self._client
        is_silent = now - self._reported_at >= KEEPALIVE_AFTER_S
        if client is None or self._woken.is_set() or not (ctx.reported_place or is_silent):
            return
        places = [
            target.state.queue.find_place(ticket)
            for ticket, target in self._tickets.items()
            if target.state.queue is not None
        ]
        place = min(places)
        if place == ctx.reported_place and not is_silent:
            return
        if not ctx.reported_place:
            ctx.first_byte_at = asyncio.get_running_loop().time()
        ctx.reported_place, self._reported_at = place, now
        client.open(EVENT_STREAM_TYPE, b": queued %d\n\n" % place)

    def _use_place(self, answer_id: str, now_s: int) -> Attempt | None:
        """Start the attempt in the given place; return None without a place, or if the channel has failed since."""
        ticket = next((ticket for ticket in self._tickets if ticket.granted), None)
        if ticket is None:
            return None
        target, now = self._tickets[ticket], self._load_balancer.now
        state = target.state
        if not state.offered or state.find_obstacle_beyond_places(target.endpoint_key, ticket.account, now) is not None:
            return None
        del self._tickets[ticket]
        attempt = self._ctx.target_list.start_granted(target, answer_id, now_s)
        waited_s, timeouts = now - self._started_at, attempt.timeouts
        attempt.timeouts = attrs.evolve(timeouts, total_s=max(timeouts.total_s - waited_s, MIN_TOTAL_S))
        return attempt
