"""What ``explain`` answers: where a request would be sent, and why not elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gateway.answer_fields import Count, Moment
from gateway.domain.circuit_breaker import State
from gateway.domain.operation import Operation
from gateway.domain.route import BalanceStrategy, Cause
from gateway.frozen import frozen
from gateway.routing.channel_health import PerformanceView
from gateway.routing.channel_state import Obstacle
from gateway.routing.load_balancer import AffinityMode
from gateway.routing.target import Target

Verdict = Literal["first", "next", "skipped"]


@frozen(kw_only=True)
class UnusedChannel:
    """A channel that would not get the request, and why. Without a rank, the chance is 0."""

    channel: str
    provider: str
    priority: int
    weight: Count
    rank: Count | None = None
    chance: float = 0.0
    reason: str | None


@frozen(kw_only=True)
class PriceSummary:
    """A price in dollars. Null means: cached input and cache writes cost as input does, audio as text."""

    model: str
    input_usd_per_million: float
    cached_input_usd_per_million: float | None
    cache_write_usd_per_million: float | None
    cache_write_long_usd_per_million: float | None
    output_usd_per_million: float
    usd_per_image: float
    usd_per_second: float
    usd_per_million_characters: float
    audio_input_usd_per_million: float | None
    cached_audio_input_usd_per_million: float | None
    audio_output_usd_per_million: float | None
    tiers: Count


@frozen(kw_only=True)
class ExplainedQueue:
    """The queue of a channel with ``places`` for requests at a time.

    ``waiting`` requests wait, at most ``length`` do. The request would wait ``expected_wait_s``. ``loaded_model`` is
    the provider's name of the only model that the server holds; null if it may hold several, or none was asked for yet.
    """

    places: Count
    waiting: Count
    length: Count
    expected_wait_s: float
    loaded_model: str | None


ScoreUnit = Literal["seconds", "seconds_per_token", "usd_per_million_tokens"]


@frozen
class ExplainedScore:
    """What a balance by measurement compares; lower is better.

    ``amount`` is null if it is not measured yet: the channel is tried. Between two channels, the request goes to the
    one with the lower ``amount / success_share * (running + 1) / share``. ``is_last`` is true for the channel with the
    last request, which keeps the next ones until another is clearly better.
    """

    amount: float | None
    unit: ScoreUnit
    success_share: float
    is_last: bool


@frozen(kw_only=True)
class ChannelOption(UnusedChannel):
    """A channel that serves the model. ``language`` is the name of ``api_format`` until 0.8.

    ``queue`` is null if requests do not wait for a place of the channel. ``measured`` has what was measured of the
    model at each of the channel's keys. It is empty unless something balances by measurement. ``score`` is null unless
    the channel is one of those that the balance chooses from by measurement.
    """

    wait_s: float | None
    upstream_model: str
    api_format: str
    language: str
    translated: bool
    state: State
    share: float
    running: Count
    capability: Mapping[str, Any] | None
    price: PriceSummary | None
    price_multiplier: float
    queue: ExplainedQueue | None
    measured: Sequence[PerformanceView] = ()
    score: ExplainedScore | None = None


@frozen(kw_only=True)
class Remaining:
    """What is left to a key or an account, and its limits."""

    held_usd: float
    left_usd: float | None
    resets_at: Moment | None
    rpm: Count | None
    tpm: Count | None
    max_concurrency: Count | None
    burst: Count | None


@frozen
class RemainingOfCaller:
    """What is left to a key and to its account."""

    key: Remaining
    account: Remaining


@frozen
class KeyName:
    """A key, by its id, name and account."""

    id: int
    name: str
    account: str


@frozen
class Refusal:
    """The error that the request would get."""

    code: str
    message: str


@frozen
class ExplainedModel:
    """A model of a step, and the channels for it.

    ``chance`` is its share of the step's requests: models are drawn by their weights for a new conversation, which then
    keeps its model. If no channel can serve the model, the chance is 0.
    """

    model: str
    weight: Count
    chance: float
    channels: Sequence[ChannelOption | UnusedChannel]


@frozen
class ExplainedAffinity:
    """What keeps a conversation where it was answered last: ``routing.affinity`` and ``routing.affinity_s``.

    ``has_choice`` is false if nothing is ever remembered: all requests go to the same provider key anyway, or the
    operation has no conversations.
    """

    mode: AffinityMode
    keeps_s: float
    has_choice: bool


@frozen(kw_only=True)
class ExplainedStep:
    """A step of a route: whether a request would be sent to it. ``balance``: how a channel is chosen there.

    ``verdict`` is ``first`` for the step that gets the request, ``next`` for one that may get it after a failure with a
    cause in ``on``, ``skipped`` for one that does not get it, because of ``reason``. ``reserved_usd`` is the most that
    the request can cost at the step; null without a channel.
    """

    step: Count
    verdict: Verdict
    reason: str | None
    on: Sequence[Cause]
    balance: BalanceStrategy | None
    reserved_usd: float | None
    models: Sequence[ExplainedModel]


@frozen(kw_only=True)
class Explanation:
    """Where a request would be sent. ``steps`` is null unless ``model`` is a route; then ``channels`` is empty.

    ``balance`` is how one of several equal channels is chosen, where a step has no balance of its own. ``prefers`` is
    whether callers may choose another one.
    """

    model: str
    operation: Operation
    key: KeyName | None
    served: bool
    refused: Refusal | None
    balance: BalanceStrategy
    prefers: bool
    channels: Sequence[ChannelOption | UnusedChannel]
    steps: Sequence[ExplainedStep] | None
    affinity: ExplainedAffinity
    room: RemainingOfCaller | None


@frozen
class ChannelLines:
    """The channels for a model with their verdicts.

    Attributes:
        targets: those that serve the model to the caller.
        obstacles: why targets cannot serve now.
        served: whether a request would be sent, or wait for a place.
        wait_s: the expected wait for a place in seconds; 0 if none is needed.
    """

    lines: Sequence[ChannelOption | UnusedChannel]
    targets: Sequence[Target]
    obstacles: frozenset[Obstacle]
    served: bool
    wait_s: float = 0.0


NO_LINES = ChannelLines((), (), frozenset(), served=False)
