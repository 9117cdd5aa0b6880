"""What every driver of the store of deliveries promises: one suite, run over each of them."""

import asyncio

import attrs
import pytest

from gateway.domain.webhook import WebhookDelivery
from tests.support.stores import Archive
from tests.support.video_records import DELIVERY, LEASE, NOW, end, make_delivery, make_job


async def tell(archive: Archive, *deliveries: WebhookDelivery) -> None:
    """Each comes with a job of its own that ends."""
    for number, delivery in enumerate(deliveries):
        job = make_job(f"{delivery.id}-{number}")
        await archive.videos.create(job)
        assert await archive.videos.finish(*end(job), delivery)


async def list_all(archive: Archive, video_id: str | None = None, limit: int = 10) -> list[WebhookDelivery]:
    return list(await archive.deliveries.list_deliveries(video_id=video_id, limit=limit))


async def take(archive: Archive, owner: str = "me", now_ms: int = NOW, *, most: int = 10, each: int = 10) -> list[str]:
    claimed = await archive.deliveries.claim_deliveries(
        owner, now_ms, claim_ms=LEASE, max_rows=most, max_per_account=each
    )
    return [one.id for one in claimed]


async def test_a_new_store_has_nothing_to_tell(archive: Archive) -> None:
    assert await list_all(archive) == []
    assert await take(archive) == []
    assert await archive.deliveries.find_next_delivery() is None
    assert await archive.deliveries.sweep_deliveries(NOW) == 0
    await archive.deliveries.note_delivery(make_delivery(0))
    assert await list_all(archive) == []


async def test_a_delivery_is_read_back_as_it_was_written(archive: Archive) -> None:
    await tell(archive, DELIVERY, make_delivery(1))
    assert await list_all(archive) == [make_delivery(1), DELIVERY]


async def test_lists_are_the_newest_first_of_one_job_or_of_all(archive: Archive) -> None:
    first, second, third = (make_delivery(number, video_id=f"video_{number % 2}") for number in (2, 1, 0))
    await tell(archive, first, second, third)
    assert await list_all(archive) == [third, second, first]
    assert await list_all(archive, limit=2) == [third, second]
    assert await list_all(archive, "video_0") == [third, first]
    assert await list_all(archive, "video_0", 1) == [third]
    assert await list_all(archive, "video_9") == []


async def test_lists_are_of_one_account_or_of_all(archive: Archive) -> None:
    mine, theirs, late = (make_delivery(number, account_id=number % 2, video_id="video_1") for number in (1, 2, 3))
    await tell(archive, mine, theirs, late)
    for account_id, video_id, expected in (
        (1, None, [late, mine]),
        (0, None, [theirs]),
        (1, "video_1", [late, mine]),
        (1, "video_9", []),
        (9, None, []),
    ):
        reported = archive.deliveries.list_deliveries(video_id=video_id, limit=10, account_id=account_id)
        assert list(await reported) == expected


async def test_what_is_due_is_taken_on_longest_first_until_the_lease_ends(archive: Archive) -> None:
    dues = {"soon": NOW + 1, "now": NOW, "long": NOW - 9, "also": NOW - 9, "over": None}
    known = {name: make_delivery(name, due_ms=due_ms) for name, due_ms in dues.items()}
    await tell(archive, *known.values())
    assert await archive.deliveries.find_next_delivery() == NOW - 9
    taken = await archive.deliveries.claim_deliveries("me", NOW, claim_ms=LEASE, max_rows=2, max_per_account=10)
    assert list(taken) == [
        attrs.evolve(known[name], owner="me", lease_until_ms=NOW + LEASE) for name in ("long", "also")
    ]
    assert [one for one in await list_all(archive) if one.owner] == [taken[1], taken[0]]
    assert await take(archive, "other") == ["evt_now"]
    assert await take(archive, "other", most=0) == []
    assert await take(archive, "other", NOW + LEASE - 1) == ["evt_soon"]
    assert await take(archive, "third", NOW + LEASE) == ["evt_long", "evt_also", "evt_now"]
    assert await archive.deliveries.find_next_delivery() == NOW - 9


async def test_no_account_has_more_than_its_part_in_hands_whoevers_they_are(archive: Archive) -> None:
    await tell(archive, *(make_delivery(f"many{number}", due_ms=NOW - 9) for number in range(5)))
    await tell(archive, *(make_delivery(f"few{number}", account_id=4) for number in range(2)))
    assert await take(archive, each=2) == ["evt_many0", "evt_many1", "evt_few0", "evt_few1"]
    assert await take(archive, "another", each=2) == []
    assert await take(archive, "another", each=3) == ["evt_many2"]
    (reported,) = await list_all(archive, "video_many0")
    await archive.deliveries.note_delivery(reported.record_attempt(200, None, NOW))
    assert await take(archive, each=3) == ["evt_many3"]
    assert await take(archive, now_ms=NOW + LEASE, each=2) == ["evt_many1", "evt_many2", "evt_few0", "evt_few1"]


async def test_where_room_is_short_it_goes_to_accounts_that_have_least(archive: Archive) -> None:
    await tell(archive, *(make_delivery(f"many{number}", due_ms=NOW - 9) for number in range(5)))
    await tell(archive, *(make_delivery(f"few{number}", account_id=4) for number in range(3)))
    assert await take(archive, most=3) == ["evt_many0", "evt_many1", "evt_few0"]
    assert await take(archive, most=2) == ["evt_many2", "evt_few1"]
    assert await take(archive, most=1) == ["evt_few2"]


async def take_share(archive: Archive, owner: str, *only: int, each: int = 10) -> list[str]:
    claimed = await archive.deliveries.claim_deliveries(
        owner, NOW, claim_ms=LEASE, max_rows=10, max_per_account=each, accounts=frozenset(only)
    )
    return [one.id for one in claimed]


async def test_a_node_claims_its_share_and_counts_what_others_have(archive: Archive) -> None:
    await tell(archive, *(make_delivery(f"a{number}", account_id=3) for number in range(3)))
    await tell(archive, *(make_delivery(f"b{number}", account_id=4) for number in range(2)))
    assert await archive.deliveries.find_next_delivery(frozenset({4, 3})) == NOW
    assert await archive.deliveries.find_next_delivery(frozenset({9})) is None
    assert await take_share(archive, "one") == await take_share(archive, "one", 9) == []
    assert await take_share(archive, "one", 3, each=2) == ["evt_a0", "evt_a1"]
    assert sorted(await archive.deliveries.list_due_accounts("one", NOW)) == [(3, False), (4, False)]
    assert sorted(await archive.deliveries.list_due_accounts("two", NOW)) == [(3, True), (4, False)]
    assert sorted(await archive.deliveries.list_due_accounts("two", NOW + LEASE)) == [(3, False), (4, False)]
    assert await take_share(archive, "two", 3, each=2) == [], "another node has its places"
    assert await take_share(archive, "two", 3, 4, each=3) == ["evt_a2", "evt_b0", "evt_b1"]


async def test_of_many_processes_one_gets_a_delivery(archive: Archive) -> None:
    await tell(archive, *map(make_delivery, range(5)))
    taken = await asyncio.gather(*(take(archive, f"p{number}", most=2) for number in range(4)))
    assert sorted(name for part in taken for name in part) == [f"evt_{number}" for number in range(5)]


async def test_an_attempt_is_noted_and_the_next_one_is_due_later(archive: Archive) -> None:
    await tell(archive, make_delivery(0), make_delivery(1))
    first, second = await archive.deliveries.claim_deliveries(
        "me", NOW, claim_ms=LEASE, max_rows=10, max_per_account=10
    )
    failed, taken = first.record_attempt(503, "no", NOW), second.record_attempt(204, None, NOW)
    for noted in (failed, taken):
        await archive.deliveries.note_delivery(noted)
    assert await list_all(archive) == [taken, failed]
    assert await archive.deliveries.find_next_delivery() == failed.due_ms == NOW + 5_000
    assert await take(archive, now_ms=NOW + 4_999) == []
    assert await take(archive, now_ms=NOW + 5_000) == ["evt_0"]


@pytest.mark.parametrize("answer", [200, None])
async def test_what_is_over_is_not_begun_anew_by_one_who_is_late(archive: Archive, answer: int | None) -> None:
    await tell(archive, make_delivery(0, created_ms=0))
    (slow,) = await archive.deliveries.claim_deliveries("slow", NOW, claim_ms=1, max_rows=1, max_per_account=1)
    (quick,) = await archive.deliveries.claim_deliveries(
        "quick", NOW + 1, claim_ms=LEASE, max_rows=1, max_per_account=1
    )
    over = quick.record_attempt(answer, None, NOW)
    assert over.status != "pending"
    await archive.deliveries.note_delivery(over)
    await archive.deliveries.note_delivery(attrs.evolve(slow, attempts=1, due_ms=NOW, owner=""))
    assert await list_all(archive) == [over]
    assert await archive.deliveries.find_next_delivery() is None


async def test_only_what_was_over_before_then_is_forgotten(archive: Archive) -> None:
    old = make_delivery("old", status="delivered", due_ms=None, ended_ms=NOW - 1)
    fresh = make_delivery("fresh", status="failed", due_ms=None, ended_ms=NOW)
    pending = make_delivery("pending", created_ms=0)
    await tell(archive, old, fresh, pending)
    assert await archive.deliveries.sweep_deliveries(NOW) == 1
    assert await list_all(archive) == [pending, fresh]


async def test_what_another_process_was_at_is_free_at_once_and_ones_own_is_not(archive: Archive) -> None:
    await tell(archive, make_delivery("a", due_ms=NOW - 1), make_delivery("b", due_ms=NOW))
    assert await take(archive, "dead", most=1) == ["evt_a"]
    assert await take(archive, "me", most=1) == ["evt_b"]
    assert await archive.deliveries.free_deliveries("me") == 1
    assert await take(archive, "me") == ["evt_a"]
