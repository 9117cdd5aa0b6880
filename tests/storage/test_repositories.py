"""What every driver of the store promises: one suite, run over each of them."""

import asyncio
from collections.abc import Iterable

import attrs
import pytest

from gateway.domain.account import Account, ApiKey
from gateway.domain.balance import Quota
from gateway.domain.rate_limit import Limits
from gateway.domain.request_log import RequestFilter, StoredRequest
from gateway.errors import Conflict, NotFound
from tests.support.request_records import ROW, make_rows
from tests.support.stores import Stores

ACCOUNT = Account(
    id=0,
    name="acme",
    status="disabled",
    quota=Quota(2**63 - 1, "monthly", 429),
    limits=Limits(1, 2, 3),
    groups=("a", "日本"),
    declared=True,
    created_ms=1_750_000_000_123,
)
KEY = ApiKey(
    id=0,
    account_id=0,
    name="laptop",
    digest=bytes(range(32)),
    last4="wxyz",
    status="disabled",
    expires_s=4_000_000_000,
    quota=Quota(0, "daily", 403),
    limits=Limits(4, None, 6),
    models=("gpt-*", "é"),
    group="g",
    allow_ips=("10.0.0.0/8", "::1"),
    declared=True,
    created_ms=1_750_000_000_124,
    webhook_url="https://hooks.test/1?token=x",
    former_digest=bytes(range(32, 64)),
    former_until_s=3_000_000_000,
)
EVERYTHING = RequestFilter()


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


async def add_account(stores: Stores, name: str = "acme") -> Account:
    return await stores.accounts.add_account(Account(0, name))


async def add_key(stores: Stores, account: Account, number: int = 1) -> ApiKey:
    return await stores.keys.add_key(ApiKey(0, account.id, f"key{number}", digest(number), "0000"))


def ids(stored: Iterable[StoredRequest]) -> list[str]:
    return [item.row.id for item in stored]


async def test_a_new_store_is_empty(stores: Stores) -> None:
    assert list(await stores.accounts.list_accounts()) == []
    assert list(await stores.keys.list_keys()) == []
    assert list(await stores.requests.list_requests(EVERYTHING, 10)) == []


async def test_an_account_is_read_back_as_it_was_written(stores: Stores) -> None:
    added = await stores.accounts.add_account(ACCOUNT)
    assert added == attrs.evolve(ACCOUNT, id=added.id)
    assert added.id > 0
    bare = await stores.accounts.add_account(Account(0, "bare"))
    assert list(await stores.accounts.list_accounts()) == [added, bare]


async def test_a_key_is_read_back_as_it_was_written(stores: Stores) -> None:
    account = await add_account(stores)
    added = await stores.keys.add_key(attrs.evolve(KEY, account_id=account.id))
    assert added == attrs.evolve(KEY, id=added.id, account_id=account.id)
    bare = await add_key(stores, account)
    assert list(await stores.keys.list_keys()) == [added, bare]


async def test_ids_grow_and_what_was_given_is_ignored(stores: Stores) -> None:
    first = await stores.accounts.add_account(Account(77, "a"))
    second = await stores.accounts.add_account(Account(77, "b"))
    assert 0 < first.id < second.id
    keys = [await add_key(stores, first, number) for number in range(3)]
    assert [key.id for key in keys] == sorted({key.id for key in keys})


async def test_an_id_is_never_used_again(stores: Stores) -> None:
    account = await add_account(stores)
    key = await add_key(stores, account)
    await stores.keys.delete_key(key.id)
    assert (await add_key(stores, account)).id > key.id
    await stores.accounts.delete_account(account.id)
    assert (await add_account(stores)).id > account.id


async def test_an_accounts_name_is_its_own(stores: Stores) -> None:
    await add_account(stores, "a")
    other = await add_account(stores, "b")
    with pytest.raises(Conflict) as caught:
        await add_account(stores, "a")
    assert caught.value.param == "name"
    with pytest.raises(Conflict):
        await stores.accounts.put_account(attrs.evolve(other, name="a"))
    assert [account.name for account in await stores.accounts.list_accounts()] == ["a", "b"]


async def test_names_differ_by_case(stores: Stores) -> None:
    await add_account(stores, "acme")
    await add_account(stores, "Acme")
    assert len(await stores.accounts.list_accounts()) == 2


async def test_a_keys_name_is_its_own_within_its_account(stores: Stores) -> None:
    one, two = await add_account(stores, "a"), await add_account(stores, "b")
    await stores.keys.add_key(ApiKey(0, one.id, "same", digest(1), "0000"))
    await stores.keys.add_key(ApiKey(0, two.id, "same", digest(2), "0000"))
    with pytest.raises(Conflict) as caught:
        await stores.keys.add_key(ApiKey(0, one.id, "same", digest(3), "0000"))
    assert caught.value.param == "name"
    assert len(await stores.keys.list_keys()) == 2


async def test_a_secret_belongs_to_one_key(stores: Stores) -> None:
    account = await add_account(stores)
    first, second = await add_key(stores, account, 1), await add_key(stores, account, 2)
    with pytest.raises(Conflict) as caught:
        await stores.keys.add_key(attrs.evolve(first, name="other"))
    assert caught.value.param == "secret"
    with pytest.raises(Conflict):
        await stores.keys.put_key(attrs.evolve(second, digest=first.digest))
    with pytest.raises(Conflict):
        await stores.keys.put_key(attrs.evolve(second, name=first.name))
    assert list(await stores.keys.list_keys()) == [first, second]


async def test_a_secret_that_a_key_had_before_belongs_to_no_other(stores: Stores) -> None:
    account = await add_account(stores)
    first, second = await add_key(stores, account, 1), await add_key(stores, account, 2)
    rotated = attrs.evolve(first, digest=digest(3), former_digest=digest(1), former_until_s=5)
    await stores.keys.put_key(rotated)
    for change in (
        stores.keys.add_key(ApiKey(0, account.id, "new", digest(1), "0000")),
        stores.keys.add_key(ApiKey(0, account.id, "new", digest(9), "0000", former_digest=digest(1))),
        stores.keys.add_key(ApiKey(0, account.id, "new", digest(9), "0000", former_digest=digest(2))),
        stores.keys.put_key(attrs.evolve(second, digest=digest(1))),
        stores.keys.put_key(attrs.evolve(second, former_digest=digest(1))),
        stores.keys.put_key(attrs.evolve(second, former_digest=digest(3))),
    ):
        with pytest.raises(Conflict) as caught:
            await change
        assert caught.value.param == "secret"
    assert list(await stores.keys.list_keys()) == [rotated, second]
    again, other = (
        attrs.evolve(rotated, digest=digest(4), former_digest=digest(3)),
        attrs.evolve(second, digest=digest(1)),
    )
    await stores.keys.put_key(again)  # one before the last is free again
    await stores.keys.put_key(other)
    assert list(await stores.keys.list_keys()) == [again, other]


async def test_a_key_needs_its_account(stores: Stores) -> None:
    with pytest.raises(NotFound):
        await stores.keys.add_key(ApiKey(0, 99, "k", digest(1), "0000"))
    key = await add_key(stores, await add_account(stores))
    with pytest.raises(NotFound):
        await stores.keys.put_key(attrs.evolve(key, account_id=99))
    assert list(await stores.keys.list_keys()) == [key]


async def test_putting_replaces_everything_but_the_id(stores: Stores) -> None:
    account = await add_account(stores)
    changed = attrs.evolve(ACCOUNT, id=account.id)
    await stores.accounts.put_account(changed)
    assert list(await stores.accounts.list_accounts()) == [changed]
    key = await add_key(stores, account)
    altered = attrs.evolve(KEY, id=key.id, account_id=account.id)
    await stores.keys.put_key(altered)
    assert list(await stores.keys.list_keys()) == [altered]


async def test_putting_what_is_there_already_changes_nothing(stores: Stores) -> None:
    account = await add_account(stores)
    key = await add_key(stores, account)
    await stores.accounts.put_account(account)
    await stores.keys.put_key(key)
    assert list(await stores.accounts.list_accounts()) == [account]
    assert list(await stores.keys.list_keys()) == [key]


async def test_changes_of_different_fields_since_the_same_look_are_both_kept(stores: Stores) -> None:
    account = await add_account(stores)
    await stores.accounts.put_account(attrs.evolve(account, groups=("a",)), original=account)
    await stores.accounts.put_account(attrs.evolve(account, status="disabled"), original=account)
    assert list(await stores.accounts.list_accounts()) == [attrs.evolve(account, groups=("a",), status="disabled")]
    key = await add_key(stores, account)
    await stores.keys.put_key(attrs.evolve(key, quota=Quota(5, "daily")), original=key)
    await stores.keys.put_key(attrs.evolve(key, limits=Limits(7)), original=key)
    assert list(await stores.keys.list_keys()) == [attrs.evolve(key, quota=Quota(5, "daily"), limits=Limits(7))]


async def test_of_two_changes_of_one_field_since_the_same_look_the_first_is_kept(stores: Stores) -> None:
    account = await add_account(stores)
    key = await add_key(stores, account)
    first, same = attrs.evolve(account, quota=Quota(1, "daily")), attrs.evolve(key, name="one")
    await stores.accounts.put_account(first, original=account)
    await stores.keys.put_key(same, original=key)
    with pytest.raises(Conflict, match="reload"):
        await stores.accounts.put_account(attrs.evolve(account, quota=Quota(2, "daily"), name="b"), original=account)
    with pytest.raises(Conflict, match="reload"):
        await stores.keys.put_key(attrs.evolve(key, name="two", status="disabled"), original=key)
    await stores.keys.put_key(same, original=key)  # both wanted the same
    assert (list(await stores.accounts.list_accounts()), list(await stores.keys.list_keys())) == ([first], [same])


async def test_lists_are_by_id_whatever_was_put_last(stores: Stores) -> None:
    accounts = [await add_account(stores, name) for name in "cab"]
    keys = [await add_key(stores, accounts[0], number) for number in (3, 1, 2)]
    await stores.accounts.put_account(attrs.evolve(accounts[0], status="disabled"))
    await stores.keys.put_key(attrs.evolve(keys[0], status="disabled"))
    assert [account.id for account in await stores.accounts.list_accounts()] == [account.id for account in accounts]
    assert [key.id for key in await stores.keys.list_keys()] == [key.id for key in keys]


async def test_what_is_not_there_is_not_found(stores: Stores) -> None:
    account = await add_account(stores)
    key = await add_key(stores, account)
    with pytest.raises(NotFound):
        await stores.accounts.put_account(attrs.evolve(account, id=account.id + 50, name="other"))
    with pytest.raises(NotFound):
        await stores.accounts.delete_account(account.id + 50)
    with pytest.raises(NotFound):
        await stores.keys.put_key(attrs.evolve(key, id=key.id + 50, name="other", digest=digest(9)))
    with pytest.raises(NotFound):
        await stores.keys.delete_key(key.id + 50)
    await stores.keys.delete_key(key.id)
    with pytest.raises(NotFound):
        await stores.keys.delete_key(key.id)


async def test_an_account_takes_its_keys_with_it_and_leaves_its_requests(stores: Stores) -> None:
    gone, stays = await add_account(stores, "gone"), await add_account(stores, "stays")
    doomed = await add_key(stores, gone, 1)
    kept = await add_key(stores, stays, 2)
    await stores.ledger.post(make_rows(1, account="gone", key_id=doomed.id))
    await stores.accounts.delete_account(gone.id)
    assert list(await stores.accounts.list_accounts()) == [stays]
    assert list(await stores.keys.list_keys()) == [kept]
    assert ids(await stores.requests.list_requests(EVERYTHING, 10)) == ["req_1"]
    await stores.keys.delete_key(kept.id)
    assert list(await stores.keys.list_keys()) == []


async def test_a_request_is_read_back_as_it_was_written(stores: Stores) -> None:
    bare = attrs.evolve(
        ROW,
        id="bare",
        channel=None,
        error_code=None,
        first_byte_ms=None,
        client_request_id=None,
        stream=False,
        tried="",
    )
    await stores.ledger.post([ROW, bare])
    stored = await stores.requests.list_requests(EVERYTHING, 10)
    assert [item.row for item in stored] == [ROW, bare]
    assert stored[0].sequence < stored[1].sequence


async def test_a_request_that_is_there_stays_as_it_is(stores: Stores) -> None:
    await stores.ledger.post(make_rows(1, 2, status=200))
    before = await stores.requests.list_requests(EVERYTHING, 10)
    await stores.ledger.post(make_rows(2, 3, 3, 1, status=500))
    after = await stores.requests.list_requests(EVERYTHING, 10)
    assert list(after[:2]) == list(before)
    assert ids(after) == ["req_1", "req_2", "req_3"]


async def test_storing_no_rows_is_no_failure(stores: Stores) -> None:
    await stores.ledger.post([])
    assert list(await stores.requests.list_requests(EVERYTHING, 10)) == []


@pytest.mark.parametrize(
    ("limit", "newest", "after_two"),
    [(0, [], []), (1, ["req_5"], ["req_3"]), (2, ["req_4", "req_5"], ["req_3", "req_4"]),
     (99, ["req_1", "req_2", "req_3", "req_4", "req_5"], ["req_3", "req_4", "req_5"])],
)  # fmt: skip
async def test_a_list_is_the_newest_or_what_came_after(
    stores: Stores, limit: int, newest: list[str], after_two: list[str]
) -> None:
    await stores.ledger.post(make_rows(1, 2, 3, 4, 5))
    assert ids(await stores.requests.list_requests(EVERYTHING, limit)) == newest
    second: StoredRequest = (await stores.requests.list_requests(EVERYTHING, 4))[0]
    assert ids(await stores.requests.list_requests(RequestFilter(after=str(second.sequence)), limit)) == after_two


async def test_following_a_list_shows_every_row_once_and_in_order(stores: Stores) -> None:
    seen: list[str] = []
    last = "0"
    for number in range(6):
        await stores.ledger.post(make_rows(2 * number, 2 * number + 1))
        if number % 2:
            page = await stores.requests.list_requests(RequestFilter(after=last), 100)
            seen += ids(page)
            assert page.next is not None
            last = page.next
    assert seen == [f"req_{number}" for number in range(12)]


async def test_filters_restrict_together(stores: Stores) -> None:
    await stores.ledger.post(
        [
            *make_rows(1, key_id=1, model="a", status=200),
            *make_rows(2, key_id=2, model="a", status=200),
            *make_rows(3, key_id=1, model="b", status=200),
            *make_rows(4, key_id=1, model="a", status=500, outcome="failed"),
            *make_rows(5, key_id=1, model="a", status=200, channel="other"),
            *make_rows(6, key_id=9, model="c", status=403, channel=None),
        ]
    )
    wanted = {
        RequestFilter(key_id=1): ["req_1", "req_3", "req_4", "req_5"],
        RequestFilter(model="a"): ["req_1", "req_2", "req_4", "req_5"],
        RequestFilter(status=500): ["req_4"],
        RequestFilter(channel="up"): ["req_1", "req_2", "req_3", "req_4"],
        RequestFilter(channel="other"): ["req_5"],
        RequestFilter(channel="up", model="a", status=200): ["req_1", "req_2"],
        RequestFilter(channel="UP"): [],
        RequestFilter(key_id=1, model="a", status=200): ["req_1", "req_5"],
        RequestFilter(model="A"): [],
        RequestFilter(key_id=0): [],
    }
    for wish, expected in wanted.items():
        assert ids(await stores.requests.list_requests(wish, 10)) == expected
    first = (await stores.requests.list_requests(EVERYTHING, 10))[0]
    both = RequestFilter(key_id=1, after=str(first.sequence))
    assert ids(await stores.requests.list_requests(both, 2)) == ["req_3", "req_4"]


async def test_writes_and_reads_side_by_side_lose_nothing(stores: Stores) -> None:
    account = await add_account(stores)
    work = [stores.ledger.post(make_rows(number)) for number in range(20)]
    await asyncio.gather(*work, *(add_key(stores, account, number) for number in range(20)), stores.keys.list_keys())
    assert len(await stores.keys.list_keys()) == 20
    assert len(await stores.requests.list_requests(EVERYTHING, 100)) == 20


async def test_the_newest_request_of_each_key_is_found(stores: Stores) -> None:
    account = await add_account(stores)
    keys = [await add_key(stores, account, number) for number in (1, 2, 3)]
    rows = [(1, keys[0], 9), (2, keys[1], 4), (3, keys[0], 7)]
    await stores.ledger.post(
        [attrs.evolve(ROW, id=f"req_{number}", key_id=key.id, started_ms=at_ms) for number, key, at_ms in rows]
    )
    ids = [key.id for key in keys]
    assert await stores.keys.find_last_requests(ids) == {ids[0]: 7, ids[1]: 4}
    assert await stores.keys.find_last_requests([]) == {}
