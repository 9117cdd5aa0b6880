"""``/v1/messages/batches``: batches of requests that the gateway processes in the background, in Anthropic's format."""

import orjson
from aiohttp import web

from gateway.domain.batch import MESSAGES_PREFIX, Batch, BatchFilter
from gateway.domain.client_file import is_client_id
from gateway.domain.keep_rule import KEEP_HEADER
from gateway.domain.keep_wish import parse_keep_wish
from gateway.errors import InvalidRequest, NotFound
from gateway.formats.batches.anthropic import build_deletion, build_message_batch, build_page, parse_requests
from gateway.server.anthropic_headers import parse_anthropic_headers
from gateway.server.client_ip import find_origin
from gateway.server.context import CALLER, SERVICES
from gateway.server.handlers.batches import check_no_budget
from gateway.server.handlers.client_files import PRIVATE_HEADERS, read_limit
from gateway.server.handlers.media import build_file_response, check_dates
from gateway.server.request_body import read_json
from gateway.server.responses import LargeResponse

DEFAULT_PAGE_ROWS, MAX_PAGE_ROWS = 20, 1000


async def post_message_batch(request: web.Request) -> web.Response:
    """``POST /v1/messages/batches``: create a batch from a list of requests."""
    check_no_budget(request)
    headers = parse_anthropic_headers(request.headers)
    requests = parse_requests(await read_json(request, exact=True))
    wish = parse_keep_wish(request.headers.getall(KEEP_HEADER, ()))
    batch = await request.app[SERVICES].batches.create_messages(requests, headers, request[CALLER], wish)
    return _answer(request, batch)


async def get_message_batches(request: web.Request) -> web.Response:
    """``GET /v1/messages/batches``: the account's batches, newest first, paginated. Raises ``InvalidRequest``."""
    limit = read_limit(request, DEFAULT_PAGE_ROWS, MAX_PAGE_ROWS)
    after_id, before_id = _read_id(request, "after_id"), _read_id(request, "before_id")
    if after_id is not None and before_id is not None:
        raise InvalidRequest("Either 'after_id' or 'before_id', not both", param="before_id")
    batch_filter = BatchFilter(request[CALLER].account.id, MESSAGES_PREFIX, after=after_id, before=before_id)
    batches = list(await request.app[SERVICES].batches.list_batches(batch_filter, limit + 1))
    page = batches[:limit]
    body = build_page(page if before_id is None else page[::-1], find_origin(request), has_more=len(batches) > limit)
    return LargeResponse(request, orjson.dumps(body), {"Content-Type": "application/json"})


async def get_message_batch(request: web.Request) -> web.Response:
    """``GET /v1/messages/batches/{id}``: a batch."""
    return _answer(request, await _find_batch(request))


async def get_results(request: web.Request) -> web.StreamResponse:
    """``GET /v1/messages/batches/{id}/results``: the results of a batch that has ended, as JSON lines.

    Raises ``NotFound`` while the batch is in progress.
    """
    check_dates(request)
    batch, files = await _find_batch(request), request.app[SERVICES].files.files
    if not batch.ended:
        raise NotFound("The batch has no results until it has ended", param="id", should_retry=False)
    if batch.output_file_id is None:
        raise NotFound("The batch has no results", param="id", should_retry=False)
    media = await files.open(await files.get(batch.output_file_id, batch.account_id))
    response = build_file_response(media, PRIVATE_HEADERS | {"Content-Type": "application/x-jsonl"})
    await response.prepare(request)
    return response


async def cancel_message_batch(request: web.Request) -> web.Response:
    """``POST /v1/messages/batches/{id}/cancel``: cancel a batch; requests in progress may finish."""
    batch = await _find_batch(request)
    return _answer(request, await request.app[SERVICES].batches.cancel(batch.id, batch.account_id))


async def delete_message_batch(request: web.Request) -> web.Response:
    """``DELETE /v1/messages/batches/{id}``: delete a batch that has ended, with its results."""
    batch = await _find_batch(request)
    await request.app[SERVICES].batches.delete(batch)
    return LargeResponse(request, orjson.dumps(build_deletion(batch.id)), {"Content-Type": "application/json"})


async def _find_batch(request: web.Request) -> Batch:
    batches, account_id = request.app[SERVICES].batches, request[CALLER].account.id
    return await batches.get(request.match_info["id"], account_id, MESSAGES_PREFIX)


def _read_id(request: web.Request, name: str) -> str | None:
    text = request.query.get(name) or None
    if text is not None and not is_client_id(text, MESSAGES_PREFIX):
        raise InvalidRequest(f"'{name}' must be an id such as {MESSAGES_PREFIX}…", param=name)
    return text


def _answer(request: web.Request, batch: Batch) -> web.Response:
    body = orjson.dumps(build_message_batch(batch, find_origin(request)))
    return LargeResponse(request, body, {"Content-Type": "application/json"})
