"""The interface of image backends: build the requests that get images from a provider, and parse its answers. No I/O.

Some providers answer with images, others with a task to poll. An ``ImageBackend`` returns the next request until it has
the images. Each client request has its own backend object.
"""

from abc import ABC, abstractmethod
from typing import Literal

from gateway.domain.image import Images
from gateway.formats.errors.openai import Secrets
from gateway.formats.wire.request_body import Payload
from gateway.frozen import frozen


@frozen(eq=False)
class ProviderRequest:
    """One HTTP request to the provider.

    Attributes:
        path: path relative to the channel's base URL (or to the server's root if the endpoint is ``rooted``), ids
            percent-encoded; None for the endpoint's own path.
        wait_s: seconds to wait before sending.
        repeatable: whether the request may be sent again after a failure, because it only polls or cancels a task.
        starts_task: whether the task's id is only in the answer. The gateway waits for the answer even if the client
            disconnects; otherwise the task could never be cancelled.
        headers: additional headers, which override the default ones.
        host: the server that the vendor names for this request; used only if it shares the channel's domain.
    """

    body: Payload | None = None
    method: Literal["POST", "GET", "PUT", "DELETE"] = "POST"
    path: str | None = None
    wait_s: float = 0.0
    repeatable: bool = False
    starts_task: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    host: str | None = None


class ImageBackend(ABC):
    """Gets the images for one client request from one provider."""

    __slots__ = ()

    @abstractmethod
    def begin(self, count: int) -> ProviderRequest:
        """Return the first request for ``count`` images. Raises ``InvalidRequest`` naming an unsupported field."""

    @abstractmethod
    def read(self, raw: bytes, secrets: Secrets) -> Images | ProviderRequest:
        """Parse a successful (2xx) answer; return the images or the next request. Raises ``ProviderError``."""

    def build_cancel_request(self) -> ProviderRequest | None:
        """Return the request that cancels a running task; None if there is nothing to cancel."""
        return None
