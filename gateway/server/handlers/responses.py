"""Operations on existing responses of the Responses API: get, list input items, delete, cancel.

Requests about a response stored at its provider are forwarded. Translated responses are stored by the gateway.
"""

from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

from aiohttp import web

from gateway.domain import exact_json
from gateway.domain.channel import Channel
from gateway.domain.kept_response import KeptResponse
from gateway.errors import InvalidRequest
from gateway.formats.chat.responses.response_to_stream import build_whole
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.large_work import run_by_size
from gateway.memory_budget import Loan
from gateway.routing.kept_responses import make_response_not_found
from gateway.routing.provider_response import ask_provider
from gateway.server.background_responses import cancel_kept_response, find_kept_response, read_kept_response
from gateway.server.context import CALLER, SERVICES
from gateway.server.response_events import STARTING_AFTER, parse_sequence_number, pass_response_on, send_response_events
from gateway.server.responses import LargeResponse
from gateway.server.stream_events import StreamInterrupted

if TYPE_CHECKING:  # only if a stream is kept
    from gateway.proxy.resumable_streams import ResumableStream

DEFAULT_PAGE_ROWS = 20
MAX_PAGE_ROWS = 100
_LIMIT_TEXTS = frozenset(map(str, range(1, MAX_PAGE_ROWS + 1)))
_JSON_HEADERS = {"Content-Type": "application/json"}
_EVENT_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
_FORWARDED_PARAMETERS = ("after", "before", "limit", "order")
_FLAG_VALUES = {"true": True, "false": False}
Item = dict[str, Any]


async def get_response(request: web.Request) -> web.StreamResponse:
    """``GET /v1/responses/{id}``: the response; with ``stream=true``, as a stream of events.

    With ``starting_after``, the stream has the events after that ``sequence_number``. Raises ``InvalidRequest`` if a
    parameter is malformed, ``StreamInterrupted`` if those events are not kept, and the errors of ``_ask_owner``.
    """
    streamed = _FLAG_VALUES.get(request.query.get("stream", "false"))
    if streamed is None:
        raise InvalidRequest("'stream' must be true or false", param="stream")
    if streamed and (response := await _send_kept_events(request)) is not None:
        return response
    loan = Loan(request.app[SERVICES].memory)
    kept_response = await _find_kept_response(request, loan)
    if kept_response is None:
        body = await _ask_owner(request)
    else:
        body = await run_by_size(len(kept_response.body), read_kept_response, request.app[SERVICES], kept_response)
    if not streamed:
        return LargeResponse(request, body, _JSON_HEADERS, loan)
    inference = parse_responses_inference({"model": "none", "input": ""})
    events, _ = await run_by_size(len(body), build_whole, body, inference)
    return LargeResponse(request, events, _EVENT_HEADERS, loan)


async def _send_kept_events(request: web.Request) -> web.StreamResponse | None:
    """Send the events of a background response that this or another node keeps; return None if none does.

    Raises ``InvalidRequest``, ``ClientDisconnected``, and ``StreamInterrupted`` if the request has ``starting_after``
    but no node keeps the events.
    """
    text = request.query.get(STARTING_AFTER)
    sequence = parse_sequence_number(text)
    if (stream := _find_stream(request)) is not None:
        return await send_response_events(request, stream, text)
    response = await pass_response_on(request)
    if response is None and sequence is not None:
        raise StreamInterrupted("The events of this response are not kept: get it without 'stream'")
    return response


def _find_stream(request: web.Request) -> "ResumableStream | None":
    streams = request.app[SERVICES].open_streams.instance
    return None if streams is None else streams.find_response(request.match_info["id"], request[CALLER].account.id)


def _forget_stream(request: web.Request) -> None:
    streams = request.app[SERVICES].open_streams.instance
    if streams is not None and (stream := _find_stream(request)) is not None:
        streams.forget(stream)


async def get_input_items(request: web.Request) -> web.Response:
    """``GET /v1/responses/{id}/input_items``: the input of the response, paginated.

    Raises ``InvalidRequest`` if a parameter is malformed, ``NotFound``, and the errors of ``_ask_owner``.
    """
    limit, order = request.query.get("limit", str(DEFAULT_PAGE_ROWS)), request.query.get("order", "desc")
    if limit not in _LIMIT_TEXTS:
        raise InvalidRequest(f"'limit' must be a whole number from 1 to {MAX_PAGE_ROWS}", param="limit")
    if order not in {"asc", "desc"}:
        raise InvalidRequest("'order' must be 'asc' or 'desc'", param="order")
    kept_response = await _find_kept_response(request)
    if kept_response is None:
        query = urlencode([(name, request.query[name]) for name in _FORWARDED_PARAMETERS if name in request.query])
        return LargeResponse(request, await _ask_owner(request, subpath=f"/input_items?{query}"), _JSON_HEADERS)
    services = request.app[SERVICES]
    loan = Loan(services.memory)
    items = _list_items(kept_response, await services.routing.kept_responses.load_items(kept_response, loan))
    if order == "desc":
        items.reverse()
    after_id = request.query.get("after")
    if after_id:
        index = next((index for index, item in enumerate(items) if item["id"] == after_id), None)
        if index is None:
            raise InvalidRequest("'after' must be the id of an item", param="after")
        items = items[index + 1 :]
    page = items[: int(limit)]
    body = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }
    return LargeResponse(request, exact_json.dumps(body), _JSON_HEADERS, loan)


async def delete_response(request: web.Request) -> web.Response:
    """``DELETE /v1/responses/{id}``: delete the response."""
    services, response_id = request.app[SERVICES], request.match_info["id"]
    kept_response = await _find_kept_response(request)
    if kept_response is None:
        answer_body = await _ask_owner(request, "DELETE")
        _forget_stream(request)
        await services.routing.response_owners.forget(response_id)
        return LargeResponse(request, answer_body, _JSON_HEADERS)
    await services.routing.kept_responses.delete(kept_response)
    _forget_stream(request)
    body = {"id": kept_response.id, "object": "response", "deleted": True}
    return LargeResponse(request, exact_json.dumps(body), _JSON_HEADERS)


async def cancel_response(request: web.Request) -> web.Response:
    """``POST /v1/responses/{id}/cancel``: cancel a background response."""
    loan = Loan(request.app[SERVICES].memory)
    kept_response = await _find_kept_response(request, loan)
    if kept_response is not None:
        return LargeResponse(request, cancel_kept_response(request.app[SERVICES], kept_response), _JSON_HEADERS, loan)
    return LargeResponse(request, await _ask_owner(request, "POST", subpath="/cancel"), _JSON_HEADERS)


async def _find_kept_response(request: web.Request, loan: Loan | None = None) -> KeptResponse | None:
    return await find_kept_response(request.app[SERVICES], request.match_info["id"], request[CALLER].account.id, loan)


async def _ask_owner(
    request: web.Request, method: Literal["GET", "POST", "DELETE"] = "GET", subpath: str = ""
) -> bytes:
    """Forward the request to the channel that created the response, as one of the caller's concurrent requests.

    Raises ``NotFound``, ``RateLimited``, ``Overloaded``, ``ProviderError``.
    """
    services, caller, response_id = request.app[SERVICES], request[CALLER], request.match_info["id"]
    owner = await services.routing.response_owners.find(response_id, caller.account.id)
    channel = None if owner is None else _find_channel(request, owner.channel)
    if channel is None:
        raise make_response_not_found(response_id)
    async with services.billing.quota.enter(caller):
        now_s = int(services.clock())
        return await ask_provider(services.client, channel, response_id, method, path_suffix=subpath, now_s=now_s)


def _find_channel(request: web.Request, name: str) -> Channel | None:
    state = request.app[SERVICES].routing.load_balancer.channels.get(name)
    return None if state is None else state.channel


def _list_items(kept_response: KeptResponse, conversation: list[Item]) -> list[Item]:
    digits = kept_response.id.removeprefix("resp_")
    items: list[Item] = []
    for index, item in enumerate(conversation):
        list_item = {"type": "message", "id": f"in_{digits}_{index}", **item}
        if list_item["type"] == "message" and isinstance(text := item.get("content"), str):
            kind = "output_text" if item.get("role") == "assistant" else "input_text"
            content_part = {"type": kind, "text": text}
            list_item["content"] = [
                content_part if kind == "input_text" else {**content_part, "annotations": [], "logprobs": []}
            ]
            list_item.setdefault("status", "completed")
        items.append(list_item)
    return items
