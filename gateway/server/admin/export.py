"""Requests as a file: read a page at a time, written as fast as it is read, and ended when nobody reads it any more."""

import asyncio
import csv
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs
import orjson
from aiohttp import web

from gateway.domain.audit_log import Actor
from gateway.domain.request_log import StoredRequest
from gateway.errors import ClientDisconnected, InvalidRequest, Overloaded
from gateway.server.admin.operation import AdminOperation, Query
from gateway.server.admin.request_history import walk
from gateway.server.admin.requests import FILTERS, ROW, read_filter, write_row
from gateway.server.auth import check_still_signed
from gateway.server.context import ACTOR, OFFICE, ROOMS
from gateway.server.openapi import schema as s
from gateway.server.responses import await_reader

_COLUMNS: tuple[str, ...] = tuple(ROW["properties"])
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Row = dict[str, Any]


@attrs.frozen
class Format:
    """A kind of file: how it begins, and what rows are in it."""

    media_type: str
    head: bytes
    write: Callable[[Sequence[Row]], bytes]


def format_csv(rows: Sequence[Sequence[Any]]) -> bytes:
    """Lines of RFC 4180.

    A text that begins like a formula has an apostrophe before it: a spreadsheet would run what a caller has put into
    the name of a model (OWASP, "CSV Injection").
    """
    text = io.StringIO(newline="")
    csv.writer(text).writerows([_format_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _format_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _format_csv_rows(rows: Sequence[Row]) -> bytes:
    return format_csv([[row[name] for name in _COLUMNS] for row in rows])


def _format_lines(rows: Sequence[Row]) -> bytes:
    return b"".join(orjson.dumps({name: row[name] for name in _COLUMNS}) + b"\n" for row in rows)


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "csv": Format("text/csv", format_csv([_COLUMNS]), _format_csv_rows),
        "jsonl": Format("application/jsonl", b"", _format_lines),
    },
)


async def export_requests(request: web.Request) -> web.StreamResponse:
    """The list's rows, all of them, as a file: CSV (RFC 4180) with a line of names, or a JSON object a line.

    The newest come first, and no more than a million: for older ones ask again with `until`. In CSV a text that begins
    with `=`, `+`, `-` or `@` has an apostrophe before it, so that no spreadsheet takes it for a formula. Where the file
    breaks off, so does the connection.
    """
    name, actor = request.query.get("format", "csv"), request[ACTOR]
    if name not in FORMATS:
        raise InvalidRequest(f"'format' must be one of {', '.join(FORMATS)}", param="format")
    wanted, history, form = await read_filter(request), request.app[OFFICE].history, FORMATS[name]
    headers = {"Content-Disposition": f'attachment; filename="requests.{name}"', "Cache-Control": "no-store"}
    response = web.StreamResponse(headers=headers)
    response.content_type, response.charset = form.media_type, "utf-8"
    with history.exporting(actor.scope):
        async with aclosing(walk(history.log, wanted)) as pages:
            first = await anext(pages)  # what is wrong with the store can still be told
            await response.prepare(request)
            try:
                await _send(request, response, form.head + form.write(_format_rows(first, actor)))
                checked_at = asyncio.get_running_loop().time()
                async for page in pages:
                    checked_at = await _check(request, checked_at)
                    await _send(request, response, form.write(_format_rows(page, actor)))
                await response.write_eof()
            except ConnectionError:
                raise ClientDisconnected from None
    return response


EXPORT_DOORS: tuple[AdminOperation, ...] = (
    AdminOperation(
        "GET",
        "/requests/export",
        export_requests,
        "viewer",
        query=(Query("format", "What kind of file.", s.one_of(*FORMATS)), *FILTERS),
        media_type="text/csv",
    ),
)


def _format_rows(page: Sequence[StoredRequest], actor: Actor) -> list[Row]:
    return [write_row(stored, actor) for stored in page]


async def _send(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Raises ``ConnectionError`` where nobody reads any more."""
    if request.transport is None:
        raise ConnectionResetError("the caller left")
    if data:
        await await_reader(partial(response.write, data), request.transport)


async def _check(request: web.Request, checked_at: float) -> float:
    """Whether it may go on, looked at now and then; when it was. Raises a fault, and the connection breaks off."""
    if not request.app[ROOMS].gate.open:
        raise Overloaded("The gateway is shutting down", retry_after_s=5)
    now = asyncio.get_running_loop().time()
    if now - checked_at < request.app[OFFICE].history.again_s:
        return checked_at
    await check_still_signed(request)
    return now
