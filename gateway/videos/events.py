"""Typed events about video jobs."""

from gateway.frozen import frozen


@frozen
class JobStarted:
    """A provider has started a job, which can be polled now. The store knows which job."""


@frozen
class JobEnded:
    """A job has ended: its webhook may be due. The store knows which job."""


@frozen
class JobCancelled:
    """A job was cancelled. A task of this process may still be polling it."""

    video_id: str


@frozen
class JobChanged:
    """The state or the progress of a job has changed, or the job was dropped."""

    video_id: str


@frozen
class ShareChanged:
    """Nodes have joined or left the cluster: this process may now be responsible for other jobs and webhooks."""
