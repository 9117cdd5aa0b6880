"""Admin API: the nodes of a cluster, and the changes that its database has lost in a failover."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import orjson

from gateway.answer_fields import Count, FieldSchema, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import KINDS, build_change
from gateway.domain.ledger import OnCrash
from gateway.domain.lost_change import LostChange
from gateway.domain.node import Node, NodeState
from gateway.domain.price import NANOS_PER_USD
from gateway.errors import NotFound
from gateway.frozen import frozen
from gateway.parsing import parse_spec
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.io import read_change
from gateway.server.openapi import schema as s
from gateway.storage.lost_changes import LostChangeRepository
from gateway.storage.nodes import list_nodes as read_nodes


@frozen(kw_only=True)
class NodeView:
    """A gateway on the database."""

    id: str
    state: NodeState
    own: bool
    leads: bool
    epoch: Count
    beat_age_ms: Count
    url: str
    version: str
    schema: str
    config_digest: str
    config_differs: bool
    started_at: Moment
    clock_offset_ms: int
    waiting_rows: Count
    active_requests: Count
    outstanding_usd: float
    outstanding_nanos: int


@frozen(kw_only=True)
class LostChangeView:
    """A change that the database had lost when another server replaced it.

    ``detail``: as in the audit log. ``applied`` are the fields that were changed again, with their values before and
    after. ``reason`` is why the other fields were not; empty if all were.
    """

    found_at: Moment
    at: Moment
    actor_kind: Annotated[str, FieldSchema(s.one_of(*KINDS))]
    actor: str
    action: str
    subject: str
    detail: Mapping[str, Any]
    applied: Mapping[str, Any]
    reason: str


@frozen(kw_only=True)
class ForgottenNode:
    """A node that was signed off, and the credit that it held. ``leases`` says what became of the credit."""

    id: str
    leases: OnCrash
    outstanding_usd: float


@frozen
class ForgetSpec:
    """What becomes of the credit that a lost node had: ``release`` it, or ``charge`` all of it."""

    leases: OnCrash


@admin_operation()
async def list_nodes(request: AdminRequest) -> list[NodeView]:
    """List the gateways on the same database: the live and dead ones, and those that ended within a day or hold credit.

    `clock_offset_ms`, `waiting_rows` and `active_requests` are as of the node's last beat, which live nodes repeat
    every two seconds. `outstanding_usd` is credit that the node holds of spending limits. `config_differs`: its
    configuration is not that of most live nodes. Without a `url` no other node can ask it.
    """
    storage = request.services.storage
    own_id = "" if storage.node is None else storage.node.id
    nodes = await read_nodes(storage.database)
    usual_digest = find_usual_digest(nodes)
    return [_build_node(node, own_id, usual_digest) for node in nodes]


@admin_operation()
async def list_lost_changes(request: AdminRequest) -> list[LostChangeView]:
    """List the changes that the database had lost when another server replaced it, the newest first.

    After a failover to a standby that lags, nodes compare the changes of the last ten minutes with the database. What
    took rights away is applied again at once: disabled, deleted and rotated keys, disabled accounts and members, ended
    sessions, lowered limits, removed models and groups. All else is only listed here.
    """
    lost_changes = await LostChangeRepository(request.services.storage.database).read()
    return [_build_lost_change(change) for change in reversed(lost_changes.changes)]


def _build_lost_change(change: LostChange) -> LostChangeView:
    row = change.row
    return LostChangeView(
        found_at=build_time(change.found_ms // 1000),
        at=build_time(row.at_ms // 1000),
        actor_kind=row.actor_kind,
        actor=row.actor,
        action=row.action,
        subject=row.subject,
        detail=orjson.loads(row.detail),
        applied=orjson.loads(change.applied),
        reason=change.reason,
    )


def find_usual_digest(nodes: Iterable[Node]) -> str:
    """Return the configuration digest of most live nodes; in a tie, the oldest node's; empty without live nodes."""
    digests = Counter(node.config_digest for node in nodes if node.state == "live")
    return digests.most_common(1)[0][0] if digests else ""


def _build_node(node: Node, own_id: str, usual_digest: str) -> NodeView:
    differs = node.state == "live" and node.config_digest != usual_digest
    return build_view(NodeView, node, own=node.id == own_id, config_differs=differs)


@admin_operation(takes=ForgetSpec)
async def forget_node(request: AdminRequest) -> ForgottenNode:
    """Settle the credit of a node that does not come back, and sign it off. Refused for one that lives."""
    services, node = request.services, request.match_info["id"]
    spec = parse_spec(await read_change(request), ForgetSpec)
    if services.admin.end_node_leases is None:
        raise NotFound(f"There is no node {node[:40]}")
    now_s, detail = services.clock(), build_change({}, {"leases": spec.leases})
    audit = request.actor.build_audit_row("node.forgotten", node[:40], int(now_s * 1000), detail=detail)
    nanos = await services.admin.end_node_leases(node, spec.leases, now_s, audit)
    return ForgottenNode(id=node, leases=spec.leases, outstanding_usd=nanos / NANOS_PER_USD)
