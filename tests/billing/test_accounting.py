"""What a purse has is shown, and what is added to it is added once."""

import asyncio
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.billing.accounting import MAX_BALANCE_NANOS
from gateway.domain.account import Account, ApiKey
from gateway.domain.account_spec import CreditSpec
from gateway.domain.balance import UNLIMITED_QUOTA, Quota
from gateway.domain.ledger import UsageFilter
from gateway.domain.price import NANOS_PER_USD
from gateway.errors import Conflict, InvalidRequest, StoreUnavailable
from tests.support.billing_services import (
    BillingServices,
    SlowDisk,
    begin,
    call_for,
    caller_of,
    capped,
    put,
    top_up,
    unix,
)

DOLLAR = NANOS_PER_USD


def account(quota: Quota = UNLIMITED_QUOTA) -> Account:
    return caller_of(quota).account


def key(quota: Quota = UNLIMITED_QUOTA) -> ApiKey:
    return caller_of(key=quota).key


async def problems(billing: BillingServices) -> list[str]:
    report = await billing.accounting.reconcile()
    assert report["ok"] is (not report["problems"])
    return list(report["problems"])


# what is shown


async def test_a_balance_is_shown_in_dollars(billing: BillingServices) -> None:
    quota = capped(10 * DOLLAR, "daily")
    caller = caller_of(quota)
    await billing.spend(caller, 9 * DOLLAR)
    await billing.admit(caller, call_for(DOLLAR // 2))
    await billing.accounting.credit(account(quota), top_up("2.25"))
    assert billing.accounting.describe(account(quota)) == {
        "spent_usd": 9.0,
        "credit_usd": 2.25,
        "held_usd": 0.5,
        "left_usd": 2.75,
        "overrun_usd": 0.0,
        "resets_at": "2027-05-16T00:00:00Z",
    }
    assert billing.accounting.describe(key()) == {
        "spent_usd": 9.0,
        "credit_usd": 0.0,
        "held_usd": 0.5,
        "left_usd": None,
        "overrun_usd": 0.0,
        "resets_at": None,
    }


@pytest.mark.parametrize(
    ("quota", "left", "overrun", "resets_at"),
    [
        (capped(DOLLAR), -1.0, 1.0, None),
        (capped(DOLLAR, "monthly"), -1.0, 1.0, "2027-06-01T00:00:00Z"),
        (capped(3 * DOLLAR, "daily"), 1.0, 0.0, "2027-05-16T00:00:00Z"),
        (Quota(DOLLAR, "none"), None, 0.0, None),
    ],
)
async def test_a_cap_that_was_just_set_is_the_one_that_is_shown(
    billing: BillingServices, quota: Quota, left: float | None, overrun: float, resets_at: str | None
) -> None:
    await billing.spend(caller_of(), 2 * DOLLAR)
    shown = billing.accounting.describe(account(quota))
    assert (shown["left_usd"], shown["overrun_usd"], shown["resets_at"]) == (left, overrun, resets_at)


@pytest.mark.parametrize(
    ("ours", "shared", "owner"),
    [
        (UNLIMITED_QUOTA, UNLIMITED_QUOTA, "key"),
        (capped(5), UNLIMITED_QUOTA, "key"),
        (UNLIMITED_QUOTA, capped(5), "account"),
        (capped(5), capped(6, "daily"), "key"),
        (capped(6, "daily"), capped(5), "account"),
        (capped(5), capped(5), "key"),
        (capped(0), capped(0), "key"),
        (capped(0, "monthly"), UNLIMITED_QUOTA, "key"),
    ],
)
def test_the_stricter_balance_is_the_one_with_less_left(
    billing: BillingServices, ours: Quota, shared: Quota, owner: str
) -> None:
    balance, day = billing.accounting.find_stricter(key(ours), account(shared))
    assert (balance.owner, day) == (owner, billing.balances.today)


# credits


async def test_a_top_up_adds_and_a_set_leaves_exactly_that(billing: BillingServices) -> None:
    quota = capped(10 * DOLLAR)
    await billing.spend(caller_of(quota), 4 * DOLLAR)
    await billing.admit(caller_of(quota), call_for(DOLLAR))
    specs = (top_up("2.5"), top_up("-1"), put("20"), put("0"), put("-3"))
    lefts = [(await billing.accounting.credit(account(quota), spec))["left_usd"] for spec in specs]
    assert lefts == [7.5, 6.5, 19.0, -1.0, -4.0]  # what is held is part of the balance
    assert await problems(billing) == []


async def test_a_credit_is_an_entry_with_what_was_said_of_it(billing: BillingServices) -> None:
    quota = capped(0)
    first = await billing.accounting.credit(key(quota), CreditSpec(Decimal(5), "top_up", "invoice 1", "thanks"))
    assert first["added"] is True
    await billing.accounting.credit(key(quota), put("2"))
    await billing.accounting.credit(account(quota), top_up("1"))
    newest, oldest = await billing.accounting.list_credits(key(), 10)
    assert oldest == {
        "sequence": first["sequence"],
        "at": "2027-05-15T12:00:00Z",
        "kind": "top_up",
        "account_id": 1,
        "key_id": 7,
        "amount_usd": 5.0,
        "reference": "invoice 1",
        "note": "thanks",
    }
    assert (newest["kind"], newest["amount_usd"], newest["reference"]) == ("set", -3.0, None)
    assert await billing.accounting.list_credits(key(), 1) == [newest]
    assert [entry["key_id"] for entry in await billing.accounting.list_credits(account(), 10)] == [None]


async def test_a_reference_credits_its_balance_once(billing: BillingServices) -> None:
    quota = capped(0)
    answers = [await billing.accounting.credit(account(quota), top_up("5", "invoice 1")) for _ in range(3)]
    assert [answer["added"] for answer in answers] == [True, False, False]
    assert {answer["sequence"] for answer in answers} == {answers[0]["sequence"]}
    assert {answer["left_usd"] for answer in answers} == {5.0}
    other = await billing.accounting.credit(key(quota), top_up("5", "invoice 1"))
    assert (other["added"], other["left_usd"]) == (True, 5.0)
    assert await problems(billing) == []


@pytest.mark.parametrize("other", [top_up("6", "r"), put("5", "r")])
async def test_a_reference_for_another_credit_is_a_conflict_and_changes_nothing(
    billing: BillingServices, other: CreditSpec
) -> None:
    quota = capped(0)
    await billing.accounting.credit(account(quota), top_up("5", "r"))
    with pytest.raises(Conflict) as caught:
        await billing.accounting.credit(account(quota), other)
    assert caught.value.param == "reference"
    assert billing.accounting.describe(account(quota))["left_usd"] == 5.0


async def test_a_set_under_a_known_reference_is_done_whatever_was_spent_since(billing: BillingServices) -> None:
    quota = capped(0)
    await billing.accounting.credit(account(quota), put("5", "r"))
    await billing.spend(caller_of(quota), 2 * DOLLAR)
    again = await billing.accounting.credit(account(quota), put("5", "r"))
    assert (again["added"], again["left_usd"]) == (False, 3.0)


@pytest.mark.parametrize("quota", [UNLIMITED_QUOTA, Quota(5, "none")])
async def test_without_a_cap_there_is_nothing_to_add_to(billing: BillingServices, quota: Quota) -> None:
    for spec in (top_up("1"), put("1")):
        with pytest.raises(InvalidRequest) as caught:
            await billing.accounting.credit(key(quota), spec)
        assert caught.value.param == "quota_usd"
    assert await billing.accounting.list_credits(key(), 10) == []


@pytest.mark.parametrize("spec", [top_up("4611686018.427387905"), put("-4611686018.427387905")])
async def test_a_balance_that_cannot_be_counted_is_refused(billing: BillingServices, spec: CreditSpec) -> None:
    assert MAX_BALANCE_NANOS == 4_611_686_018_427_387_904
    quota = capped(0)
    with pytest.raises(InvalidRequest) as caught:
        await billing.accounting.credit(key(quota), spec)
    assert caught.value.param == "amount_usd"
    await billing.accounting.credit(key(quota), put("4611686018.427387904"))


async def test_what_the_store_did_not_take_is_no_credit(billing: BillingServices) -> None:
    quota = capped(DOLLAR)
    billing.disk.full = True
    with pytest.raises(StoreUnavailable):
        await billing.accounting.credit(key(quota), top_up("1"))
    assert billing.accounting.describe(key(quota))["left_usd"] == 1.0


async def test_credits_at_the_same_moment_come_one_after_the_other(tmp_path: Path) -> None:
    billing, quota = BillingServices(tmp_path, disk=SlowDisk()), capped(0, "monthly")
    specs = [put("50"), put("80"), top_up("5"), put("7"), top_up("1", "r"), top_up("1", "r"), top_up("1", "r")]
    answers = await asyncio.gather(*(billing.accounting.credit(account(quota), spec) for spec in specs))
    assert [answer["amount_usd"] for answer in answers] == [50, 30, 5, -78, 1, 1, 1]
    assert [answer["added"] for answer in answers] == [True] * 5 + [False] * 2
    assert billing.accounting.describe(account(quota))["left_usd"] == 8.0
    assert await problems(billing) == []
    billing.close()


async def test_what_is_spent_while_a_set_is_written_counts_against_it(tmp_path: Path) -> None:
    disk = SlowDisk()
    billing, quota = BillingServices(tmp_path, disk=disk), capped(10 * DOLLAR)
    running = await billing.admit(caller_of(quota), call_for(DOLLAR))
    crediting = await begin(billing.accounting.credit(account(quota), put("5")), disk)
    billing.settle(running, DOLLAR)
    disk.go.set()
    assert (await crediting)["left_usd"] == 4.0
    billing.close()


async def test_a_credit_over_midnight_is_of_the_day_it_was_given(tmp_path: Path) -> None:
    disk = SlowDisk()
    billing, quota = BillingServices(tmp_path, disk=disk, now=unix("2027-05-31T23:59:59")), capped(DOLLAR, "daily")
    crediting = await begin(billing.accounting.credit(account(quota), top_up("5")), disk)
    billing.now += 1
    disk.go.set()
    assert (await crediting)["at"] == "2027-05-31T23:59:59Z"
    assert billing.accounting.describe(account(quota))["left_usd"] == 1.0
    assert await problems(billing) == []
    billing.now -= 1
    assert billing.accounting.describe(account(quota))["left_usd"] == 6.0
    billing.close()


# usage


async def test_usage_is_what_is_stored(billing: BillingServices) -> None:
    await billing.spend(caller_of(), 5)
    wanted = UsageFilter(0, 10**6)
    assert await billing.accounting.list_usage("model", wanted) == []
    await billing.flush.flush()
    (line,) = await billing.accounting.list_usage("model", wanted)
    assert (line.label, line.requests, line.prompt_tokens, line.cost_nanos) == ("m", 1, 5, 5)
