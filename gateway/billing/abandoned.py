"""The cost of an aborted request: it was sent to a provider, but was not answered completely.

The provider has done work and charges for it. So a client that disconnects pays at least for the prompt. For media it
pays the whole reservation, because the amount made before the end is unknown. A request that a provider refused or
answered with an error costs nothing, nor does one that the gateway itself could not complete.

A prompt consists at least of its text, its images, its documents by their bytes, and the recorded tokens of the
response that it continues. Any other content that the provider reads has an unknown length: the answer is read to its
end as with "drain", to get the usage that the provider reports. If that does not arrive in time, or the request is
cancelled, the prompt costs the amount reserved for it, because a client could end each of its requests that way. If the
provider breaks off, the client did not cause that, and the unknown part is not charged.

A background stream continues at its provider when the connection ends. The gateway reads the stream to its end. If the
gateway does not get that far, the stream costs the reserved answer.

A client that gets an answer pays only for that answer. Failed attempts before it are free, because failover is the
operator's choice.
"""

from typing import Literal

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.usage import Usage
from gateway.errors import GatewayError, ProviderError, ProviderTimeout, RequestCancelled
from gateway.formats.references.provider_reads import find_reads
from gateway.formats.usage.bounds import bound_prompt
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.routing.target import Attempt

Abandoned = Literal["charge", "drain", "free"]
"""``billing.abandoned``. "drain" acts as "charge" if the end of the answer cannot be read; see ``proxy/drain.py``."""

MIN_WORK_S = 10.0
"""If the provider breaks the connection before answering, it counts as having done the work after this many seconds."""
_UNDECIDED_PHASES = frozenset({"body", "stream", "cancel", "shutdown"})
"""Error phases that end the wait for an answer, although the provider may have produced one."""


def could_have_processed(error: GatewayError | None, after_s: float = 0.0) -> bool:
    """Return whether the provider could have processed the request before ``error``.

    ``error`` is None if the client disconnected. ``after_s`` is the duration of the attempt in seconds.
    """
    if error is None or isinstance(error, ProviderTimeout):
        return True
    if not isinstance(error, ProviderError) or error.declined:
        return False
    return error.phase in _UNDECIDED_PHASES or (error.phase == "headers" and after_s >= MIN_WORK_S)


def reads_unmeasured(inference: InferenceRequest) -> bool:
    """Return whether the provider reads content whose length only its reported usage reveals."""
    if not OPERATIONS[inference.operation].prompt:
        return False
    reads = find_reads(inference)
    return reads.unbounded or reads.tools


def continues_in_background(inference: InferenceRequest) -> bool:
    """Return whether the provider continues the answer after the connection ends (a background stream)."""
    return inference.stream and inference.body.get("background") is True


def find_least_usage(
    usage: Usage, attempt: Attempt, inference: InferenceRequest, error: GatewayError | None, reserved_nanos: int
) -> Usage:
    """Return the minimum usage of a request whose ``attempt`` was aborted by ``error`` (None: by the client)."""
    target = attempt.target
    if inference.image is not None and attempt.images:  # 0: they are made in one request, whose events pass
        image_count = min(attempt.images, inference.image.count)
        inference = attrs.evolve(inference, choices=image_count, image=attrs.evolve(inference.image, count=image_count))
    if inference.image is not None or OPERATIONS[inference.operation].media == "speech":
        max_usage = attrs.evolve(target.bound(inference), source="estimate")
        return usage if target.cost(usage) > target.cost(max_usage) else max_usage
    if usage.prompt_tokens and usage.source != "estimate":
        return usage
    if continues_in_background(inference):
        usage = attrs.evolve(usage, completion_tokens=max(usage.completion_tokens, inference.max_output_tokens))
    tokens = usage.prompt_tokens or estimate_prompt(inference) * attempt.requests
    if _is_caused_by_client(error) and reads_unmeasured(inference):
        tokens = max(tokens, _find_affordable(usage, attempt, inference, reserved_nanos))
    if tokens == usage.prompt_tokens:
        return usage
    length_ms = max(usage.duration_ms, inference.sound_ms)
    return attrs.evolve(usage, prompt_tokens=tokens, duration_ms=length_ms, source="estimate")


def _is_caused_by_client(error: GatewayError | None) -> bool:
    """Return whether a client can cause ``error``; None stands for a disconnected client."""
    return isinstance(error, RequestCancelled | None) or (isinstance(error, ProviderError) and error.phase == "drain")


def _find_affordable(usage: Usage, attempt: Attempt, inference: InferenceRequest, reserved_nanos: int) -> int:
    """Return the most prompt tokens that the provider can have read, limited to what the reservation covers."""
    target = attempt.target
    max_tokens = bound_prompt(inference, find_reads(inference), target.model, target.limits)
    spare = max(0, reserved_nanos - target.cost(attrs.evolve(usage, prompt_tokens=0)))
    cost = target.cost(Usage(max_tokens))
    return max_tokens if cost <= spare else max_tokens * spare // cost
