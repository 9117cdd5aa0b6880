"""A route: a name that clients send as a model, with steps that are tried in their order.

A step has one or more models. A request goes on to the next step only before the first byte of its answer, and only
for a cause that the next step takes.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Literal, get_args

import attrs

from gateway.frozen import frozen

Cause = Literal[
    "unavailable",
    "timeout",
    "rate_limited",
    "credit",
    "context",
    "unsupported",
    "budget",
    "queue",
    "content",
    "invalid",
]
"""Why a step was left. ``routing/causes.py`` finds the cause of an error.

- ``unavailable``: no connection, a 5xx, an open circuit, no channel or no free place
- ``timeout``: no first event in time
- ``rate_limited``: the provider's rate limit
- ``credit``: the provider's account has no credit
- ``context``: the prompt is too long
- ``unsupported``: no channel of the step can do what the request asks for
- ``budget``: the caller cannot afford the step
- ``queue``: the wait for a place would be too long, or was
- ``content``: a content filter refused the request
- ``invalid``: the provider refused the request for another reason
"""
CAUSES: tuple[Cause, ...] = get_args(Cause)
DEFAULT_CAUSES: tuple[Cause, ...] = tuple(cause for cause in CAUSES if cause not in {"content", "invalid"})
"""The causes that a step takes by default: another model would probably refuse the same content, too."""
BalanceStrategy = Literal["weight", "latency", "throughput", "cost"]
"""How one of several channels of the same priority is chosen.

- ``weight``: by weight and load
- ``latency``: by the measured time to the first event, or to the answer if it is not streamed
- ``throughput``: by the measured tokens per second
- ``cost``: by the measured charge per token, cached tokens included
"""
BALANCE_STRATEGIES: tuple[BalanceStrategy, ...] = get_args(BalanceStrategy)


@frozen
class RequestTraits:
    """What the condition of a step may depend on. ``prompt_tokens`` is an estimate."""

    prompt_tokens: int
    images: bool = False
    tools: bool = False
    stream: bool = False


@frozen
class StepCondition:
    """The traits that a request must have to use a step. None does not restrict."""

    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    images: bool | None = None
    tools: bool | None = None
    stream: bool | None = None

    def list_mismatches(self, traits: RequestTraits) -> Iterator[str]:
        """Yield a description of each condition that a request does not meet."""
        tokens = traits.prompt_tokens
        accepted = f"the prompt has about {tokens} tokens, but the step accepts only prompts of"
        if self.max_prompt_tokens is not None and tokens > self.max_prompt_tokens:
            yield f"{accepted} at most {self.max_prompt_tokens}"
        if self.min_prompt_tokens is not None and tokens < self.min_prompt_tokens:
            yield f"{accepted} at least {self.min_prompt_tokens}"
        for name in ("images", "tools", "stream"):
            is_wanted, has_trait = getattr(self, name), getattr(traits, name)
            if is_wanted is not None and is_wanted is not has_trait:
                if name == "stream":
                    yield f"the request {'asks' if has_trait else 'does not ask'} for a stream"
                else:
                    yield f"the request has {'' if has_trait else 'no '}{name}"


ANY_REQUEST = StepCondition()
MAX_ATTEMPTS = 8
"""The most attempts that a route may allow."""
ROUTE_OWNER = "gateway"
"""``owned_by`` of a route in lists of models."""


@frozen
class ModelShare:
    """A model of a step.

    Requests are divided among the models of a step by ``weight``, unless the step's ``balance`` measures.
    """

    model: str
    weight: int = 1


@frozen
class StepShadow:
    """Models that get copies of a step's requests. The answers are dropped.

    ``share`` is the part of the step's requests that are copied. ``max_running`` is the maximum of copies that run at
    once; further requests are not copied.
    """

    models: tuple[str, ...]
    share: float
    max_running: int


@frozen
class RouteStep:
    """One step of a route.

    Attributes:
        channels: names or globs of the channels to use; empty: every channel that serves the model.
        causes: the step is tried only after one of these causes. The first step needs none.
        condition: the traits that a request must have; any other request skips the step.
        balance: the strategy that chooses among the channels of all models of the step. None: a model is drawn by
            weight, and the strategy of the setting ``routing.balance`` chooses among the channels of that model.
        shadow: the models that get copies of the requests which the step answers; None: no copies.
        wait_s: the longest wait for a place, in seconds, if a later step takes the cause ``queue``. None: only the
            queue of the channel bounds the wait.
    """

    models: tuple[ModelShare, ...]
    channels: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = DEFAULT_CAUSES
    condition: StepCondition = ANY_REQUEST
    balance: BalanceStrategy | None = None
    shadow: StepShadow | None = None
    wait_s: float | None = None

    def uses(self, channel: str) -> bool:
        """Return whether the step may use a channel, by its name."""
        return not self.channels or any(fnmatchcase(channel, glob) for glob in self.channels)


@frozen
class Route:
    """A name with steps. It hides a model of the same name, which may be one of its own models.

    Attributes:
        about: a description for people.
        max_attempts: attempts over all steps; None: the setting ``routing.max_attempts``.
        deadline_s: seconds for the first byte over all steps; None: each attempt has only its channel's timeouts.
        cache_ttl_s: for how long answers are given again (0: never); None: as the key or ``cache.ttl_s`` says.
    """

    name: str
    steps: tuple[RouteStep, ...]
    about: str = ""
    max_attempts: int | None = None
    deadline_s: float | None = None
    cache_ttl_s: int | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """The models of all steps, each once."""
        return tuple(dict.fromkeys(share.model for step in self.steps for share in step.models))


def add_fallback(route: Route | None, name: str, model: str) -> Route:
    """Return ``route`` with a last step for ``model``. Without a route, the model ``name`` becomes its first step."""
    steps = (RouteStep((ModelShare(name),)),) if route is None else route.steps
    base = Route(name, steps) if route is None else route
    return attrs.evolve(base, steps=(*steps, RouteStep((ModelShare(model),))))


@frozen
class StepPlace:
    """The place of a target in a route.

    ``step`` counts from 0. ``rank`` orders all targets of the route: the steps in their order, and the models of a step
    in the order in which this request tries them.
    """

    route: Route
    step: int
    rank: int
    model: str
