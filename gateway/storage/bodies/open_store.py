"""Opens the shared store of bodies at ``store.bodies_url``."""

from pathlib import Path

from gateway.storage.bodies.segment_store import FolderSegments, SegmentStore
from gateway.storage.media_location import BucketAddress

RETRY_FOR_S = 1.0
"""How long a failed call is repeated, in seconds. What could not be moved then is tried again soon."""


def open_segment_store(location: Path | BucketAddress) -> SegmentStore:
    """Return the store at a location. Nothing is read there yet: a gateway starts without it."""
    if isinstance(location, Path):
        return FolderSegments(location)
    from gateway.storage.bodies.bucket_segments import BucketSegments  # noqa: PLC0415 - obstore is an extra
    from gateway.storage.bucket.client import Bucket  # noqa: PLC0415

    return BucketSegments(Bucket(location, retry_for_s=RETRY_FOR_S), location.describe())
