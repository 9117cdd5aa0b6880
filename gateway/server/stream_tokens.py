"""Access to a stream without its API key: for browsers by signed, short-lived tokens, and for other nodes."""

import hmac
import re

import attrs
from aiohttp import web

from gateway.domain.account import Caller
from gateway.errors import InvalidApiKey
from gateway.server.actor_header import parse_actor
from gateway.server.context import CALLER, SERVICES, Services

PREFIX = "stt_"
LIFETIME_S = 3_600
NODE_KEY = "node_key"
"""The query parameter with the id of the key on whose behalf another node of the cluster asks."""
_TOKEN = re.compile(r"stt_([0-9]{1,12})_([0-9]{1,18})_([0-9a-f]{64})", re.ASCII)
ASKING_NODE: web.RequestKey[bool] = web.RequestKey("asking_node")
"""Set if another node of the cluster asks."""
STREAM_TOKEN: web.RequestKey[bool] = web.RequestKey("stream_token")
"""Set if the caller has a token instead of the API key."""


def make_token(request: web.Request, stream_id: str) -> tuple[str, int]:
    """Return a token of the caller's key for a stream, and its expiry in Unix seconds."""
    services = request.app[SERVICES]
    expires_s, key_id = int(services.clock()) + LIFETIME_S, request[CALLER].key.id
    return f"{PREFIX}{expires_s}_{key_id}_{_sign(services, stream_id, expires_s, key_id)}", expires_s


def find_stream_caller(request: web.Request, authorization: str | None) -> Caller | None:
    """Return the caller with a stream's token, or on whose behalf another node asks; None for other requests.

    Raises ``InvalidApiKey``, ``KeyDisabled``, ``KeyExpired``, and ``InvalidRequest`` if the node's call is malformed.
    """
    if authorization is None:
        return find_asking_caller(request) if NODE_KEY in request.query else None
    scheme, _, token = authorization.partition(" ")
    return find_token_caller(request, token.strip()) if scheme.lower() == "bearer" and PREFIX in token else None


def find_token_caller(request: web.Request, token: str) -> Caller:
    """Return the caller with whose key ``token`` was made, for the stream in the path.

    Raises ``InvalidApiKey``, ``KeyDisabled``, ``KeyExpired``.
    """
    services, match = request.app[SERVICES], _TOKEN.fullmatch(token)
    stream_id = request.match_info.get("id", "")
    caller = None
    if match is not None:
        expires_s, key_id = int(match[1]), int(match[2])
        is_signed = hmac.compare_digest(_sign(services, stream_id, expires_s, key_id), match[3])
        if is_signed and expires_s > services.clock():
            caller = services.auth.api_keys.find_caller(key_id)
    if caller is None:
        raise InvalidApiKey("The token is not one of this stream, or has expired", should_retry=False)
    caller.check_usable(services.clock())
    request[STREAM_TOKEN] = True
    return caller


def find_asking_caller(request: web.Request) -> Caller:
    """Return the caller on whose behalf another node of the cluster asks for a stream.

    Raises ``InvalidApiKey``, or ``InvalidRequest`` for a malformed actor.
    """
    services, key_id = request.app[SERVICES], request.query.get(NODE_KEY, "")
    peers = services.admin.peers
    if peers is None or not peers.is_signed(request) or not key_id.isascii() or not key_id.isdecimal():
        raise InvalidApiKey("No API key: send 'Authorization: Bearer sk-…'", should_retry=False)
    actor = parse_actor(peers.check_signature(request))
    caller = services.auth.api_keys.find_caller(int(key_id))
    if caller is None or caller.account.id != actor.scope:
        raise InvalidApiKey("The key is unknown", should_retry=False)
    request[ASKING_NODE] = True
    return attrs.evolve(caller, networks=())  # the asked node has checked the client's address


def _sign(services: Services, stream_id: str, expires_s: int, key_id: int) -> str:
    # No API key has this form, so no signature is the digest of one.
    return services.auth.api_keys.digest(f"stream-token {expires_s} {key_id} {stream_id}").hex()
