"""The query parameter ``node``, which directs a request to one node of a cluster."""

from http import HTTPStatus
from typing import TypeVar

import orjson
from aiohttp import web

from gateway.errors import NotFound
from gateway.server.admin.answer import read_answer
from gateway.server.admin.handler import AdminRequest, Query
from gateway.server.admin.operation import AdminOperation

T = TypeVar("T")

OWN_NODE = "own"
NODE_QUERY = Query(
    "node", f"Ask this node of the cluster (an id). `{OWN_NODE}`: the gateway that takes the request, by default."
)
OWN_NODE_QUERY = Query(
    "node", f"`{OWN_NODE}`: only of the gateway that takes the request, not of every node of its cluster."
)


def is_asked_alone(request: web.Request | AdminRequest) -> bool:
    """Return whether the request concerns this node only."""
    return request.query.get("node") == OWN_NODE


def may_nodes_ask(operation: AdminOperation) -> bool:
    """Return whether cluster nodes send this operation to each other."""
    return NODE_QUERY in operation.handler.query or OWN_NODE_QUERY in operation.handler.query


async def ask_named_node(request: AdminRequest, kind: type[T], *path: str) -> T | None:
    """Forward the request to the node in the query, and return the node's answer; None if the query names this node.

    ``kind`` is the type of the answer, and ``path`` has the segments of the operation's path in the admin API. If the
    node answers with an error, that is returned as a response. Raises ``NotFound`` if the node is not live, and
    ``Overloaded`` if it does not answer.
    """
    services, node = request.services, request.query.get("node", OWN_NODE)
    if node in {OWN_NODE, services.active_requests.node}:
        return None
    if services.admin.peers is None:
        raise NotFound(f"No live node has the id {node[:64]!r}", param="node")
    answer = await services.admin.peers.ask_node(node, path, request.actor)
    if answer.status != HTTPStatus.OK:
        body = orjson.dumps(answer.body)
        return web.Response(body=body, status=answer.status, content_type="application/json")  # type: ignore[return-value]
    return read_answer(kind, answer.body["data"] if answer.body.get("object") == "list" else answer.body)
