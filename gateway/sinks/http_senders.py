"""Delivers batches over HTTP: OTLP and Langfuse, and webhooks by the rules of Standard Webhooks.

The operator configures the address, which may therefore be in a private network. Redirects are not followed.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from gateway.alerts.webhook import USER_AGENT, parse_secret
from gateway.config.sink_schema import SinkSpec
from gateway.domain.webhook import sign_delivery
from gateway.large_work import run_in_thread
from gateway.sinks.batch import BatchRefused, DeliveryFailed, SinkAnswer, SinkBatch
from gateway.sinks.json_rows import build_event
from gateway.sinks.otlp import FindProvider, build_logs, build_traces

TIMEOUT_S = 30.0
LANGFUSE_PATH = "/api/public/otel/v1/traces"
LANGFUSE_VERSION = {"x-langfuse-ingestion-version": "4"}
"""Without this header, Langfuse shows spans only some minutes after it has received them."""
_MAX_ANSWER_BYTES = 16 * 1024
_SHOWN_CHARS = 200
_MIN_SECRET_CHARS = 6
_OK_STATUSES = range(200, 300)
_REFUSED_STATUSES = frozenset({400, 413, 422})
"""Statuses of a receiver that rejects this body, but may accept another one."""
_JSON = {"Content-Type": "application/json", "User-Agent": USER_AGENT}


class HttpPost:
    """Posts to one address."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def __call__(self, body: bytes, headers: Mapping[str, str]) -> tuple[str, bytes]:
        """Return the answer as a line of text, and its body. Raises ``DeliveryFailed``, ``BatchRefused``."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        host = urlsplit(self._url).hostname
        try:
            async with self._session.post(
                self._url, data=body, headers={**_JSON, **headers}, timeout=timeout, allow_redirects=False
            ) as response:
                content = await response.content.read(_MAX_ANSWER_BYTES)
        except TimeoutError:
            raise DeliveryFailed(f"{host} did not answer within {TIMEOUT_S:.0f} seconds") from None
        except aiohttp.ClientError as error:
            raise DeliveryFailed(f"{host} cannot be reached: {error}") from None
        content_text = _hide(content.decode(errors="replace").strip(), headers)[:_SHOWN_CHARS]
        answer_text = f"{host} answered with status {response.status}" + (f": {content_text}" if content_text else "")
        if response.status in _OK_STATUSES:
            return answer_text, content
        if response.status in _REFUSED_STATUSES:
            raise BatchRefused(answer_text)
        raise DeliveryFailed(answer_text, _parse_retry_after(response.headers.get("Retry-After", "")))


def _hide(text: str, headers: Mapping[str, str]) -> str:
    """Return an answer without what the gateway has sent in headers: some receivers repeat a token in their error."""
    for value in headers.values():
        scheme, _, token = value.partition(" ")
        secrets = {value, token, _decode_password(token) if scheme == "Basic" else ""}
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= _MIN_SECRET_CHARS:
                text = text.replace(secret, "[secret]")
    return text


def _decode_password(token: str) -> str:
    """Return the password of a Basic token; empty if the token has another form."""
    try:
        return b64decode(token).decode(errors="replace").partition(":")[2]
    except ValueError:
        return ""


class OtlpSender:
    """Delivers to an OTLP receiver, or to Langfuse's OTLP endpoint."""

    def __init__(self, spec: SinkSpec, session: aiohttp.ClientSession, find_provider: FindProvider) -> None:
        self._for_langfuse = spec.kind == "langfuse"
        self._has_events = spec.url.endswith("/v1/logs")
        self._post = HttpPost(session, f"{spec.url.rstrip('/')}{LANGFUSE_PATH}" if self._for_langfuse else spec.url)
        self._find_provider = find_provider
        self._headers = _build_otlp_headers(spec)

    async def __call__(self, batch: SinkBatch) -> SinkAnswer:
        body = await run_in_thread(self._build, batch)
        text, content = await self._post(body, self._headers)
        rejected = count_rejected(content)
        if rejected >= len(batch.entries):
            raise BatchRefused(text)
        return SinkAnswer(text, rejected)

    def _build(self, batch: SinkBatch) -> bytes:
        if self._has_events:
            return build_logs(batch.entries, self._find_provider)
        return build_traces(batch.entries, self._find_provider, for_langfuse=self._for_langfuse)


class WebhookSender:
    """Delivers signed webhooks. Batches of the same requests have the same id."""

    def __init__(self, spec: SinkSpec, session: aiohttp.ClientSession, clock: Callable[[], float]) -> None:
        self._post = HttpPost(session, spec.url)
        self._secret = parse_secret(spec.secret)
        self._clock = clock

    async def __call__(self, batch: SinkBatch) -> SinkAnswer:
        now_s = int(self._clock())
        body = await run_in_thread(build_event, batch.entries, now_s)
        delivery_id = build_delivery_id(batch)
        headers = {
            "webhook-id": delivery_id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": sign_delivery(self._secret, delivery_id, now_s, body),
        }
        text, _ = await self._post(body, headers)
        return SinkAnswer(text)


def build_delivery_id(batch: SinkBatch) -> str:
    """Return the ``webhook-id``, which follows from the ids of the requests."""
    digest = hashlib.sha256("\n".join(entry.row.id for entry in batch.entries).encode()).hexdigest()
    return f"sink_{digest[:32]}"


def count_rejected(content: bytes) -> int:
    """Return how many spans or records the receiver rejected for good (OTLP, "Partial Success"); 0 if not stated."""
    try:
        answer: Any = orjson.loads(content)
        partial = answer.get("partialSuccess") or {}
        return max(0, int(partial.get("rejectedSpans") or partial.get("rejectedLogRecords") or 0))
    except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError):
        return 0


def _build_otlp_headers(spec: SinkSpec) -> dict[str, str]:
    if spec.kind == "langfuse":
        return {"Authorization": f"Basic {b64encode(spec.secret.encode()).decode()}", **LANGFUSE_VERSION}
    name, equals, value = spec.secret.partition("=")
    return {name: value} if equals else {}


def _parse_retry_after(text: str) -> float:
    """Return the seconds of a ``Retry-After`` header; 0 without one, and if it is a date."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0  # noqa: PLR2004
