"""Sums and histograms of finished requests for ``GET /metrics``.

Handlers count nothing: ``Settlement`` puts the record of each request in a queue. The queue is counted after each
commit of records, before ``GET /metrics`` reads the sums, and every ``COUNT_INTERVAL_S``.

Labels are bounded. A client may send any model name, but only names in the price list and in channels become labels;
all others become ``other``. Beyond ``MAX_LABEL_SETS``, a new combination is counted without its model and channel.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping

import attrs

from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import RequestRecord
from gateway.error_status import STATUS
from gateway.observability.gen_ai import (
    DURATION_BOUNDS,
    FIRST_TOKEN_BOUNDS,
    OUTPUT_TOKEN_BOUNDS,
    name_operation,
    name_provider,
)
from gateway.observability.histogram import Histogram
from gateway.routing.router import Router

MAX_LABEL_SETS = 1_000
"""Maximum of combinations of operation, model, channel and outcome, and of those of channel, outcome and code."""
MAX_LATENCIES = 250
"""Maximum of combinations of operation, provider, model and error. Each of their histograms has some 20 series."""
MAX_UNPRICED_MODELS = 50
"""Maximum of remembered models without a price: clients can invent model names."""
OTHER_LABEL = "other"
COUNT_INTERVAL_S = 15.0
"""How often the queue is counted in any case: no commit of the ledger follows the records of video jobs."""
OVERHEAD_BOUNDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
BATCH_RECORDS = 500
"""Records counted before other work of the event loop gets its turn: about a millisecond."""
_MS_PER_S = 1_000

SumKey = tuple[str, str, str, str]
"""Operation, model, channel and outcome; the channel is empty if no channel was tried."""
LatencyKey = tuple[str, str, str, str]
"""Operation, provider, model and error; the error is empty without one."""
_RecordKey = tuple[str, str, str | None, str, str | None]


@attrs.define
class RequestSums:
    """The sums of one combination of labels."""

    requests: int = 0
    retry_count: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_nanos: int = 0
    saved_nanos: int = 0

    @property
    def cost_usd(self) -> float:
        return self.cost_nanos / NANOS_PER_USD

    @property
    def saved_usd(self) -> float:
        return self.saved_nanos / NANOS_PER_USD


class Latencies:
    """The histograms of one combination of labels, in seconds.

    ``first_token`` is the time from the request's arrival to the first byte; completed streams only. ``output_token``
    is the time per token after the first; completed streams only. ``duration`` is the time of the whole request.
    """

    __slots__ = ("duration", "first_token", "output_token")

    def __init__(self) -> None:
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.output_token = Histogram(OUTPUT_TOKEN_BOUNDS)
        self.duration = Histogram(DURATION_BOUNDS)

    def observe(self, record: RequestRecord) -> None:
        self.duration.observe(record.total_ms / _MS_PER_S)
        first_ms = record.first_byte_ms
        if record.stream and first_ms is not None and record.outcome == "completed":
            self.first_token.observe(first_ms / _MS_PER_S)
            if (tokens := record.completion_tokens) > 1:
                self.output_token.observe((record.total_ms - first_ms) / (_MS_PER_S * (tokens - 1)))


class ModelNames:
    """Decides which model names may be labels: names in channels and in the price list."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._offered_models: frozenset[str] = frozenset()
        self._state: object = None

    def find_label(self, model: str) -> str:
        """Return ``model`` if it may be a label, else ``other``; empty if the request's body was never read."""
        router = self._router
        if not model or router.pricing.prices.is_named(model):
            return model
        catalog = router.catalog
        if self._state is not catalog.state:
            self._offered_models = frozenset(model_info.id for model_info in catalog.list_models())
            self._state = catalog.state
        return model if model in self._offered_models else OTHER_LABEL


class RequestMetrics:
    """Counts finished requests.

    Args:
        ended_requests: the records that are not counted yet; ``Settlement`` adds them.
        find_model: returns the label for a model; see ``ModelNames.find_label``.
        find_provider: returns the provider of a channel; empty if the channel is gone.

    Attributes:
        sums: by operation, model, channel and outcome.
        latencies: by operation, provider, model and error; only for requests that reached a channel.
        errors: requests that ended with an error, by channel, outcome and code.
        unpriced: requested models without a price, with the time of the last request in Unix milliseconds.
        overhead: the gateway's own time for whole answers, without that of the provider, in seconds.
        overheads: values that are not counted in ``overhead`` yet.
    """

    def __init__(
        self,
        ended_requests: deque[RequestRecord],
        find_model: Callable[[str], str],
        find_provider: Callable[[str], str],
    ) -> None:
        self.sums: dict[SumKey, RequestSums] = {}
        self.latencies: dict[LatencyKey, Latencies] = {}
        self.errors: Counter[tuple[str, str, str]] = Counter()
        self.unpriced: dict[str, int] = {}
        self.overhead = Histogram(OVERHEAD_BOUNDS)
        self.overheads: deque[float] = deque()
        self._ended_requests = ended_requests
        self._find_model = find_model
        self._find_provider = find_provider
        self._known_sums: dict[_RecordKey, tuple[RequestSums, Latencies | None]] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(COUNT_INTERVAL_S)
            await self.count_all()

    async def count_all(self) -> None:
        while self._ended_requests or self.overheads:
            self.count_batch()
            await asyncio.sleep(0)

    def count_batch(self) -> None:
        ended_requests = self._ended_requests
        for _ in range(min(BATCH_RECORDS, len(ended_requests))):
            self.count(ended_requests.popleft())
        for _ in range(min(BATCH_RECORDS, len(self.overheads))):
            self.overhead.observe(self.overheads.popleft())

    def count(self, record: RequestRecord) -> None:
        key = (record.operation, record.model, record.channel, record.outcome, record.error_code)
        sums, latencies = self._known_sums.get(key) or self._find_sums(key)
        sums.requests += 1
        sums.input_tokens += record.prompt_tokens
        sums.output_tokens += record.completion_tokens
        sums.cached_tokens += record.cached_tokens
        sums.cost_nanos += record.cost_nanos
        if record.saved_nanos:
            sums.saved_nanos += record.saved_nanos
        if record.attempts > 1:
            sums.retry_count += record.attempts - 1
        if latencies is not None:
            latencies.observe(record)
        if record.error_code is not None:
            self._count_error(record.channel or "", record.outcome, find_code(record.error_code))
        if record.unpriced or record.error_code == "model_not_priced":
            self._note_unpriced(record)

    def _note_unpriced(self, record: RequestRecord) -> None:
        self.unpriced.pop(record.model, None)
        self.unpriced[record.model] = record.settled_ms
        if len(self.unpriced) > MAX_UNPRICED_MODELS:
            del self.unpriced[next(iter(self.unpriced))]

    def _count_error(self, channel: str, outcome: str, code: str) -> None:
        key = (channel, outcome, code)
        if key not in self.errors and len(self.errors) >= MAX_LABEL_SETS:
            key = ("", outcome, OTHER_LABEL)
        self.errors[key] += 1

    def _find_sums(self, key: _RecordKey) -> tuple[RequestSums, Latencies | None]:
        """Return the sums and histograms for a record; no histograms if no channel was tried.

        They are cached only under a ``key`` without texts that a client or a provider has invented.
        """
        operation, model, channel, outcome, code = key
        label = self._find_model(model)
        sum_key = (operation, label, channel or "", outcome)
        if sum_key not in self.sums and len(self.sums) >= MAX_LABEL_SETS:
            sum_key = (operation, OTHER_LABEL, "", outcome)
        sums = self.sums.setdefault(sum_key, RequestSums())
        latencies = None if channel is None else self._find_latencies(operation, channel, label, find_code(code))
        if label == model and sum_key[1] == model and find_code(code) == (code or ""):
            self._known_sums[key] = sums, latencies
        return sums, latencies

    def _find_latencies(self, operation: str, channel: str, model: str, code: str) -> Latencies:
        key = (name_operation(operation), name_provider(self._find_provider(channel)), model, code)
        if key not in self.latencies and len(self.latencies) >= MAX_LATENCIES:
            key = (key[0], "", OTHER_LABEL, "")
        histogram = self.latencies.get(key)
        if histogram is None:
            histogram = self.latencies[key] = Latencies()
        return histogram


def find_code(code: str | None, codes: Mapping[str, int] = STATUS) -> str:
    """Return an error code as a label: empty without an error, ``other`` for a provider's own code."""
    return "" if code is None else code if code in codes else OTHER_LABEL
