"""Challenges for authenticators to sign. Each is valid for one purpose, for five minutes, and once."""

import hmac
import secrets
from collections.abc import Callable

from gateway.auth.short_lived import ShortLived
from gateway.domain.passkey import CHALLENGE_MS

_EXPIRY_BYTES, _RANDOM_BYTES, _CODE_BYTES = 8, 16, 32
_KIND = "used_challenge"
_BODY_BYTES = _EXPIRY_BYTES + _RANDOM_BYTES
"""Size of a challenge without its code. The random part is as long as WebAuthn requires (section 13.4.3)."""


class Challenges:
    """Makes and checks challenges.

    A challenge contains its expiry and an authentication code. Unused challenges are not stored, so a visitor who
    requests many cannot displace the challenges of others.

    ``values`` records the used challenges. ``key`` is the key of the code, 32 bytes. None stands for a random key: a
    restart then voids every challenge.
    """

    def __init__(self, values: ShortLived, clock: Callable[[], float], *, key: bytes | None = None) -> None:
        self._values = values
        self._clock = clock
        self._key = key or secrets.token_bytes(32)

    def make(self, purpose: str) -> bytes:
        body = (self._now_ms() + CHALLENGE_MS).to_bytes(_EXPIRY_BYTES, "big") + secrets.token_bytes(_RANDOM_BYTES)
        return body + self._sign(body, purpose)

    async def use(self, challenge: bytes, purpose: str) -> bool:
        """Use up a challenge; return whether it was valid for ``purpose``."""
        body, code = challenge[:_BODY_BYTES], challenge[_BODY_BYTES:]
        if len(code) != _CODE_BYTES or not hmac.compare_digest(code, self._sign(body, purpose)):
            return False
        until_ms = int.from_bytes(body[:_EXPIRY_BYTES], "big")
        return self._now_ms() < until_ms and await self._values.put(_KIND, body, b"", until_ms)

    def _sign(self, body: bytes, purpose: str) -> bytes:
        return hmac.digest(self._key, body + purpose.encode(), "sha256")

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
