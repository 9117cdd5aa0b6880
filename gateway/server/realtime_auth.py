"""Credentials and options in the WebSocket handshake of a Realtime API client.

A browser cannot set headers of a WebSocket, so it sends its key as a subprotocol ("Connect via WebSocket" in OpenAI's
guide). The subprotocols are ``realtime``, ``openai-insecure-api-key.KEY`` and ``openai-beta.realtime-v1``.
"""

from typing import Any

from aiohttp import hdrs, web

from gateway.auth.client_secrets import PREFIX, ClientSecret
from gateway.deferred import load
from gateway.domain.account import Caller
from gateway.errors import InvalidApiKey, InvalidRequest
from gateway.server.context import SERVICES

REALTIME_PATH = "/v1/realtime"
BETA_HEADER = "OpenAI-Beta"
"""The header that requests the events of the beta version."""
_PROTOCOL = "realtime"
_KEY_PROTOCOL = "openai-insecure-api-key."
_BETA_PROTOCOL = "openai-beta."
_BETA_VALUE = "realtime=v1"
CLIENT_SECRET = web.RequestKey("client_secret", ClientSecret)
"""The client secret that opened the session; not set if an API key did."""


def list_protocols(request: web.Request) -> tuple[str, ...]:
    """Return the subprotocol that the gateway accepts, if the client offers any; never the one with the key."""
    return (_PROTOCOL,) if hdrs.SEC_WEBSOCKET_PROTOCOL in request.headers else ()


def list_protocol_keys(request: web.Request) -> list[str]:
    """List the credentials in a browser's subprotocols, in the form of ``Authorization`` headers."""
    return [
        f"Bearer {protocol.removeprefix(_KEY_PROTOCOL)}"
        for protocol in _list_offered_protocols(request)
        if protocol.startswith(_KEY_PROTOCOL)
    ]


async def find_secret_caller(request: web.Request, authorization: str | None) -> Caller | None:
    """Return the caller of a client secret, or one that ``find_stream_caller`` finds; None for other credentials.

    A client secret is set as ``request[CLIENT_SECRET]``. Raises ``InvalidApiKey`` if the credentials are not valid, or
    if a client secret is used at another path than that of sessions, ``KeyDisabled``, ``KeyExpired``, and the errors of
    ``find_stream_caller``.
    """
    if request.path.startswith("/v1/streams/"):
        stream_caller: Caller | None = load("server.stream_tokens:find_stream_caller")(request, authorization)
        return stream_caller
    scheme, _, secret = (authorization or "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret.startswith(PREFIX):
        return None
    if request.path != REALTIME_PATH:
        raise InvalidApiKey("A client secret opens realtime sessions only", should_retry=False)
    caller, request[CLIENT_SECRET] = await request.app[SERVICES].auth.client_secrets.find(secret)
    return caller


def find_session(request: web.Request) -> tuple[str | None, dict[str, Any]]:
    """Return the model and the settings of a session, from the request or its client secret.

    The model is None if neither names one. Raises ``InvalidRequest`` if the two name different models.
    """
    requested_model, secret = request.query.get("model"), request.get(CLIENT_SECRET)
    if secret is None:
        return requested_model, {}
    if requested_model is not None and secret.model is not None and requested_model != secret.model:
        raise InvalidRequest(f"The client secret is for the model {secret.model!r}", param="model", should_retry=False)
    return requested_model or secret.model, secret.session


def find_beta(request: web.Request) -> str | None:
    """Return the value of the beta version's header if the client requests that version, and otherwise None."""
    requested_beta = request.headers.get(BETA_HEADER, "")
    if requested_beta == _BETA_VALUE or any(
        protocol == f"{_BETA_PROTOCOL}realtime-v1" for protocol in _list_offered_protocols(request)
    ):
        return _BETA_VALUE
    return None


def _list_offered_protocols(request: web.Request) -> list[str]:
    header_values = request.headers.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, ())
    return [protocol.strip() for line in header_values for protocol in line.split(",")]
