"""Telling callers' servers of the end of their videos: what is said, to whom it may be said, and one attempt at it.

The event is that of OpenAI's webhooks (platform.openai.com/docs/guides/video-generation, "Use webhooks for
notifications"; its other events are listed in the API reference under "Webhook events"). How it is signed, and when it
is attempted again: ``domain/webhook.py``.
"""

from collections.abc import Callable

import orjson

from gateway.domain.video import VideoJob
from gateway.domain.webhook import WebhookDelivery, sign
from gateway.errors import EgressRefused, ProviderError
from gateway.upstream.interface import Fetcher

TIMEOUT_S = 15.0
USER_AGENT = "model-gateway"


def build_delivery(job: VideoJob, now_ms: int, delivery_id: str) -> WebhookDelivery | None:
    """What is to be told of a job that has ended, due at once; None where nobody is to be told.

    Args:
        job: as it ended. Raises ``ValueError`` where it has not.
        now_ms: Unix milliseconds.
        delivery_id: ``evt_…``, of nothing else.
    """
    if job.webhook_url is None:
        return None
    if not job.ended:
        raise ValueError(f"a job that is {job.state} has not ended")
    event = f"video.{job.state}"
    ended_ms = now_ms if job.completed_ms is None else job.completed_ms
    body = {
        "id": delivery_id,
        "object": "event",
        "created_at": ended_ms // 1000,
        "type": event,
        "data": {"id": job.id},
    }
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
    """Makes one attempt at a time; who attempts again, and when, is the job's and the delivery's own business.

    Args:
        fetcher: the guarded way to strangers' addresses.
        secret_of: what signs the deliveries of an API key, by the key's id.
        clock: Unix seconds, as jobs count them.
        wall: Unix seconds, as everybody else counts them: receivers refuse what was signed at another time.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        secret_of: Callable[[int], bytes],
        clock: Callable[[], float],
        wall: Callable[[], float] | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._secret_of = secret_of
        self._clock = clock
        self._wall = wall or clock

    async def tell(self, delivery: WebhookDelivery) -> WebhookDelivery:
        """The delivery after one attempt, whatever the other side did: a redirect is an answer, and not followed."""
        answer, hopeless = None, False
        try:
            answer = await self._fetcher.post(delivery.url, delivery.body, self._write_headers(delivery), TIMEOUT_S)
            error = f"The webhook's receiver answered with status {answer}"
        except ProviderError as fault:
            error, hopeless = fault.message, isinstance(fault, EgressRefused)
        return delivery.note(answer, error, round(self._clock() * 1000), hopeless=hopeless)

    def _write_headers(self, delivery: WebhookDelivery) -> dict[str, str]:
        """Of this attempt: receivers refuse what was signed more than a few minutes ago."""
        now_s = int(self._wall())
        return {
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            "webhook-id": delivery.id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": sign(self._secret_of(delivery.key_id), delivery.id, now_s, delivery.body),
        }
