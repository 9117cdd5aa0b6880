"""The walk of a call through the rooms: read, route, admit, relay; and on the way out settle, whatever happened."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import attrs
from aiohttp import web
from aiohttp.web_request import BaseRequest

from gateway.billing.quota import Grant
from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.price import usd
from gateway.domain.request_log import Ending
from gateway.errors import (
    ClientDisconnected,
    GatewayError,
    InternalError,
    ProviderError,
    ProviderRejected,
    RateLimited,
    RequestCancelled,
    ShuttingDown,
)
from gateway.formats.form import ReceivedForm
from gateway.large_work import MAX_ON_LOOP, work_aside
from gateway.media.audio_duration import measure_audio
from gateway.proxy import forward
from gateway.proxy.drain import DrainedStream
from gateway.proxy.failover import make_cancelled
from gateway.request_context import Arrival, Delivery, Outcome
from gateway.routing.route import Route
from gateway.server.client_ip import check_client_ip, find_client_ip, find_origin
from gateway.server.context import CALLER, ROOMS, TRACE
from gateway.server.idempotency import find_name
from gateway.server.multipart import MIB, MultipartReader
from gateway.server.request_body import read_arrived_json, read_sized_json
from gateway.server.sessions import check_still_signed
from gateway.server.stream_response import EventStreamResponse, write_answer
from gateway.upstream.exhaustion import ResourcesExhausted

ReadCall = Callable[[dict[str, Any]], InferenceRequest]
ReadForm = Callable[[ReceivedForm], InferenceRequest]

_TEXTS = frozenset({"embeddings", "completions", "moderations", "rerank", "speech"})
_NOT_STORED = "store: this completion is not kept by the gateway and cannot be retrieved"
_CLIENT_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)


async def serve_call(request: web.Request, operation: Operation, read_call: ReadCall) -> web.StreamResponse:
    """One call from its body to its settlement. Raises the fault that refused or ended it before the first byte."""
    walk = Walk(request, operation)
    return await walk.go(walk.read_json(read_call))


async def serve_form(request: web.Request, operation: Operation, read_call: ReadForm) -> web.StreamResponse:
    """The same for a call that comes as a form; its files are kept until it has been settled."""
    walk = Walk(request, operation)
    reader = open_form(request)
    try:
        return await walk.go(walk.read_form(reader, read_call))
    finally:
        reader.close()


def leave_call(request: BaseRequest) -> bool:
    """The client of ``request`` has left: whether its call goes on all the same, and must not be cancelled."""
    if not isinstance(request, web.Request) or CALLER not in request or TRACE not in request:
        return False
    call = request.app[ROOMS].running.calls.get(request[TRACE].id)
    return call is not None and call.leave()


def open_form(request: web.Request) -> MultipartReader:
    """The form of a request, whose files are there until it is closed."""
    rooms = request.app[ROOMS]
    return MultipartReader(request, rooms.spool, rooms.form_limits, account_id=request[CALLER].account.id)


class Walk:
    """One call, on its way through the rooms; ``flow.running.UnderWay`` for whoever looks at it."""

    _call: InferenceRequest | None = None
    _grant: Grant | None = None
    _drain: DrainedStream | None = None
    _read_at = 0.0
    _cancelled = False
    _stopped = False
    """It was cancelled, and by way of its task: no visit was under way that could be broken off."""

    def __init__(self, request: web.Request, operation: Operation) -> None:
        self._request = request
        self._trace = trace = request[TRACE]
        self._rooms = rooms = request.app[ROOMS]
        self._named = find_name(request, operation)
        self._loop = loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._arrival = Arrival(
            trace.id,
            request[CALLER],
            operation,
            started_ms=int(rooms.clock() * 1000),
            started_at=loop.time(),
            client_request_id=_read_client_id(request),
        )

    @property
    def arrival(self) -> Arrival:
        """Who came when."""
        return self._arrival

    @property
    def call(self) -> InferenceRequest | None:
        """What is asked for; None until its body has been read."""
        return self._call

    @property
    def delivery(self) -> Delivery | None:
        """What has become of it; None until it has been granted."""
        return self._grant.delivery if self._grant else None

    @property
    def address(self) -> str | None:
        """Where its caller called from; None where it has left."""
        return find_client_ip(self._request)

    def cancel(self) -> bool:
        """End it, wherever it is on its way; False where that was done before. For a call that is not settled yet."""
        if self._cancelled:
            return False
        self._cancelled = True
        if not self._rooms.relay.cancel(self._arrival.id) and self._task is not None:
            self._stopped = self._task.cancel()
        return True

    def leave(self) -> bool:
        """Its client has left: whether it goes on all the same, for what its provider says at the end."""
        grant, rooms = self._grant, self._rooms
        if grant is None or grant.row is not None or self._cancelled or not rooms.gate.open:
            return False
        if rooms.settlement.find_abandoned() == "drain":
            self._drain = rooms.relay.drain(grant, self._arrival.id)
        return self._drain is not None

    async def read_json(self, read_call: ReadCall) -> InferenceRequest:
        """The call of a JSON body."""
        size = 0
        body = read_arrived_json(self._request)
        if body is not None:  # nothing has changed since its headers were looked at
            self._read_at = monotonic()
        else:
            body, size = await read_sized_json(self._request, self._find_limit())
            await self._note_read()
        if self._named.is_named:
            await self._named.note_body(body)
        if "store" in body and body["store"] is True and self._arrival.operation == "chat":
            self._trace.warn(_NOT_STORED)
        if size > MAX_ON_LOOP:
            return attrs.evolve(await work_aside(read_call, body), large=True)
        return read_call(body)

    def _find_limit(self) -> int:
        """The most bytes that a JSON body may have: pictures and conversations need more than texts alone."""
        most = self._request.client_max_size
        return max(most // 4, MIB) if self._arrival.operation in _TEXTS else most

    async def read_form(self, reader: MultipartReader, read_call: ReadForm) -> InferenceRequest:
        """The call of a form; sound that came with it is listened to, for how long it is."""
        rooms = self._rooms
        rooms.images.check_room()
        await rooms.admission.peek(self._arrival.caller, lambda: not rooms.router.tariff.require_price)
        form = await reader.read()
        await self._note_read()
        await self._named.note_form(form)
        call = read_call(form)
        return await measure_audio(call) if call.image is None else call

    async def go(self, reading: Awaitable[InferenceRequest]) -> web.StreamResponse:
        """From the body to the settlement."""
        rooms = self._rooms
        rooms.gate.inside += 1
        rooms.running.calls[self._arrival.id] = self
        try:
            self._call = call = await reading
            if self._named.is_named:
                replayed = await self._named.find_answer(call, self._arrival)
                if replayed is not None:
                    self._settle("completed")
                    return replayed
            return await self._serve(call)
        except GatewayError as fault:
            if isinstance(fault, RateLimited):
                self._trace.standing = fault.standing
            self._settle(_read_ending(fault), fault)
            raise
        except (asyncio.CancelledError, ClientDisconnected):
            if self._stopped and self._task is not None and not self._task.uncancel():
                cancelled = make_cancelled()
                self._settle("interrupted", cancelled)
                raise cancelled from None
            self._settle("interrupted" if self._cancelled or rooms.relay.broken_off else "client_closed")
            raise
        except Exception as error:
            bug = InternalError("Something went wrong inside the gateway")
            self._settle("failed", bug)
            raise bug from error
        finally:
            if self._named.is_named:
                self._named.close()
            rooms.gate.inside -= 1
            self._task = None  # which holds what it ended with

    async def _serve(self, call: InferenceRequest) -> web.StreamResponse:
        """From what is asked for to the answer."""
        if call.image is not None:
            self._rooms.images.check(call)
            self._call = call = attrs.evolve(call, origin=self._rooms.base_url or find_origin(self._request))
        arrival, rooms, trace = self._arrival, self._rooms, self._trace
        if arrival.operation == "responses":
            self._call = call = await rooms.response_owners.check(call, arrival.caller.account.id)
        route = rooms.router.route(arrival.caller, call)
        self._grant = grant = await rooms.admission.admit(arrival, call, route.rank())
        trace.delivery = grant.delivery
        if grant.turn is not None:
            trace.standing = grant.turn.standing
        if call.stream:
            return await self._stream(grant, route)
        return await self._answer(grant, route)

    async def _note_read(self) -> None:
        """The body may have taken minutes to arrive: what the key may do is looked at as it is now."""
        await check_still_signed(self._request)
        self._read_at = monotonic()
        before = self._arrival.caller
        caller = self._rooms.directory.refresh(before)
        if caller is not before:
            self._arrival = attrs.evolve(self._arrival, caller=caller)
            check_client_ip(self._request, caller)

    async def _answer(self, grant: Grant, route: Route) -> web.StreamResponse:
        delivery = grant.delivery
        rooms = self._rooms
        fetch = forward.fetch if grant.call.image is None else rooms.images.fetch
        answer = await fetch(rooms.relay, grant, route, self._arrival.id)
        delivery.first_byte_at = self._loop.time()
        self._settle("completed")
        row = self._trace.row
        headers = {
            "x-gateway-overhead-ms": f"{(monotonic() - self._read_at - delivery.upstream_s) * 1000:.2f}",
            "x-gateway-cost-usd": usd(row.cost_nanos if row else 0),
            "Content-Type": answer.media_type,
        }
        if self._named.is_named:
            await self._named.keep(answer.body, answer.media_type)
        return write_answer(self._request, answer.body, headers)

    async def _stream(self, grant: Grant, route: Route) -> web.StreamResponse:
        client_stream = EventStreamResponse(self._request)
        rooms = self._rooms
        stream = forward.stream if grant.call.image is None else rooms.images.fetch_stream
        await stream(rooms.relay, grant, route, client_stream, self._arrival.id, settle=self._settle_stream)
        return client_stream.response

    def _settle_stream(self, fault: ProviderError | None) -> None:
        self._settle(_read_ending(fault) if fault else "completed", fault)

    def _settle(self, ending: Ending, fault: GatewayError | None = None) -> None:
        """Leave the row. Nothing waits here, so nothing can be cancelled half-way."""
        self._rooms.running.calls.pop(self._arrival.id, None)
        outcome = Outcome(ending, self._loop.time(), int(self._rooms.clock() * 1000), fault)
        settlement = self._rooms.settlement
        if self._grant is not None:
            delivery, drain = self._grant.delivery, self._drain
            if drain is not None:
                drain.end()
                delivery.first_byte_at = drain.first_byte_at  # what came later, nobody heard
            self._trace.row = settlement.settle(self._arrival, self._grant, outcome, left=drain is not None)
            if delivery.response_id and delivery.option is not None:
                channel, account = delivery.option.line.channel.name, self._arrival.caller.account
                self._rooms.response_owners.note(delivery.response_id, account.id, channel)
        else:
            self._trace.row = settlement.refuse(self._arrival, self._call, outcome)


def _read_client_id(request: web.Request) -> str | None:
    theirs = request.headers.get("X-Request-Id")
    return theirs if theirs is not None and _CLIENT_REQUEST_ID.match(theirs) else None


def _read_ending(fault: GatewayError) -> Ending:
    if isinstance(fault, ShuttingDown | RequestCancelled):
        return "interrupted"
    if isinstance(fault, ProviderError) and not isinstance(fault, ProviderRejected | ResourcesExhausted):
        return "upstream_failed"
    return "refused"
