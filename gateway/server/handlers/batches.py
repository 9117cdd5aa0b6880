"""``/v1/batches``: batches of requests that the gateway processes in the background, in OpenAI's format."""

import orjson
from aiohttp import web

from gateway.deferred import load
from gateway.domain.attribution import BUDGET_HEADER
from gateway.domain.batch import PREFIX, Batch, BatchFilter
from gateway.domain.keep_rule import KEEP_HEADER
from gateway.domain.keep_wish import parse_keep_wish
from gateway.formats.batches.openai import build_batch, parse_batch
from gateway.formats.files import build_list
from gateway.server.context import CALLER, SERVICES
from gateway.server.handlers.client_files import read_after_id, read_limit
from gateway.server.request_body import read_json
from gateway.server.responses import LargeResponse

DEFAULT_PAGE_ROWS, MAX_PAGE_ROWS = 20, 100


async def post_batch(request: web.Request) -> web.Response:
    """``POST /v1/batches``: create a batch from a file of requests."""
    check_no_budget(request)
    new_batch = parse_batch(await read_json(request))
    wish = parse_keep_wish(request.headers.getall(KEEP_HEADER, ()))
    return _answer(request, await request.app[SERVICES].batches.create(new_batch, request[CALLER], wish))


async def get_batches(request: web.Request) -> web.Response:
    """``GET /v1/batches``: the account's batches, paginated."""
    limit, after_id = read_limit(request, DEFAULT_PAGE_ROWS, MAX_PAGE_ROWS), read_after_id(request, PREFIX)
    batch_filter = BatchFilter(request[CALLER].account.id, PREFIX, after=after_id)
    batches = await request.app[SERVICES].batches.list_batches(batch_filter, limit + 1)
    body = build_list([build_batch(batch) for batch in batches[:limit]], has_more=len(batches) > limit)
    return LargeResponse(request, orjson.dumps(body), {"Content-Type": "application/json"})


async def get_batch(request: web.Request) -> web.Response:
    """``GET /v1/batches/{id}``: a batch."""
    batches = request.app[SERVICES].batches
    return _answer(request, await batches.get(request.match_info["id"], request[CALLER].account.id, PREFIX))


async def cancel_batch(request: web.Request) -> web.Response:
    """``POST /v1/batches/{id}/cancel``: cancel a batch; requests in progress may finish."""
    batches, account_id = request.app[SERVICES].batches, request[CALLER].account.id
    batch = await batches.get(request.match_info["id"], account_id, PREFIX)
    return _answer(request, await batches.cancel(batch.id, account_id))


def check_no_budget(request: web.Request) -> None:
    """Raise ``InvalidRequest`` if a request that creates a batch has a budget."""
    if BUDGET_HEADER in request.headers:
        raise load("server.request_checks:make_budget_refusal")("not available for batches; limit the key instead")


def _answer(request: web.Request, batch: Batch) -> web.Response:
    return LargeResponse(request, orjson.dumps(build_batch(batch)), {"Content-Type": "application/json"})
