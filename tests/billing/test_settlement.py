"""Every request leaves one row; that of a granted call has its charge."""

from decimal import Decimal
from typing import Any

import attrs
import pytest

from gateway.billing.settlement import CLIENT_CLOSED_STATUS
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.price import ONE_PPM, Price, nanos
from gateway.domain.request_log import FailedAttempt, Outcome, RequestRecord
from gateway.domain.usage import Usage, UsageDetails
from gateway.errors import GatewayError, InvalidRequest, ProviderBadResponse, ProviderTimeout, QuotaExceeded
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.request_context import RequestContext
from gateway.routing.target import Attempt, Target
from tests.support.billing_services import BillingServices, call_for, caller_of, capped, option_of
from tests.support.contexts import make_attempt, make_context

CALLER = Caller(Account(1, "acme"), ApiKey(7, 1, "laptop", b"", ""))
CALL = parse_chat_inference({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
PRICE = Price("m", input_nanos_per_million=nanos(Decimal(2)), output_nanos_per_million=nanos(Decimal(10)))
OPTION = option_of(PRICE, model="theirs")
TIMED_OUT = FailedAttempt("other", "upstream_timeout", 120)
RESERVED = (2 * 8 + 2) * 2_000 + 4_096 * 10_000
"""Two bytes and a template, and the most that is set aside for an answer."""


def arrive(inference: InferenceRequest | None = CALL) -> RequestContext:
    return make_context(CALLER, inference, started_ms=1_000, started_at=10.0, client_request_id="theirs")


def attempted(many: int = 1, target: Target = OPTION) -> list[Attempt]:
    """So many attempts, of which all but the last have failed."""
    failed = [make_attempt(target, failure=TIMED_OUT) for _ in range(many - 1)]
    return [*failed, make_attempt(target, began_at=10.125)]


async def settle(
    billing: BillingServices,
    attempts: list[Attempt],
    outcome: Outcome,
    now: float = 11.0,
    *,
    error: GatewayError | None = None,
    **more: Any,
) -> RequestRecord:
    """The row of a request for which money was reserved, after these attempts."""
    ctx = arrive()
    await billing.quota.admit(ctx, [OPTION])
    ctx.attempts = attempts
    for name, value in more.items():
        setattr(ctx, name, value)
    row = billing.settlement.settle(ctx, outcome, error, now_s=now, now_ms=3_000)
    assert ctx.record is row
    assert billing.write_queue.take(10) == [row]
    assert billing.quota.open_reservations == 0
    return row


ANSWERED: dict[str, Any] = {"usage": Usage(1_000, 100, 10, "upstream"), "first_byte_at": 10.25}
"""What is known of a request that was answered."""


def refuse(
    billing: BillingServices, ctx: RequestContext, error: GatewayError | None = None, now: float = 11.0
) -> RequestRecord:
    return billing.settlement.settle(ctx, "refused", error, now_s=now, now_ms=3_000)


async def test_the_row_of_a_success_has_every_field(billing: BillingServices) -> None:
    assert await settle(billing, attempted(2), "completed", 12.5, **ANSWERED) == RequestRecord(
        id="req_1",
        started_ms=1_000,
        settled_ms=3_000,
        operation="chat",
        account_id=1,
        account="acme",
        key_id=7,
        key_name="laptop",
        model="m",
        channel="up",
        status=200,
        outcome="completed",
        error_code=None,
        stream=False,
        attempts=2,
        prompt_tokens=1_000,
        completion_tokens=100,
        cached_tokens=10,
        usage_source="upstream",
        cost_nanos=1_000 * 2_000 + 100 * 10_000,
        reserved_nanos=RESERVED,
        overrun_nanos=0,
        first_byte_ms=250,
        total_ms=2_500,
        client_request_id="theirs",
        tried="other=upstream_timeout:120:0::0:,up=ok:2375:0::0:theirs",
        served_model="theirs",
    )


async def test_a_stream_that_failed_after_its_first_byte_was_a_200_and_is_charged(billing: BillingServices) -> None:
    row = await settle(billing, attempted(2), "failed", error=ProviderBadResponse("x"), **ANSWERED)
    assert (row.status, row.outcome, row.error_code) == (200, "failed", "upstream_error")
    assert row.cost_nanos == 3_000_000


async def test_a_failure_before_the_first_byte_has_the_faults_status_and_costs_nothing(
    billing: BillingServices,
) -> None:
    row = await settle(billing, attempted(3), "failed", error=ProviderTimeout("x"))
    assert (row.status, row.error_code, row.first_byte_ms, row.cost_nanos) == (504, "upstream_timeout", None, 0)
    assert (row.attempts, row.usage_source, row.reserved_nanos) == (3, "none", RESERVED)


async def test_a_caller_who_left_before_the_first_byte_is_a_499_of_the_log_alone(billing: BillingServices) -> None:
    row = await settle(billing, attempted(), "client_closed")
    assert (row.status, row.error_code) == (CLIENT_CLOSED_STATUS, None)
    row = await settle(billing, attempted(2), "client_closed", **ANSWERED)
    assert row.status == 200


async def test_a_grant_that_came_to_no_attempt_costs_nothing(billing: BillingServices) -> None:
    row = await settle(billing, [], "failed", usage=Usage(5, 5))
    assert (row.channel, row.attempts, row.cost_nanos) == (None, 0, 0)


@pytest.mark.parametrize("inference", [None, CALL])
async def test_a_call_refused_before_it_was_granted_costs_nothing(
    billing: BillingServices, inference: InferenceRequest | None
) -> None:
    row = refuse(billing, arrive(inference), InvalidRequest("x", param="n"), now=10.001)
    assert billing.write_queue.take(10) == [row]
    assert (row.model, row.channel, row.attempts) == ("m" if inference else "", None, 0)
    assert (row.status, row.error_code, row.cost_nanos, row.total_ms) == (400, "invalid_request", 0, 1)
    assert (row.settled_ms, row.account_id, row.reserved_nanos, row.overrun_nanos) == (3_000, 1, 0, 0)


@pytest.mark.parametrize("status", [403, 429])
async def test_a_call_refused_for_money_has_the_caps_status(billing: BillingServices, status: int) -> None:
    row = refuse(billing, arrive(), QuotaExceeded("x", status=status))
    assert (row.status, row.error_code) == (status, "insufficient_quota")


async def test_the_multiplier_of_the_option_counts(billing: BillingServices) -> None:
    costs = []
    for multiplier_ppm in (ONE_PPM, 2 * ONE_PPM, 0):
        attempts = attempted(2, attrs.evolve(OPTION, multiplier_ppm=multiplier_ppm))
        costs.append((await settle(billing, attempts, "completed", **ANSWERED)).cost_nanos)
    assert costs == [3_000_000, 6_000_000, 0]


CACHING = attrs.evolve(
    PRICE, cached_input_nanos_per_million=nanos(Decimal("0.3")), cache_write_nanos_per_million=nanos(Decimal(3))
)


@pytest.mark.parametrize(
    ("usage", "saved"),
    [
        (Usage(1_000, 100, 900, "upstream"), 900 * 1_700),
        (Usage(1_000, 100, 0, "upstream", written_tokens=900), -900 * 1_000),
        (Usage(1_000, 100, 500, "upstream", written_tokens=400), 500 * 1_700 - 400 * 1_000),
        (Usage(1_000, 100, 0, "upstream"), 0),
    ],
)
async def test_what_the_prompt_cache_saved_is_in_the_row(billing: BillingServices, usage: Usage, saved: int) -> None:
    caching = attrs.evolve(OPTION, price=CACHING)
    row = await settle(billing, attempted(1, caching), "completed", usage=usage, first_byte_at=10.25)
    assert row.saved_nanos == saved
    assert row.cost_nanos + saved == 1_000 * 2_000 + 100 * 10_000


async def test_nothing_is_said_to_be_saved_if_the_provider_reports_the_cost(billing: BillingServices) -> None:
    reporting = attrs.evolve(OPTION, price=attrs.evolve(CACHING, built_in=True), reports_cost=True)
    usage = Usage(1_000, 100, 900, "upstream", details=UsageDetails(cost_nanos=77))
    row = await settle(billing, attempted(1, reporting), "completed", usage=usage, first_byte_at=10.25)
    assert (row.cost_nanos, row.saved_nanos) == (77, 0)


async def test_what_is_charged_is_the_channel_that_answered_and_not_the_most_expensive_that_was_asked(
    billing: BillingServices,
) -> None:
    expensive = attrs.evolve(OPTION, price=attrs.evolve(PRICE, output_nanos_per_million=nanos(Decimal(1_000))))
    ctx = arrive()
    await billing.quota.admit(ctx, [expensive, OPTION])
    ctx.attempts, ctx.usage = attempted(2), ANSWERED["usage"]
    assert billing.settlement.settle(ctx, "completed", now_s=11.0, now_ms=3_000).cost_nanos == 3_000_000


async def test_who_settles_again_is_given_the_first_row_and_nothing_is_charged_twice(billing: BillingServices) -> None:
    caller = caller_of(capped(100), capped(100))
    ctx = await billing.admit(caller, call_for(20))
    first = billing.settle(ctx, 15)
    ctx.usage = Usage(90)
    assert billing.settlement.settle(ctx, "failed", ProviderBadResponse("x"), now_s=11.0, now_ms=3_000) is first
    assert len(billing.write_queue) == 1
    balance = billing.balances.find_balance("account", 1)
    assert (balance.held_nanos, balance.lifetime.spent_nanos) == (0, 15)


async def test_what_was_spent_beyond_a_cap_stands_in_the_row(billing: BillingServices) -> None:
    running = await billing.admit(caller_of(capped(100), capped(50, "daily")), call_for(50))
    row = billing.settle(running, 120)
    assert (row.cost_nanos, row.reserved_nanos, row.overrun_nanos) == (120, 50, 70)


async def test_the_day_that_is_charged_is_that_of_the_row(billing: BillingServices) -> None:
    caller = caller_of(capped(100, "daily"))
    running = await billing.admit(caller, call_for(50))
    billing.now = billing.balances.today.end_s
    row = billing.settle(running, 50)
    assert row.settled_ms == billing.now * 1000
    assert billing.balances.find_balance("account", 1).daily.current.start_s * 1000 == row.settled_ms


async def test_an_ended_call_is_noted_with_its_charge_until_it_is_stored(billing: BillingServices) -> None:
    row = await billing.spend(caller_of(), 15)
    left = billing.journal._open_notes
    assert list(left) == [row.id]
    assert b'"completed"' in left[row.id]
    await billing.flush.flush()
    assert not left
    assert await billing.disk.rows() == [row]


async def test_while_the_store_is_behind_charges_are_kept_and_refusals_are_not(billing: BillingServices) -> None:
    running = [await billing.admit(caller_of(), call_for(1)) for _ in range(3)]
    billing.disk.full = True
    billing.settle(running[0], 1)
    await billing.flush.flush()
    billing.settle(running[1], 1)
    refuse(billing, arrive())
    assert len(billing.write_queue) == 2
    billing.disk.full = False
    await billing.flush.flush()
    refuse(billing, arrive())
    assert len(billing.write_queue) == 1
