"""The signed cookie of a sign-in at a provider, from which nonce and PKCE verifier are derived.

The cookie binds the flow to the browser that began it. The gateway stores nothing until the flow ends.
"""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable

import attrs
import orjson

from gateway.auth.short_lived import ShortLived
from gateway.frozen import frozen

FLOW_S = 600
"""How long a member may take at the provider."""
_STATE_BYTES, _DIGEST_BYTES = 32, 32
_SEPARATOR = "."
_KIND = "used_flow"


@frozen
class Flow:
    """One sign-in in progress.

    Attributes:
        next: the path of the console to open afterwards.
        session: the digest, in hexadecimal, of the session whose member is to be linked; empty for a sign-in.
    """

    provider: str
    state: str
    redirect_uri: str
    next: str
    expires_s: int
    session: str = ""


class FlowSigner:
    """Creates and opens the cookies of flows.

    ``key`` has 32 bytes; None for a random key, and then a restart voids every cookie.
    """

    def __init__(self, values: ShortLived, clock: Callable[[], float], *, key: bytes | None = None) -> None:
        self._values = values
        self._clock = clock
        self._key = key or secrets.token_bytes(_DIGEST_BYTES)

    def begin(self, provider: str, redirect_uri: str, return_path: str, session: str = "") -> tuple[Flow, str]:
        state = secrets.token_urlsafe(_STATE_BYTES)
        flow = Flow(provider, state, redirect_uri, return_path, int(self._clock()) + FLOW_S, session)
        body = _encode(orjson.dumps(attrs.asdict(flow)))
        return flow, f"{body}{_SEPARATOR}{self._derive('cookie', body)}"

    def open(self, cookie: str) -> Flow | None:
        """Return the flow of a cookie; None if the cookie is not the gateway's or has expired."""
        body, _, signature = cookie.partition(_SEPARATOR)
        if not hmac.compare_digest(signature.encode("utf-8", "surrogateescape"), self._derive("cookie", body).encode()):
            return None
        flow = Flow(**orjson.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4))))
        return flow if self._clock() < flow.expires_s else None

    async def use_up(self, flow: Flow) -> bool:
        """End the flow; return whether it was still open."""
        return await self._values.put(_KIND, flow.state.encode(), b"", flow.expires_s * 1000)

    def derive_nonce(self, flow: Flow) -> str:
        return self._derive("nonce", flow.state)

    def derive_verifier(self, flow: Flow) -> str:
        """Return the PKCE verifier: 43 characters (RFC 7636, section 4.1)."""
        return self._derive("verifier", flow.state)

    def _derive(self, purpose: str, text: str) -> str:
        message = f"{purpose}:{text}".encode("utf-8", "surrogateescape")
        return _encode(hmac.new(self._key, message, hashlib.sha256).digest())


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")
