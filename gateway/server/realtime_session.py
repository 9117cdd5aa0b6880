"""One realtime session: relay frames between client and provider until either side or the gateway closes it.

Each event is inspected before it is relayed, because a response costs money (``realtime_billing.py``). A ``SessionEnd``
records why a session ended. Responses in progress at the end are cancelled at the provider, and the session waits for
the provider's report of their usage.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from aiohttp import WebSocketError, WSCloseCode, WSMessage, WSMsgType, web

from gateway import errors
from gateway.domain.account import Caller
from gateway.domain.channel import Channel
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import Operation
from gateway.domain.request_log import Outcome
from gateway.formats.errors.openai import mask
from gateway.formats.realtime import events as wire
from gateway.formats.references.stored import ITEM_REFERENCE, list_stored_references
from gateway.frozen import frozen
from gateway.providers.priced_fields import check_spelling, list_priced_fields
from gateway.providers.registry import PROVIDERS
from gateway.routing.priced_fields import allows
from gateway.routing.response_owners import make_not_found
from gateway.routing.target import Attempt
from gateway.server.active_inference import ActiveInference
from gateway.server.context import Services
from gateway.server.error_responses import add_doc_url
from gateway.server.realtime_billing import REFUSED_S, RealtimeBilling
from gateway.upstream.frame_meter import FRAME_S, FrameMeter
from gateway.upstream.websocket import CLOSE_S, MAX_FRAME_BYTES, ProviderSocket
from gateway.wording import fold_name

if TYPE_CHECKING:  # only if bodies are kept
    from gateway.server.kept_session import KeptSession

TICK_S = 1.0
"""Interval at which a session checks its key, its timeouts, and whether the gateway is shutting down."""
IDLE_S = 900.0
"""Idle timeout of a session: no frame in either direction."""
FINISH_S = 2.0
"""Time for the usage reports of cancelled responses."""
_MAX_REASON_BYTES = 123
"""Size limit of a close frame's reason, in bytes (RFC 6455, 5.5)."""
_SENDABLE_CODES = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)})
"""Close codes that an endpoint may send (RFC 6455, 7.4)."""
_MISSING_CLOSE_CODE = 1005
_RECOVERABLE_ERRORS = (errors.InvalidRequest, errors.NotFound, errors.RateLimited, errors.StoreUnavailable)
"""Errors that refuse one event without ending the session."""
_OWN_CONVERSATION = frozenset({"auto", "none"})


@frozen
class SessionEnd:
    """The reason for the end of a session.

    ``code`` is that of the close frame for the client. ``error`` is sent to the client as its last event; None: the
    client gets no such event.
    """

    code: int
    reason: str = ""
    outcome: Outcome = "completed"
    error: errors.GatewayError | None = None


@frozen
class SessionMeters:
    """The meters for bytes of large frames, one for each side of a session."""

    client: FrameMeter
    provider: FrameMeter

    def close(self) -> None:
        self.client.close()
        self.provider.close()


class ActiveRealtime(ActiveInference):
    """The request that opens a session. Once open, the session itself notices that its client has disconnected."""

    def __init__(self, request: web.Request, operation: Operation) -> None:
        super().__init__(request, operation)
        self.session: RealtimeSession | None = None

    def handle_disconnect(self) -> bool:
        return self.session is not None


class RealtimeSession:
    """Relays the frames of one session. Implements ``AbortableStream`` for its attempt."""

    def __init__(
        self,
        active: ActiveRealtime,
        attempt: Attempt,
        inference: InferenceRequest,
        *,
        client: web.WebSocketResponse,
        provider: ProviderSocket,
        meters: SessionMeters,
    ) -> None:
        self._active = active
        self._attempt = attempt
        self._client = client
        self._provider = provider
        self._meters = meters
        self._billing = RealtimeBilling(active, attempt, inference)
        self._loop = active.loop
        self._end_future: asyncio.Future[SessionEnd] = self._loop.create_future()
        self._settled_event = asyncio.Event()
        self._models = frozenset({inference.model, attempt.target.model})
        self._received_at = self._answered_at = self._loop.time()
        self._is_client_open = True
        self._kept_session = cast(
            "KeptSession | None", active.exchange
        )  # ``open_exchange`` makes no other for this operation
        self._is_sending = False  # True while a send waits for the client to read

    def wake(self) -> None:
        """End the session with the error that its attempt was aborted with."""
        error = self._attempt.cancelled or self._attempt.abort_error
        if isinstance(error, errors.RequestCancelled):
            self._request_end(SessionEnd(WSCloseCode.POLICY_VIOLATION, "cancelled", "cancelled", error))
        elif error is not None:
            self._request_end(SessionEnd(WSCloseCode.SERVICE_RESTART, "the gateway shuts down", "interrupted", error))

    def discard_writes(self, max_bytes: int, give_up: object) -> None:
        """No-op: a session is not drained after its client has disconnected."""

    async def run(self, settings: wire.Event) -> None:
        """Relay frames until the session has ended and is settled. ``settings`` are the session's initial settings."""
        self._meters.client.watch(partial(self._request_end, _make_crowded_end("client")))
        self._meters.provider.watch(partial(self._request_end, _make_crowded_end("provider")))
        if settings:
            if await self._admit_or_report({"type": wire.SESSION_UPDATE, "session": settings}):
                await self._send_provider(wire.build_update_event(settings))
            else:  # the client relies on its settings
                self._request_end(SessionEnd(WSCloseCode.POLICY_VIOLATION, "the settings were refused", "refused"))
        tasks = [
            self._loop.create_task(task_function())
            for task_function in (self._forward_client_messages, self._forward_provider_messages, self._watch)
        ]
        try:
            awaited: list[asyncio.Future[Any]] = [self._end_future, *tasks]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # re-raises a bug, which ends the session
            await self._finish(
                self._end_future.result() if self._end_future.done() else SessionEnd(WSCloseCode.INTERNAL_ERROR)
            )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._settle(SessionEnd(WSCloseCode.INTERNAL_ERROR, outcome="interrupted"))

    def _request_end(self, end: SessionEnd) -> None:
        if not self._end_future.done():
            self._end_future.set_result(end)

    async def _finish(self, end: SessionEnd) -> None:
        if end.error is not None:
            with suppress(TimeoutError):  # the client may not be reading
                async with asyncio.timeout(FINISH_S):
                    await self._send_error(end.error)
        if self._billing.busy and not self._provider.closed:
            for response_id in self._billing.running:
                await self._send_provider(wire.build_cancel_event(response_id))
            with suppress(TimeoutError):
                async with asyncio.timeout(FINISH_S):
                    await self._settled_event.wait()
        self._settle(end)
        reason = end.reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore").encode()
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S + CLOSE_S):
                closing = self._client.close(code=end.code, message=reason), self._provider.close()
                await asyncio.gather(*closing, return_exceptions=True)

    def _settle(self, end: SessionEnd) -> None:
        self._billing.settle_rest("client_closed" if end.outcome == "completed" else end.outcome, end.error)
        self._active.settle(end.outcome, end.error)

    async def _forward_client_messages(self) -> None:
        """Relay the client's events, except events that are invalid JSON or not allowed."""
        while not self._end_future.done():
            message = await self._client.receive()
            self._received_at = self._loop.time()
            if message.type not in {WSMsgType.TEXT, WSMsgType.BINARY}:
                self._is_client_open = False
                self._request_end(_parse_client_close(message.type))
                return
            await self._pass_event(message)
            self._meters.client.note_passed(len(message.data))

    async def _pass_event(self, message: WSMessage) -> None:
        if self._kept_session is not None and message.type is WSMsgType.TEXT:
            self._kept_session.note_event(message.data, sent=False)
        try:
            event, data = wire.parse_client_event(_get_text(message), self._models)
        except errors.InvalidRequest as gateway_error:
            await self._send_error(gateway_error)
            return
        if await self._admit_or_report(event):
            del event  # frees a possibly large event while a slow provider reads
            await self._send_provider(data)

    async def _admit_or_report(self, event: wire.Event) -> bool:
        if event["type"] == wire.AUDIO_APPEND:  # the common case first
            self._billing.conversation.note_client(event)
            if self._billing.covers_transcript:
                return True
        try:
            await self._admit(event)
        except _RECOVERABLE_ERRORS as gateway_error:
            await self._send_error(gateway_error, event.get("event_id"))
            return False
        except errors.GatewayError as gateway_error:
            self._request_end(
                SessionEnd(
                    WSCloseCode.POLICY_VIOLATION,
                    gateway_error.public_code or gateway_error.code,
                    "refused",
                    gateway_error,
                )
            )
            return False
        if event["type"] in {wire.RESPONSE_CREATE, wire.SESSION_UPDATE}:
            self._answered_at = self._loop.time()
        return True

    async def _admit(self, event: wire.Event) -> None:
        services, caller = self._active.services, self._active.context.caller
        if event["type"] == wire.AUDIO_APPEND:
            await self._billing.reserve_transcript()
            return
        for settings_field in wire.CHECKED_OBJECTS:
            if isinstance(fields := event.get(settings_field), dict):
                check_settings(services, caller, fields, settings_field=settings_field, channel=self._attempt.channel)
        if event["type"] == wire.RESPONSE_CREATE:
            if not services.drain.open:
                raise errors.Overloaded("The gateway is shutting down", retry_after_s=5)
            await self._billing.reserve_response(event)
        else:
            self._billing.conversation.note_client(event)

    async def _forward_provider_messages(self) -> None:
        while True:
            message = await self._provider.receive()
            self._received_at = self._answered_at = self._loop.time()
            if message.type not in {WSMsgType.TEXT, WSMsgType.BINARY}:
                self._settled_event.set()
                self._request_end(self._parse_provider_close(message.type, message.data, message.extra))
                return
            event = wire.parse_event(message.data)
            refusal = None if event is None else await self._billing.process_event(event)
            if refusal is not None:
                code = refusal.public_code or refusal.code
                self._request_end(SessionEnd(WSCloseCode.POLICY_VIOLATION, code, "refused", refusal))
            del event  # frees a possibly large event while a slow client reads
            if self._end_future.done():  # nothing may follow the client's last event
                if not self._billing.busy:
                    self._settled_event.set()
            else:
                await self._send_client(message.data, message.type)
            self._meters.provider.note_passed(len(message.data))

    def _parse_provider_close(self, kind: WSMsgType, data: Any, extra: object) -> SessionEnd:
        code: int = data if kind is WSMsgType.CLOSE else 0
        reason = extra if kind is WSMsgType.CLOSE else ""
        reason = mask(str(reason or ""), self._attempt.channel.secrets)
        if code in {WSCloseCode.OK, _MISSING_CLOSE_CODE}:
            return SessionEnd(WSCloseCode.OK, reason)
        if isinstance(data, WebSocketError) and data.code == WSCloseCode.MESSAGE_TOO_BIG:
            problem = f"sent a frame of more than {MAX_FRAME_BYTES} bytes"
        else:
            problem = f"closed the session with the code {code}" if code else "broke the connection"
        error = errors.ProviderBadResponse(f"The provider {problem}{f': {reason}' if reason else ''}", phase="stream")
        return SessionEnd(code if code in _SENDABLE_CODES else WSCloseCode.INTERNAL_ERROR, reason, "failed", error)

    async def _watch(self) -> None:
        """End the session if its key is revoked, a timeout has expired, or it is idle while the gateway shuts down."""
        timeouts, services = self._attempt.timeouts, self._active.services
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self._loop.time()
            self._billing.drop_refused_responses(now_s - REFUSED_S)
            self._check_frames(now_s)
            try:
                services.auth.api_keys.refresh(self._active.context.caller)
            except errors.GatewayError as gateway_error:
                self._request_end(
                    SessionEnd(
                        WSCloseCode.POLICY_VIOLATION,
                        gateway_error.public_code or gateway_error.code,
                        "refused",
                        gateway_error,
                    )
                )
            if not self._billing.busy:
                if not services.drain.open:
                    self._request_end(SessionEnd(WSCloseCode.SERVICE_RESTART, "the gateway shuts down"))
                elif now_s - self._received_at > IDLE_S:
                    self._request_end(SessionEnd(WSCloseCode.GOING_AWAY, "the session was idle"))
            elif not self._is_sending and now_s - self._answered_at > max(timeouts.first_byte_s, timeouts.idle_s):
                timeout_error = errors.ProviderTimeout("The provider took too long to answer", phase="stream")
                self._request_end(SessionEnd(WSCloseCode.INTERNAL_ERROR, "", "failed", timeout_error))

    def _check_frames(self, now_s: float) -> None:
        if self._meters.client.update_progress(now_s):
            message = f"A large frame was not complete, and read by the provider, within {FRAME_S:.0f} seconds"
            self._request_end(
                SessionEnd(WSCloseCode.POLICY_VIOLATION, "slow frame", "refused", errors.InvalidRequest(message))
            )
        if self._meters.provider.update_progress(now_s) and not self._is_sending:
            timeout_error = errors.ProviderTimeout(
                f"The provider did not complete a large frame in {FRAME_S:.0f} seconds", phase="stream"
            )
            self._request_end(SessionEnd(WSCloseCode.INTERNAL_ERROR, "", "failed", timeout_error))

    async def _send_error(self, error: errors.GatewayError, cause: object = None) -> None:
        """Send the client an error event. ``cause`` is the ``event_id`` of the client's event that caused the error."""
        add_doc_url(error, self._active.request)
        await self._send_client(wire.build_error_event(error, self._active.context.id, cause))

    async def _send_client(self, data: bytes | str, kind: WSMsgType = WSMsgType.TEXT) -> None:
        """Send a frame once the client reads. No-op if the client has disconnected."""
        if not self._is_client_open:
            return
        frame = data.encode() if isinstance(data, str) else data
        if self._kept_session is not None and kind is WSMsgType.TEXT:
            self._kept_session.note_event(frame, sent=True)
        self._is_sending = True
        try:
            await self._client.send_frame(frame, kind)
        except ConnectionError:
            self._is_client_open = False
            self._request_end(SessionEnd(WSCloseCode.GOING_AWAY, outcome="client_closed"))
        finally:
            self._is_sending = False
            self._answered_at = self._loop.time()  # restarts the timeout: the provider was not read

    async def _send_provider(self, data: bytes | str, kind: WSMsgType = WSMsgType.TEXT) -> None:
        with suppress(ConnectionError):  # the reading side finds the end of the connection, with its reason
            await self._provider.send_frame(data.encode() if isinstance(data, str) else data, kind)


def check_settings(
    services: Services, caller: Caller, settings: wire.Event, *, settings_field: str, channel: Channel
) -> None:
    """Raise an error if a session, response or item at ``settings_field`` has settings that ``channel`` does not allow.

    ``NotFound``: references to objects stored at the provider by others. ``InvalidRequest``: fields that change the
    price, or two transcription models. ``ModelNotAllowed``, ``ModelNotPriced``: a transcription model that the caller
    may not use, or that has no price.
    """
    for name in list_stored_references({"item": settings}):  # the items of its conversation are a session's own
        is_own = name.field == ITEM_REFERENCE or (name.field == "conversation" and name.id in _OWN_CONVERSATION)
        if not is_own and not allows(channel, name.field):
            raise make_not_found(settings_field + name.param.removeprefix("item"), name.field)
    if settings_field in wire.SETTINGS_OBJECTS:
        _check_priced(settings, settings_field, channel)
        _check_transcriber(services, caller, settings, settings_field)


def _check_priced(settings: wire.Event, settings_field: str, channel: Channel) -> None:
    """Raise ``InvalidRequest`` for a field that changes the price, such as a hosted tool, if the channel forbids it."""
    fields = PROVIDERS[channel.provider].priced_fields
    try:
        check_spelling(settings, {fold_name(name): name for name in fields})
        priced_fields = list_priced_fields(settings, fields)
    except errors.InvalidRequest as error:
        error.param = f"{settings_field}.{error.param}"
        raise
    for name in priced_fields:
        if not allows(channel, name):
            raise errors.InvalidRequest(
                f"'{settings_field}.{name}' changes what is billed, and the channel does not allow it (allow_fields)",
                param=f"{settings_field}.{name}",
            )


def _check_transcriber(services: Services, caller: Caller, settings: wire.Event, settings_field: str) -> None:
    transcribers = wire.list_transcribers(settings)
    if len({model for model, _ in transcribers}) > 1:
        raise errors.InvalidRequest(
            f"'{settings_field}' names two models for transcripts; name one",
            param=f"{settings_field}.input_audio_transcription.model",
        )
    for model, field_path in transcribers:
        caller.check_model(model)
        router = services.routing.router
        providers = {channel.provider for channel in router.catalog.channels}
        if all(router.pricing.find_price(model, model, provider) is None for provider in providers):
            router.pricing.check_priced(caller, model, param=f"{settings_field}.{field_path}")


def _make_crowded_end(side: str) -> SessionEnd:
    """Return the end of a session whose ``side`` sent a large frame while the memory for large frames was used up."""
    error = errors.Overloaded(
        f"The {side} of the session sent a large frame while too many bytes of large frames were under way; send audio "
        "in smaller events, or try again later",
        retry_after_s=5,
    )
    return SessionEnd(WSCloseCode.TRY_AGAIN_LATER, "too many large frames", "refused", error)


def _get_text(message: WSMessage) -> bytes:
    """Return the data of a text frame. Raises ``InvalidRequest`` for a binary frame, which could bypass the checks."""
    if message.type is WSMsgType.BINARY:
        raise errors.InvalidRequest("An event is a JSON object in a text frame, not a binary frame")
    data: bytes = message.data
    return data


def _parse_client_close(kind: WSMsgType) -> SessionEnd:
    """Return how the client ended the session: a close frame, a broken connection, or an invalid frame."""
    if kind is WSMsgType.CLOSE:
        return SessionEnd(WSCloseCode.OK)
    return SessionEnd(WSCloseCode.GOING_AWAY, outcome="client_closed")
