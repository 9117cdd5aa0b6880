"""Admin API: export the request log as a file, page by page, at the client's pace."""

import asyncio
import csv
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Any

import orjson
from aiohttp import web

from gateway.domain.audit_log import Actor
from gateway.domain.request_log import StoredRequest
from gateway.errors import ClientDisconnected, InvalidRequest, Overloaded
from gateway.frozen import frozen
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.operation import Access, check_access
from gateway.server.admin.request_history import list_pages
from gateway.server.admin.requests import FILTER_QUERIES, RequestView, build_row, parse_filter
from gateway.server.openapi import schema as s
from gateway.server.responses import await_reader
from gateway.server.sessions import check_still_signed_in

_COLUMNS = (
    "sequence", "id", "started_at", "settled_at", "started_ms", "settled_ms", "operation", "account_id", "account",
    "key_id", "key_name", "model", "channel", "status", "outcome", "error_code", "error", "stream", "attempts", "tried",
    "prompt_tokens", "completion_tokens", "cached_tokens", "usage_source", "usage_capped", "usage_implausible",
    "images", "duration_ms", "characters", "cost_usd", "cost_nanos", "reserved_nanos", "overrun_nanos",
    "first_byte_ms", "total_ms", "client_request_id", "unpriced", "batch_id", "batch_multiplier_ppm", "adapted",
    "served_model", "units", "route", "saved_usd", "saved_nanos", "shadow", "end_user", "session", "tags", "queued_ms",
    "limit_charges", "replay_of", "cache", "agreement_ppm", "agreed_on",
)  # fmt: skip
_read_row = attrgetter(*_COLUMNS)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@frozen
class ExportFormat:
    """A file format: the file's header, and the function that formats rows."""

    media_type: str
    header: bytes
    write: Callable[[Sequence[RequestView]], bytes]


def format_csv(rows: Sequence[Sequence[Any]]) -> bytes:
    """Format rows as CSV (RFC 4180).

    A text that begins like a formula gets an apostrophe before it. Otherwise a spreadsheet would run a formula that a
    client has put into the name of a model (OWASP, "CSV Injection").
    """
    text = io.StringIO(newline="")
    csv.writer(text).writerows([_format_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _format_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f")  # a spreadsheet reads 2.16e-05 as text
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value


def _format_csv_rows(rows: Sequence[RequestView]) -> bytes:
    return format_csv([_read_row(row) for row in rows])


def _format_lines(rows: Sequence[RequestView]) -> bytes:
    return b"".join(orjson.dumps(dict(zip(_COLUMNS, _read_row(row), strict=True))) + b"\n" for row in rows)


FORMATS: Mapping[str, ExportFormat] = {
    "csv": ExportFormat("text/csv", format_csv([_COLUMNS]), _format_csv_rows),
    "jsonl": ExportFormat("application/jsonl", b"", _format_lines),
}


@admin_operation(
    query=(Query("format", "The file format.", s.one_of(*FORMATS)), *FILTER_QUERIES), media_type="text/csv"
)
async def export_requests(request: AdminRequest) -> web.StreamResponse:
    """Export all requests that the filters match, as CSV (RFC 4180, with a header line) or as JSON lines.

    The newest come first, and at most a million: for older ones export again with `until`. In CSV a text that begins
    with `=`, `+`, `-`, `@`, a tab or a carriage return gets an apostrophe before it, so that no spreadsheet takes it
    for a formula. If the export fails halfway, the connection breaks off.
    """
    name, actor = request.query.get("format", "csv"), request.actor
    if name not in FORMATS:
        raise InvalidRequest(f"'format' must be one of {', '.join(FORMATS)}", param="format")
    await request.services.billing.flusher.store_waiting()
    request_filter, history, export_format = await parse_filter(request), request.services.admin.history, FORMATS[name]
    headers = {"Content-Disposition": f'attachment; filename="requests.{name}"', "Cache-Control": "no-store"}
    response = web.StreamResponse(headers=headers)
    response.content_type, response.charset = export_format.media_type, "utf-8"
    with history.exporting(actor.scope):
        async with aclosing(list_pages(history.log, request_filter)) as pages:
            first_page = await anext(pages)  # fetched before the headers are sent, while an error can still be reported
            await response.prepare(request.http)
            try:
                await send_piece(
                    request, response, export_format.header + export_format.write(_format_rows(first_page, actor))
                )
                checked_at = asyncio.get_running_loop().time()
                async for page in pages:
                    checked_at = await check_allowed(request, checked_at)
                    await send_piece(request, response, export_format.write(_format_rows(page, actor)))
                await response.write_eof()
            except ConnectionError:
                raise ClientDisconnected from None
    return response


def _format_rows(page: Sequence[StoredRequest], actor: Actor) -> list[RequestView]:
    return [build_row(row, actor, RequestView) for row in page]


async def send_piece(request: AdminRequest, response: web.StreamResponse, data: bytes) -> None:
    """Send a piece of an export at the client's pace. Raises ``ConnectionResetError`` if the client has left."""
    if request.http.transport is None:
        raise ConnectionResetError("the client has disconnected")
    if data:
        await await_reader(partial(response.write, data), request.http.transport)


async def check_allowed(request: AdminRequest, checked_at: float, access: Access = "anyone") -> float:
    """Check the shutdown and, every ``retry_s`` seconds, the session; return when the session was last checked.

    Raises ``Overloaded`` if the gateway shuts down, and another ``GatewayError`` if the session has ended, or if its
    member no longer has the right ``access``.
    """
    if not request.services.drain.open:
        raise Overloaded("The gateway is shutting down", retry_after_s=5)
    now = asyncio.get_running_loop().time()
    if now - checked_at < request.services.admin.history.retry_s:
        return checked_at
    user = await check_still_signed_in(request.http)
    if user is not None:
        check_access(user.member, access)
    return now
