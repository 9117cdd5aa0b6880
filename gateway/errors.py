"""The errors of a request. ``error_status.py`` maps their codes to HTTP statuses.

An error is raised at any depth. Before the first byte, ``server/middlewares.py`` turns it into a response; after it,
``proxy/stream.py`` makes it the last event of the stream.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from gateway.error_status import STATUS
from gateway.wording import mask_keys

if TYPE_CHECKING:  # errors only carry the object
    from gateway.domain.rate_limit import RateLimitStatus

MAX_RETRY_S = 5
"""Longest ``Retry-After`` of a 503 that clients should wait for. For longer waits they get ``x-should-retry: false``,
because their libraries sleep as long as ``Retry-After`` says."""
GATEWAY_TYPE = "new_api_error"
"""``error.type`` of the gateway's own errors."""


class GatewayError(Exception):
    """An error with a code, from which the public error object is built.

    Attributes:
        message: one sentence for the client, without a provider's address. Keys of known forms are masked here.
        param: the request field at fault, as a path (``messages[0].role``), or None.
        retry_after_s: seconds to wait, sent as ``Retry-After``; None if the wait is unknown.
        should_retry: False if waiting cannot help (``x-should-retry: false``); None leaves it to the client.
        doc_url: the address of the page about the code; None if unknown, or if the code is a provider's.
    """

    code: ClassVar[str] = "internal_error"
    doc_url: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        # Invalid UTF-8 in a header becomes surrogates, which cannot be encoded.
        self.message = mask_keys(message.encode(errors="replace").decode())
        self.param = param
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
        self.type = GATEWAY_TYPE
        self.public_code: str | None = self.code
        self.status = STATUS[self.code]
        if should_retry is None and self.status == STATUS["overloaded"] and (retry_after_s or 0) > MAX_RETRY_S:
            self.should_retry = False


class InternalError(GatewayError):
    """A bug in the gateway; the log has the details."""

    code = "internal_error"


class InvalidRequest(GatewayError):
    """The request's form or a field is wrong; ``param`` names the field."""

    code = "invalid_request"


class SensitiveWords(GatewayError):
    """The gateway's own word list forbids an image; no provider was called."""

    code = "sensitive_words_detected"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, should_retry=False)


class ContentForbidden(GatewayError):
    """The gateway's own word list forbids a video; no provider was called."""

    code = "content_policy_violation"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, should_retry=False)


class InvalidApiKey(GatewayError):
    """The key is missing, malformed or unknown."""

    code = "invalid_api_key"


class KeyDisabled(GatewayError):
    """The key or its account was disabled."""

    code = "key_disabled"


class KeyExpired(GatewayError):
    """The key has expired."""

    code = "key_expired"


class ModelNotAllowed(GatewayError):
    """The key is restricted to other models."""

    code = "model_not_allowed"


class ModelNotPriced(GatewayError):
    """The model has no price, and ``billing.unpriced`` refuses such models to the caller."""

    code = "model_not_priced"

    def __init__(self, message: str, *, param: str = "model") -> None:
        super().__init__(message, param=param, should_retry=False)


class GroupNotAllowed(GatewayError):
    """The key's group is not one of its account's groups, or none of the group's channels serves the model."""

    code = "group_not_allowed"


class QuotaExceeded(GatewayError):
    """A quota of the key or account, or a limit, does not cover the request.

    ``status`` is that of the quota or limit; by default 403 if the refusal is permanent, and 429 until a reset.

    ``room_nanos`` is the part of the tightest balance that a request may still use, in nano-USD; not positive if
    nothing fits.
    """

    code = "insufficient_quota"

    def __init__(self, message: str, *, status: int, retry_after_s: int | None = None, room_nanos: int = 0) -> None:
        super().__init__(message, retry_after_s=retry_after_s, should_retry=False)
        self.room_nanos = room_nanos
        self.status = status


class BudgetExceeded(QuotaExceeded):
    """The request's own budget, or that of its session, does not cover the request.

    ``spent_nanos`` and ``limit_nanos`` are the budget's, in nano-USD.
    """

    code = "budget_exceeded"
    spent_nanos: int = 0
    limit_nanos: int = 0


class SessionEnded(GatewayError):
    """A member or an administrator has ended the session that the request belongs to."""

    code = "session_ended"

    def __init__(self, session: str) -> None:
        super().__init__(f"The session {session!r} was ended; begin another one", should_retry=False)


class IpNotAllowed(GatewayError):
    """The key may not be used from the client's address, or that address is unknown."""

    code = "ip_not_allowed"


class ModelNotFound(GatewayError):
    """No channel serves the model."""

    code = "model_not_found"


class NotFound(GatewayError):
    """The path does not exist, or the object does not exist for this caller."""

    code = "not_found"


class MethodNotAllowed(GatewayError):
    """The path exists, but only for other methods."""

    code = "method_not_allowed"


class RequestTimeout(GatewayError):
    """The client did not finish sending its body in time."""

    code = "request_timeout"


class Conflict(GatewayError):
    """The object already exists, was changed meanwhile, or is in a state that forbids the change."""

    code = "conflict"


class IdempotencyConflict(GatewayError):
    """A request with the same ``Idempotency-Key`` is in progress, or the earlier request was different.

    Also raised if the earlier answer was too large to keep.
    """

    code = "idempotency_conflict"


class QuoteNotValid(GatewayError):
    """The quote that the request names cannot be used for it.

    The quote is unknown, expired or used, was made for another key or request, or is kept by another node.
    """

    code = "quote_not_valid"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="x-gateway-quote", should_retry=False)


class TaskNotReady(GatewayError):
    """The job has no video yet, or has not ended."""

    code = "task_not_ready"


class RequestTooLarge(GatewayError):
    """The body, a form, a file, a conversation or an account's files exceed their limit."""

    code = "request_too_large"


class UnsupportedMediaType(GatewayError):
    """The path does not accept the body's type or encoding."""

    code = "unsupported_media_type"


class RateLimited(GatewayError):
    """Too many requests at once or in a period: of a key, an account, a limit's subject, an address or the gateway."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, limit_status: "RateLimitStatus | None" = None, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit_status = limit_status


class LoopDetected(GatewayError):
    """The client has sent the same conversation more often than its key allows."""

    code = "loop_detected"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s=retry_after_s, should_retry=False)


class ApiNotImplemented(GatewayError):
    """A path of the OpenAI API that this gateway does not serve."""

    code = "api_not_implemented"

    def __init__(self, message: str) -> None:
        super().__init__(message, should_retry=False)


class Overloaded(GatewayError):
    """The gateway sheds load: it is draining, or a bounded resource is exhausted.

    Also raised if another node, or the server that counts rate limits, does not answer.
    """

    code = "overloaded"


class StoreUnavailable(GatewayError):
    """The database, or the storage of files and bodies, cannot be written or read at the moment."""

    code = "overloaded"


class NoHealthyChannel(GatewayError):
    """Channels serve the model, but all of them are cooling down or full."""

    code = "no_available_channel"


class NotCached(GatewayError):
    """The request wants only an answer from the cache (``only-if-cached``), and there is none for it."""

    code = "not_cached"


class ChannelsRateLimited(NoHealthyChannel):
    """Channels serve the model, but all of them wait for a rate limit: their own, or their provider's."""

    code = "rate_limit_exceeded"


FailureScope = Literal["channel", "key", "model", "nobody"]
"""The scope of a provider's failure: the channel; the key; the key for one model (its rate limit); or none, because the
client or the gateway made the mistake."""


class ProviderError(GatewayError):
    """The provider failed. ``retryable``: another channel may succeed.

    Attributes:
        phase: where the request failed, for the log: connect, headers, body, stream, answer.
        failure_scope: what the failure counts against.
        provider_retry_after_s: the wait that the provider asks for, in seconds; None if it asks for none.
        answered: the provider's answer shows that the channel works.
        declined: the provider reports that it has not done the work.
        passing: the same request may succeed a moment later.
        may_be_prompt: this prompt may be the cause.
        lacks_path: the server has no such path.
    """

    code = "upstream_error"
    retryable: bool = True
    failure_scope: FailureScope = "channel"
    provider_retry_after_s: float | None = None
    answered: bool = False
    declined: bool = False
    passing: bool = False
    may_be_prompt: bool = False
    lacks_path: bool = False

    def __init__(self, message: str, *, phase: str = "answer", should_retry: bool | None = None) -> None:
        super().__init__(message, should_retry=should_retry)
        self.phase = phase


class ProviderBadResponse(ProviderError):
    """An invalid answer, a broken connection, or an error status of the provider."""

    def __init__(self, message: str, *, phase: str = "answer", should_retry: bool | None = None) -> None:
        super().__init__(message, phase=phase, should_retry=should_retry)
        self.passing = phase == "headers"


class ProviderAnswerUnusable(ProviderBadResponse):
    """A complete, successful answer of the provider that lacks the expected content."""


class ProxyRefused(ProviderBadResponse):
    """A proxy refuses the connection. ``status`` is the proxy's answer, such as "407 Proxy Authentication Required"."""

    def __init__(self, status: str = "") -> None:
        super().__init__(f"The proxy refused the connection{status and f' ({status})'}", phase="connect")


class EgressRefused(ProviderBadResponse):
    """The gateway refuses the URL itself, so no request was sent; a retry would be refused again."""


class ProviderContentGone(ProviderError):
    """A provider's file does not exist, no longer exists, or is larger than the gateway keeps."""

    failure_scope: FailureScope = "nobody"
    answered = True


class ProviderAuthError(ProviderError):
    """The provider rejects the gateway's key, or the key's account has no credit left (``out_of_credit``)."""

    out_of_credit: bool = False
    failure_scope: FailureScope = "key"
    answered = True
    declined = True


class ProviderTimeout(ProviderError):
    """A timeout towards the provider: connect, first byte, idle or total."""

    code = "upstream_timeout"


class ProviderRejected(ProviderError):
    """The provider rejects the client's request; the provider's 4xx status goes to the client."""

    retryable = False
    failure_scope: FailureScope = "nobody"
    answered = True
    declined = True

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str | None = None,  # noqa: A002 - the name in the OpenAI API
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.public_code = code or "upstream_error"
        self.type = type or "upstream_error"


class ImageBlocked(ProviderRejected):
    """The provider's safety filter refused an image or its prompt. Other providers would probably refuse it, too."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=STATUS[SensitiveWords.code], type=GATEWAY_TYPE)
        self.public_code = SensitiveWords.code
        self.should_retry = False


class ContentBlocked(ProviderRejected):
    """The provider's safety filter refused a video. Other providers would probably refuse it, too."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=STATUS["content_policy_violation"], type=GATEWAY_TYPE)
        self.public_code = "content_policy_violation"
        self.should_retry = False


class ProviderRateLimited(ProviderRejected):
    """The provider's own rate limit is reached (429): another channel may have capacity."""

    retryable = True
    failure_scope: FailureScope = "model"


class ContextExceeded(ProviderRejected):
    """The prompt exceeds the model's context at this provider: a channel with a larger context may accept it."""

    retryable = True


class OutputLimitExceeded(ProviderRejected):
    """The request allows a longer answer than the model can produce.

    ``limit`` is the model's limit in tokens, as the provider reports it.
    """

    limit: int = 0


class UnsupportedByProvider(ProviderRejected):
    """The channel's API format cannot express the request, but another channel's may. No request was sent."""

    retryable = True
    answered = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, status=STATUS["invalid_request"], type=GATEWAY_TYPE, param=param)
        self.public_code = InvalidRequest.code


class EndpointMissing(UnsupportedByProvider):
    """The channel's server answers that it lacks the endpoint of this API format; the channel may have another one."""


class ShuttingDown(ProviderError):
    """The gateway is being stopped while the request runs."""

    code = "overloaded"
    retryable = False
    failure_scope: FailureScope = "nobody"


class RequestCancelled(ProviderError):
    """An authorized user has cancelled the request: no attempt follows."""

    code = "request_cancelled"
    retryable = False
    failure_scope: FailureScope = "nobody"


class ClientDisconnected(Exception):
    """The client has disconnected or does not read, so no answer can be sent."""


def drop_frames(error: BaseException) -> None:
    """Drop the traceback of a handled error, and those of the errors that led to it.

    Its frames hold whole requests and answers. A variable in one of them often references the error. That cycle would
    keep all of them in memory until the next full garbage collection.
    """
    errors: list[BaseException | None] = [error]
    seen_ids: set[int] = set()
    while errors:
        cause = errors.pop()
        if cause is not None and id(cause) not in seen_ids:
            seen_ids.add(id(cause))
            cause.__traceback__ = None
            errors += (cause.__cause__, cause.__context__)
