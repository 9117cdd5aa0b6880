"""From a header to a caller."""

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.accounts import make_secret
from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.domain.account import Account, ApiKey, Caller, is_key_shape
from gateway.domain.balance import Owner, Quota
from gateway.errors import GatewayError, InvalidApiKey, IpNotAllowed, KeyDisabled, KeyExpired
from tests.support.repositories import Repositories

SECRET = "sk-a-key-for-the-tests"
NOW = 1_000_000.0


class House:
    """A directory over a store in memory, with a clock that is turned by hand."""

    def __init__(self) -> None:
        self.store = Repositories()
        self.now = NOW
        self.known: dict[Owner, set[int]] = {"key": set(), "account": set()}
        self.directory = ApiKeyAuthenticator(
            self.store, self.store, pepper=b"p" * 32, clock=lambda: self.now, note_gone=self.note_gone
        )

    def note_gone(self, living: Mapping[Owner, Collection[int]], gone: Mapping[Owner, Collection[int]]) -> None:
        """Check that every key and account that was there and is not there now is named as gone, and no other."""
        for owner, before in self.known.items():
            assert before - set(living[owner]) == before & set(gone[owner])
            self.known[owner] = set(living[owner])

    async def add(self, secret: str = SECRET, *, account: str = "active", **more: object) -> ApiKey:
        owner = await self.store.add_account(Account(0, f"account of {secret}", status=account))  # type: ignore[arg-type]
        key = ApiKey(0, owner.id, "k", self.directory.digest(secret), secret[-4:], **more)  # type: ignore[arg-type]
        made = await self.store.add_key(key)
        await self.directory.reload()
        return made


async def test_a_known_key_is_its_caller() -> None:
    house = House()
    key = await house.add()
    await house.add("sk-another-key-for-tests")
    caller = house.directory.authenticate(f"Bearer {SECRET}")
    assert caller.key == key
    assert caller.account.id == key.account_id


@pytest.mark.parametrize("header", [f"bearer {SECRET}", f"BEARER   {SECRET}  ", f"bEaReR {SECRET}"])
async def test_case_and_space_do_not_matter(header: str) -> None:
    house = House()
    await house.add()
    assert house.directory.authenticate(header).key.name == "k"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", SECRET, f"Basic {SECRET}", f"Bearer {SECRET} x", f"Bearer\t{SECRET}"]
)
async def test_anything_else_is_no_key(header: str | None) -> None:
    house = House()
    await house.add()
    with pytest.raises(InvalidApiKey) as caught:
        house.directory.authenticate(header)
    assert caught.value.should_retry is False
    assert SECRET not in caught.value.message


@given(st.text())
def test_no_header_whatever_raises_anything_but_a_fault(header: str) -> None:
    house = House()
    for value in (header, f"Bearer {header}", f"Bearer sk-{header}"):
        with pytest.raises(GatewayError):
            house.directory.authenticate(value)


async def test_a_key_ends_with_the_second_of_its_expiry() -> None:
    house = House()
    await house.add(expires_s=int(NOW) + 10)
    house.now = NOW + 9.999
    house.directory.authenticate(f"Bearer {SECRET}")
    house.now = NOW + 10
    with pytest.raises(KeyExpired):
        house.directory.authenticate(f"Bearer {SECRET}")


@pytest.mark.parametrize("where", [{"status": "disabled"}, {"account": "disabled"}])
async def test_a_disabled_key_or_account_is_disabled_even_where_it_has_expired_too(where: dict[str, str]) -> None:
    house = House()
    await house.add(expires_s=1, **where)
    with pytest.raises(KeyDisabled):
        house.directory.authenticate(f"Bearer {SECRET}")


async def test_a_change_counts_from_the_reload_on() -> None:
    house = House()
    key = await house.add()
    await house.store.put_key(attrs.evolve(key, status="disabled"))
    house.directory.authenticate(f"Bearer {SECRET}")
    await house.directory.reload()
    with pytest.raises(KeyDisabled):
        house.directory.authenticate(f"Bearer {SECRET}")
    await house.store.delete_key(key.id)
    await house.directory.reload()
    with pytest.raises(InvalidApiKey):
        house.directory.authenticate(f"Bearer {SECRET}")


async def test_a_callers_networks_are_those_of_its_key() -> None:
    house = House()
    await house.add(allow_ips=("10.0.0.1/8", "2001:db8::/32"))
    await house.add("sk-a-key-for-anywhere")
    caller = house.directory.authenticate(f"Bearer {SECRET}")
    assert [str(network) for network in caller.networks] == ["10.0.0.0/8", "2001:db8::/32"]
    caller.check_address("10.2.3.4")
    with pytest.raises(IpNotAllowed):
        caller.check_address("192.0.2.1")
    assert house.directory.authenticate("Bearer sk-a-key-for-anywhere").networks == ()


async def test_networks_are_read_again_only_where_they_are_others() -> None:
    house = House()
    key = await house.add(allow_ips=("10.0.0.0/8",))
    before = house.directory.authenticate(f"Bearer {SECRET}").networks
    await house.store.put_key(attrs.evolve(key, name="renamed"))
    await house.directory.reload()
    assert house.directory.authenticate(f"Bearer {SECRET}").networks is before
    await house.store.put_key(attrs.evolve(key, allow_ips=("192.0.2.0/24",)))
    await house.directory.reload()
    assert [str(each) for each in house.directory.authenticate(f"Bearer {SECRET}").networks] == ["192.0.2.0/24"]


async def test_a_deleted_account_takes_its_keys_with_it() -> None:
    house = House()
    key = await house.add()
    await house.store.delete_account(key.account_id)
    await house.directory.reload()
    with pytest.raises(InvalidApiKey):
        house.directory.authenticate(f"Bearer {SECRET}")


async def test_a_request_under_way_keeps_the_caller_it_came_with() -> None:
    house = House()
    key = await house.add(quota=Quota(100, "daily"))
    before = house.directory.authenticate(f"Bearer {SECRET}")
    await house.store.put_key(attrs.evolve(key, quota=Quota(5, "daily")))
    await house.directory.reload()
    assert before.key.quota == Quota(100, "daily")
    assert house.directory.authenticate(f"Bearer {SECRET}").key.quota == Quota(5, "daily")


def test_another_pepper_gives_another_digest() -> None:
    store = Repositories()
    digests = {
        ApiKeyAuthenticator(store, store, pepper=pepper, clock=lambda: 0.0).digest(SECRET)
        for pepper in (b"a" * 32, b"b" * 32)
    }
    assert len(digests) == 2
    assert all(SECRET.encode() not in digest and len(digest) == 32 for digest in digests)


def test_a_made_secret_is_a_key_of_51_characters_and_never_the_same() -> None:
    made = {make_secret() for _ in range(200)}
    assert len(made) == 200
    assert all(is_key_shape(secret) and len(secret) == 51 for secret in made)


NEW_SECRET = "sk-the-secret-after-that"


async def rotate(house: House, **more: object) -> ApiKey:
    """The key has another secret now; the one before is good for ten seconds."""
    key = await house.add(**more)
    rotated = attrs.evolve(
        key,
        digest=house.directory.digest(NEW_SECRET),
        last4=NEW_SECRET[-4:],
        former_digest=key.digest,
        former_until_s=int(NOW) + 10,
    )
    await house.store.put_key(rotated)
    await house.directory.reload()
    return rotated


async def test_a_former_secret_is_the_same_key_until_its_time_of_grace_is_over() -> None:
    house = House()
    key = await rotate(house, quota=Quota(5, "daily"), models=("m",))
    before, after = (house.directory.authenticate(f"Bearer {secret}") for secret in (SECRET, NEW_SECRET))
    assert after.key == key
    assert (before.key.id, before.key.quota, before.key.models) == (key.id, key.quota, key.models)
    assert before.account == after.account
    house.now = NOW + 9.999
    assert house.directory.refresh(before) is before
    house.now = NOW + 10
    for ask in (lambda: house.directory.authenticate(f"Bearer {SECRET}"), lambda: house.directory.refresh(before)):
        with pytest.raises(KeyExpired):
            ask()
    assert house.directory.refresh(after) is after


async def test_a_former_secret_outlives_neither_the_key_nor_its_expiry() -> None:
    house = House()
    key = await rotate(house, expires_s=int(NOW) + 5)
    before = house.directory.authenticate(f"Bearer {SECRET}")
    house.now = NOW + 5
    with pytest.raises(KeyExpired):
        house.directory.refresh(before)
    await house.store.put_key(attrs.evolve(key, status="disabled"))
    await house.directory.reload()
    with pytest.raises(KeyDisabled):
        house.directory.refresh(before)
    await house.store.delete_key(key.id)
    await house.directory.reload()
    with pytest.raises(InvalidApiKey):
        house.directory.refresh(before)
    assert house.directory.find_caller(key.id) is None


async def test_a_key_is_found_by_its_id_with_the_secret_that_it_has_now() -> None:
    house = House()
    key = await rotate(house)
    found = house.directory.find_caller(key.id)
    assert found is not None
    assert found.key == key
    assert house.directory.find_caller(key.id + 1) is None


async def test_the_last_use_of_a_key_is_when_it_was_last_shown_and_good() -> None:
    house = House()
    key = await rotate(house)
    last_use = house.directory.find_last_use
    assert last_use(key.id) is None
    caller = house.directory.authenticate(f"Bearer {SECRET}")
    assert last_use(key.id) == NOW
    house.now = NOW + 3
    house.directory.refresh(caller)
    assert last_use(key.id) == NOW + 3
    house.now = NOW + 10
    with pytest.raises(KeyExpired):
        house.directory.authenticate(f"Bearer {SECRET}")
    assert last_use(key.id) == NOW + 3
    house.directory.authenticate(f"Bearer {NEW_SECRET}")
    await house.directory.reload()
    assert last_use(key.id) == NOW + 10
    await house.store.delete_key(key.id)
    await house.directory.reload()
    assert last_use(key.id) is None


async def test_who_looks_without_a_key_is_its_account_as_it_is_now() -> None:
    """A page of the console watches its account's videos."""
    house = House()
    key = await house.add()
    (account,) = await house.store.list_accounts()
    watcher = Caller(account, ApiKey(0, account.id, "console", b"", ""))
    assert house.directory.refresh(watcher) == watcher
    assert house.directory.find_last_use(0) is None
    await house.store.put_account(attrs.evolve(account, status="disabled"))
    await house.directory.reload()
    with pytest.raises(KeyDisabled):
        house.directory.refresh(watcher)
    await house.store.delete_account(key.account_id)
    await house.directory.reload()
    with pytest.raises(InvalidApiKey):
        house.directory.refresh(watcher)


class SlowStore(Repositories):
    """A store whose first list of keys arrives late."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = [asyncio.Event()]

    async def list_keys(self) -> Sequence[ApiKey]:
        keys = await super().list_keys()
        if self.waits:
            await self.waits.pop().wait()
        return keys


async def test_of_two_reloads_the_one_that_knows_more_has_the_last_word() -> None:
    store = SlowStore()
    directory = ApiKeyAuthenticator(store, store, pepper=b"p" * 32, clock=lambda: NOW)
    account = await store.add_account(Account(0, "acme"))
    key = await store.add_key(ApiKey(0, account.id, "k", directory.digest(SECRET), ""))
    late, (arrives,) = asyncio.create_task(directory.reload()), store.waits
    await asyncio.sleep(0)
    await store.put_key(attrs.evolve(key, status="disabled"))
    newer = asyncio.create_task(directory.reload())
    await asyncio.sleep(0)
    arrives.set()
    await asyncio.gather(late, newer)
    with pytest.raises(KeyDisabled):
        directory.authenticate(f"Bearer {SECRET}")


async def test_what_was_shown_before_is_looked_at_as_the_key_is_now() -> None:
    house = House()
    key = await house.add()
    header = f"Bearer {SECRET}"
    assert house.directory.authenticate(header).key.name == "k"
    await house.store.put_key(attrs.evolve(key, name="renamed"))
    await house.directory.reload()
    assert house.directory.authenticate(header).key.name == "renamed"
    await house.store.put_key(attrs.evolve(key, expires_s=int(NOW) + 10))
    await house.directory.reload()
    house.directory.authenticate(header)
    house.now += 10
    with pytest.raises(KeyExpired):
        house.directory.authenticate(header)
    await house.store.delete_key(key.id)
    await house.directory.reload()
    with pytest.raises(InvalidApiKey):
        house.directory.authenticate(header)


async def test_what_is_no_key_is_not_remembered() -> None:
    house = House()
    await house.add()
    for number in range(100):
        with pytest.raises(InvalidApiKey):
            house.directory.authenticate(f"Bearer sk-no-key-of-anybody-{number}")
    assert not house.directory._shown


async def test_only_what_is_written_the_usual_way_is_remembered() -> None:
    house = House()
    await house.add()
    for spaces in range(2, 100):
        house.directory.authenticate(f"Bearer{' ' * spaces}{SECRET}")
    assert not house.directory._shown
    house.directory.authenticate(f"Bearer {SECRET}")
    assert list(house.directory._shown) == [f"Bearer {SECRET}"]


class Changes:
    """Random changes of accounts and keys, and which of them a log of changes would name."""

    def __init__(self, house: House, chance: random.Random) -> None:
        self.house, self.store, self._chance = house, house.store, chance
        self.secrets: list[str] = []
        self._accounts: list[Account] = []
        self._keys: list[ApiKey] = []

    async def make(self) -> tuple[set[int], set[int]]:
        """Make one change; return the ids of the keys and accounts that it names."""
        kinds = [self._add_account]
        kinds += [self._add_key, self._edit_account, self._delete_account] if self._accounts else []
        kinds += [self._edit_key, self._rotate, self._rotate, self._delete_key] if self._keys else []
        return await self._chance.choice(kinds)()

    def _digest(self) -> bytes:
        self.secrets.append(f"sk-secret-number-{len(self.secrets)}-of-all")
        return self.house.directory.digest(self.secrets[-1])

    async def _add_account(self) -> tuple[set[int], set[int]]:
        self._accounts.append(await self.store.add_account(Account(0, f"a{self._chance.random()}")))
        return set(), {self._accounts[-1].id}

    async def _edit_account(self) -> tuple[set[int], set[int]]:
        index = self._chance.randrange(len(self._accounts))
        before = self._accounts[index]
        self._accounts[index] = attrs.evolve(before, status="active" if before.status == "disabled" else "disabled")
        await self.store.put_account(self._accounts[index])
        return set(), {before.id}

    async def _delete_account(self) -> tuple[set[int], set[int]]:
        account = self._accounts.pop(self._chance.randrange(len(self._accounts)))
        await self.store.delete_account(account.id)
        gone = {key.id for key in self._keys if key.account_id == account.id}
        self._keys = [key for key in self._keys if key.id not in gone]
        return (gone if self._chance.random() < 0.5 else set()), {account.id}

    async def _add_key(self) -> tuple[set[int], set[int]]:
        owner = self._chance.choice(self._accounts)
        key = ApiKey(0, owner.id, f"k{self._chance.random()}", self._digest(), "0000")
        self._keys.append(await self.store.add_key(key))
        return {self._keys[-1].id}, set()

    async def _edit_key(self) -> tuple[set[int], set[int]]:
        return await self._put(status=self._chance.choice(["active", "disabled"]))

    async def _rotate(self) -> tuple[set[int], set[int]]:
        former = self._chance.choice([None, int(NOW) + 60])
        return await self._put(digest=self._digest(), former_until_s=former)

    async def _put(self, **changes: Any) -> tuple[set[int], set[int]]:
        index = self._chance.randrange(len(self._keys))
        before = self._keys[index]
        if changes.get("former_until_s"):
            changes["former_digest"] = before.digest
        self._keys[index] = attrs.evolve(before, **changes)
        await self.store.put_key(self._keys[index])
        return {before.id}, set()

    async def _delete_key(self) -> tuple[set[int], set[int]]:
        key = self._keys.pop(self._chance.randrange(len(self._keys)))
        await self.store.delete_key(key.id)
        return {key.id}, set()


def find_outcomes(directory: ApiKeyAuthenticator, secrets: Sequence[str]) -> list[object]:
    outcomes: list[object] = []
    for secret in secrets:
        try:
            caller = directory.authenticate(f"Bearer {secret}")
        except GatewayError as error:
            outcomes.append(type(error))
        else:
            outcomes.append((caller, directory.find_caller(caller.key.id)))
    return outcomes


@pytest.mark.parametrize("seed", range(6))
async def test_reading_what_has_changed_comes_to_the_same_as_reading_everything(seed: int) -> None:
    house, chance = House(), random.Random(seed)  # noqa: S311 - test data
    changes = Changes(house, chance)
    waiting: tuple[set[int], set[int]] = set(), set()
    for _ in range(60):
        keys, accounts = await changes.make()
        waiting = waiting[0] | keys, waiting[1] | accounts
        if chance.random() < 0.4:  # several changes may be read at once
            continue
        await house.directory.reload_some(*waiting)
        waiting = set(), set()
        fresh = ApiKeyAuthenticator(house.store, house.store, pepper=b"p" * 32, clock=lambda: NOW)
        await fresh.reload()
        assert find_outcomes(house.directory, changes.secrets) == find_outcomes(fresh, changes.secrets)
