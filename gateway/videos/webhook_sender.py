"""Webhooks about ended video jobs: build the event, and make one attempt to deliver it.

The event has the form of OpenAI's webhooks (platform.openai.com/docs/guides/video-generation, "Use webhooks for
notifications"; the API reference lists the other events under "Webhook events"). ``domain/webhook.py`` defines the
signature and the retry schedule.
"""

from collections.abc import Callable

import orjson

from gateway.domain.video import VideoJob
from gateway.domain.webhook import WebhookDelivery, sign_delivery
from gateway.errors import EgressRefused, ProviderError
from gateway.upstream.safe_fetch import SafeFetcher

TIMEOUT_S = 15.0
USER_AGENT = "model-gateway"


def build_delivery(job: VideoJob, now_ms: int, delivery_id: str) -> WebhookDelivery | None:
    """Return the delivery for a job's end, due immediately; None if the job has no webhook.

    ``delivery_id``: unique, ``evt_...``. Raises ``ValueError`` if the job has not ended.
    """
    if job.webhook_url is None:
        return None
    if not job.ended:
        raise ValueError(f"a job that is {job.state} has not ended")
    event = f"video.{job.state}"
    ended_ms = now_ms if job.completed_ms is None else job.completed_ms
    body = {"id": delivery_id, "object": "event", "created_at": ended_ms // 1000, "type": event, "data": {"id": job.id}}
    return WebhookDelivery(
        id=delivery_id,
        video_id=job.id,
        account_id=job.account_id,
        key_id=job.key_id,
        url=job.webhook_url,
        event=event,
        body=orjson.dumps(body),
        created_ms=now_ms,
        due_ms=now_ms,
    )


class WebhookSender:
    """Makes single attempts; ``WebhookWorker`` repeats them.

    Args:
        find_secret: returns the signing secret of an API key, by the key's id.
        wall_clock: Unix seconds of the system clock, because receivers refuse signatures with a different time. None
            stands for ``clock``.
    """

    def __init__(
        self,
        fetcher: SafeFetcher,
        find_secret: Callable[[int], bytes],
        clock: Callable[[], float],
        wall_clock: Callable[[], float] | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._find_secret = find_secret
        self._clock = clock
        self._wall_clock = wall_clock or clock

    async def send(self, delivery: WebhookDelivery) -> WebhookDelivery:
        """Make one attempt and return the delivery with its outcome. A redirect counts as an answer."""
        answer, is_permanent = None, False
        try:
            answer = await self._fetcher.post(delivery.url, delivery.body, self._build_headers(delivery), TIMEOUT_S)
            error = f"The webhook's receiver answered with status {answer}"
        except ProviderError as fault:
            error, is_permanent = fault.message, isinstance(fault, EgressRefused)
        return delivery.record_attempt(answer, error, round(self._clock() * 1000), hopeless=is_permanent)

    def _build_headers(self, delivery: WebhookDelivery) -> dict[str, str]:
        """Return the signed headers of this attempt: receivers refuse a signature that is a few minutes old."""
        now_s = int(self._wall_clock())
        return {
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            "webhook-id": delivery.id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": sign_delivery(self._find_secret(delivery.key_id), delivery.id, now_s, delivery.body),
        }
