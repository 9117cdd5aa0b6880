"""Explain the steps of a route without sending anything: which one gets a request, and why others do not."""

from collections.abc import Sequence
from typing import Protocol

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.route import Cause, RequestTraits, Route, RouteStep
from gateway.domain.usage import CHARS_PER_TOKEN
from gateway.formats.usage.token_bounds import MAX_RESERVED_OUTPUT
from gateway.frozen import frozen
from gateway.routing.causes import find_obstacle_cause
from gateway.routing.step_list import find_too_long_steps
from gateway.server.admin.explanation import ChannelLines, ExplainedModel, ExplainedStep, Verdict

NO_PROMPT = RequestTraits(0)
_REASONS_BY_CAUSE: dict[Cause, str] = {
    "unavailable": "no channel can serve the request now",
    "rate_limited": "its channels are paused by the rate limits of their providers",
}


class ListChannels(Protocol):
    """Returns the channels of a step for one of its models, as ``RouteExplainer.list_channels`` does."""

    def __call__(self, model: str, *, step: RouteStep) -> ChannelLines: ...


@frozen
class _Prospect:
    """A step that a request may reach. ``cause`` and ``reason`` say why the request cannot go there; None if it can."""

    number: int
    step: RouteStep
    lines_by_model: Sequence[ChannelLines]
    reserved_usd: float | None
    cause: Cause | None = None
    reason: str | None = None

    def explain(self, verdict: Verdict, reason: str | None) -> ExplainedStep:
        weights = [
            share.weight if lines.targets else 0
            for share, lines in zip(self.step.models, self.lines_by_model, strict=True)
        ]
        total = sum(weights) or 1
        return ExplainedStep(
            step=self.number,
            verdict=verdict,
            reason=reason,
            on=self.step.causes,
            balance=self.step.balance,
            reserved_usd=self.reserved_usd,
            models=[
                ExplainedModel(share.model, share.weight, round(weight / total, 3), lines.lines)
                for share, weight, lines in zip(self.step.models, weights, self.lines_by_model, strict=True)
            ],
        )


@frozen
class StepWalk:
    """Walks the steps of a route for one request. ``left_usd``: what the caller can afford; None without a limit."""

    list_channels: ListChannels
    operation: Operation
    traits: RequestTraits
    left_usd: float | None

    def explain(self, route: Route) -> list[ExplainedStep]:
        """Return all steps with their verdicts."""
        inference = _build_inference(route.name, self.operation, self.traits)
        explained_steps: list[ExplainedStep] = []
        causes: set[Cause] = set()
        is_taken = False
        for prospect in self._examine_all(route, inference):
            number, step = prospect.number, prospect.step
            if not is_taken and number > 1 and causes.isdisjoint(step.causes):
                reason = (
                    "the earlier steps were ruled out for causes that this step does not list: "
                    f"{' and '.join(sorted(causes))}"
                )
                explained_steps.append(prospect.explain("skipped", reason))
            elif prospect.cause is not None:
                explained_steps.append(prospect.explain("skipped", prospect.reason))
                causes.add(prospect.cause)
            else:
                explained_steps.append(prospect.explain("next" if is_taken else "first", None))
                is_taken = True
        return explained_steps

    def _examine_all(self, route: Route, inference: InferenceRequest) -> list[_Prospect]:
        takes_queue = ["queue" in step.causes for step in route.steps]
        prospects = [
            self._examine(number, step, inference, overflows=any(takes_queue[number:]))
            for number, step in enumerate(route.steps, 1)
        ]
        targets_by_step = [
            []
            if prospect.cause == "unsupported"
            else [target for lines in prospect.lines_by_model for target in lines.targets]
            for prospect in prospects
        ]
        for step in find_too_long_steps(route, targets_by_step, self.traits.prompt_tokens):
            window = max(target.limits.configured_window for target in targets_by_step[step])
            reason = f"the prompt has about {self.traits.prompt_tokens} tokens, but the context window has {window}"
            prospects[step] = attrs.evolve(prospects[step], cause="context", reason=reason)
        return prospects

    def _examine(self, number: int, step: RouteStep, inference: InferenceRequest, *, overflows: bool) -> _Prospect:
        """Return the step, with the reason if it cannot get the request.

        ``overflows``: whether a later step takes the cause ``queue``.
        """
        lines_by_model = [self.list_channels(share.model, step=step) for share in step.models]
        costs = [
            target.find_reservation(inference) / NANOS_PER_USD for lines in lines_by_model for target in lines.targets
        ]
        mismatch = next(step.condition.list_mismatches(self.traits), None)
        cause: Cause | None = None
        reason = None
        if not costs:
            cause, reason = "unavailable", "no channel of the step serves its model to this caller"
        elif mismatch is not None:
            cause, reason = "unsupported", mismatch
        elif self.left_usd is not None and min(costs) > self.left_usd:
            cause, reason = "budget", f"the request may cost ${min(costs):.6g}, but only ${self.left_usd:.6g} is left"
        elif not any(lines.served and lines.targets for lines in lines_by_model):
            cause = find_obstacle_cause({obstacle for lines in lines_by_model for obstacle in lines.obstacles})
            reason = _REASONS_BY_CAUSE[cause]
        elif overflows and step.wait_s is not None:
            wait_s = min(lines.wait_s for lines in lines_by_model if lines.served and lines.targets)
            if wait_s > step.wait_s:
                cause, reason = "queue", f"the expected wait of {wait_s:.0f} s is above {step.wait_s:g} s"
        return _Prospect(number, step, lines_by_model, max(costs, default=None), cause, reason)


def _build_inference(model: str, operation: Operation, traits: RequestTraits) -> InferenceRequest:
    """Return a request with ``traits.prompt_tokens`` tokens of text, and with the highest output that is reserved.

    As with any text, each byte reserves a token.
    """
    chars = traits.prompt_tokens * CHARS_PER_TOKEN
    output = MAX_RESERVED_OUTPUT if OPERATIONS[operation].output_limit else 0
    return InferenceRequest(
        operation,
        model,
        {},
        prompt_chars=chars,
        max_prompt_tokens=chars,
        max_output_tokens=output,
        plain=True,
        stream=traits.stream,
    )
