"""The interface of image backends: which requests get images from a provider, and what its answers mean. No I/O.

Some providers answer with the images, others with a task that has to be polled. An ``ImageBackend`` returns the next
request until it has images; ``media/images.py`` sends them and waits. There is one backend object per request.
"""

from abc import ABC, abstractmethod
from typing import Literal

from gateway.domain.image import Images
from gateway.formats.openai.errors import Secrets
from gateway.formats.request_body import Payload
from gateway.frozen import frozen


@frozen(eq=False)
class ProviderRequest:
    """One HTTP request to the provider.

    Attributes:
        body: None sends no body.
        path: appended to the channel's base URL (or to the server's root if the endpoint is ``rooted``), ids
            percent-encoded; None: the endpoint's own path.
        wait_s: seconds to wait before it is sent.
        passing: it polls or cancels a task: a failure means nothing for the task, and is retried.
        begins: it starts a task whose id is only in its answer. The gateway waits for the answer even if the client
            disconnects; otherwise the task could never be cancelled.
        headers: added to the usual ones, which they override.
        host: the server that the vendor names for this request; used only beside the channel's own, in one domain.
    """

    body: Payload | None = None
    method: Literal["POST", "GET", "PUT", "DELETE"] = "POST"
    path: str | None = None
    wait_s: float = 0.0
    passing: bool = False
    begins: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    host: str | None = None


class ImageBackend(ABC):
    """Gets the images of one request from one provider."""

    __slots__ = ()

    @abstractmethod
    def begin(self, count: int) -> ProviderRequest:
        """Return the first request, for ``count`` images. Raises ``InvalidRequest`` naming an unsupported field."""

    @abstractmethod
    def read(self, raw: bytes, secrets: Secrets) -> Images | ProviderRequest:
        """Parse a successful (2xx) answer to the last request; return the images or the next request.

        Raises ``ProviderBadResponse`` if it is neither, ``ImageBlocked`` if a filter removed the images.
        """

    def build_cancel_request(self) -> ProviderRequest | None:
        """Return the request that cancels a running task; None if there is nothing to cancel."""
        return None
