"""Admin API: the nodes of a cluster."""

from typing import Any, get_args

import attrs
from aiohttp import web

from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import build_change
from gateway.domain.ledger import OnCrash
from gateway.domain.node import Node, NodeState
from gateway.domain.price import NANOS_PER_USD
from gateway.errors import NotFound
from gateway.parsing import parse_spec
from gateway.server.admin.io import read_change, respond_json, respond_list
from gateway.server.admin.operation import AdminOperation
from gateway.server.context import ACTOR, SERVICES
from gateway.server.openapi import schema as s
from gateway.storage.nodes import list_nodes as read_nodes

_NODE = s.record(
    id=s.TEXT,
    state=s.one_of(*get_args(NodeState)),
    own=s.FLAG,
    epoch=s.COUNT,
    beat_age_ms=s.COUNT,
    url=s.TEXT,
    version=s.TEXT,
    schema=s.TEXT,
    config_digest=s.TEXT,
    started_at=s.MOMENT,
)

_FORGOTTEN = s.record(id=s.TEXT, leases=s.one_of(*get_args(OnCrash)), outstanding_usd=s.NUMBER)


@attrs.frozen
class ForgetSpec:
    """What becomes of the credit that a lost node had: ``release`` it, or ``charge`` all of it."""

    leases: OnCrash


async def list_nodes(request: web.Request) -> web.Response:
    """List the gateways that use the same database: the live ones, and those that ended within a day."""
    storage = request.app[SERVICES].storage
    own = "" if storage.node is None else storage.node.id
    return respond_list([_build_node(node, own=node.id == own) for node in await read_nodes(storage.database)])


def _build_node(node: Node, *, own: bool) -> dict[str, Any]:
    return {
        "id": node.id,
        "state": node.state,
        "own": own,
        "epoch": node.epoch,
        "beat_age_ms": node.beat_age_ms,
        "url": node.url,
        "version": node.version,
        "schema": node.schema,
        "config_digest": node.config_digest,
        "started_at": build_time(node.started_ms // 1000),
    }


async def forget_node(request: web.Request) -> web.Response:
    """Settle the credit of a node that does not come back, and sign it off. Refused for one that lives."""
    services, node = request.app[SERVICES], request.match_info["id"]
    spec = parse_spec(await read_change(request), ForgetSpec)
    if services.storage.database.kind != "postgresql":
        raise NotFound(f"There is no node {node[:40]}")
    from gateway.storage.postgres.credit_orphans import settle_orphans  # noqa: PLC0415 - of a cluster only

    now_s, detail = services.clock(), build_change({}, {"leases": spec.leases})
    audit = request[ACTOR].did("node.forgotten", node[:40], int(now_s * 1000), detail=detail)
    nanos = await settle_orphans(services.storage.database, node, spec.leases, now_s, audit)
    return respond_json({"id": node, "leases": spec.leases, "outstanding_usd": nanos / NANOS_PER_USD})


NODE_OPERATIONS: tuple[AdminOperation, ...] = (
    AdminOperation("GET", "/nodes", list_nodes, answer=s.listing(_NODE)),
    AdminOperation("POST", "/nodes/{id}/forget", forget_node, takes=ForgetSpec, answer=_FORGOTTEN),
)
