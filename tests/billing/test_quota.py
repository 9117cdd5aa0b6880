"""A call is granted with money in both purses and a turn at every limit, or with nothing at all."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.billing.balances import Balances
from gateway.billing.quota import PAUSE_S, QuotaService
from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.billing.write_queue import WriteQueue
from gateway.cluster.membership.fence import FencedWriteQueue, read_boot_time
from gateway.domain.account import Caller
from gateway.domain.balance import Balance, Reservation, parse_day
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.ledger import Spending
from gateway.domain.model_limits import find_limits
from gateway.domain.price import ONE_PPM, Price
from gateway.domain.rate_limit import Limits
from gateway.domain.request_log import RequestRecord, RequestStart
from gateway.errors import GatewayError, KeyDisabled, QuotaExceeded, RateLimited, StoreUnavailable
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.openai.completions import parse_completions_inference
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.request_context import RequestContext
from gateway.storage.journal import RequestJournal
from tests.support.billing_services import (
    NANO_A_TOKEN,
    NOON,
    BillingServices,
    call_for,
    caller_of,
    capped,
    option_of,
    unix,
)
from tests.support.contexts import make_context
from tests.support.module_sleep import replace_sleep


class FullJournal(RequestJournal):
    """A journal on a disk without space."""

    def start_at_once(self, start: RequestStart) -> bool:
        raise StoreUnavailable(f"no space left on device for {start.id}")


class Remote(Balances):
    """Balances whose reservations come from elsewhere, as those of a node of a cluster; so does the journal's note.

    ``cut`` is called while a request waits for ``what``.
    """

    def __init__(self, what: str, cut: Callable[[], None]) -> None:
        super().__init__(lambda: NOON)
        self.what, self._cut = what, cut

    def wait(self, what: str) -> bool:
        if what == self.what:
            self._cut()
        return what == self.what

    def reserve_now(self, caller: Caller, nanos: int, ctx: RequestContext | None = None) -> Reservation | None:  # noqa: ARG002
        return None if self.what == "credit" else super().reserve_now(caller, nanos)

    async def reserve(self, caller: Caller, nanos: int, ctx: RequestContext | None = None) -> Reservation:  # noqa: ARG002
        self.wait("credit")
        held = super().reserve_now(caller, nanos)
        assert held is not None
        return held

    async def extend(self, reservation: Reservation, nanos: int) -> bool:  # noqa: ARG002 - there is no more
        return self.wait("longer answer")


class RemoteJournal(RequestJournal):
    def __init__(self, path: Path, balances: Remote) -> None:
        super().__init__(path)
        self._balances = balances

    def start_at_once(self, start: RequestStart) -> bool:
        return self._balances.what != "note" and super().start_at_once(start)

    async def start(self, start: RequestStart) -> bool:
        return super().start_at_once(start) and self._balances.wait("note")


def balances(billing: BillingServices, caller: Caller) -> tuple[Balance, Balance]:
    return billing.balances.find_balance("key", caller.key.id), billing.balances.find_balance(
        "account", caller.account.id
    )


def held(billing: BillingServices, caller: Caller) -> tuple[int, ...]:
    return tuple(balance.held_nanos for balance in balances(billing, caller))


async def refuse(billing: BillingServices, caller: Caller, nanos: int) -> GatewayError:
    """The fault of a call; checks that nothing is left of it."""
    before = (
        held(billing, caller),
        billing.quota.open_reservations,
        set(billing.journal._open_notes),
        len(billing.write_queue),
    )
    with pytest.raises(GatewayError) as caught:
        await billing.admit(caller, call_for(nanos))
    assert (
        held(billing, caller),
        billing.quota.open_reservations,
        set(billing.journal._open_notes),
        len(billing.write_queue),
    ) == before
    return caught.value


# money


async def test_a_grant_holds_what_the_call_may_cost_in_both_balances(billing: BillingServices) -> None:
    caller = caller_of(capped(100), capped(50, "daily"))
    running = await billing.admit(caller, call_for(20, output=10))
    assert (held(billing, caller), billing.quota.open_reservations) == ((30, 30), 1)
    billing.settle(running, 12)
    assert (held(billing, caller), billing.quota.open_reservations) == ((0, 0), 0)
    assert [balance.lifetime.spent_nanos for balance in balances(billing, caller)] == [12, 12]


@pytest.mark.parametrize(("account", "key", "message"), [(49, 50, "the account"), (50, 49, "this API key")])
async def test_both_must_have_room_and_the_one_that_has_not_is_told(
    billing: BillingServices, account: int, key: int, message: str
) -> None:
    error = await refuse(billing, caller_of(capped(account), capped(key)), 50)
    assert isinstance(error, QuotaExceeded)
    assert message in error.message
    await billing.admit(caller_of(capped(50), capped(50)), call_for(50))


@pytest.mark.parametrize(
    ("model", "body", "most"),
    [
        ("gpt-5-mini", {}, 128_000),
        ("anthropic/claude-sonnet-4.5", {}, 64_000),
        ("mystery", {}, 0),
        ("gpt-5-mini", {"max_tokens": 9_000}, 9_000),
        ("mystery", {"max_tokens": 9_000}, 9_000),
    ],
)
async def test_the_longest_answer_of_a_model_is_held_where_a_request_names_no_limit(
    billing: BillingServices, model: str, body: dict[str, int], most: int
) -> None:
    caller, inference = caller_of(capped(200_000), capped(10**6)), attrs.evolve(call_for(20, output=4_096), body=body)
    target = attrs.evolve(option_of(NANO_A_TOKEN, ONE_PPM), model=model, limits=find_limits(model))
    ctx = billing.arrive(caller, inference)
    await billing.quota.admit(ctx, [target])
    assert held(billing, caller) == (20 + max(most, 4_096),) * 2


async def test_requests_at_the_same_time_hold_no_more_than_is_left(billing: BillingServices) -> None:
    caller, inference = caller_of(capped(200_000)), call_for(20, output=4_096)
    target = attrs.evolve(option_of(NANO_A_TOKEN, ONE_PPM), model="gpt-5-mini", limits=find_limits("gpt-5-mini"))
    for expected in (128_020, 200_000):
        await billing.quota.admit(billing.arrive(caller, inference), [target])
        assert held(billing, caller)[1] == expected
    error = await refuse(billing, caller, 50)
    assert error.message.endswith("held for running requests"), "no limit of tokens would make it fit"


SHORT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("parse", "body", "field"),
    [
        (parse_chat_inference, {"messages": SHORT}, "max_tokens"),
        (parse_chat_inference, {"messages": SHORT, "max_tokens": 9_000, "n": 3}, "max_tokens"),
        (parse_chat_inference, {"messages": SHORT, "max_completion_tokens": 900}, "max_completion_tokens"),
        (parse_messages_inference, {"messages": SHORT, "max_tokens": 4_000}, "max_tokens"),
        (parse_responses_inference, {"input": "hi"}, "max_output_tokens"),
        (parse_completions_inference, {"prompt": "hi"}, "max_tokens"),
        (parse_completions_inference, {"prompt": ["hi", "ho"], "n": 2, "best_of": 3}, "max_tokens"),
    ],
)
async def test_a_refused_request_learns_the_highest_limit_of_tokens_with_which_it_fits(
    billing: BillingServices, parse: Callable[[dict[str, Any]], InferenceRequest], body: dict[str, Any], field: str
) -> None:
    caller, targets = caller_of(capped(700), capped(800)), [option_of(NANO_A_TOKEN, 0), option_of(NANO_A_TOKEN)]

    async def admit(**more: int) -> None:
        ctx = billing.arrive(caller, parse({"model": "m", **body, **more}))
        await billing.quota.admit(ctx, targets)
        billing.quota.release(ctx)

    with pytest.raises(QuotaExceeded) as refused:
        await admit()
    hint, _, most_text = refused.value.message.rpartition(" ")
    assert hint.endswith(f"; it fits with {field} of at most")
    most = int(most_text)
    await admit(**{field: most})
    with pytest.raises(QuotaExceeded):
        await admit(**{field: most + 1})


async def test_no_limit_is_named_to_a_request_whose_prompt_alone_does_not_fit(billing: BillingServices) -> None:
    error = await refuse(billing, caller_of(capped(30)), 31)
    assert error.message.endswith("is left")


async def test_keys_of_one_account_share_its_room_and_not_each_others(billing: BillingServices) -> None:
    one, other = caller_of(capped(100), capped(60)), caller_of(capped(100), capped(60), id=8)
    await billing.admit(one, call_for(60))
    assert "the account" in (await refuse(billing, other, 41)).message
    await billing.admit(other, call_for(40))
    assert (held(billing, one), held(billing, other)) == ((60, 100), (40, 100))


async def test_the_most_expensive_of_the_options_is_held(billing: BillingServices) -> None:
    prices = [(None, ONE_PPM), (NANO_A_TOKEN, ONE_PPM), (NANO_A_TOKEN, 2_500_001), (NANO_A_TOKEN, 0)]
    targets = [option_of(price, multiplier) for price, multiplier in prices]
    ctx = billing.arrive(caller_of(), call_for(4))
    await billing.quota.admit(ctx, targets)
    assert ctx.reservation is not None
    assert ctx.reservation.nanos == 11  # 10.000004, rounded up


@pytest.mark.parametrize("price", [None, Price("m", image_nanos=5)])
async def test_a_call_that_costs_nothing_passes_an_exhausted_cap(billing: BillingServices, price: Price | None) -> None:
    caller = caller_of(capped(0), capped(0))
    running = await billing.admit(caller, call_for(10), price)
    assert billing.settle(running, 10).cost_nanos == 0


async def test_a_call_ends_at_the_price_it_began_with_whatever_later_ones_cost(billing: BillingServices) -> None:
    caller = caller_of(capped(100))
    early = await billing.admit(caller, call_for(10))
    late = await billing.admit(caller, call_for(10), attrs.evolve(NANO_A_TOKEN, input_nanos_per_million=3 * ONE_PPM))
    assert [ctx.reservation and ctx.reservation.nanos for ctx in (early, late)] == [10, 30]
    assert [billing.settle(running, 10).cost_nanos for running in (early, late)] == [10, 30]


async def test_a_hundred_calls_at_once_hold_no_more_than_the_cap(billing: BillingServices) -> None:
    caller = caller_of(capped(1_000, "monthly"), capped(10**9))
    results = await asyncio.gather(*(billing.admit(caller, call_for(30)) for _ in range(100)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, QuotaExceeded)]
    assert (len(results) - len(refused), held(billing, caller)) == (33, (990, 990))


async def test_a_changed_cap_counts_from_the_next_call_on(billing: BillingServices) -> None:
    wide, narrow = caller_of(capped(100)), caller_of(capped(40))
    running = await billing.admit(wide, call_for(60))
    await refuse(billing, narrow, 1)
    assert billing.settle(running, 30).cost_nanos == 30
    await billing.admit(narrow, call_for(10))


async def test_a_call_over_midnight_is_charged_on_the_day_it_ends(billing: BillingServices) -> None:
    caller = caller_of(capped(100, "daily"))
    billing.now = unix("2027-05-15T23:59:59")
    running = await billing.admit(caller, call_for(80))
    assert (await refuse(billing, caller, 30)).retry_after_s == 1
    billing.now = unix("2027-05-16T00:00:00")
    assert (await refuse(billing, caller, 30)).retry_after_s == 86_400
    billing.settle(running, 60)
    balance = billing.balances.find_balance("account", 1)
    assert balance.find_room(billing.balances.today) == 40
    assert balance.find_room(parse_day(unix("2027-05-15T12:00"))) == 100


# turns


async def test_a_call_refused_for_its_rate_holds_no_money(billing: BillingServices) -> None:
    caller = caller_of(capped(100), limits=Limits(max_concurrency=1))
    running = await billing.admit(caller, call_for(10))
    assert isinstance(await refuse(billing, caller, 10), RateLimited)
    billing.settle(running, 10)
    await billing.admit(caller, call_for(10))


async def test_a_call_refused_for_money_takes_no_turn(billing: BillingServices) -> None:
    caller = caller_of(capped(10), limits=Limits(rpm=10, burst=1))
    assert isinstance(await refuse(billing, caller, 11), QuotaExceeded)
    await billing.admit(caller, call_for(10))
    assert isinstance(await refuse(billing, caller, 0), RateLimited)


async def test_the_end_of_a_call_counts_its_tokens_and_frees_its_place(billing: BillingServices) -> None:
    caller = caller_of(limits=Limits(tpm=100, max_concurrency=1))
    running = await billing.admit(caller, call_for(30))
    billing.settle(running, 90)
    error = await refuse(billing, caller, 30)
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == 12  # 90 tokens are 54 s; 70 of them, 42 s, may be owed beside 30 new ones
    billing.pulse += 12
    await billing.admit(caller, call_for(30))


async def test_a_key_and_its_account_take_turns_each_for_itself(billing: BillingServices) -> None:
    one = caller_of(limits=Limits(max_concurrency=2))
    one = attrs.evolve(one, account=attrs.evolve(one.account, limits=Limits(max_concurrency=3)))
    other = attrs.evolve(one, key=attrs.evolve(one.key, id=8))
    for caller in (one, one, other):
        await billing.admit(caller, call_for(1))
    assert "This key's limit of 2 concurrent requests" in (await refuse(billing, one, 1)).message
    assert "The account's limit of 3 concurrent requests" in (await refuse(billing, other, 1)).message


async def test_a_caller_without_limits_takes_no_turn(billing: BillingServices) -> None:
    ctx = await billing.admit(caller_of(), call_for(1))
    assert ctx.permit is None


# before a call is read


def never() -> bool:
    raise AssertionError("nobody asked for what is free")


async def peek(billing: BillingServices, caller: Caller, *, free: bool = False) -> GatewayError | None:
    """What a look before the call finds; checks that nothing is left of it."""
    before = held(billing, caller), billing.quota.open_reservations, set(billing.journal._open_notes)
    error: GatewayError | None = None
    try:
        await billing.quota.precheck(caller, lambda: free)
    except GatewayError as raised:
        error = raised
    assert (held(billing, caller), billing.quota.open_reservations, set(billing.journal._open_notes)) == before
    return error


@pytest.mark.parametrize(("account", "key", "message"), [(100, 0, "this API key"), (0, 100, "the account")])
async def test_an_empty_balance_is_seen_before_a_call_that_may_cost_something(
    billing: BillingServices, account: int, key: int, message: str
) -> None:
    caller = caller_of(capped(account), capped(key))
    error = await peek(billing, caller)
    assert isinstance(error, QuotaExceeded)
    assert error.message == f"The lifetime quota of {message} is used up"
    assert await peek(billing, caller, free=True) is None


async def test_money_that_is_held_may_be_free_again_by_the_time_a_call_was_read(billing: BillingServices) -> None:
    caller = caller_of(capped(100), capped(100))
    running = await billing.admit(caller, call_for(100))
    await billing.quota.precheck(caller, never)
    billing.settle(running, 100)
    assert isinstance(await peek(billing, caller), QuotaExceeded)


async def test_a_look_sees_the_rate_and_takes_nothing_of_it(billing: BillingServices) -> None:
    caller = caller_of(limits=Limits(rpm=1, max_concurrency=1))
    for _ in range(3):
        await billing.quota.precheck(caller, never)
    running = await billing.admit(caller, call_for(1))
    error = await peek(billing, caller)
    assert isinstance(error, RateLimited)
    assert error.limit_status is not None
    assert (error.retry_after_s, error.limit_status.requests is not None) == (60, True)
    billing.pulse += 60
    assert "1 concurrent request" in getattr(await peek(billing, caller), "message", "")
    billing.settle(running, 1)
    await billing.quota.precheck(caller, never)


async def test_a_look_sees_tokens_that_are_owed(billing: BillingServices) -> None:
    caller = caller_of(limits=Limits(tpm=60))
    await billing.spend(caller, 90)
    assert isinstance(await peek(billing, caller), RateLimited)
    billing.pulse += 30
    await billing.quota.precheck(caller, never)


async def test_a_look_sees_that_the_store_is_behind(billing: BillingServices) -> None:
    await billing.spend(caller_of(), 5)
    billing.disk.full = True
    await billing.flush.flush()
    assert isinstance(await peek(billing, caller_of()), StoreUnavailable)


# the journal and the store


async def test_a_call_is_in_the_journal_before_it_is_made(billing: BillingServices, tmp_path: Path) -> None:
    ctx = await billing.admit(caller_of(key=capped(50)), call_for(20, output=5))
    found = RequestJournal(Path(shutil.copy(billing.journal._path, tmp_path / "copy")))
    found.close()
    (left,) = found.leftovers
    assert not left.ended
    assert left.row == RequestRecord(
        id=ctx.id,
        started_ms=int(NOON * 1000),
        settled_ms=int(NOON * 1000),
        operation="chat",
        account_id=1,
        account="acme",
        key_id=7,
        key_name="laptop",
        model="m",
        channel="up",
        status=500,
        outcome="interrupted",
        error_code=None,
        stream=False,
        attempts=1,
        prompt_tokens=0,
        completion_tokens=0,
        cached_tokens=0,
        usage_source="none",
        cost_nanos=0,
        reserved_nanos=25,
        overrun_nanos=0,
        first_byte_ms=None,
        total_ms=0,
        client_request_id=None,
    )


async def test_what_cannot_be_noted_is_not_made_and_holds_nothing(billing: BillingServices, tmp_path: Path) -> None:
    counters = InMemoryRateLimiter(lambda: billing.pulse)
    full = FullJournal(tmp_path / "full.journal")
    quota = QuotaService(billing.balances, counters, full, billing.write_queue, refresh=lambda caller: caller)
    caller, targets = caller_of(capped(50), limits=Limits(rpm=600, max_concurrency=1)), [option_of()]
    with pytest.raises(StoreUnavailable):
        await quota.admit(billing.arrive(caller, call_for(20)), targets)
    full.close()
    assert (held(billing, caller), quota.open_reservations) == ((0, 0), 0)
    good = QuotaService(billing.balances, counters, billing.journal, billing.write_queue, refresh=lambda caller: caller)
    ctx = billing.arrive(caller, call_for(20))
    await good.admit(ctx, targets)
    assert ctx.permit is not None


@pytest.mark.parametrize("what", ["credit", "longer answer", "note"])
async def test_who_has_waited_for_the_database_is_refused_behind_the_fence_or_if_the_key_was_revoked_meanwhile(
    tmp_path: Path, what: str
) -> None:
    def cut() -> None:
        if why is StoreUnavailable:
            queue.valid_until_s = 0.0

    def refresh(caller: Caller) -> Caller:
        assert why is not StoreUnavailable, "the change may not have been read yet"
        if why is not None:
            raise why("refused")
        return caller

    queue, remote = FencedWriteQueue(), Remote(what, cut)
    queue.valid_until_s = read_boot_time() + 1_000
    journal = RemoteJournal(tmp_path / "requests.journal", remote)
    quota = QuotaService(remote, InMemoryRateLimiter(lambda: 0.0), journal, queue, refresh=refresh)
    limits = Limits(rpm=600, max_concurrency=1)
    caller, targets = caller_of(capped(50), limits=limits), [option_of(NANO_A_TOKEN, model="gpt-4o")]
    why: type[GatewayError] | None
    for why in (StoreUnavailable, KeyDisabled):
        ctx = make_context(caller, call_for(20, output=5))
        with pytest.raises(why):
            await quota.admit(ctx, targets)
        assert (ctx.reservation, quota.open_reservations, journal._open_notes) == (None, 0, {})
        queue.valid_until_s = read_boot_time() + 1_000
    why = None
    await quota.admit(make_context(caller, call_for(20, output=5)), targets)
    assert quota.open_reservations == 1
    journal.close()


async def test_while_the_store_is_behind_nothing_is_admitted_not_even_for_free(billing: BillingServices) -> None:
    caller = caller_of()
    await billing.spend(caller, 5)
    billing.disk.full = True
    await billing.flush.flush()
    error = await refuse(billing, caller, 0)
    assert isinstance(error, StoreUnavailable)
    assert (error.status, error.retry_after_s) == (503, 5)
    billing.disk.full = False
    await billing.flush.flush()
    await billing.admit(caller, call_for(0))


async def test_a_call_waits_a_moment_for_a_store_that_is_busy(
    billing: BillingServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    caller, small = caller_of(), WriteQueue(max_rows=4)
    await billing.spend(caller, 5)
    row = billing.write_queue.list_rows()[0]
    crowded = QuotaService(
        billing.balances, InMemoryRateLimiter(lambda: 0.0), billing.journal, small, refresh=lambda caller: caller
    )
    for index in range(4):
        small.put(attrs.evolve(row, id=f"req_{index}"))
    replace_sleep(monkeypatch, "gateway.billing.quota", rest)
    with pytest.raises(StoreUnavailable):  # it did not help
        await crowded.admit(billing.arrive(caller, call_for(1)), [], journaled=False)
    small.take(2)
    await crowded.admit(billing.arrive(caller, call_for(1)), [], journaled=False)
    small.take(1)
    await crowded.admit(billing.arrive(caller, call_for(1)), [], journaled=False)
    assert rests == [PAUSE_S, PAUSE_S]


# the bank


def test_a_keys_charges_are_its_accounts_and_its_credits_are_not() -> None:
    balances = Balances(lambda: NOON)
    balances.add_spending(
        [
            Spending(1, 7, 100, 40, 5, 1_000, 400, 50),
            Spending(1, 8, 200, 80, 10),
            Spending(1, None, 0, 0, 0, 3_000, 700, 60),
            Spending(2, 9, 1, 1, 1),
        ],
        balances.today,
    )
    sums = {}
    for owner in ("account", "key"):
        for owner_id, balance in balances.list_balances(owner):
            month, day = (
                balance.monthly.get_counter(balances.today.month_start_s),
                balance.daily.get_counter(balances.today.start_s),
            )
            tallies = (balance.lifetime, month, day)
            sums[owner, owner_id] = [(tally.spent_nanos, tally.credit_nanos) for tally in tallies]
    assert sums == {
        ("account", 1): [(300, 3_000), (120, 700), (15, 60)],
        ("account", 2): [(1, 0), (1, 0), (1, 0)],
        ("key", 7): [(100, 1_000), (40, 400), (5, 50)],
        ("key", 8): [(200, 0), (80, 0), (10, 0)],
        ("key", 9): [(1, 0), (1, 0), (1, 0)],
    }


async def test_a_clock_that_is_set_back_over_midnight_after_a_restart_finds_yesterdays_spending(
    billing: BillingServices,
) -> None:
    caller = caller_of(capped(100, "daily"))
    billing.settle(await billing.admit(caller, call_for(70)), 70)
    await billing.flush.flush()
    yesterday = billing.now
    billing.now = billing.balances.today.end_s
    await billing.crash("release")
    assert billing.balances.find_balance("key", 7).lifetime.spent_nanos == 70
    await billing.admit(caller, call_for(100))
    billing.now = yesterday
    with pytest.raises(QuotaExceeded):
        await billing.admit(caller, call_for(31))


def test_what_was_above_a_cap_before_a_restart_is_on_record_again_at_the_first_look() -> None:
    balances = Balances(lambda: NOON)
    balances.add_spending([Spending(1, 7, 130)], balances.today)
    with pytest.raises(QuotaExceeded):
        balances.reserve_now(caller_of(key=capped(100)), 1)
    assert balances.find_balance("key", 7).find_counter(balances.today).overrun_nanos == 30
    assert not balances.reservations


def test_the_running_day_is_the_clocks() -> None:
    now = [NOON]
    balances = Balances(lambda: now[0])
    first = balances.today
    assert balances.today is first
    now[0] = first.end_s
    assert balances.today == parse_day(first.end_s)
    now[0] = first.end_s - 0.001
    assert balances.today == first
