"""Contexts of requests, and attempts without a provider, for tests below the server."""

from typing import Any

from gateway.domain.account import Caller
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import Operation
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from gateway.request_context import RequestContext
from gateway.routing.target import Attempt, Target
from gateway.routing.target_list import TargetList


def make_context(
    caller: Caller,
    inference: InferenceRequest | None = None,
    *,
    operation: Operation = "chat",
    request_id: str = "req_1",
    target_list: TargetList | None = None,
    **more: Any,
) -> RequestContext:
    """A request of ``caller`` that has got as far as ``more`` says."""
    ctx = RequestContext(request_id, **more)
    ctx.caller, ctx.operation = caller, operation
    if inference is not None:
        ctx.inference = inference
    if target_list is not None:
        ctx.target_list = target_list
    return ctx


def make_attempt(target: Target, **more: Any) -> Attempt:
    """An attempt that only the billing sees: it has no slot, and nothing was adapted."""
    unused: Any = None
    inference = InferenceRequest("chat", "m", {})
    translator = make_translator(inference, "openai_chat", ResponseIdentity("1", target.model, 0))
    return Attempt(target, target.channel, unused, translator, **more)
