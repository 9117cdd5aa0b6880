"""Requests as JSON objects, for webhooks and buckets."""

from collections.abc import Sequence
from typing import Any

import attrs
import orjson

from gateway.domain.account_spec import build_time
from gateway.domain.kept_body import BodyPart
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import RequestRecord
from gateway.formats.redaction.body import EVENT_STREAM
from gateway.formats.redaction.event_texts import describe_texts
from gateway.sinks.batch import SinkEntry

BATCH_TYPE = "requests.settled"
_LEFT_OUT = frozenset({"limit_charges", "reserved_nanos"})
"""Fields that only the ledger needs."""
_NAMES = tuple(field.name for field in attrs.fields(RequestRecord) if field.name not in _LEFT_OUT)


def build_lines(entries: Sequence[SinkEntry]) -> bytes:
    """Return a line of JSON for each entry."""
    return b"".join(orjson.dumps(build_fields(entry)) + b"\n" for entry in entries)


def build_event(entries: Sequence[SinkEntry], now_s: float) -> bytes:
    """Return the body of a webhook with ``entries``, in the form that Standard Webhooks recommends."""
    requests = [build_fields(entry) for entry in entries]
    return orjson.dumps({"type": BATCH_TYPE, "timestamp": build_time(int(now_s)), "data": {"requests": requests}})


def build_fields(entry: SinkEntry) -> dict[str, Any]:
    """Return the fields of a request, named as in the admin API."""
    row = entry.row
    fields: dict[str, Any] = {name: getattr(row, name) for name in _NAMES}
    fields |= {
        "started_at": build_time(row.started_ms // 1000),
        "settled_at": build_time(row.settled_ms // 1000),
        "cost_usd": row.cost_nanos / NANOS_PER_USD,
    }
    if entry.bodies:
        fields["bodies"] = [_build_body(body) for body in entry.bodies]
    return fields


def _build_body(body: BodyPart) -> dict[str, Any]:
    texts = describe_texts(body.content) if body.media_type.startswith(EVENT_STREAM) else []
    return {
        "kind": body.kind,
        "media_type": body.media_type,
        "content": body.content.decode(errors="replace"),
        "received_bytes": body.received_bytes,
        "channel": body.channel or None,
        "status": body.status or None,
        "texts": [{"place": place, "text": text} for place, text in texts],
    }
