"""What a call costs that was broken off: it was written to a provider, and nobody waited for the end of the answer.

The provider works on, or has worked, and is paid for it. So whoever leaves pays for the prompt at least, and for media
all that was reserved: what of them was made before the end is not known. Nothing is paid for what a provider refused
or answered with an error, nor for what the gateway itself could not do.

Who is answered pays for that answer alone: that the gateway has asked another channel before is its operator's choice,
and no caller can bring it about without an answer of its own.
"""

from typing import Literal

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import GatewayError, ProviderError, ProviderTimeout
from gateway.formats.prompt_tokens import estimate_prompt
from gateway.routing.target import Attempt

Abandoned = Literal["charge", "drain", "free"]
"""``billing.abandoned``. "drain" is "charge" if the end of the answer cannot be had; see ``proxy/drain.py``."""

WORKED_S = 10.0
"""A provider that breaks the connection without an answer has done nothing; one that held it for so long has worked."""
_IN_THE_MIDDLE = frozenset({"body", "stream", "cancel", "shutdown"})
"""Phases of faults that end the wait for an answer, and do not say that there is none."""


def may_have_done(fault: GatewayError | None, after_s: float = 0.0) -> bool:
    """Whether a provider may have done what was written to it, if ``fault`` ended it so long after it was asked.

    ``fault`` None: the client left.
    """
    if fault is None or isinstance(fault, ProviderTimeout):
        return True
    if not isinstance(fault, ProviderError) or fault.declined:
        return False
    return fault.phase in _IN_THE_MIDDLE or (fault.phase == "headers" and after_s >= WORKED_S)


def find_least(usage: Usage, attempt: Attempt, call: InferenceRequest) -> Usage:
    """``usage`` of a call whose ``attempt`` was broken off, with what it used at the least."""
    option = attempt.option
    if call.image is not None and attempt.images:  # 0: they are made in one call, whose events pass
        count = min(attempt.images, call.image.count)
        call = attrs.evolve(call, choices=count, image=attrs.evolve(call.image, count=count))
    if call.image is not None or call.operation == "speech":
        bound = attrs.evolve(option.bound(call), source="estimate")
        return usage if option.cost(usage) > option.cost(bound) else bound
    if usage.prompt_tokens or not (tokens := estimate_prompt(call)):
        return usage
    length_ms = max(usage.duration_ms, call.sound_ms)
    return attrs.evolve(usage, prompt_tokens=tokens, duration_ms=length_ms, source="estimate")
