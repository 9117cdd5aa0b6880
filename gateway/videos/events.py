"""What happens to video jobs, as events."""

from gateway.frozen import frozen


@frozen
class JobStarted:
    """A provider has begun a job: it can be polled. Which one, the store says."""


@frozen
class JobEnded:
    """A job has ended: its webhook may be due. Which one, the store says."""


@frozen
class JobCancelled:
    """A job was cancelled, possibly while a task polls it."""

    video_id: str


@frozen
class JobChanged:
    """The state or the progress of a job has changed, or the job was dropped."""

    video_id: str


@frozen
class ShareChanged:
    """Nodes have joined or left the cluster: this process may have to work on other jobs and webhooks."""
