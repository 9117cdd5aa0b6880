"""Converts a video job with its end to a state that a node keeps outside the database, and back."""

from collections.abc import Mapping
from typing import Any

import attrs

from gateway.domain.request_log import RequestRecord, parse_record
from gateway.domain.video import VideoJob
from gateway.domain.webhook import WebhookDelivery
from gateway.frozen import frozen
from gateway.storage.row_mapping import build_request_row


@frozen
class KeptVideo:
    """The last state of a video job that this node has stored.

    Attributes:
        row: the request with its charge; None while the job runs, and if it was removed.
        delivery: the webhook delivery of its end; None without one.
        removed: whether the job was deleted after its end.
    """

    job: VideoJob
    row: RequestRecord | None = None
    delivery: WebhookDelivery | None = None
    removed: bool = False


def build_state(video: KeptVideo) -> Mapping[str, Any]:
    """Return the fields of ``video``. A field is None if this node does not know it, as workers do not know prompts."""
    job, delivery = video.job, video.delivery
    return {
        "job": {**attrs.asdict(job, recurse=False), "receipt": None, "prompt": ""},
        "receipt": build_request_row(job.receipt),
        "prompt": job.prompt or None,
        "row": None if video.row is None else build_request_row(video.row),
        "delivery": None if delivery is None else {**attrs.asdict(delivery), "body": delivery.body.decode("latin-1")},
        "removed": video.removed or None,
    }


def parse_state(state: Mapping[str, Any]) -> KeptVideo:
    """Return the video of a state. Raises ``TypeError`` if it has fields of another version of the gateway."""
    fields = {**state["job"], "receipt": parse_record(state["receipt"]), "prompt": state.get("prompt", "")}
    row, delivery = state.get("row"), state.get("delivery")
    return KeptVideo(
        VideoJob(**fields),
        None if row is None else parse_record(row),
        None if delivery is None else WebhookDelivery(**{**delivery, "body": delivery["body"].encode("latin-1")}),
        removed=bool(state.get("removed")),
    )
