"""Room 6: on the way out every request leaves one row, and what was held for it becomes what it cost.

Nothing here waits, so nothing here can be cancelled half-way. The row is stored behind the request's back, in one
commit with others.
"""

from collections.abc import Callable

import structlog

from gateway.billing.abandoned import Abandoned, find_least, may_have_done
from gateway.billing.quota import QuotaService
from gateway.billing.write_queue import WriteQueue
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.request_log import RequestRecord
from gateway.domain.usage import Usage
from gateway.formats.usage_bounds import limit_usage
from gateway.request_context import Arrival, Grant, Outcome, build_row
from gateway.routing.target import Target
from gateway.storage.journal import RequestJournal

log = structlog.stdlib.get_logger(__name__)


class Settlement:
    """Turns what happened into rows.

    Args:
        admission: gave the grants, and takes back what they hold.
        journal: told of every row before the store has it.
        outbox: where rows go.

    Attributes:
        find_abandoned: ``billing.abandoned``, what a call costs that is broken off; set by the roof.
    """

    def __init__(self, admission: QuotaService, journal: RequestJournal, outbox: WriteQueue) -> None:
        self.find_abandoned: Callable[[], Abandoned] = lambda: "charge"
        self._admission = admission
        self._journal = journal
        self._outbox = outbox

    def settle(self, arrival: Arrival, grant: Grant, outcome: Outcome, *, left: bool = False) -> RequestRecord:
        """A granted call has ended: once. Whoever says so again is given the first row.

        ``left``: its client had left before, and ``outcome`` is that of its drain.
        """
        if grant.row is None:
            delivery, option = grant.delivery, grant.delivery.option
            if outcome.ending != "completed" and self.find_abandoned() != "free":
                option = self._note_bought(grant, outcome)
            usage, cost, call = delivery.usage, 0, grant.call
            if usage.prompt_tokens > call.max_prompt_tokens or usage.completion_tokens > call.max_output_tokens:
                usage = self._limit(arrival, grant)
            if option is not None:
                cost = option.cost(usage) if option.find_price is None else option.cost_of(delivery.answered, usage)
            tokens = usage.prompt_tokens + usage.completion_tokens
            charge = self._admission.end(grant, cost, tokens, outcome.now_ms / 1000)
            reserved = grant.hold.nanos
            if left:
                outcome = Outcome("client_closed", outcome.now, outcome.now_ms)
            row = build_row(arrival, grant.call, outcome, delivery=delivery, charge=charge, reserved_nanos=reserved)
            grant.row = row
            self._journal.settle(row)
            self._outbox.put(row)
        return grant.row

    def _limit(self, arrival: Arrival, grant: Grant) -> Usage:
        """What was used, if that can be; else the most that can, which is put on record and said in the log."""
        delivery, option = grant.delivery, grant.delivery.option
        said = delivery.usage
        if option is None or said.source != "upstream":
            return said
        delivery.usage = usage = limit_usage(said, grant.call, option.model)
        if usage is not said:
            log.warning(
                "usage_implausible",
                request_id=arrival.id,
                channel=option.channel.name,
                model=option.model,
                reason=f"the provider says {said.prompt_tokens} and {said.completion_tokens} tokens",
                tokens=usage.prompt_tokens + usage.completion_tokens,
            )
        return usage

    def _note_bought(self, grant: Grant, outcome: Outcome) -> Target | None:
        """The channel whose price holds for a call without a whole answer; what was bought there is put on record."""
        delivery = grant.delivery
        last, bought = delivery.attempt, delivery.bought
        if last is not None and last.pending and may_have_done(outcome.fault):
            bought = last
        if bought is None:
            return delivery.option
        delivery.usage = find_least(delivery.usage, bought, grant.call)
        return bought.option

    def refuse(self, arrival: Arrival, call: InferenceRequest | None, outcome: Outcome) -> RequestRecord:
        """A call ended before it was granted: no channel was asked, and nothing is charged.

        While the store is far behind, nothing is kept of it: a caller refused in a loop must not take others' room.
        """
        row = build_row(arrival, call, outcome)
        if not self._outbox.crowded and not self._journal.failing:
            self._outbox.put(row)
        return row
