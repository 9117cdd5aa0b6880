"""Sends alerts as webhooks by the rules of Standard Webhooks (``domain/webhook.py``), signed if a secret is set.

The operator configures the address, which may therefore be in a private network. Redirects are not followed.
"""

from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
import orjson

from gateway.alerts.delivery import DeliveryFailed, format_time
from gateway.config.alert_schema import AlertSpec
from gateway.domain.alert import Alert, build_alert_body
from gateway.domain.webhook import SECRET_PREFIX, sign_delivery

TIMEOUT_S = 15.0
USER_AGENT = "model-gateway"
_MAX_ANSWER_BYTES = 200
_OK_STATUSES = range(200, 300)


class AlertSender:
    """Makes one attempt to deliver an alert to one address. ``clock`` dates the signature: receivers check the time."""

    def __init__(self, spec: AlertSpec, session: aiohttp.ClientSession, clock: Callable[[], float]) -> None:
        self._url = spec.url
        self._secret = parse_secret(spec.secret)
        self._session = session
        self._clock = clock

    async def __call__(self, alert: Alert) -> None:
        body = orjson.dumps(build_alert_body(alert, format_time(alert.at_s)))
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self._session.post(
                self._url, data=body, headers=self._build_headers(alert, body), timeout=timeout, allow_redirects=False
            ) as response:
                if response.status in _OK_STATUSES:
                    return
                answer_text = (await response.content.read(_MAX_ANSWER_BYTES)).decode(errors="replace").strip()
        except TimeoutError:
            raise DeliveryFailed(f"{self._host} did not answer within {TIMEOUT_S:.0f} seconds") from None
        except aiohttp.ClientError as error:
            raise DeliveryFailed(f"{self._host} cannot be reached: {error}") from None
        raise DeliveryFailed(
            f"{self._host} answered with status {response.status}" + (f": {answer_text}" if answer_text else "")
        )

    @property
    def _host(self) -> str:
        return urlsplit(self._url).hostname or "the address"

    def _build_headers(self, alert: Alert, body: bytes) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT, "webhook-id": alert.id}
        now_s = int(self._clock())
        headers["webhook-timestamp"] = str(now_s)
        if self._secret:
            headers["webhook-signature"] = sign_delivery(self._secret, alert.id, now_s, body)
        return headers


def parse_secret(secret: str) -> bytes:
    """Return the bytes of a secret: decoded from base64 after ``whsec_``, else the bytes of the text itself."""
    if secret.startswith(SECRET_PREFIX):
        try:
            return b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except NoBase64:
            pass
    return secret.encode()
