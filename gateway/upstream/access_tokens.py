"""Access tokens, fetched with client credentials (RFC 6749, 4.4 and 5), shared, and renewed before expiry."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from copy import copy
from typing import Any
from urllib.parse import urlencode

import attrs

from gateway.domain.channel import Timeouts
from gateway.domain.http_request import HttpRequest, TokenGrant
from gateway.errors import ProviderAuthError, ProviderBadResponse, ProviderError, ProviderTimeout
from gateway.formats.errors.openai import NO_REASON, mask
from gateway.formats.wire.json_values import loads_or_none
from gateway.upstream.interface import HttpClient, HttpResponse

RENEW_BEFORE_S = 300.0
"""Tokens are renewed this long before they expire, while requests still use the old one."""
EXPIRE_BEFORE_S = 30.0
"""Tokens are no longer used this long before they expire: the provider may check the token of a request this late."""
RETRY_RENEWAL_S = 10.0
MAX_ANSWER_BYTES = 256 * 1024
MAX_TOKENS = 256
_TIMEOUTS = Timeouts(connect_s=10.0, first_byte_s=30.0, idle_s=30.0, total_s=30.0)
_FORM_TYPE = "application/x-www-form-urlencoded"
_HEADERS = {"Content-Type": _FORM_TYPE, "Accept": "application/json", "Accept-Encoding": "identity"}
_OK_STATUS, _UNAUTHORIZED_STATUS = 200, 401
_REFUSED_STATUSES = range(400, 500)
_BUSY_STATUSES = frozenset({408, 429})
_DEFAULT_LIFETIME_S = 600.0
"""Used if the server does not state how long a token is valid."""


@attrs.define(eq=False)
class _Entry:
    """The token of one grant.

    Attributes:
        expires_at: when the token expires, by the client's clock.
        retry_at: before this time a valid token is not renewed again.
        fetch: the running or last fetch; it returns an error or None.
    """

    token: str = attrs.field(default="", repr=False)
    expires_at: float = 0.0
    retry_at: float = 0.0
    fetch: asyncio.Task[ProviderError | None] | None = None


class AuthorizedHttpClient:
    """Sends requests with a ``grant``, each with its access token. Concurrent requests share one token fetch."""

    def __init__(self, client: HttpClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._entries: OrderedDict[tuple[TokenGrant, str | None], _Entry] = OrderedDict()
        self._fetches: set[asyncio.Task[ProviderError | None]] = set()

    def send(self, http_request: HttpRequest) -> Coroutine[Any, Any, HttpResponse]:
        if http_request.grant is None:
            return self._client.send(http_request)
        return self._send_authorized(http_request, http_request.grant)

    async def authorize(self, http_request: HttpRequest) -> HttpRequest:
        """Return ``http_request`` with an access token if it has a grant, else unchanged. Raises ``ProviderError``."""
        if http_request.grant is None:
            return http_request
        token = await self._find_token(
            self._find_entry(http_request.grant, http_request.proxy), http_request.grant, http_request.proxy
        )
        return attrs.evolve(
            http_request, headers={**http_request.headers, "Authorization": f"Bearer {token}"}, grant=None
        )

    async def stop(self) -> None:
        for fetch in self._fetches:
            fetch.cancel()
        await asyncio.gather(*self._fetches, return_exceptions=True)

    async def _send_authorized(self, http_request: HttpRequest, grant: TokenGrant) -> HttpResponse:
        entry = self._find_entry(grant, http_request.proxy)
        token = await self._find_token(entry, grant, http_request.proxy)
        response = await self._client.send(
            attrs.evolve(http_request, headers={**http_request.headers, "Authorization": f"Bearer {token}"}, grant=None)
        )
        if (
            response.status == _UNAUTHORIZED_STATUS and entry.token == token
        ):  # revoked: the next request fetches a new one
            entry.expires_at = 0.0
        return response

    def _find_entry(self, grant: TokenGrant, proxy: str | None) -> _Entry:
        key = grant, proxy
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_TOKENS:
            self._entries.popitem(last=False)
        return entry

    async def _find_token(self, entry: _Entry, grant: TokenGrant, proxy: str | None) -> str:
        now_s = self._clock()
        is_valid = now_s < entry.expires_at - EXPIRE_BEFORE_S
        is_due = now_s >= entry.expires_at - RENEW_BEFORE_S and (now_s >= entry.retry_at or not is_valid)
        fetch = entry.fetch
        if is_due and (fetch is None or fetch.done()):
            fetch = entry.fetch = asyncio.create_task(self._renew(entry, grant, proxy))
            self._fetches.add(fetch)
            fetch.add_done_callback(self._fetches.discard)
        if not is_valid and fetch is not None and (error := await asyncio.shield(fetch)) is not None:
            raise copy(error)  # several requests raise it, each with its own details
        return entry.token

    async def _renew(self, entry: _Entry, grant: TokenGrant, proxy: str | None) -> ProviderError | None:
        """Fetch a token for ``entry``. Returns None or an error.

        The error is not raised, because perhaps no request still waits for the token.
        """
        started_s = self._clock()
        entry.retry_at = started_s + RETRY_RENEWAL_S
        try:
            async with asyncio.timeout(_TIMEOUTS.total_s):
                token, lifetime_s = await self._fetch(grant, proxy)
        except TimeoutError:
            return ProviderTimeout("The provider's sign-in service took too long to issue an access token")
        except ProviderError as error:
            return error
        entry.token, entry.expires_at = token, started_s + lifetime_s
        return None

    async def _fetch(self, grant: TokenGrant, proxy: str | None) -> tuple[str, float]:
        form = {
            "grant_type": "client_credentials",
            "client_id": grant.client_id,
            "client_secret": grant.client_secret,
            "scope": grant.scope,
        }
        response = await self._client.send(
            HttpRequest("POST", grant.url, dict(_HEADERS), urlencode(form).encode(), _TIMEOUTS, proxy)
        )
        try:
            raw = await response.read(MAX_ANSWER_BYTES)
        finally:
            response.close()
        if response.status != _OK_STATUS:
            raise parse_refusal(response.status, raw, grant)
        return parse_token(raw)


def parse_token(raw: bytes) -> tuple[str, float]:
    """Return the access token and its lifetime in seconds. Raises ``ProviderBadResponse``."""
    value = loads_or_none(raw)
    token = value.get("access_token") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise ProviderBadResponse("The provider's sign-in service sent no access token")
    if not token:
        raise ProviderBadResponse("The provider's sign-in service sent an empty access token")
    try:
        lifetime_s = float(value.get("expires_in", _DEFAULT_LIFETIME_S))  # some servers send a string
    except (TypeError, ValueError):
        lifetime_s = _DEFAULT_LIFETIME_S
    return token, lifetime_s if 0 < lifetime_s < float("inf") else _DEFAULT_LIFETIME_S


def parse_refusal(status: int, raw: bytes, grant: TokenGrant) -> ProviderError:
    """Return the error for an answer without a token, caused by the channel's credentials or by the server."""
    value = loads_or_none(raw)
    reason = ""
    if isinstance(value, dict):
        error_text = value.get("error_description") or value.get("error")
        reason = error_text.partition("\n")[0] if isinstance(error_text, str) else ""
    words = mask(reason, (grant.client_secret,)).strip() or NO_REASON
    if status in _REFUSED_STATUSES and status not in _BUSY_STATUSES:
        return ProviderAuthError(f"The provider's sign-in service refused the channel's credentials: {words}")
    return ProviderBadResponse(f"The provider's sign-in service answered with status {status}: {words}")
