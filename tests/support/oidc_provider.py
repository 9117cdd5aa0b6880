"""An OpenID Connect provider on a real port: discovery, keys, authorization, token with PKCE, userinfo and sign-out.

It signs in ``person`` without asking. A test makes it misbehave by the attributes of ``Misdeeds``.
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any
from urllib.parse import unquote, urlencode

import attrs
import orjson
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "gateway", "a secret/of the+client"
Claims = dict[str, Any]


@attrs.define
class Misdeeds:
    """What is wrong with the next ID tokens. ``change`` alters the claims; ``sign`` replaces the signing."""

    change: Callable[[Claims], Claims] | None = None
    sign: Callable[["OidcProvider", Claims], str] | None = None
    token: str | None = None


@cache
def _make_key(name: str) -> RSAKey:
    """The key of that name, which all providers of a run share: to make one takes more than a sign-in."""
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig", "alg": "RS256"})


@attrs.define
class OidcProvider:
    """The provider. ``person`` holds the claims of the user who signs in now."""

    issuer: str = ""
    person: Claims = attrs.field(factory=lambda: {"sub": "ann-1", "email": "ann@example.com", "email_verified": True})
    keys: list[RSAKey] = attrs.Factory(list)
    codes: dict[str, dict[str, str]] = attrs.Factory(dict)
    access: dict[str, Claims] = attrs.Factory(dict)
    misdeeds: Misdeeds = attrs.Factory(Misdeeds)
    metadata: Claims = attrs.Factory(dict)
    """Values that replace those of the metadata."""
    sends_issuer: bool = False
    asked: list[str] = attrs.Factory(list)
    """The paths that were requested."""
    ended: list[dict[str, str]] = attrs.Factory(list)
    """The queries of sign-outs."""
    last_token: str = ""

    def rotate(self, name: str) -> None:
        """Sign with a new key from now on; the old one is gone."""
        self.keys = [_make_key(name)]

    def sign(self, claims: Claims, header: Claims | None = None) -> str:
        """An ID token, as it ought to be."""
        key = self.keys[0]
        return jwt.encode({"alg": "RS256", "kid": key.kid, **(header or {})}, claims, key)

    def build_claims(self, given: dict[str, str]) -> Claims:
        """The claims of an ID token for the client of an authorization request."""
        now = int(time.time())
        own = {"iss": self.issuer, "aud": given["client_id"], "iat": now, "exp": now + 300, "nonce": given["nonce"]}
        return {**own, **self.person}

    async def discover(self, _: web.Request) -> web.Response:
        own = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "end_session_endpoint": f"{self.issuer}/end",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            "authorization_response_iss_parameter_supported": self.sends_issuer,
        }
        return web.json_response({**own, **self.metadata})

    async def list_keys(self, _: web.Request) -> web.Response:
        return web.json_response({"keys": [key.as_dict(private=False) for key in self.keys]})

    async def authorize(self, request: web.Request) -> web.Response:
        """Sign in ``person`` at once, and send the browser back."""
        given = dict(request.query)
        assert given["response_type"] == "code"
        assert given["code_challenge_method"] == "S256"
        assert "openid" in given["scope"].split()
        assert given["client_id"] == CLIENT
        code = secrets.token_urlsafe(16)
        self.codes[code] = given
        back = {"code": code, "state": given["state"], **({"iss": self.issuer} if self.sends_issuer else {})}
        raise web.HTTPFound(f"{given['redirect_uri']}?{urlencode(back)}")

    async def exchange(self, request: web.Request) -> web.Response:
        """A code is good once, for its client, its redirect URI and a client that knows the verifier."""
        form = dict(await request.post())
        scheme, _, pair = request.headers.get("Authorization", "").partition(" ")
        name, _, secret = base64.b64decode(pair).decode().partition(":") if scheme == "Basic" else ("", "", "")
        if (unquote(name), unquote(secret)) != (CLIENT, SECRET):
            return web.json_response({"error": "invalid_client"}, status=401)
        given = self.codes.pop(str(form.get("code")), None)
        verifier = hashlib.sha256(str(form.get("code_verifier", "")).encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).decode().rstrip("=")
        if (
            given is None
            or form.get("grant_type") != "authorization_code"
            or form.get("redirect_uri") != given["redirect_uri"]
            or not hmac.compare_digest(challenge, given["code_challenge"])
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        claims = self.build_claims(given)
        if self.misdeeds.change is not None:
            claims = self.misdeeds.change(claims)
        sign = self.misdeeds.sign or OidcProvider.sign
        self.last_token = self.misdeeds.token or sign(self, claims)
        access = secrets.token_urlsafe(16)
        self.access[access] = claims
        answer = {"access_token": access, "token_type": "Bearer", "expires_in": 300, "id_token": self.last_token}
        return web.json_response(answer, headers={"Cache-Control": "no-store"})

    async def tell(self, request: web.Request) -> web.Response:
        claims = self.access.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if claims is None:
            return web.json_response({"error": "invalid_token"}, status=401)
        return web.json_response({name: claims[name] for name in ("sub", "email", "email_verified") if name in claims})

    async def end(self, request: web.Request) -> web.Response:
        """Ends the session of the person that the hint names, and sends the browser back."""
        self.ended.append(dict(request.query))
        raise web.HTTPFound(request.query["post_logout_redirect_uri"])

    def settings(self, **more: Any) -> Claims:
        """The ``[[sign_in]]`` of a gateway that uses it."""
        own = {"name": "corp", "issuer": self.issuer, "client_id": CLIENT, "client_secret": SECRET}
        return {**own, "account": "acme", "create": True, **more}


@asynccontextmanager
async def run_provider() -> AsyncIterator[OidcProvider]:
    """A provider while the block runs."""
    provider = OidcProvider()
    provider.rotate("first")

    @web.middleware
    async def note(request: web.Request, handler: Any) -> web.StreamResponse:
        provider.asked.append(request.path)
        response: web.StreamResponse = await handler(request)
        return response

    app = web.Application(middlewares=[note])
    app.router.add_get("/.well-known/openid-configuration", provider.discover)
    app.router.add_get("/keys", provider.list_keys)
    app.router.add_get("/authorize", provider.authorize)
    app.router.add_post("/token", provider.exchange)
    app.router.add_get("/userinfo", provider.tell)
    app.router.add_get("/end", provider.end)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        provider.issuer = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield provider
    finally:
        await runner.cleanup()


def encode_part(value: Any) -> str:
    """A part of a JWT."""
    raw = value if isinstance(value, bytes) else orjson.dumps(value)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
