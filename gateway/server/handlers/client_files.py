"""``/v1/files`` and ``/v1/uploads``: files that the gateway stores for an account."""

import attrs
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.domain.client_file import MAX_PART_BYTES, ClientFile, FileFilter, is_client_id
from gateway.errors import InvalidRequest
from gateway.formats.files import (
    build_deleted_file,
    build_file,
    build_list,
    build_part,
    build_upload,
    find_file,
    parse_completion,
    parse_file_form,
    parse_upload,
)
from gateway.formats.wire.form import ReceivedForm
from gateway.formats.wire.request_body import Body
from gateway.media.client_files import ReceivedFile
from gateway.server.client_ip import check_client_ip
from gateway.server.context import CALLER, SERVICES
from gateway.server.error_responses import VERSION_HEADER
from gateway.server.handlers.media import build_file_response, check_dates
from gateway.server.middlewares import with_middlewares
from gateway.server.multipart import FormLimits, MultipartReader
from gateway.server.request_body import read_json
from gateway.server.responses import LargeResponse
from gateway.server.sessions import check_still_signed_in
from gateway.server.unserved_paths import refuse_unserved

MAX_PAGE_ROWS = 10_000
_UNBOUNDED_BYTES = 1024**4
_FORM_BYTES = 64 * 1024
"""Bytes allowed for the text fields and the boundaries of a form, in addition to the file."""
PRIVATE_HEADERS = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}


async def refuse_anthropic(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 501 to clients of the Anthropic API, whose files have the same paths but a different format."""
    return await (refuse_unserved if VERSION_HEADER in request.headers else handler)(request)


async def post_file(request: web.Request) -> web.Response:
    """``POST /v1/files``: store a file."""
    files = request.app[SERVICES].files.files
    limit = files.rules.max_bytes or _UNBOUNDED_BYTES
    received_file = files.receive()
    try:
        form = await _read_form(request, received_file, limit)
        file = await files.add(parse_file_form(form), request[CALLER], received_file.draft, received_file.size)
    finally:
        received_file.close()
    return _answer(request, build_file(file))


async def _read_form(request: web.Request, received_file: ReceivedFile, limit: int) -> ReceivedForm:
    """Read a form with one file of at most ``limit`` bytes.

    Then the caller is checked again, because reading may take minutes. Raises the errors of a caller who may no longer
    send the request.
    """
    services, caller = request.app[SERVICES], request[CALLER]
    await services.billing.quota.check_rate(caller)
    limits = attrs.evolve(
        services.http.form_limits, max_body_bytes=limit + _FORM_BYTES, max_file_bytes=limit, max_files=1
    )
    form = await _make_reader(request, received_file, limits).read()
    await check_still_signed_in(request)
    refreshed_caller = services.auth.api_keys.refresh(caller)
    if refreshed_caller is not caller:
        request[CALLER] = refreshed_caller
        check_client_ip(request, refreshed_caller)
    return form


def _make_reader(request: web.Request, received_file: ReceivedFile, limits: FormLimits) -> MultipartReader:
    spool = request.app[SERVICES].media.spool
    return MultipartReader(request, spool, limits, account_id=request[CALLER].account.id, sink=received_file)


async def get_files(request: web.Request) -> web.Response:
    """``GET /v1/files``: the account's files, paginated."""
    page_filter = _read_page(request)
    files_page = await request.app[SERVICES].files.files.list_files(
        attrs.evolve(page_filter, limit=page_filter.limit + 1)
    )
    page = [build_file(file) for file in files_page[: page_filter.limit]]
    return _answer(request, build_list(page, has_more=len(files_page) > len(page)))


def _read_page(request: web.Request) -> FileFilter:
    query = request.query
    order = query.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise InvalidRequest("'order' must be 'asc' or 'desc'", param="order")
    return FileFilter(
        request[CALLER].account.id,
        request.app[SERVICES].files.files.now_ms,
        read_limit(request, MAX_PAGE_ROWS, MAX_PAGE_ROWS),
        query.get("purpose") or None,
        read_after_id(request, "file-"),
        newest_first=order == "desc",
    )


def read_limit(request: web.Request, default: int, maximum: int) -> int:
    """Return a list's page size from the parameter ``limit``. Raises ``InvalidRequest``."""
    text = request.query.get("limit", str(default))
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(maximum)) and 0 < int(text) <= maximum):
        raise InvalidRequest(f"'limit' must be a whole number from 1 to {maximum}", param="limit")
    return int(text)


def read_after_id(request: web.Request, prefix: str) -> str | None:
    """Return the id in a list's parameter ``after``; None if it is missing. Raises ``InvalidRequest``."""
    after_id = request.query.get("after") or None
    if after_id is not None and not is_client_id(after_id, prefix):
        raise InvalidRequest(f"'after' must be an id such as {prefix}…", param="after")
    return after_id


async def get_file(request: web.Request) -> web.Response:
    """``GET /v1/files/{id}``: the metadata of a file."""
    return _answer(request, build_file(await _find_file(request)))


async def get_content(request: web.Request) -> web.StreamResponse:
    """``GET /v1/files/{id}/content``: the content of a file, or a range of it."""
    check_dates(request)
    file = await _find_file(request)
    media = await request.app[SERVICES].files.files.open(file)
    disposition = f'attachment; filename="{file.id}"'
    response = build_file_response(media, PRIVATE_HEADERS | {"Content-Disposition": disposition})
    await response.prepare(request)
    return response


async def delete_file(request: web.Request) -> web.Response:
    """``DELETE /v1/files/{id}``: delete a file."""
    file = await _find_file(request)
    await request.app[SERVICES].files.files.remove(file)
    return _answer(request, build_deleted_file(file.id))


async def _find_file(request: web.Request) -> ClientFile:
    return await request.app[SERVICES].files.files.get(request.match_info["id"], request[CALLER].account.id)


async def post_upload(request: web.Request) -> web.Response:
    """``POST /v1/uploads``: begin the upload of a file in parts."""
    new_upload = parse_upload(await read_json(request))
    upload = await request.app[SERVICES].files.uploads.create(
        new_upload.file, new_upload.mime_type, new_upload.bytes, request[CALLER]
    )
    return _answer(request, build_upload(upload, upload.status))


async def post_part(request: web.Request) -> web.Response:
    """``POST /v1/uploads/{id}/parts``: add a part."""
    services = request.app[SERVICES].files
    upload = await services.uploads.find_pending_upload(request.match_info["id"], request[CALLER].account.id)
    received_file = services.files.receive()
    try:
        find_file(await _read_form(request, received_file, MAX_PART_BYTES), "data")
        upload_part = await services.uploads.add_part(upload, received_file.draft, received_file.size)
    finally:
        received_file.close()
    return _answer(request, build_part(upload_part))


async def complete_upload(request: web.Request) -> web.Response:
    """``POST /v1/uploads/{id}/complete``: join the parts into a file."""
    uploads = request.app[SERVICES].files.uploads
    completion = parse_completion(await read_json(request))
    upload = await uploads.find_pending_upload(request.match_info["id"], request[CALLER].account.id)
    file = await uploads.complete(upload, completion.part_ids, completion.md5)
    return _answer(request, build_upload(upload, "completed", file))


async def cancel_upload(request: web.Request) -> web.Response:
    """``POST /v1/uploads/{id}/cancel``: cancel an upload."""
    uploads = request.app[SERVICES].files.uploads
    upload = await uploads.find_pending_upload(request.match_info["id"], request[CALLER].account.id)
    await uploads.cancel(upload)
    return _answer(request, build_upload(upload, "cancelled"))


def _answer(request: web.Request, body: Body) -> web.Response:
    return LargeResponse(request, orjson.dumps(body), {"Content-Type": "application/json"})


POST_FILE, GET_FILES, GET_FILE, DELETE_FILE, GET_CONTENT = (
    with_middlewares(handler, [refuse_anthropic])
    for handler in (post_file, get_files, get_file, delete_file, get_content)
)
"""The handlers of paths that the Anthropic API also has."""
