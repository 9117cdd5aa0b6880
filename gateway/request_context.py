"""The context of a request: everything that its middlewares, the proxy and billing know about the request."""

import os
import time

import attrs

from gateway.domain.account import Caller
from gateway.domain.attribution import UNATTRIBUTED, Attribution
from gateway.domain.balance import Reservation
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import Operation
from gateway.domain.price import ONE_PPM
from gateway.domain.rate_limit import RateLimitPermit, RateLimitStatus
from gateway.domain.request_log import ID_PREFIX, RequestRecord
from gateway.domain.usage import NO_USAGE, Usage
from gateway.frozen import frozen
from gateway.memory_budget import Loan
from gateway.routing.target import Attempt
from gateway.routing.target_list import TargetList

WARNING_HEADER = "x-gateway-warning"
SESSION_LEFT_HEADER = "x-gateway-session-usd-left"
"""The header with what the request's session may still spend."""
QUOTE_HEADER = "x-gateway-quote"
"""The header with which a request names its quote; see ``billing/quotes.py``."""
RESUMABLE_HEADER = "x-gateway-resumable"
"""The header that asks for a stream that can be taken up again; see ``proxy/resumable_streams.py``."""
_ID_MASK = 0xFF_FFFF_FFFF
_ID_DIGITS = 14
_BLOCK_BYTES = 7 * 512


class RequestIds:
    """Makes the ids of requests.

    The random digits are drawn in blocks: a system call for each request costs more than the rest of its id.
    """

    def __init__(self) -> None:
        self._digits: list[str] = []
        os.register_at_fork(after_in_child=self._digits.clear)  # a child must not repeat its parent's ids

    def make(self) -> str:
        """Return ``req_`` and 24 hexadecimal digits: ten of the time in milliseconds, fourteen random ones.

        The database appends ids that grow with time to one end of its index. The random digits are unpredictable
        because the id is also the boundary of multipart forms that the gateway sends to providers.
        """
        digits = self._digits.pop() if self._digits else self._draw()
        return f"{ID_PREFIX}{time.time_ns() // 1_000_000 & _ID_MASK:010x}{digits}"

    def _draw(self) -> str:
        """Draw a block of digits; return those of one id."""
        block = os.urandom(_BLOCK_BYTES).hex()
        self._digits += [block[offset : offset + _ID_DIGITS] for offset in range(_ID_DIGITS, len(block), _ID_DIGITS)]
        return block[:_ID_DIGITS]


make_request_id = RequestIds().make


@frozen
class BatchShare:
    """The batch that a request belongs to: its id (None: no batch), and the price factor in parts per million."""

    id: str | None = None
    multiplier_ppm: int = ONE_PPM


NO_BATCH = BatchShare()


@frozen
class CopyOrigin:
    """The original of a request that is a copy; all fields are empty for a client's own request.

    Attributes:
        shadow_route: the name of the route that has this copy sent to a shadow model.
        replay_of: the id of the kept request that is sent again.
        agreement_ppm, agreed_on: how far the answers to both agree, as in ``RequestRecord``; only for shadow models.
    """

    shadow_route: str = ""
    replay_of: str = ""
    agreement_ppm: int | None = None
    agreed_on: str = ""


NO_COPY = CopyOrigin()


@attrs.define(eq=False)
class RequestContext:
    """Everything that is known about one request. The table names what sets each field of a client's inference request.

    Code of their own sets most fields for realtime sessions, their responses, lines of batches, and copies.

    =====================  ===================================================================================
    ``id``                 ``request_context``
    ``caller``             ``ActiveInference``, which reads the caller again after a slow body
    ``operation``          ``ActiveInference``
    ``started_ms``         ``ActiveInference``
    ``started_at``         ``ActiveInference``
    ``client_request_id``  ``ActiveInference``
    ``inference``          ``parse_request`` or ``parse_form``; ``quota`` or the video submission completes it
    ``read_at``            ``parse_request`` or ``parse_form``
    ``attribution``        ``parse_request`` or ``parse_form``; a budget's header may set the session
    ``target_list``        ``quota``; for a video job or a background response, its handler
    ``reservation``        ``QuotaService``
    ``permit``             ``QuotaService``
    ``rate_limits``        ``QuotaService``; ``settle_request`` if the rate limits refuse the request
    ``attempts``           ``Proxy``
    ``usage``              the function that reads the answer; ``Settlement`` corrects it
    ``first_byte_at``      the function that begins the response to the client
    ``upstream_s``         ``Proxy``
    ``queued_s``           ``QueueWait``
    ``reported_place``     ``QueueWait``
    ``record``             ``Settlement``; for a video job, its submission
    ``headers``            ``CrossOrigin``, then ``warn`` and functions that add their own
    ``batch``              ``LineRequest``
    ``loan``               ``MemoryBudget``
    ``route``              as ``attribution``; for a video job, its handler
    ``copied_from``        ``ShadowRequest``, ``ReplayedRequest``
    =====================  ===================================================================================

    Attributes:
        id: ``req_`` and 24 hexadecimal digits.
        caller: set on inference routes only, like the fields from ``operation`` to ``read_at``.
        started_ms: when the request arrived, in Unix milliseconds.
        started_at: the same in seconds of the event loop's clock.
        client_request_id: the id that the client gave the request in a header; None without one.
        inference: the checked body. Before it is parsed, a read raises ``AttributeError``, and ``parsed`` is None.
        read_at: when the body had been read, in seconds of the monotonic clock.
        attribution: for whom the request was made.
        permit: the permit of the rate limits; None if no limit applies.
        rate_limits: the remainder of the caller's rate limits; None if the caller has no limits.
        attempts: all attempts so far; the last may be in progress.
        first_byte_at: when the response to the client began, in loop time; None before.
        upstream_s: seconds that all attempts took.
        queued_s: seconds for which the request has waited in the queues of channels.
        reported_place: the place in a queue that was sent to the client, from 1; 0: none, and no comment was sent.
        batch: the batch that contains the request; ``NO_BATCH`` if there is none.
        loan: the memory borrowed for data loaded on behalf of the request; None before.
        route: the name of the route that the request names; empty: it names a model.
        copied_from: of what the request is a copy; ``NO_COPY`` for a caller's own request.
    """

    id: str
    caller: Caller = attrs.field(init=False)
    operation: Operation = attrs.field(init=False)
    started_ms: int = 0
    started_at: float = 0.0
    client_request_id: str | None = None
    inference: InferenceRequest = attrs.field(init=False)
    read_at: float = 0.0
    attribution: Attribution = UNATTRIBUTED
    target_list: TargetList = attrs.field(init=False)
    reservation: Reservation | None = None
    permit: RateLimitPermit | None = None
    rate_limits: RateLimitStatus | None = None
    attempts: list[Attempt] = attrs.Factory(list)
    usage: Usage = NO_USAGE
    first_byte_at: float | None = None
    upstream_s: float = 0.0
    queued_s: float = 0.0
    reported_place: int = 0
    record: RequestRecord | None = None
    headers: dict[str, str] | None = None
    batch: BatchShare = NO_BATCH
    loan: Loan | None = None
    route: str = ""
    copied_from: CopyOrigin = NO_COPY

    @property
    def parsed(self) -> InferenceRequest | None:
        return getattr(self, "inference", None)

    def warn(self, warning: str) -> None:
        """Add a warning header: a field or header without effect, then the reason; ASCII without commas."""
        headers = self.headers or {}
        earlier_warning = headers.get(WARNING_HEADER)
        self.headers = {**headers, WARNING_HEADER: f"{earlier_warning}, {warning}" if earlier_warning else warning}
