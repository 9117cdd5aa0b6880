"""Quotes: what a request may cost at each of its targets, and the amounts held for the requests that were quoted.

A quote with a hold is binding: its request gets the quoted prices, uses what is held, and is charged no more.
Holds are in memory. They end with their time, with their request or with the process.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence

import attrs

from gateway.billing.quota import find_highest
from gateway.domain.balance import Reservation
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.price import usd
from gateway.domain.usage import Usage, estimate_tokens
from gateway.errors import QuoteNotValid, RateLimited
from gateway.formats.references.provider_reads import ProviderReads
from gateway.formats.usage.bounds import bound_answer
from gateway.formats.usage.detail_bounds import bound_details
from gateway.frozen import frozen
from gateway.request_context import QUOTE_HEADER
from gateway.routing.target import Target
from gateway.routing.target_list import TargetList

MAX_HOLD_S = 60
MAX_HOLDS = 100
"""Maximum of quotes of one API key that hold money at the same time."""
LIKELY_ANSWER_TOKENS = 500
"""Tokens of an answer that a likely cost assumes, unless the request allows fewer."""
_SINGLE_NODE = "gateway"
_TOKEN_BYTES = 12
_MAX_SHOWN_CHARS = 80


@frozen
class TargetQuote:
    """What a request costs at one target, in nano-USD. Both are unknown (None) if only the provider tells the cost."""

    target: Target
    max_nanos: int | None
    likely_nanos: int | None


@frozen
class Quote:
    """A request with its cost at each target.

    Attributes:
        max_nanos: the highest cost at any target, in nano-USD; None if one of them has no known highest cost.
    """

    inference: InferenceRequest
    targets: Sequence[TargetQuote]

    @property
    def max_nanos(self) -> int | None:
        costs = [quoted.max_nanos for quoted in self.targets]
        known_costs = [cost for cost in costs if cost is not None]
        return max(known_costs, default=0) if len(known_costs) == len(costs) else None


@attrs.define(eq=False)
class Hold:
    """A quote whose highest cost is reserved. ``ends_at`` is the event loop's time."""

    id: str
    key_id: int
    quote: Quote
    reservation: Reservation
    ends_at: float
    timer: asyncio.TimerHandle | None = None


def make_quote(inference: InferenceRequest, targets: Sequence[Target], reads: ProviderReads) -> Quote:
    """Return what ``inference`` costs at each of ``targets``. ``reads``: what providers read besides the text."""
    return Quote(inference, [_quote_target(inference, target, reads) for target in targets])


def _quote_target(inference: InferenceRequest, target: Target, reads: ProviderReads) -> TargetQuote:
    if target.price is None and target.reports_cost:
        return TargetQuote(target, None, None)
    if OPERATIONS[inference.operation].counts_only:
        return TargetQuote(target, 0, 0)
    longest = _lengthen(inference, target, reads)
    most = max(target.find_reservation(longest), find_highest(longest, target, reads))
    return TargetQuote(target, most, min(most, target.find_most(_find_likely_usage(inference, target))))


def _lengthen(inference: InferenceRequest, target: Target, reads: ProviderReads) -> InferenceRequest:
    """Return the request with the longest answer that is possible, if its client sets no limit."""
    if inference.allowed_output or not OPERATIONS[inference.operation].output_limit:
        return inference
    longest = max(bound_answer(reads, model) for model in (target.model, *target.named))
    return attrs.evolve(inference, max_output_tokens=max(longest, inference.max_output_tokens))


def _find_likely_usage(inference: InferenceRequest, target: Target) -> Usage:
    bound = target.bound(inference)
    repeats = inference.choices if target.fans_out(inference) else 1
    usage = attrs.evolve(
        bound,
        prompt_tokens=min(bound.prompt_tokens, estimate_tokens(inference.prompt_chars) * repeats),
        completion_tokens=min(bound.completion_tokens, LIKELY_ANSWER_TOKENS * inference.choices),
        written_tokens=0,
        written_long_tokens=0,
        details=None,
    )
    return bound_details(usage, inference, target.price) if OPERATIONS[inference.operation].known_unit else usage


class Holds:
    """The holds of this process. ``release`` ends a reservation without a charge.

    ``node``: the id of this node of a cluster; None without one.
    """

    def __init__(self, release: Callable[[Reservation], None], node: str | None) -> None:
        self._release = release
        self._node = node or _SINGLE_NODE
        self._holds: dict[str, Hold] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def check_room(self, key_id: int) -> None:
        """Raise ``RateLimited`` if the key has ``MAX_HOLDS`` holds."""
        end_times_s = [hold.ends_at for hold in self._holds.values() if hold.key_id == key_id]
        if len(end_times_s) >= MAX_HOLDS:
            wait_s = max(1, round(min(end_times_s) - asyncio.get_running_loop().time()))
            raise RateLimited(f"This API key has {MAX_HOLDS} quotes that hold money", retry_after_s=wait_s)

    def open(self, key_id: int, quote: Quote, reservation: Reservation, hold_s: int) -> Hold:
        """Keep ``reservation`` for the quoted request for ``hold_s`` seconds, and limit its charge to the quote."""
        reservation.max_cost_nanos = quote.max_nanos
        ends_at = asyncio.get_running_loop().time() + hold_s
        hold = Hold(
            f"quote_{self._node}_{secrets.token_hex(_TOKEN_BYTES)}", key_id, quote, reservation, ends_at=ends_at
        )
        self._keep(hold)
        return hold

    def take(self, quote_id: str, key_id: int) -> Hold:
        """Remove and return a hold; its reservation no longer ends with its time. Raises ``QuoteNotValid``."""
        hold = self._holds.get(quote_id)
        if hold is None or hold.key_id != key_id:
            raise QuoteNotValid(self._explain_missing(quote_id))
        del self._holds[quote_id]
        if hold.timer is not None:
            hold.timer.cancel()
        return hold

    def put_back(self, hold: Hold) -> None:
        """Keep a hold for the rest of its time, after its request was refused."""
        self._keep(hold)

    def close(self) -> None:
        """End all holds."""
        for hold in list(self._holds.values()):
            self._end(hold)

    def _keep(self, hold: Hold) -> None:
        self._holds[hold.id] = hold
        hold.timer = asyncio.get_running_loop().call_at(hold.ends_at, self._end, hold)

    def _end(self, hold: Hold) -> None:
        if self._holds.pop(hold.id, None) is not None:
            if hold.timer is not None:
                hold.timer.cancel()
            self._release(hold.reservation)

    def _explain_missing(self, quote_id: str) -> str:
        name = f"{QUOTE_HEADER}: the quote {quote_id[:_MAX_SHOWN_CHARS]!r}"
        node = quote_id.removeprefix("quote_").rpartition("_")[0]
        if node and quote_id.startswith("quote_") and node != self._node:
            return f"{name} is held by another node of the cluster, {node[:_MAX_SHOWN_CHARS]!r}: this is {self._node!r}"
        return f"{name} holds nothing: its time is over, it was used, the gateway has restarted, or it is another key's"


def apply_quote(hold: Hold, inference: InferenceRequest, targets: TargetList, reads: ProviderReads) -> None:
    """Keep the quoted ones of ``targets``, at the quoted prices; note how much of the hold exceeds the usual cost.

    Raises ``QuoteNotValid`` if the quote does not cover ``inference``.
    """
    quote = hold.quote
    if (inference.operation, inference.model) != (quote.inference.operation, quote.inference.model):
        raise QuoteNotValid(
            f"{QUOTE_HEADER}: the quote is for {quote.inference.operation} of the model {quote.inference.model!r}"
        )
    targets.keep_quoted_targets([quoted.target for quoted in quote.targets])
    if quote.targets and not targets.targets:
        raise QuoteNotValid(f"{QUOTE_HEADER}: no channel of the quote serves the model any more")
    most_nanos = make_quote(inference, targets.targets, reads).max_nanos or 0
    if most_nanos > (quote.max_nanos or 0):
        raise QuoteNotValid(
            f"{QUOTE_HEADER}: the request may cost up to ${usd(most_nanos)}, and the quote holds "
            f"${usd(quote.max_nanos or 0)}: it was made for a smaller request"
        )
    usual_nanos = max((target.find_reservation(inference) for target in targets.targets), default=0)
    hold.reservation.extra_nanos = max(0, hold.reservation.nanos - usual_nanos)
