"""What can be wrong with a request. The table from a fault's code to its HTTP status: ``error_status.py``.

A fault is the plain condition (``ProviderTimeout``), raised anywhere below the doors and answered in
one place: ``server/middlewares.py`` before the first byte, ``proxy/failover.py`` after it.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from gateway.error_status import STATUS

if TYPE_CHECKING:  # an error carries it; it does not need it
    from gateway.domain.rate_limit import RateLimitStatus

LONGEST_RETRY_S = 5
"""Of a 503: beyond it the client libraries are told not to retry, for they sleep whatever ``Retry-After`` says."""
GATEWAY_TYPE = "new_api_error"
"""``error.type`` of everything the gateway itself says."""


class GatewayError(Exception):
    """A condition with a code; the public error object is written from it.

    Attributes:
        message: one sentence for the caller; never a secret, never a provider's address.
        param: the request field at fault, as a path (``messages[0].role``), or None.
        retry_after_s: seconds to wait, sent as ``Retry-After``; None where waiting has no known end.
        should_retry: False where waiting cannot help (``x-should-retry: false``); None leaves it to the client.
        type: the public ``error.type``.
        status: the HTTP status.
    """

    code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        # A header's bytes that are no UTF-8 come as surrogates, which can be written nowhere.
        self.message = message.encode(errors="replace").decode()
        self.param = param
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
        self.type = GATEWAY_TYPE
        self.public_code: str | None = self.code
        self.status = STATUS[self.code]
        if should_retry is None and self.status == STATUS["overloaded"] and (retry_after_s or 0) > LONGEST_RETRY_S:
            self.should_retry = False


class InternalError(GatewayError):
    """A bug of ours; the log has the whole of it."""

    code = "internal_error"


class InvalidRequest(GatewayError):
    """The request's form or a field of it is wrong; ``param`` names the field."""

    code = "invalid_request"


class SensitiveWords(GatewayError):
    """The gateway's own list of words forbids what a picture was to show; nothing was asked of anybody."""

    code = "sensitive_words_detected"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, should_retry=False)


class ContentForbidden(GatewayError):
    """The gateway's own list of words forbids what a video was to show; nothing was asked of anybody."""

    code = "content_policy_violation"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, should_retry=False)


class InvalidApiKey(GatewayError):
    """No key, not a key, or a key nobody has."""

    code = "invalid_api_key"


class KeyDisabled(GatewayError):
    """A known key that was disabled, or whose account was."""

    code = "key_disabled"


class KeyExpired(GatewayError):
    """A known key past its expiry."""

    code = "key_expired"


class ModelNotAllowed(GatewayError):
    """The key is restricted to other models."""

    code = "model_not_allowed"


class GroupNotAllowed(GatewayError):
    """The key's group is not one of its account's, or no channel of it serves the model."""

    code = "group_not_allowed"


class QuotaExceeded(GatewayError):
    """A cap of the key or the account does not cover the request; ``status`` is 403 for good, 429 until a reset."""

    code = "insufficient_quota"

    def __init__(self, message: str, *, status: int, retry_after_s: int | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s, should_retry=False)
        self.status = status


class IpNotAllowed(GatewayError):
    """The key may not be used from the caller's address, or that address is unknown."""

    code = "ip_not_allowed"


class ModelNotFound(GatewayError):
    """No channel serves the model."""

    code = "model_not_found"


class NotFound(GatewayError):
    """No such path, or no such thing for this caller."""

    code = "not_found"


class MethodNotAllowed(GatewayError):
    """The path exists, with other methods."""

    code = "method_not_allowed"


class RequestTimeout(GatewayError):
    """The caller did not finish sending its body in time."""

    code = "request_timeout"


class Conflict(GatewayError):
    """The thing exists already, or is in a state that forbids this."""

    code = "conflict"


class IdempotencyConflict(GatewayError):
    """A call of the same ``Idempotency-Key`` is under way, or was another one."""

    code = "idempotency_conflict"


class TaskNotReady(GatewayError):
    """The job has no video yet, or has not ended."""

    code = "task_not_ready"


class RequestTooLarge(GatewayError):
    """The body is over ``server.max_body_mb``; a form over ``max_upload_mb``, or a file of it over ``max_file_mb``."""

    code = "request_too_large"


class UnsupportedMediaType(GatewayError):
    """The body is not of a type or encoding this path reads."""

    code = "unsupported_media_type"


class RateLimited(GatewayError):
    """A rate limit of the key or the account is reached.

    Attributes:
        standing: what is left of the caller's limits, for the ``x-ratelimit-*`` headers; None if they are unknown.
    """

    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, standing: "RateLimitStatus | None" = None, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.standing = standing


class ApiNotImplemented(GatewayError):
    """A path of the convention that this gateway does not serve."""

    code = "api_not_implemented"

    def __init__(self, message: str) -> None:
        super().__init__(message, should_retry=False)


class Overloaded(GatewayError):
    """The gateway sheds load (draining, or out of a bounded resource)."""

    code = "overloaded"


class StoreUnavailable(GatewayError):
    """The store cannot be written to, or read, at the moment."""

    code = "overloaded"


class NoHealthyChannel(GatewayError):
    """Channels serve the model, and every one of them is cooling down or full."""

    code = "no_available_channel"


Blame = Literal["channel", "key", "model", "nobody"]
"""What a provider's fault is held against: the channel; the key it was asked with; that key for that model (its rate
limit); or nobody there, for the mistake was the caller's or ours."""


class ProviderError(GatewayError):
    """The provider's side failed. ``retryable``: another channel may do better.

    Attributes:
        phase: where it failed, for the log: connect, headers, body, stream, answer.
        blame: what it is held against.
        rest_s: how long the provider asks to be left alone; None where it did not ask.
        answered: the provider is well, whatever it said: it was asked and it answered.
        declined: it said itself that it has not done what it was asked.
        passing: the same may be answered well a moment later.
        may_be_prompt: it may fail at what it was asked, and at nothing else.
    """

    code = "upstream_error"
    retryable: bool = True
    failure_scope: Blame = "channel"
    provider_retry_after_s: float | None = None
    answered: bool = False
    declined: bool = False
    passing: bool = False
    may_be_prompt: bool = False

    def __init__(self, message: str, *, phase: str = "answer", should_retry: bool | None = None) -> None:
        super().__init__(message, should_retry=should_retry)
        self.phase = phase


class ProviderBadResponse(ProviderError):
    """Garbage, a broken connection, or a status that is the provider's own trouble."""

    def __init__(self, message: str, *, phase: str = "answer", should_retry: bool | None = None) -> None:
        super().__init__(message, phase=phase, should_retry=should_retry)
        self.passing = phase == "headers"


class EgressRefused(ProviderBadResponse):
    """What is written in a URL is enough for nothing to be asked there, or sent; it says so tomorrow, too."""


class ProviderContentGone(ProviderError):
    """The provider says that a file is not there, or no more."""

    failure_scope: Blame = "nobody"
    answered = True


class ProviderAuthError(ProviderError):
    """The provider does not accept the gateway's key, or that key's account has nothing left."""

    failure_scope: Blame = "key"
    answered = True
    declined = True


class ProviderTimeout(ProviderError):
    """A deadline towards the provider passed: connect, first byte, idle or total."""

    code = "upstream_timeout"


class ProviderRejected(ProviderError):
    """The provider found fault with the caller's request; its own 4xx goes to the caller.

    ``type``, ``param`` and ``code`` are the provider's where it spoke the convention, else ``upstream_error``.
    """

    retryable = False
    failure_scope: Blame = "nobody"
    answered = True
    declined = True

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str | None = None,  # noqa: A002 - the convention's word
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.public_code = code or "upstream_error"
        self.type = type or "upstream_error"


class ImageBlocked(ProviderRejected):
    """The provider's safety filter took offence at a picture, or at what was asked of it. Another one's would, too."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=STATUS[SensitiveWords.code], type=GATEWAY_TYPE)
        self.public_code = SensitiveWords.code
        self.should_retry = False


class ContentBlocked(ProviderRejected):
    """The provider's filter took offence at what a video was to show. Another one's would, too."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=STATUS["content_policy_violation"], type=GATEWAY_TYPE)
        self.public_code = "content_policy_violation"
        self.should_retry = False


class ProviderRateLimited(ProviderRejected):
    """The provider's own rate limit (429): another channel may have room."""

    retryable = True
    failure_scope: Blame = "model"


class ContextExceeded(ProviderRejected):
    """The prompt is longer than what the model takes there: a channel with a larger context may take it."""

    retryable = True


class UnsupportedByProvider(ProviderRejected):
    """The language a channel speaks has no words for what was asked: another channel's may have. Nothing was sent."""

    retryable = True
    answered = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, status=STATUS["invalid_request"], type=GATEWAY_TYPE, param=param)
        self.public_code = InvalidRequest.code


class ShuttingDown(ProviderError):
    """The gateway is being stopped under a running request."""

    code = "overloaded"
    retryable = False
    failure_scope: Blame = "nobody"


class RequestCancelled(ProviderError):
    """Somebody who may has ended a running request: no other attempt follows."""

    code = "request_cancelled"
    retryable = False
    failure_scope: Blame = "nobody"


class ClientDisconnected(Exception):
    """The caller left, or does not read: nothing can be answered any more."""
