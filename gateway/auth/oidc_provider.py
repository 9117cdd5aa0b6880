"""The client of one OpenID Connect provider: metadata, keys, code exchange, and the URLs of sign-in and sign-out.

Only a gateway with ``[[sign_in]]`` imports this module.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import quote, urlencode, urlsplit

import attrs
import orjson
import structlog
from authlib.oauth2.rfc7636 import create_s256_code_challenge  # type: ignore[import-untyped]
from joserfc.jwk import KeySet

from gateway.auth import id_token
from gateway.auth.sign_in_flow import Flow
from gateway.auth.sign_in_provider import SignInProvider
from gateway.domain.member import Forbidden
from gateway.errors import GatewayError, ProviderBadResponse
from gateway.frozen import frozen
from gateway.upstream.safe_fetch import SafeFetcher

METADATA_TTL_S = 3_600.0
KEYS_TTL_S = 3_600.0
KEYS_PAUSE_S = 30.0
"""Minimum pause between fetches of the key set for unknown keys: any visitor can invent a key id."""
TIMEOUT_S = 10.0
MAX_BYTES = 256 * 1024
MAX_TOKEN_CHARS, MAX_CODE_CHARS = 16 * 1024, 4 * 1024
"""Maximum length of an ID token and of an authorization code, in characters."""
UNREACHABLE = "The sign-in provider did not answer as it should: try again, or ask an administrator"
ANSWER_REFUSED = "The answer of the sign-in provider was not accepted: begin again, or ask an administrator"

log = structlog.stdlib.get_logger(__name__)


@frozen
class Metadata:
    """The provider's metadata from discovery (OpenID Connect Discovery 1.0, section 3).

    Attributes:
        algorithms: the allowed algorithms by which the provider signs ID tokens.
        end_session_endpoint: the URL of the provider's sign-out; None if it has none.
        sends_issuer: whether each authorization response names its issuer.
        post_secret: whether the client secret is sent in the form, not in a header.
    """

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    algorithms: tuple[str, ...]
    end_session_endpoint: str | None
    sends_issuer: bool
    post_secret: bool


@frozen
class VerifiedToken:
    """A verified ID token and its claims."""

    token: str = attrs.field(repr=False)
    claims: Mapping[str, Any] = attrs.field(repr=False)


class OidcProvider:
    """Signs in members at one provider. ``fetcher`` sends the requests."""

    def __init__(
        self, spec: SignInProvider, fetcher: SafeFetcher, *, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self.spec = spec
        self._fetcher = fetcher
        self._clock = clock
        self._monotonic = monotonic
        self._metadata: tuple[Metadata, float] | None = None
        self._keys: tuple[KeySet, float] | None = None
        self._fetch_lock = asyncio.Lock()
        self._failures = 0

    async def build_authorization_url(self, flow: Flow, nonce: str, verifier: str) -> str:
        """Return the URL at which the sign-in begins (RFC 6749, 4.1.1; RFC 7636). Raises ``ProviderBadResponse``."""
        metadata = await self._find_metadata()
        query = {
            "response_type": "code",
            "client_id": self.spec.client_id,
            "redirect_uri": flow.redirect_uri,
            "scope": " ".join(self.spec.scopes),
            "state": flow.state,
            "nonce": nonce,
            "code_challenge": create_s256_code_challenge(verifier),
            "code_challenge_method": "S256",
        }
        return add_query(metadata.authorization_endpoint, query)

    async def check_issuer(self, issuer: str | None) -> None:
        """Check ``iss`` of the authorization response, against mix-up attacks (RFC 9207).

        Raises ``Forbidden``, and ``ProviderBadResponse`` if the metadata cannot be read.
        """
        metadata = await self._find_metadata()
        if issuer is None and not metadata.sends_issuer:
            return
        if issuer != self.spec.issuer:
            self._log_and_raise("the response is of another issuer")

    async def redeem(self, code: str, flow: Flow, nonce: str, verifier: str) -> VerifiedToken:
        """Exchange a code for an ID token and verify it. Raises ``Forbidden``, ``ProviderBadResponse``."""
        metadata = await self._find_metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": flow.redirect_uri,
            "code_verifier": verifier,
        }
        token = (await self._post_code(metadata, form)).get("id_token")
        if not isinstance(token, str) or not 0 < len(token) <= MAX_TOKEN_CHARS or not token.isascii():
            self._log_and_raise("the token endpoint returned no ID token")
        expected_token = id_token.ExpectedToken(self.spec.issuer, self.spec.client_id, nonce, metadata.algorithms)
        try:
            return VerifiedToken(token, await self._check(token, metadata, expected_token))
        except id_token.InvalidIdToken as error:
            self._log_and_raise(str(error))

    async def build_sign_out_url(self, token: str, return_url: str | None) -> str | None:
        """Return the provider's URL for RP-Initiated Logout 1.0; None if the provider has none.

        The provider then redirects the browser to ``return_url``, if given. Raises ``ProviderBadResponse``.
        """
        endpoint = (await self._find_metadata()).end_session_endpoint
        if endpoint is None:
            return None
        query = {"id_token_hint": token, "client_id": self.spec.client_id}
        return add_query(endpoint, query if return_url is None else {**query, "post_logout_redirect_uri": return_url})

    async def _check(self, token: str, metadata: Metadata, expected_token: id_token.ExpectedToken) -> dict[str, Any]:
        keys = await self._find_keys(metadata)
        try:
            return id_token.check_id_token(token, keys, expected_token, self._clock())
        except id_token.UnknownSigningKey:
            fresh_keys = await self._find_keys(metadata, pause_s=KEYS_PAUSE_S)
            if fresh_keys is keys:
                raise
            return id_token.check_id_token(token, fresh_keys, expected_token, self._clock())

    async def _find_metadata(self) -> Metadata:
        failures = self._failures
        async with self._fetch_lock:
            if self._failures > failures:  # while this call waited; retries would queue at a slow provider
                self._fail("it has just failed")
            if self._metadata is None or self._monotonic() >= self._metadata[1] + METADATA_TTL_S:
                url = f"{self.spec.issuer.rstrip('/')}/.well-known/openid-configuration"
                metadata = self._read_metadata(await self._get(url))
                self._metadata = metadata, self._monotonic()
            return self._metadata[0]

    async def _find_keys(self, metadata: Metadata, pause_s: float = KEYS_TTL_S) -> KeySet:
        async with self._fetch_lock:
            if self._keys is None or self._monotonic() >= self._keys[1] + pause_s:
                self._keys = id_token.read_keys(await self._get(metadata.jwks_uri)), self._monotonic()
            return self._keys[0]

    def _read_metadata(self, document: Mapping[str, Any]) -> Metadata:
        if document.get("issuer") != self.spec.issuer:
            self._fail("the metadata is of another issuer")
        algorithms = id_token.choose_algorithms(document.get("id_token_signing_alg_values_supported"))
        if not algorithms:
            self._fail("the provider signs ID tokens with no algorithm that is allowed")
        methods = document.get("token_endpoint_auth_methods_supported")
        return Metadata(
            self._read_endpoint(document, "authorization_endpoint"),
            self._read_endpoint(document, "token_endpoint"),
            self._read_endpoint(document, "jwks_uri"),
            algorithms,
            self._read_endpoint(document, "end_session_endpoint") if document.get("end_session_endpoint") else None,
            sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
            # The default is client_secret_basic (OpenID Connect Discovery 1.0, section 3).
            post_secret=isinstance(methods, list) and "client_secret_basic" not in methods,
        )

    def _read_endpoint(self, document: Mapping[str, Any], name: str) -> str:
        """Return a URL from the metadata. Raises ``ProviderBadResponse`` unless it has HTTPS or the issuer's origin."""
        url = document.get(name)
        if not isinstance(url, str) or not url.isascii() or not url.isprintable():
            self._fail(f"the metadata has no {name}")
        try:
            url_parts, issuer = urlsplit(url), urlsplit(self.spec.issuer)
        except ValueError:
            self._fail(f"the metadata has no valid {name}")
        is_own = (url_parts.scheme, url_parts.netloc) == (issuer.scheme, issuer.netloc)
        if not url_parts.netloc or url_parts.fragment or not (is_own or url_parts.scheme == "https"):
            self._fail(f"{name} is neither https:// nor of the issuer")
        return url

    async def _get(self, url: str) -> dict[str, Any]:
        try:
            body = await self._fetcher.fetch(
                url, trusted_origin=self.spec.issuer, proxy=None, limit_bytes=MAX_BYTES, timeout_s=TIMEOUT_S
            )
        except GatewayError as error:
            self._fail(error.message)
        return self._parse(body)

    async def _post_code(self, metadata: Metadata, form: Mapping[str, str]) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        if metadata.post_secret:
            form = {**form, "client_id": self.spec.client_id, "client_secret": self.spec.client_secret}
        else:
            credentials = f"{quote(self.spec.client_id, safe='')}:{quote(self.spec.client_secret, safe='')}"
            headers["Authorization"] = f"Basic {b64encode(credentials.encode()).decode()}"  # RFC 6749, section 2.3.1
        try:
            body = await self._fetcher.post_form(
                metadata.token_endpoint,
                form,
                headers,
                trusted_origin=self.spec.issuer,
                limit_bytes=MAX_BYTES,
                timeout_s=TIMEOUT_S,
            )
        except GatewayError as error:
            self._log_and_raise(f"the code was not exchanged: {error.message}")
        return self._parse(body)

    def _parse(self, body: bytes) -> dict[str, Any]:
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict):
            self._fail("an answer is no JSON object")
        return document

    def _fail(self, reason: str) -> NoReturn:
        self._failures += 1
        log.warning("sign_in_provider_failed", provider=self.spec.name, reason=reason)
        raise ProviderBadResponse(UNREACHABLE, phase="headers")

    def _log_and_raise(self, reason: str) -> NoReturn:
        log.warning("sign_in_refused", provider=self.spec.name, reason=reason)
        raise Forbidden(ANSWER_REFUSED, should_retry=False)


def add_query(url: str, query: Mapping[str, str]) -> str:
    """Return ``url`` with more query parameters."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"
