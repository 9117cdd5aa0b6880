"""Admin API: the sinks that requests are delivered to, and a test of one."""

from typing import Annotated, get_args

from gateway.alerts.delivery import hide_secrets
from gateway.answer_fields import Count, FieldSchema, Moment
from gateway.config.sink_schema import SinkFields, SinkKind, SinkSpec
from gateway.domain.account_spec import build_time
from gateway.domain.sink import SinkState
from gateway.errors import NotFound
from gateway.frozen import frozen
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.openapi import schema as s
from gateway.storage.media_location import parse_bucket


@frozen(kw_only=True)
class SinkView:
    """A sink, and how far it is. ``lag_s`` is how long the oldest undelivered request has waited."""

    name: str
    kind: Annotated[str, FieldSchema(s.one_of(*get_args(SinkKind)))]
    address: str
    fields: Annotated[str, FieldSchema(s.one_of(*get_args(SinkFields)))]
    delivered: Count
    lost: Count
    lag_s: Count
    last_delivered_at: Moment | None
    last_error: str | None


@frozen(kw_only=True)
class TestedSink:
    """Whether a sink took a sample, and the answer of its receiver or why there is none."""

    name: str
    delivered: bool
    answer: str


@admin_operation()
async def list_sinks(request: AdminRequest) -> list[SinkView]:
    """List the sinks, and how far they are."""
    service = request.services.sinks
    if service is None:
        return []
    return [_build_sink(spec, state, service.clock()) for spec, state in await service.list_states()]


@admin_operation()
async def test_sink(request: AdminRequest) -> TestedSink:
    """Send a sink a sample with the account and model `sink-test`, and tell what its receiver answered."""
    name = request.match_info["name"]
    service = request.services.sinks
    result = None if service is None else await service.test(name)
    if result is None:
        raise NotFound(f"No [[sink]] has the name {name[:64]!r}")
    if isinstance(result, Exception):
        return TestedSink(name=name, delivered=False, answer=str(result))
    return TestedSink(name=name, delivered=True, answer=result.text)


def _build_sink(spec: SinkSpec, state: SinkState | None, now_s: float) -> SinkView:
    shown_state = SinkState(spec.name, "") if state is None else state
    delivered_ms = shown_state.delivered_ms
    return SinkView(
        name=spec.name,
        kind=spec.kind,
        address=parse_bucket(spec.url).describe() if spec.kind == "bucket" else hide_secrets(spec.url),
        fields=spec.fields,
        delivered=shown_state.delivered,
        lost=shown_state.lost,
        lag_s=int(shown_state.find_lag_s(now_s)),
        last_delivered_at=None if delivered_ms is None else build_time(delivered_ms // 1000),
        last_error=shown_state.error or None,
    )
