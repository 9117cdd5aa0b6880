"""Admin API: the nodes of a cluster."""

from typing import Any, get_args

from aiohttp import web

from gateway.domain.account_spec import build_time
from gateway.domain.node import Node, NodeState
from gateway.server.admin.io import respond_list
from gateway.server.admin.operation import AdminOperation
from gateway.server.context import SERVICES
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


NODE_OPERATIONS: tuple[AdminOperation, ...] = (AdminOperation("GET", "/nodes", list_nodes, answer=s.listing(_NODE)),)
