"""Delivers batches as objects of JSON lines: ``2027/01/31/12/<digits>.jsonl`` below the sink's folder.

The hour is that of the settlement, in UTC. The digits follow from the sink's name, from where the batch begins in
the request log, and from its first request: sinks and gateways that share a folder do not replace each other's objects.
A batch that is delivered again after a crash replaces its first object, unless its first request was deleted meanwhile.
The later object has the rows of the first one that still exist, without bodies that have expired since.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime

from gateway.errors import StoreUnavailable
from gateway.large_work import run_in_thread
from gateway.sinks.batch import DeliveryFailed, SinkAnswer, SinkBatch, SinkEntry
from gateway.sinks.json_rows import build_lines
from gateway.storage.bucket.client import Bucket
from gateway.storage.media_location import BucketAddress

_NAME_DIGITS = 24


class BucketSender:
    """Delivers to a bucket for the sink ``name``. ``open_bucket`` makes the bucket; its first use connects."""

    def __init__(
        self, name: str, address: BucketAddress, open_bucket: Callable[[BucketAddress], Bucket] = Bucket
    ) -> None:
        self._name = name
        self._location = address.describe()
        self._bucket = open_bucket(address)

    async def __call__(self, batch: SinkBatch) -> SinkAnswer:
        batch_place = f"{self._name} {batch.cursor} {batch.number} {batch.entries[0].row.id}"
        digest = hashlib.sha256(batch_place.encode()).hexdigest()[:_NAME_DIGITS]
        names = []
        try:
            for hour, entries in _group_by_hour(batch).items():
                names.append(f"{hour}/{digest}.jsonl")
                content = await run_in_thread(build_lines, entries)
                await self._bucket.put(names[-1], content, len(content))
        except StoreUnavailable as error:
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise DeliveryFailed(f"{self._location} cannot be written: {reason}") from error
        return SinkAnswer(f"stored in {self._location}: {', '.join(names)}")


def _group_by_hour(batch: SinkBatch) -> dict[str, list[SinkEntry]]:
    hours: defaultdict[str, list[SinkEntry]] = defaultdict(list)
    for entry in batch.entries:
        hours[datetime.fromtimestamp(entry.row.settled_ms / 1000, UTC).strftime("%Y/%m/%d/%H")].append(entry)
    return dict(hours)
