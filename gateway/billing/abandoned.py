"""What an aborted request costs: it was sent to a provider, and the client did not wait for the end of the answer.

The provider has worked and is paid for it. So a client that disconnects pays at least for the prompt, and for media
the whole reservation, because what was made before the end is unknown. A request that a provider refused or answered
with an error costs nothing, nor does one that the gateway itself could not complete.

A prompt is at least its text, its images, its documents by their bytes, and the tokens on record of the response that
it continues. What else the provider reads by itself has an unknown length: the answer is read to its end as with
"drain", for the usage that the provider reports. Where that does not come in time, or the request is cancelled, the
prompt costs what was reserved for it, because a client could end each of its requests that way. Where the provider
breaks off, no client has caused that, and the unknown part is not charged.

A stream in the background goes on at its provider when the connection ends. It is read to its end, and costs the
answer that was reserved where that end is not seen.

A client that gets an answer pays for that answer alone: failover before it is the operator's choice, and no client can
cause it without an answer.
"""

from typing import Literal

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.usage import Usage
from gateway.errors import GatewayError, ProviderError, ProviderTimeout, RequestCancelled
from gateway.formats.prompt_tokens import estimate_prompt
from gateway.formats.provider_reads import find_reads
from gateway.formats.usage_bounds import bound_prompt
from gateway.routing.target import Attempt

Abandoned = Literal["charge", "drain", "free"]
"""``billing.abandoned``. "drain" acts as "charge" if the end of the answer cannot be read; see ``proxy/drain.py``."""

WORKED_S = 10.0
"""A provider that breaks the connection without an answer has done nothing; after so many seconds it has worked."""
_IN_THE_MIDDLE = frozenset({"body", "stream", "cancel", "shutdown"})
"""Phases of errors that end the wait for an answer, and do not mean that there is none."""


def may_have_done(error: GatewayError | None, after_s: float = 0.0) -> bool:
    """Return whether the provider may have done the work of a request that ended ``after_s`` seconds after it was sent.

    ``error`` None: the client disconnected.
    """
    if error is None or isinstance(error, ProviderTimeout):
        return True
    if not isinstance(error, ProviderError) or error.declined:
        return False
    return error.phase in _IN_THE_MIDDLE or (error.phase == "headers" and after_s >= WORKED_S)


def reads_unknown(inference: InferenceRequest) -> bool:
    """Return whether the provider reads something of a length that only its report of the usage can tell."""
    if not OPERATIONS[inference.operation].prompt:
        return False
    reads = find_reads(inference)
    return reads.unbounded or reads.tools


def goes_on(inference: InferenceRequest) -> bool:
    """Return whether the provider goes on with the answer when its connection ends."""
    return inference.stream and inference.body.get("background") is True


def find_least(
    usage: Usage, attempt: Attempt, inference: InferenceRequest, error: GatewayError | None, reserved_nanos: int
) -> Usage:
    """Return the least usage of a request whose ``attempt`` was aborted by ``error``, None: by its client."""
    target = attempt.target
    if inference.image is not None and attempt.images:  # 0: they are made in one request, whose events pass
        count = min(attempt.images, inference.image.count)
        inference = attrs.evolve(inference, choices=count, image=attrs.evolve(inference.image, count=count))
    if inference.image is not None or OPERATIONS[inference.operation].media == "speech":
        bound = attrs.evolve(target.bound(inference), source="estimate")
        return usage if target.cost(usage) > target.cost(bound) else bound
    if usage.prompt_tokens and usage.source != "estimate":
        return usage
    if goes_on(inference):
        usage = attrs.evolve(usage, completion_tokens=max(usage.completion_tokens, inference.max_output_tokens))
    tokens = usage.prompt_tokens or estimate_prompt(inference) * attempt.requests
    if _is_clients(error) and reads_unknown(inference):
        tokens = max(tokens, _find_affordable(usage, attempt, inference, reserved_nanos))
    if tokens == usage.prompt_tokens:
        return usage
    length_ms = max(usage.duration_ms, inference.sound_ms)
    return attrs.evolve(usage, prompt_tokens=tokens, duration_ms=length_ms, source="estimate")


def _is_clients(error: GatewayError | None) -> bool:
    """Return whether a client can end a request with ``error``, None: by leaving."""
    return isinstance(error, RequestCancelled | None) or (isinstance(error, ProviderError) and error.phase == "drain")


def _find_affordable(usage: Usage, attempt: Attempt, inference: InferenceRequest, reserved_nanos: int) -> int:
    """Return the tokens of the longest prompt that the provider can read, as far as money was reserved for them."""
    target = attempt.target
    most = bound_prompt(inference, find_reads(inference), target.model)
    spare = max(0, reserved_nanos - target.cost(attrs.evolve(usage, prompt_tokens=0)))
    cost = target.cost(Usage(most))
    return most if cost <= spare else most * spare // cost
