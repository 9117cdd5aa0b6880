"""A route as people write it: ``[[route]]`` in the configuration file, or JSON in the admin API."""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from gateway.domain.cache_rules import MAX_TTL_S
from gateway.domain.model_name import is_glob
from gateway.domain.route import (
    ANY_REQUEST,
    DEFAULT_CAUSES,
    MAX_ATTEMPTS,
    BalanceStrategy,
    Cause,
    ModelShare,
    Route,
    RouteStep,
    StepCondition,
    StepShadow,
)
from gateway.frozen import frozen
from gateway.parsing import NOT_NEGATIVE, POSITIVE, between, keyed, must

_MAX_NAME_CHARS = 120  # with its prefix it is a path of a setting (domain/setting.py)
_MAX_MODEL_CHARS = 256
_MAX_ABOUT_CHARS = 500
MAX_STEPS = 16

_NAME = must(
    f"1 to {_MAX_NAME_CHARS} printable characters without * ? [",
    lambda value: (
        0 < len(value) <= _MAX_NAME_CHARS and value.isprintable() and value.strip() == value and not is_glob(value)
    ),
)
_MODEL = must(
    "the name of a model",
    lambda value: 0 < len(value) <= _MAX_MODEL_CHARS and value.isprintable() and not is_glob(value),
)
_MODELS = must(
    "names of models",
    lambda value: all(0 < len(name) <= _MAX_MODEL_CHARS and name.isprintable() and not is_glob(name) for name in value),
)
_SHARE = must("above 0 and up to 1", lambda value: 0 < value <= 1)
_DESCRIPTION = must(
    f"at most {_MAX_ABOUT_CHARS} printable characters",
    lambda text: len(text) <= _MAX_ABOUT_CHARS and text.isprintable(),
)
_CHANNELS = must("names or globs of channels", lambda value: all(name and name.isprintable() for name in value))
_TOKENS = between(0, 1_000_000_000)


@frozen
class ModelShareSpec:
    """An entry of ``models``: a model's name, or a table with its weight."""

    model: str = attrs.field(metadata=_MODEL)
    weight: int = attrs.field(default=1, metadata=between(1, 10_000))

    @staticmethod
    def from_text(text: str) -> Mapping[str, Any]:
        """Return the table that a model's name stands for."""
        return {"model": text}


@frozen
class ConditionSpec:
    """``if`` of a step: what a request must be. None does not restrict."""

    min_prompt_tokens: int | None = attrs.field(default=None, metadata=_TOKENS)
    max_prompt_tokens: int | None = attrs.field(default=None, metadata=_TOKENS)
    images: bool | None = None
    tools: bool | None = None
    stream: bool | None = None

    def find_problems(self) -> Iterator[tuple[str, str]]:
        if self.min_prompt_tokens is not None and (self.max_prompt_tokens or self.min_prompt_tokens) < (
            self.min_prompt_tokens
        ):
            yield "max_prompt_tokens", "expected no less than min_prompt_tokens"

    def condition(self) -> StepCondition:
        return StepCondition(**attrs.asdict(self))


NO_CONDITION = ConditionSpec()


@frozen
class ShadowSpec:
    """``shadow`` of a step: the models that get copies of its requests.

    Attributes:
        max_running: copies that may run at a time; while so many run, no others are made.
    """

    models: tuple[str, ...] = attrs.field(metadata=_MODELS)
    share: float = attrs.field(metadata=_SHARE)
    max_running: int = attrs.field(default=4, metadata=between(1, 1_000))

    def find_problems(self) -> Iterator[tuple[str, str]]:
        if not self.models or len(set(self.models)) < len(self.models):
            yield "models", "expected at least one model, and every model once"

    def shadow(self) -> StepShadow:
        return StepShadow(self.models, self.share, self.max_running)


@frozen
class StepSpec:
    """``[[route.step]]``: one step of a route.

    Attributes:
        balance: how one of the step's channels and models is chosen; None: as ``routing.balance`` says.
    """

    models: tuple[ModelShareSpec, ...]
    channels: tuple[str, ...] = attrs.field(default=(), metadata=_CHANNELS)
    on: tuple[Cause, ...] = DEFAULT_CAUSES
    condition: ConditionSpec = attrs.field(default=NO_CONDITION, metadata=keyed("if"))
    balance: BalanceStrategy | None = None
    shadow: ShadowSpec | None = None
    wait_s: float | None = attrs.field(default=None, metadata=NOT_NEGATIVE)

    def find_problems(self) -> Iterator[tuple[str, str]]:
        if not self.models:
            yield "models", "expected at least one model"
        if len({share.model for share in self.models}) < len(self.models):
            yield "models", "expected every model once"
        if not self.on:
            yield "on", "expected at least one cause"

    def step(self) -> RouteStep:
        """Return the step as the router uses it."""
        models = tuple(ModelShare(share.model, share.weight) for share in self.models)
        condition = ANY_REQUEST if self.condition == NO_CONDITION else self.condition.condition()
        shadow = None if self.shadow is None else self.shadow.shadow()
        causes = tuple(dict.fromkeys(self.on))
        return RouteStep(models, self.channels, causes, condition, self.balance, shadow, self.wait_s)


@frozen
class RouteSpec:
    """``[[route]]``: a name that clients send as a model, and its steps."""

    name: str = attrs.field(metadata=_NAME)
    step: tuple[StepSpec, ...]
    about: str = attrs.field(default="", metadata=_DESCRIPTION)
    max_attempts: int | None = attrs.field(default=None, metadata=between(1, MAX_ATTEMPTS))
    deadline_s: float | None = attrs.field(default=None, metadata=POSITIVE)
    cache_ttl_s: int | None = attrs.field(default=None, metadata=between(0, MAX_TTL_S))

    def find_problems(self) -> Iterator[tuple[str, str]]:
        if not 0 < len(self.step) <= MAX_STEPS:
            yield "step", f"expected 1 to {MAX_STEPS} steps"

    def route(self) -> Route:
        """Return the route as the router uses it."""
        steps = tuple(step.step() for step in self.step)
        return Route(self.name, steps, self.about, self.max_attempts, self.deadline_s, self.cache_ttl_s)


def build_route(route: Route) -> dict[str, Any]:
    """Return a route as fields for JSON, which ``RouteSpec`` parses. Defaults of a step are left out."""
    return {
        "name": route.name,
        "about": route.about,
        "max_attempts": route.max_attempts,
        "deadline_s": route.deadline_s,
        "cache_ttl_s": route.cache_ttl_s,
        "step": [_build_step(step) for step in route.steps],
    }


def _build_step(step: RouteStep) -> dict[str, Any]:
    built: dict[str, Any] = {
        "models": [
            share.model if share.weight == 1 else {"model": share.model, "weight": share.weight}
            for share in step.models
        ]
    }
    if step.channels:
        built["channels"] = list(step.channels)
    if set(step.causes) != set(DEFAULT_CAUSES):
        built["on"] = list(step.causes)
    condition = {name: value for name, value in attrs.asdict(step.condition).items() if value is not None}
    if condition:
        built["if"] = condition
    if step.balance is not None:
        built["balance"] = step.balance
    if step.shadow is not None:
        built["shadow"] = {**attrs.asdict(step.shadow), "models": list(step.shadow.models)}
    if step.wait_s is not None:
        built["wait_s"] = step.wait_s
    return built
