"""Background responses of the Responses API. Without a stream the gateway runs them itself, even if the provider could.

A provider reports the usage of a background response only when a client retrieves it, and clients need not do that. The
provider therefore gets an ordinary request, and the client gets a queued response to poll. If the gateway stops
meanwhile, the response fails. In a cluster the stored response names the node that generates it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import attrs
import orjson
import structlog
from aiohttp import web

from gateway.billing.settlement import find_outcome
from gateway.billing.step_reservation import keep_reserved
from gateway.domain.kept_response import KeptResponse
from gateway.domain.request_log import ID_PREFIX
from gateway.error_status import find_page
from gateway.errors import GatewayError, InternalError, InvalidRequest, ProviderBadResponse, ShuttingDown
from gateway.formats.chat.responses.failure import build_page
from gateway.formats.chat.responses.response_writer import ResponseStreamSerializer
from gateway.formats.chat.responses.responses import UNFINISHED_STATUSES
from gateway.formats.translator import ResponseIdentity
from gateway.large_work import run_by_size
from gateway.memory_budget import Loan
from gateway.proxy import forward
from gateway.proxy.active_requests import ActiveRequests
from gateway.server.active_inference import INFERENCE, ActiveInference
from gateway.server.client_ip import find_configured_url
from gateway.server.context import SERVICES, Services
from gateway.server.error_responses import add_doc_url
from gateway.server.handlers.inference import forward_inference
from gateway.server.responses import LargeResponse

_JSON_TYPE = "application/json"
_JSON_HEADERS = {"Content-Type": _JSON_TYPE}
_RESPONSE_ID_PREFIX = "resp_"
_NATIVE_WIRE = "openai_responses"
_MAKER_FIELD = "gateway_node"
"""The internal field of a stored response that names the process generating it (``Node.process``)."""
CANCELLED = "response_cancelled"
"""The cluster notification to cancel a response."""
_RESTARTED_TEXT = "The gateway was stopped while this response was made"
Body = dict[str, Any]
Keep = Callable[[bytes], None]

log = structlog.stdlib.get_logger(__name__)


async def forward_response(request: web.Request) -> web.StreamResponse:
    """Forward a request; answer a background request immediately with a queued response.

    A background request with ``stream`` gets its stream instead, which is read to the end even if the client
    disconnects, and can be taken up again (``get_response``). Raises ``InvalidRequest`` if the request cannot run in
    the background.
    """
    active = request[INFERENCE]
    ctx, inference = active.context, active.context.inference
    if inference.body.get("background") is not True:
        return await forward_inference(request)
    if inference.stream and any(target.endpoint.wire == _NATIVE_WIRE for target in ctx.target_list.targets):
        return await forward_inference(request, in_background=True)
    store_response = inference.keep
    if store_response is None:
        raise InvalidRequest("'background' only works for a response that is kept ('store')", param="background")
    if inference.stream:
        return await _stream_background(request, active, store_response)
    return LargeResponse(request, _start_background(request.app[SERVICES], active, store_response), _JSON_HEADERS)


async def _stream_background(request: web.Request, active: ActiveInference, store_response: Keep) -> web.StreamResponse:
    """Stream a response, to its end even if the client disconnects. Store it as in progress, and again when it ends."""
    services, ctx = active.services, active.context
    final_responses = list[bytes]()
    open_response = _prepare(services, active, final_responses.append) | {"status": "in_progress"}
    _store_open(services, store_response, open_response)
    try:
        return await forward_inference(request, in_background=True)
    finally:
        # The record exists unless the request ends with an exception, which a middleware settles.
        if final_responses and ctx.record is not None and ctx.record.outcome == "completed":
            store_response(_merge_fields(final_responses[0], {"background": True}))
        else:
            store_response(orjson.dumps(open_response | _describe_failure(active)))


def _describe_failure(active: ActiveInference) -> Body:
    if active.cancelled:
        return {"status": "cancelled", "error": None}
    error = ProviderBadResponse("The stream of this response was interrupted", phase="stream")
    return {"status": "failed", "error": _build_error(error, active)}


def _prepare(services: Services, active: ActiveInference, keep: Keep | None = None) -> Body:
    """Make the request an ordinary one, and route it again; return the queued response.

    ``keep`` gets the final response. Raises the errors of ``Router.route``.
    """
    ctx, inference = active.context, active.context.inference
    identity = ResponseIdentity(ctx.id.removeprefix(ID_PREFIX), inference.model, ctx.started_ms // 1000)
    queued_response = orjson.loads(ResponseStreamSerializer(inference, identity).build_response())
    queued_response |= {"status": "queued", "output": [], "usage": None}
    own_fields = {name: value for name, value in inference.body.items() if name != "background"}
    ctx.inference = attrs.evolve(inference, body=own_fields, keep=keep)
    ctx.target_list = services.routing.router.route(ctx.caller, ctx.inference)
    keep_reserved(ctx)
    return dict(queued_response)


def _store_open(services: Services, store_response: Keep, response: Body) -> None:
    node = services.storage.node
    store_response(orjson.dumps(response if node is None else response | {_MAKER_FIELD: node.process}))


def _start_background(services: Services, active: ActiveInference, store_response: Keep) -> bytes:
    ctx, queued_response = active.context, _prepare(services, active)
    raw = orjson.dumps(queued_response)
    _store_open(services, store_response, queued_response)
    loan, ctx.loan = ctx.loan, None  # the task needs the loan longer than the client's request
    active.outlives_client = True
    services.background.start(_run(services, active, store_response, queued_response, loan))
    return raw


async def _run(
    services: Services, active: ActiveInference, store_response: Keep, queued_response: Body, loan: Loan | None
) -> None:
    """Get the response, settle the request, and store the response or failure, unless cancelled. Closes ``loan``."""
    ctx = active.context
    services.drain.active_count += 1

    def keep(response: bytes) -> None:
        if active.exchange is not None:
            active.exchange.note_answer(response, _JSON_TYPE)
        store_response(response)

    try:
        answer = await forward.fetch(services.proxy, ctx)
        ctx.first_byte_at = active.loop.time()
        own_fields = {"id": queued_response["id"], "background": True}
        merged_body = await run_by_size(len(answer.body), _merge_fields, answer.body, own_fields)
        active.settle("completed")
        keep(merged_body)
    except GatewayError as gateway_error:
        active.settle(
            "interrupted" if isinstance(gateway_error, ShuttingDown) else find_outcome(gateway_error), gateway_error
        )
        failure: Body = {"status": "failed", "error": _build_error(gateway_error, active)}
        keep(orjson.dumps(queued_response | ({"status": "cancelled", "error": None} if active.cancelled else failure)))
    except asyncio.CancelledError:
        active.settle("interrupted")
        raise
    except Exception:
        log.exception("request_failed", request_id=ctx.id)  # no caller would report the bug of a background task
        internal_error = InternalError("Unexpected gateway error")
        active.settle("failed", internal_error)
        keep(orjson.dumps(queued_response | {"status": "failed", "error": _build_error(internal_error, active)}))
    finally:
        services.drain.active_count -= 1
        if loan is not None:
            loan.close()
        active.close_collectors()


def _merge_fields(encoded: bytes, fields: Body) -> bytes:
    return orjson.dumps(orjson.loads(encoded) | fields)


async def find_kept_response(
    services: Services, response_id: str, account_id: int, loan: Loan | None = None
) -> KeptResponse | None:
    """Return a stored response of the account; None if there is none. Its body is loaded only if ``loan`` is given.

    If the request of the response ends during the read, the state that was read may be outdated, and the response is
    read again. Raises ``RequestTooLarge`` or ``Overloaded``.
    """
    running = _is_active(services, response_id)
    owners, store = services.routing.response_owners, services.routing.kept_responses
    if owners.pauses_s and not running:
        located = await owners.locate(response_id, account_id)
        response = located if isinstance(located, KeptResponse) else None
    else:
        response = await store.find(response_id, account_id)
        if running and not _is_active(services, response_id):
            response = await store.find(response_id, account_id)
    if response is None or loan is None:
        return response
    loaded_response = await store.load(response, loan)
    if running and not _is_active(services, response_id) and loaded_response is not None:
        await store.close()
        loan.close()
        loaded_response = await store.load(response, loan)
    return loaded_response


def read_kept_response(services: Services, response: KeptResponse) -> bytes:
    """Return the current JSON of a stored response.

    The status of an unfinished one is "failed" if no request generates it any more.
    """
    node = services.storage.node
    if _is_active(services, response.id) and node is None:
        return response.body
    body = orjson.loads(response.body)
    if body.get("status") not in UNFINISHED_STATUSES:
        return response.body
    maker = body.pop(_MAKER_FIELD, None)
    if _is_active(services, response.id) or (node is not None and maker is not None and node.may_be_alive(maker)):
        return orjson.dumps(body)
    error = ShuttingDown(_RESTARTED_TEXT)
    error.doc_url = find_page(error.public_code, find_configured_url(services.http.base_url))
    failure = {"code": "server_error", "message": _RESTARTED_TEXT, **build_page(error)}
    return orjson.dumps(body | {"status": "failed", "error": failure})


def cancel_kept_response(services: Services, response: KeptResponse) -> bytes:
    """Cancel a stored response and return it as cancelled, or as it is if no process generates it any more.

    Raises ``InvalidRequest`` if it is no background response.
    """
    body = orjson.loads(response.body)
    if body.get("background") is not True:
        raise InvalidRequest("Only a response that was created with 'background' can be cancelled", param="id")
    maker = body.pop(_MAKER_FIELD, None)
    if not cancel_active(services.active_requests, response.id):
        node = services.storage.node
        if node is None or maker is None or not node.may_be_alive(maker):
            return read_kept_response(services, response)
        node.notifications.publish(CANCELLED, response.id)
    return orjson.dumps(body | {"status": "cancelled"})


def cancel_active(active_requests: ActiveRequests, response_id: str) -> bool:
    """Cancel a response that this process is generating; return False if it generates no such response."""
    active = _find_active(active_requests, response_id)
    if active is not None:
        active.cancel()
    return active is not None


def _is_active(services: Services, response_id: str) -> bool:
    return _find_active(services.active_requests, response_id) is not None


def _find_active(active_requests: ActiveRequests, response_id: str) -> Any:
    return active_requests.calls.get(f"{ID_PREFIX}{response_id.removeprefix(_RESPONSE_ID_PREFIX)}")


def _build_error(error: GatewayError, active: ActiveInference) -> Body:
    add_doc_url(error, active.request)
    return {"code": "server_error", "message": error.message, **build_page(error)}
