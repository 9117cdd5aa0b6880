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


class KeyScenario:
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
    scenario = KeyScenario()
    key = await scenario.add()
    await scenario.add("sk-another-key-for-tests")
    caller = scenario.directory.authenticate(f"Bearer {SECRET}")
    assert caller.key == key
    assert caller.account.id == key.account_id


@pytest.mark.parametrize("header", [f"bearer {SECRET}", f"BEARER   {SECRET}  ", f"bEaReR {SECRET}"])
async def test_case_and_space_do_not_matter(header: str) -> None:
    scenario = KeyScenario()
    await scenario.add()
    assert scenario.directory.authenticate(header).key.name == "k"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", SECRET, f"Basic {SECRET}", f"Bearer {SECRET} x", f"Bearer\t{SECRET}"]
)
async def test_anything_else_is_no_key(header: str | None) -> None:
    scenario = KeyScenario()
    await scenario.add()
    with pytest.raises(InvalidApiKey) as caught:
        scenario.directory.authenticate(header)
    assert caught.value.should_retry is False
    assert SECRET not in caught.value.message


@given(st.text())
def test_no_header_whatever_raises_anything_but_a_fault(header: str) -> None:
    scenario = KeyScenario()
    for value in (header, f"Bearer {header}", f"Bearer sk-{header}"):
        with pytest.raises(GatewayError):
            scenario.directory.authenticate(value)


async def test_a_key_ends_with_the_second_of_its_expiry() -> None:
    scenario = KeyScenario()
    await scenario.add(expires_s=int(NOW) + 10)
    scenario.now = NOW + 9.999
    scenario.directory.authenticate(f"Bearer {SECRET}")
    scenario.now = NOW + 10
    with pytest.raises(KeyExpired):
        scenario.directory.authenticate(f"Bearer {SECRET}")


@pytest.mark.parametrize("where", [{"status": "disabled"}, {"account": "disabled"}])
async def test_a_disabled_key_or_account_is_disabled_even_where_it_has_expired_too(where: dict[str, str]) -> None:
    scenario = KeyScenario()
    await scenario.add(expires_s=1, **where)
    with pytest.raises(KeyDisabled):
        scenario.directory.authenticate(f"Bearer {SECRET}")


async def test_a_change_counts_from_the_reload_on() -> None:
    scenario = KeyScenario()
    key = await scenario.add()
    await scenario.store.put_key(attrs.evolve(key, status="disabled"))
    scenario.directory.authenticate(f"Bearer {SECRET}")
    await scenario.directory.reload()
    with pytest.raises(KeyDisabled):
        scenario.directory.authenticate(f"Bearer {SECRET}")
    await scenario.store.delete_key(key.id)
    await scenario.directory.reload()
    with pytest.raises(InvalidApiKey):
        scenario.directory.authenticate(f"Bearer {SECRET}")


async def test_a_callers_networks_are_those_of_its_key() -> None:
    scenario = KeyScenario()
    await scenario.add(allow_ips=("10.0.0.1/8", "2001:db8::/32"))
    await scenario.add("sk-a-key-for-anywhere")
    caller = scenario.directory.authenticate(f"Bearer {SECRET}")
    assert [str(network) for network in caller.networks] == ["10.0.0.0/8", "2001:db8::/32"]
    caller.check_address("10.2.3.4")
    with pytest.raises(IpNotAllowed):
        caller.check_address("192.0.2.1")
    assert scenario.directory.authenticate("Bearer sk-a-key-for-anywhere").networks == ()


async def test_networks_are_read_again_only_where_they_are_others() -> None:
    scenario = KeyScenario()
    key = await scenario.add(allow_ips=("10.0.0.0/8",))
    before = scenario.directory.authenticate(f"Bearer {SECRET}").networks
    await scenario.store.put_key(attrs.evolve(key, name="renamed"))
    await scenario.directory.reload()
    assert scenario.directory.authenticate(f"Bearer {SECRET}").networks is before
    await scenario.store.put_key(attrs.evolve(key, allow_ips=("192.0.2.0/24",)))
    await scenario.directory.reload()
    assert [str(each) for each in scenario.directory.authenticate(f"Bearer {SECRET}").networks] == ["192.0.2.0/24"]


async def test_a_deleted_account_takes_its_keys_with_it() -> None:
    scenario = KeyScenario()
    key = await scenario.add()
    await scenario.store.delete_account(key.account_id)
    await scenario.directory.reload()
    with pytest.raises(InvalidApiKey):
        scenario.directory.authenticate(f"Bearer {SECRET}")


async def test_a_request_under_way_keeps_the_caller_it_came_with() -> None:
    scenario = KeyScenario()
    key = await scenario.add(quota=Quota(100, "daily"))
    before = scenario.directory.authenticate(f"Bearer {SECRET}")
    await scenario.store.put_key(attrs.evolve(key, quota=Quota(5, "daily")))
    await scenario.directory.reload()
    assert before.key.quota == Quota(100, "daily")
    assert scenario.directory.authenticate(f"Bearer {SECRET}").key.quota == Quota(5, "daily")


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


async def rotate(scenario: KeyScenario, **more: Any) -> ApiKey:
    """The key has another secret now; the one before is good for ten seconds."""
    key = await scenario.add(**more)
    rotated = attrs.evolve(
        key,
        digest=scenario.directory.digest(NEW_SECRET),
        last4=NEW_SECRET[-4:],
        former_digest=key.digest,
        former_until_s=int(NOW) + 10,
    )
    await scenario.store.put_key(rotated)
    await scenario.directory.reload()
    return rotated


async def test_a_former_secret_is_the_same_key_until_its_time_of_grace_is_over() -> None:
    scenario = KeyScenario()
    key = await rotate(scenario, quota=Quota(5, "daily"), models=("m",))
    before, after = (scenario.directory.authenticate(f"Bearer {secret}") for secret in (SECRET, NEW_SECRET))
    assert after.key == key
    assert (before.key.id, before.key.quota, before.key.models) == (key.id, key.quota, key.models)
    assert before.account == after.account
    scenario.now = NOW + 9.999
    assert scenario.directory.refresh(before) is before
    scenario.now = NOW + 10
    with pytest.raises(KeyExpired):
        scenario.directory.authenticate(f"Bearer {SECRET}")
    with pytest.raises(KeyExpired):
        scenario.directory.refresh(before)
    assert scenario.directory.refresh(after) is after


async def test_a_former_secret_outlives_neither_the_key_nor_its_expiry() -> None:
    scenario = KeyScenario()
    key = await rotate(scenario, expires_s=int(NOW) + 5)
    before = scenario.directory.authenticate(f"Bearer {SECRET}")
    scenario.now = NOW + 5
    with pytest.raises(KeyExpired):
        scenario.directory.refresh(before)
    await scenario.store.put_key(attrs.evolve(key, status="disabled"))
    await scenario.directory.reload()
    with pytest.raises(KeyDisabled):
        scenario.directory.refresh(before)
    await scenario.store.delete_key(key.id)
    await scenario.directory.reload()
    with pytest.raises(InvalidApiKey):
        scenario.directory.refresh(before)
    assert scenario.directory.find_caller(key.id) is None


async def test_a_key_is_found_by_its_id_with_the_secret_that_it_has_now() -> None:
    scenario = KeyScenario()
    key = await rotate(scenario)
    found = scenario.directory.find_caller(key.id)
    assert found is not None
    assert found.key == key
    assert scenario.directory.find_caller(key.id + 1) is None


async def test_the_last_use_of_a_key_is_when_it_was_last_shown_and_good() -> None:
    scenario = KeyScenario()
    key = await rotate(scenario)
    last_use = scenario.directory.find_last_use
    assert last_use(key.id) is None
    caller = scenario.directory.authenticate(f"Bearer {SECRET}")
    assert last_use(key.id) == NOW
    scenario.now = NOW + 3
    scenario.directory.refresh(caller)
    assert last_use(key.id) == NOW + 3
    scenario.now = NOW + 10
    with pytest.raises(KeyExpired):
        scenario.directory.authenticate(f"Bearer {SECRET}")
    assert last_use(key.id) == NOW + 3
    scenario.directory.authenticate(f"Bearer {NEW_SECRET}")
    await scenario.directory.reload()
    assert last_use(key.id) == NOW + 10
    await scenario.store.delete_key(key.id)
    await scenario.directory.reload()
    assert last_use(key.id) is None


async def test_who_looks_without_a_key_is_its_account_as_it_is_now() -> None:
    """A page of the console watches its account's videos."""
    scenario = KeyScenario()
    key = await scenario.add()
    (account,) = await scenario.store.list_accounts()
    watcher = Caller(account, ApiKey(0, account.id, "console", b"", ""))
    assert scenario.directory.refresh(watcher) == watcher
    assert scenario.directory.find_last_use(0) is None
    await scenario.store.put_account(attrs.evolve(account, status="disabled"))
    await scenario.directory.reload()
    with pytest.raises(KeyDisabled):
        scenario.directory.refresh(watcher)
    await scenario.store.delete_account(key.account_id)
    await scenario.directory.reload()
    with pytest.raises(InvalidApiKey):
        scenario.directory.refresh(watcher)


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
    scenario = KeyScenario()
    key = await scenario.add()
    header = f"Bearer {SECRET}"
    assert scenario.directory.authenticate(header).key.name == "k"
    await scenario.store.put_key(attrs.evolve(key, name="renamed"))
    await scenario.directory.reload()
    assert scenario.directory.authenticate(header).key.name == "renamed"
    await scenario.store.put_key(attrs.evolve(key, expires_s=int(NOW) + 10))
    await scenario.directory.reload()
    scenario.directory.authenticate(header)
    scenario.now += 10
    with pytest.raises(KeyExpired):
        scenario.directory.authenticate(header)
    await scenario.store.delete_key(key.id)
    await scenario.directory.reload()
    with pytest.raises(InvalidApiKey):
        scenario.directory.authenticate(header)


async def test_what_is_no_key_is_not_remembered() -> None:
    scenario = KeyScenario()
    await scenario.add()
    for number in range(100):
        with pytest.raises(InvalidApiKey):
            scenario.directory.authenticate(f"Bearer sk-no-key-of-anybody-{number}")
    assert not scenario.directory._callers_by_header


async def test_only_what_is_written_the_usual_way_is_remembered() -> None:
    scenario = KeyScenario()
    await scenario.add()
    for spaces in range(2, 100):
        scenario.directory.authenticate(f"Bearer{' ' * spaces}{SECRET}")
    assert not scenario.directory._callers_by_header
    scenario.directory.authenticate(f"Bearer {SECRET}")
    assert list(scenario.directory._callers_by_header) == [f"Bearer {SECRET}"]


class Changes:
    """Random changes of accounts and keys, and which of them a log of changes would name."""

    def __init__(self, scenario: KeyScenario, chance: random.Random) -> None:
        self.scenario, self.store, self._chance = scenario, scenario.store, chance
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
        return self.scenario.directory.digest(self.secrets[-1])

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
    scenario, chance = KeyScenario(), random.Random(seed)  # noqa: S311 - test data
    changes = Changes(scenario, chance)
    waiting: tuple[set[int], set[int]] = set(), set()
    for _ in range(60):
        keys, accounts = await changes.make()
        waiting = waiting[0] | keys, waiting[1] | accounts
        if chance.random() < 0.4:  # several changes may be read at once
            continue
        await scenario.directory.reload_owners(*waiting)
        waiting = set(), set()
        fresh = ApiKeyAuthenticator(scenario.store, scenario.store, pepper=b"p" * 32, clock=lambda: NOW)
        await fresh.reload()
        assert find_outcomes(scenario.directory, changes.secrets) == find_outcomes(fresh, changes.secrets)
