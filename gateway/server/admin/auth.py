"""The middlewares of the admin API: access control, and changes that continue after their client has disconnected."""

import asyncio
import hmac
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.domain.audit_log import Actor
from gateway.domain.member import Forbidden, SignedOut
from gateway.errors import InvalidApiKey, InvalidRequest
from gateway.server.actor_header import parse_actor
from gateway.server.admin.asked import is_asked_alone, may_nodes_ask
from gateway.server.admin.operation import BODIES_UNREAD, OPERATIONS, Access, AdminOperation, check_access
from gateway.server.client_ip import find_client_ip
from gateway.server.context import ACTOR, SERVICES, USER
from gateway.server.middlewares import delay_unknown_key
from gateway.server.sessions import SAFE_METHODS, check_own_page, find_signed_in_user

if TYPE_CHECKING:  # used only in a cluster
    from gateway.cluster.peers import Peers

MAX_CHANGE_BYTES = 1024 * 1024
"""Size limit of a change's body. The public API accepts larger bodies, for images."""


@web.middleware
async def require_access(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Identify the actor: the bearer of the admin token, a signed-in member, or the actor of another node's request.

    Raises ``InvalidApiKey``, ``SignedOut`` or ``Forbidden`` if the actor may not use the operation, ``RateLimited`` for
    too many wrong tokens, and ``InvalidRequest`` for two tokens, for an invalid actor, or for another node's request
    with a body.
    """
    resource = request.match_info.route.resource
    operation = None if resource is None else request.app[OPERATIONS].get((request.method, resource.canonical))
    address = find_client_ip(request) or ""
    access: Access = "viewer" if operation is None else operation.access
    peers = request.app[SERVICES].admin.peers
    if "Authorization" in request.headers:
        try:
            check_token(request)
        except InvalidApiKey:
            await delay_unknown_key(request)
            raise
        request[ACTOR] = Actor("token", address=address)
    elif peers is not None and peers.is_signed(request):
        request[ACTOR] = _find_asking_actor(request, peers, operation)
    elif access == "anyone":
        check_own_page(request)
    else:
        user = await find_signed_in_user(request)
        if user is None:
            raise SignedOut("Sign in first, or send the token in the data folder's admin.token", should_retry=False)
        check_access(user.member, access)
        request[USER] = user
        request[ACTOR] = user.act(address)
    return await handler(request)


def _find_asking_actor(request: web.Request, peers: "Peers", operation: AdminOperation | None) -> Actor:
    text = peers.check_signature(request)
    if request.body_exists:
        raise InvalidRequest("A node asks another without a body", should_retry=False)
    if operation is None or not is_asked_alone(request) or not may_nodes_ask(operation):
        raise Forbidden("No node asks another for this", should_retry=False)
    actor = parse_actor(text)
    if actor.scope is not None and operation.access == "administrator":
        raise Forbidden("This needs the role 'administrator'", should_retry=False)
    if actor.scope is not None and operation.access == "body_reader" and not actor.may_read_bodies:
        raise Forbidden(BODIES_UNREAD, should_retry=False)
    return actor


def check_token(request: web.Request) -> None:
    """Raise ``InvalidApiKey`` if the request does not carry the admin token, ``InvalidRequest`` if it carries two."""
    authorizations = request.headers.getall("Authorization", ("",))
    if len(authorizations) > 1:
        raise InvalidRequest("The request has more than one token; send one", should_retry=False)
    scheme, _, token = authorizations[0].partition(" ")
    expected = request.app[SERVICES].admin.token
    if scheme.lower() != "bearer" or not hmac.compare_digest(_encode(token.strip()), _encode(expected)):
        raise InvalidApiKey("The admin API needs the token in the data folder's admin.token", should_retry=False)


def _encode(header: str) -> bytes:
    # aiohttp decodes header bytes that are not UTF-8 to lone surrogates, which plain UTF-8 cannot encode.
    return header.encode("utf-8", "surrogateescape")


@web.middleware
async def finish_changes(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Run a change to its end even if the client disconnects. Its body may have ``MAX_CHANGE_BYTES``.

    Otherwise a broken connection could leave a key usable that is already disabled in the database.
    """
    if request.method in SAFE_METHODS:
        return await handler(request)
    services = request.app[SERVICES]
    task = asyncio.get_running_loop().create_task(_run(handler, request.clone(client_max_size=MAX_CHANGE_BYTES)))
    services.admin.changes.add(task)
    task.add_done_callback(services.admin.changes.discard)
    return await asyncio.shield(task)


async def _run(handler: Handler, request: web.Request) -> web.StreamResponse:
    return await handler(request)
