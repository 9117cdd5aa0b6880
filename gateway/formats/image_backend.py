"""How pictures are had from one provider: what to ask, and what the answers mean. Sans-IO, one painter a request.

Some providers answer with the pictures, some with a task that has to be asked after until it is done. Both are a
``ImageBackend``: it says what to ask next, until it has pictures. Who asks, and waits, is ``media/images.py``.
"""

from typing import Literal, Protocol

import attrs

from gateway.domain.image import Images
from gateway.formats.openai.errors import Secrets
from gateway.formats.request_body import Said


@attrs.frozen(eq=False)
class ProviderCall:
    """One request to the provider.

    Attributes:
        said: the body; None sends none.
        path: behind the channel's base URL (or the server's root, where the endpoint is ``rooted``); None: the
            endpoint's own. Ids in it are percent-encoded.
        wait_s: how long to wait before it is asked.
        passing: it asks after a task, or cancels one: a failure of it says nothing of the task, and is tried again.
        begins: it begins a task, whose id only its answer knows: it is waited for even where its caller leaves, or
            nobody could stop the task.
        headers: sent with it, over the usual ones.
    """

    said: Said | None = None
    method: Literal["POST", "GET", "DELETE"] = "POST"
    path: str | None = None
    wait_s: float = 0.0
    passing: bool = False
    begins: bool = False
    headers: tuple[tuple[str, str], ...] = ()


class ImageBackend(Protocol):
    """One request for pictures, in one provider's language."""

    def begin(self, count: int) -> ProviderCall:
        """What to ask first, for that many pictures. Raises ``InvalidRequest`` naming what cannot be said."""
        ...

    def read(self, raw: bytes, secrets: Secrets) -> Images | ProviderCall:
        """A good answer (2xx) to the last ask -> the pictures, or what to ask next.

        Raises ``ProviderBadResponse`` where it is neither, ``ImageBlocked`` where a filter took the pictures away.
        """
        ...

    def abandon(self) -> ProviderCall | None:
        """How to stop a task that is under way, for a caller who left; None where nothing is, or nothing can be."""
        ...
