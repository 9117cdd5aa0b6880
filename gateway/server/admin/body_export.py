"""Admin API: export kept bodies as JSON lines, and sign a statement of what is kept and what was deleted."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from aiohttp import web

from gateway.domain import exact_json
from gateway.domain.kept_body import BodyPart
from gateway.domain.request_log import RequestRecord, StoredRequest
from gateway.errors import ClientDisconnected, InvalidRequest, StoreUnavailable
from gateway.formats.transcript.body_parts import parse_values, read_part_answers
from gateway.formats.transcript.training import build_example
from gateway.frozen import frozen
from gateway.large_work import run_in_thread
from gateway.server.admin.export import check_allowed, send_piece
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, parse_account
from gateway.server.admin.kept_bodies import add_job_end
from gateway.server.admin.request_history import list_pages
from gateway.server.admin.requests import FILTER_QUERIES, parse_filter
from gateway.server.body_attestation import attest_bodies
from gateway.server.openapi import schema as s
from gateway.storage.bodies.errors import BodiesOutOfReach, BodiesUnreadable

_UNAUDITED_QUERIES = frozenset({"end_user", "session", "text"})
"""Filters whose values are in no audit row: they name people."""


@frozen(kw_only=True)
class AttestationView:
    """A statement as JSON in a string, its Ed25519 signature in base64, and the public key in PEM.

    The signature is of the bytes of ``statement`` in UTF-8.
    """

    statement: str
    signature: str
    public_key: str


def _build_raw(row: RequestRecord, parts: Sequence[BodyPart]) -> dict[str, Any]:
    bodies = [
        {
            "kind": part.kind,
            "media_type": part.media_type,
            "content": part.content.decode(errors="replace"),
            "redacted": part.redacted,
            "cut": part.cut,
            "event_times_ms": part.event_times_ms,
        }
        for part in parts
    ]
    names = ("id", "started_ms", "account", "key_name", "operation", "model", "outcome", "status", "stream")
    counts = ("prompt_tokens", "completion_tokens", "cost_nanos", "end_user", "session", "tags", "replay_of")
    return {**{name: getattr(row, name) for name in (*names, *counts)}, "bodies": bodies}


def _build_training(row: RequestRecord, parts: Sequence[BodyPart]) -> dict[str, Any] | None:
    by_kind = {part.kind: part for part in parts if not part.cut}
    asked, answered = by_kind.get("request"), by_kind.get("answer")
    if row.outcome != "completed" or asked is None or answered is None:
        return None
    values = parse_values(asked)
    return build_example(row.operation, values[0] if values else None, read_part_answers(answered).answers)


_BUILDERS: Mapping[str, Callable[[RequestRecord, Sequence[BodyPart]], dict[str, Any] | None]] = {
    "raw": _build_raw,
    "openai": _build_training,
}


@admin_operation(
    query=(Query("format", "`raw`, or `openai` for fine-tuning.", s.one_of(*_BUILDERS)), *FILTER_QUERIES),
    media_type="application/jsonl",
)
async def export_bodies(request: AdminRequest) -> web.StreamResponse:
    """Export the kept bodies of all requests that the filters match, as JSON lines, the newest first.

    `raw` has every body as it is kept, with the fields of its request. `openai` has the completed chats as lines for
    fine-tuning, without those whose body was cut or that would lose a part. Redacted values stay replaced. Bodies on
    other nodes are left out, unless they are in a shared store. The export is in the audit log. If it fails halfway,
    the connection breaks off.
    """
    services, actor, format_name = request.services, request.actor, request.query.get("format", "raw")
    if format_name not in _BUILDERS:
        raise InvalidRequest(f"'format' must be one of {', '.join(_BUILDERS)}", param="format")
    await services.billing.flusher.store_waiting()
    request_filter, history = await parse_filter(request), services.admin.history
    detail = {
        parameter: "…" if parameter in _UNAUDITED_QUERIES else value[:200]
        for parameter, value in sorted(request.query.items())
    }
    now_ms, detail_text = int(services.clock() * 1000), orjson.dumps(detail).decode()
    audit_row = actor.build_audit_row(
        "bodies.exported", format_name, now_ms, account_id=actor.scope, detail=detail_text
    )
    response = web.StreamResponse(headers={"Cache-Control": "no-store"})
    response.headers["Content-Disposition"] = f'attachment; filename="bodies.{format_name}.jsonl"'
    response.content_type, response.charset = "application/jsonl", "utf-8"
    with history.exporting(actor.scope):
        async with aclosing(list_pages(history.log, request_filter)) as pages:
            first_page = await anext(pages)  # before the headers are sent, while an error can still be reported
            await services.admin.audit_log.add_audit(audit_row)
            await response.prepare(request.http)
            try:
                await _send_page(request, response, first_page, format_name)
                async for page in pages:
                    await _send_page(request, response, page, format_name)
                await response.write_eof()
            except ConnectionError:
                raise ClientDisconnected from None
    return response


async def _send_page(
    request: AdminRequest, response: web.StreamResponse, page: Sequence[StoredRequest], name: str
) -> None:
    kept_ids = await request.services.open_bodies().list_kept([stored_request.row.id for stored_request in page])
    checked_at = await check_allowed(request, float("-inf"), "body_reader")
    for stored_request in page:
        if stored_request.row.id in kept_ids:
            checked_at = await check_allowed(request, checked_at, "body_reader")
            await send_piece(request, response, await _build_line(request, stored_request.row, name))


async def _build_line(request: AdminRequest, row: RequestRecord, name: str) -> bytes:
    """Return the line of a request; empty if its bodies are gone, or make no line.

    Raises ``StoreUnavailable`` if the bodies can only be read later.
    """
    try:
        found_bodies = await request.services.open_bodies().read(row.id)
    except BodiesOutOfReach as error:  # without its line the export would look whole
        raise StoreUnavailable(f"The bodies of a request cannot be read now: {error}") from None
    except BodiesUnreadable:  # on another node, or just deleted
        return b""
    if found_bodies is None or not found_bodies[1]:
        return b""
    sees_all = request.actor.scope is None
    all_parts = await add_job_end(request.services, row, found_bodies[1])
    parts = [part for part in all_parts if sees_all or part.kind != "provider_error"]

    def build() -> bytes:
        line = _BUILDERS[name](row, parts)
        return b"" if line is None else exact_json.dumps(line) + b"\n"

    return await run_in_thread(build)


@admin_operation(query=(ACCOUNT_QUERY,))
async def get_attestation(request: AdminRequest) -> AttestationView:
    """Get a signed statement of what is kept of prompts and answers, and of what was deleted, of all or one account.

    The deletions are those of the audit log. The signing key of a gateway is derived from its master key.
    """
    attestation = await attest_bodies(request.services, await parse_account(request))
    return AttestationView(
        statement=attestation.statement, signature=attestation.signature, public_key=attestation.public_key
    )
