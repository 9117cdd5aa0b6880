"""What one node of a cluster asks another: the query parameter of it."""

from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from gateway.errors import NotFound
from gateway.server.admin.handler import AdminRequest, Query
from gateway.server.admin.operation import AdminOperation

OWN = "own"
NODE = Query("node", f"Ask this node of the cluster (an id). `{OWN}`: the gateway that takes the request, by default.")
ALONE = Query("node", f"`{OWN}`: only of the gateway that takes the request, not of every node of its cluster.")


def is_asked_alone(request: web.Request | AdminRequest) -> bool:
    """Return whether the request asks this node about itself alone."""
    return request.query.get("node") == OWN


def may_nodes_ask(operation: AdminOperation) -> bool:
    """Return whether nodes ask each other for this."""
    return NODE in operation.handler.query or ALONE in operation.handler.query


async def ask_named_node(request: AdminRequest, *path: str) -> Any:
    """Return what the node that the query names answers at the segments of ``path``; None if that is this one.

    Raises ``NotFound``, ``Overloaded``, ``StoreUnavailable``.
    """
    services, node = request.services, request.query.get("node", OWN)
    if node in {OWN, services.active_requests.node}:
        return None
    if services.admin.peers is None:
        raise NotFound(f"No live node has the id {node[:64]!r}", param="node")
    answer = await services.admin.peers.ask_one(node, path, request.actor)
    if answer.status != HTTPStatus.OK:
        return web.Response(body=orjson.dumps(answer.body), status=answer.status, content_type="application/json")
    return answer.body["data"] if answer.body.get("object") == "list" else answer.body
