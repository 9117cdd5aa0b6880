"""Accounts and keys as members, operators and the configuration file change them, and what is on record of it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import orjson
import pytest

from gateway.auth.accounts import MAX_CHARS, MAX_KEYS, AccountRules, AccountService
from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.auth.declared import declare
from gateway.billing.accounting import AccountingService
from gateway.billing.balances import Balances
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import ApiKey
from gateway.domain.account_spec import AccountSpec, KeySpec, build_time
from gateway.domain.audit_log import FILE, Actor, AuditFilter, AuditRow
from gateway.domain.member import Forbidden
from gateway.errors import Conflict, InvalidApiKey, InvalidRequest, NotFound, StoreUnavailable
from gateway.parsing import parse_table
from tests.support.repositories import Repositories
from tests.support.request_records import ROW

NOW = 1_750_000_000
HOOK = "https://hooks.test/9?token=canary-hook"
SECRET = "sk-canary-of-the-file"


async def _let_go(_: int) -> None: ...


class AccountScenario:
    """An administration over a store in memory, with two accounts, a key and a member of each."""

    def __init__(self, store: Repositories) -> None:
        self.store, self.now = store, float(NOW)
        clock = lambda: self.now  # noqa: E731
        self.directory = ApiKeyAuthenticator(self.store, self.store, pepper=b"p" * 32, clock=clock)
        accounting = AccountingService(
            Balances(clock), self.store, WriteQueue(), clock=clock, jobs=None, check_leases=None
        )
        self.accounts = AccountService(
            self.store,
            self.store,
            self.directory,
            accounting,
            clock=clock,
            rules=AccountRules(lambda: ("hooks.test",), lambda: None, _let_go, shared=False),
        )
        self.secrets: list[str] = []

    async def open(self) -> "AccountScenario":
        for name in ("acme", "other"):
            await self.accounts.add_account({"name": name})
            made = await self.accounts.add_key({"name": "laptop", "account": name})
            self.secrets.append(made["secret"])
        acme, other = await self.store.list_accounts()
        self.ada = Actor("member", "ada", 1, acme.id, acme.id, "10.0.0.9")
        self.bob = Actor("member", "bob", 2, other.id, other.id)
        self.mine, self.theirs = [key.id for key in await self.store.list_keys()]
        return self

    async def list_rows(self, **wanted: Any) -> list[AuditRow]:
        return list(reversed(await self.store.audit_log.list_audit(AuditFilter(**wanted), 100)))

    async def find_news(self, before: int) -> list[tuple[str, str, dict[str, Any]]]:
        """What is on record since there were ``before`` rows."""
        return [(row.action, row.subject, orjson.loads(row.detail)) for row in (await self.list_rows())[before:]]


class SlowStore(Repositories):
    """A store whose every answer lets others go first, as a database's does."""

    async def list_keys(self) -> Sequence[ApiKey]:
        keys = await super().list_keys()
        await asyncio.sleep(0)
        return keys


@pytest.fixture
async def scenario() -> AccountScenario:
    return await AccountScenario(SlowStore()).open()


async def test_a_member_sees_its_own_accounts_keys_only(scenario: AccountScenario) -> None:
    admin = scenario.accounts
    assert [account["name"] for account in await admin.list_accounts(scenario.ada)] == ["acme"]
    assert [key["id"] for key in await admin.list_keys(scenario.ada)] == [scenario.mine]
    assert [key["id"] for key in await admin.list_keys(scenario.ada, "acme")] == [scenario.mine]
    assert [key["id"] for key in await admin.list_keys(account="other")] == [scenario.theirs]
    assert len(await admin.list_keys()) == 2


async def test_what_is_another_accounts_is_not_there_in_the_same_words(scenario: AccountScenario) -> None:
    admin, ada = scenario.accounts, scenario.ada
    rows = len(await scenario.list_rows())
    before = await scenario.store.list_keys()
    asked: list[tuple[str, Any, Callable[[Any], Awaitable[Any]]]] = [
        ("key", scenario.theirs, lambda key_id: admin.get_key(key_id, ada)),
        ("key", scenario.theirs, lambda key_id: admin.edit_key(key_id, {"rpm": 5}, ada)),
        ("key", scenario.theirs, lambda key_id: admin.rotate_key(key_id, {}, ada)),
        ("key", scenario.theirs, lambda key_id: admin.delete_key(key_id, ada)),
        ("key", scenario.theirs, lambda key_id: admin.get_stored_key(key_id, ada)),
        ("account", "other", lambda name: admin.get_account(name, ada)),
        ("account", "other", lambda name: admin.edit_account(name, {"rpm": 5}, ada)),
        ("account", "other", lambda name: admin.delete_account(name, ada)),
        ("account", "other", lambda name: admin.list_keys(ada, name)),
        ("account", "other", lambda name: admin.add_key({"name": "k", "account": name}, ada)),
        ("account", "other", lambda name: admin.edit_key(scenario.mine, {"account": name}, ada)),
    ]
    for kind, theirs, ask in asked:
        nothing: Any = 99 if kind == "key" else "none"
        answers = []
        for what in (theirs, nothing):
            with pytest.raises(NotFound) as caught:
                await ask(what)
            answers.append((caught.value.message.replace(repr(what), "?").replace(str(what), "?"), caught.value.param))
        assert answers[0] == answers[1]
    assert await scenario.store.list_keys() == before
    assert len(await scenario.list_rows()) == rows


async def test_a_members_key_is_of_its_own_account_and_has_a_secret_that_was_made(scenario: AccountScenario) -> None:
    admin, ada = scenario.accounts, scenario.ada
    made = await admin.add_key({"name": "ci", "rpm": 5, "webhook_url": HOOK}, ada)
    assert (made["account"], made["rpm"], len(made["secret"])) == ("acme", 5, 51)
    assert (await admin.add_key({"name": "cd", "account": "acme"}, ada))["account"] == "acme"
    for fields, param in (
        ({"name": "x", "secret": "sk-chosen-by-a-member"}, "secret"),
        ({"name": "x", "webhook_url": "https://inside.test/"}, "webhook_url"),
        ({"name": "x", "account": None}, "account"),
        ({}, "name"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            await admin.add_key(fields, ada)
        assert caught.value.param == param
    assert (await admin.add_key({"name": "op", "account": "acme", "secret": "sk-chosen-by-operator"}))["name"] == "op"
    assert len(await admin.list_keys(ada)) == 4


async def test_where_videos_are_told_of_is_the_operators_to_allow_and_what_it_has_set_stays(
    scenario: AccountScenario,
) -> None:
    admin, ada, elsewhere = scenario.accounts, scenario.ada, "https://inside.test/"
    await admin.edit_key(scenario.mine, {"webhook_url": elsewhere})
    assert (await admin.edit_key(scenario.mine, {"rpm": 7}, ada))["webhook_url"] == elsewhere
    with pytest.raises(InvalidRequest):
        await admin.edit_key(scenario.mine, {"webhook_url": "https://inside.test/else"}, ada)
    assert (await admin.edit_key(scenario.mine, {"webhook_url": HOOK}, ada))["webhook_url"] == HOOK
    assert (await admin.edit_key(scenario.mine, {"webhook_url": None}, ada))["webhook_url"] is None


async def test_what_a_members_key_pays_is_the_operators_to_say(scenario: AccountScenario) -> None:
    """A group is a price and a choice of channels: a member has those of its account, and none to leave out."""
    admin, ada = scenario.accounts, scenario.ada

    async def is_refused(asked: Awaitable[Any]) -> bool:
        with pytest.raises(InvalidRequest) as caught:
            await asked
        return caught.value.param == "group"

    assert await is_refused(admin.add_key({"name": "free", "group": "staff"}, ada))
    assert (await admin.add_key({"name": "plain"}, ada))["group"] is None
    await admin.edit_key(scenario.mine, {"group": "dear"})
    for group in (None, "staff"):
        assert await is_refused(admin.edit_key(scenario.mine, {"group": group}, ada))
    assert (await admin.edit_key(scenario.mine, {"rpm": 7}, ada))["group"] == "dear"
    await admin.edit_account("acme", {"groups": ["dear", "dearer"]})
    assert (await admin.add_key({"name": "first"}, ada))["group"] == "dear"
    assert (await admin.add_key({"name": "second", "group": "dearer"}, ada))["group"] == "dearer"
    with pytest.raises(Forbidden, match="administrator has set group"):
        await admin.edit_key(scenario.mine, {"group": "dearer"}, ada)
    await admin.edit_key(scenario.mine, {"group": None})
    assert (await admin.edit_key(scenario.mine, {"group": "dearer"}, ada))["group"] == "dearer"
    for group in (None, "staff"):
        assert await is_refused(admin.edit_key(scenario.mine, {"group": group}, ada))
    assert (await admin.edit_key(scenario.mine, {"group": None}))["group"] is None, "an operator does as it likes"
    assert (await admin.add_key({"name": "own", "account": "acme"}))["group"] is None


async def test_no_account_makes_every_change_of_a_key_slow_for_all(scenario: AccountScenario) -> None:
    admin, ada = scenario.accounts, scenario.ada
    for name, word in (("models", "m"), ("allow_ips", "10.0.0.1")):
        long = {name: [word] * (MAX_CHARS // len(word) + 1)}
        for asked in (admin.add_key({"name": "x", **long}, ada), admin.edit_key(scenario.mine, long, ada)):
            with pytest.raises(InvalidRequest) as caught:
                await asked
            assert caught.value.param == name
        await admin.edit_key(scenario.mine, long)
        assert (await admin.edit_key(scenario.mine, {"rpm": 7}, ada))[name] == long[name], (
            "what an operator has set stays"
        )
    key = await admin.get_stored_key(scenario.mine)
    for number in range(MAX_KEYS - 1):
        digest = number.to_bytes(32)
        await scenario.store.add_key(attrs.evolve(key, name=f"k{number}", digest=digest, models=(), allow_ips=()))
    with pytest.raises(Conflict):
        await admin.add_key({"name": "x"}, ada)
    await admin.add_key({"name": "x"}, scenario.bob)
    await admin.add_key({"name": "x", "account": "acme"})


async def test_every_change_is_on_record_once_with_who_made_it(scenario: AccountScenario) -> None:
    admin, ada = scenario.accounts, scenario.ada
    rows = len(await scenario.list_rows())
    made = await admin.add_key({"name": "ci", "models": ["m"], "webhook_url": HOOK}, ada)
    await admin.edit_key(made["id"], {"rpm": 5, "webhook_url": None, "name": "cd"}, ada)
    await admin.edit_key(made["id"], {"rpm": 5}, ada)
    await admin.delete_key(made["id"], ada)
    await admin.edit_account("acme", {"quota_usd": 5, "name": "Acme"})
    await admin.edit_account("Acme", {})
    await admin.delete_account("Acme")
    assert await scenario.find_news(rows) == [
        ("key.created", "acme/ci", {"models": [[], ["m"]], "webhook_url": "changed"}),
        ("key.edited", "acme/ci", {"name": ["ci", "cd"], "rpm": [None, 5], "webhook_url": "changed"}),
        ("key.deleted", "acme/cd", {}),
        (
            "account.edited",
            "acme",
            {"name": ["acme", "Acme"], "quota_usd": [None, 5.0], "quota_period": ["none", "lifetime"]},
        ),
        ("account.deleted", "Acme", {"keys": [["laptop"], []]}),
    ]
    reported = (await scenario.list_rows())[rows:]
    assert {(row.actor_kind, row.actor, row.address) for row in reported[:3]} == {("member", "ada", "10.0.0.9")}
    assert {(row.actor_kind, row.actor) for row in reported[3:]} == {("token", "")}
    assert {(row.account_id, row.at_ms) for row in reported} == {(ada.account_id, NOW * 1000)}
    assert "canary" not in str(await scenario.list_rows())
    assert made["secret"] not in str(await scenario.list_rows())


async def test_a_rotated_key_keeps_everything_but_its_secret_and_the_old_one_ends_in_time(
    scenario: AccountScenario,
) -> None:
    admin, (old, _) = scenario.accounts, scenario.secrets
    before = await admin.edit_key(scenario.mine, {"rpm": 5, "quota_usd": 3, "expires_at": "2030-01-01"})
    rows = len(await scenario.list_rows())
    rotated = await admin.rotate_key(scenario.mine, {"overlap_h": 2}, scenario.ada)
    new = rotated.pop("secret")
    former_until = "2025-06-15T17:06:40Z"
    assert rotated == {**before, "key": f"sk-…{new[-4:]}", "former_until": former_until}
    (reported,) = await scenario.find_news(rows)
    pair = [before["key"], rotated["key"]]
    assert reported == (
        "key.rotated",
        "acme/laptop",
        {"key": pair, "secret": "changed", "former_until": [None, former_until]},
    )
    assert new not in str(await scenario.list_rows())
    assert {scenario.directory.authenticate(f"Bearer {secret}").key.id for secret in (old, new)} == {scenario.mine}
    scenario.now += 7_200
    shown = await admin.get_key(scenario.mine)
    assert (shown["former_until"], shown["last_used_at"]) == (None, "2025-06-15T15:06:40Z")
    assert scenario.directory.authenticate(f"Bearer {new}") is not None
    newest = (await admin.rotate_key(scenario.mine, {}))["secret"]
    with pytest.raises(InvalidApiKey):
        scenario.directory.authenticate(f"Bearer {old}")
    assert scenario.directory.authenticate(f"Bearer {new}").key.expires_s == int(scenario.now) + 24 * 3_600
    await admin.rotate_key(scenario.mine, {"overlap_h": 0})
    for secret in (new, newest):
        with pytest.raises(InvalidApiKey):
            scenario.directory.authenticate(f"Bearer {secret}")
    assert (await admin.get_key(scenario.mine))["former_until"] is None


@pytest.mark.parametrize("fields", [{"overlap_h": -1}, {"overlap_h": 721}, {"overlap_h": 1.5}, {"overlap": 1}])
async def test_a_secret_is_good_for_a_month_more_at_the_most(scenario: AccountScenario, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await scenario.accounts.rotate_key(scenario.mine, fields)
    assert caught.value.param == next(iter(fields))


async def test_changes_at_once_undo_nothing_of_each_other(scenario: AccountScenario) -> None:
    """A key that is edited while it is rotated has its new secret, and its new limits."""
    admin, (old, _) = scenario.accounts, scenario.secrets
    rotated, *_ = await asyncio.gather(
        admin.rotate_key(scenario.mine, {"overlap_h": 0}),
        *(admin.edit_key(scenario.mine, {name: 5}) for name in ("rpm", "tpm", "max_concurrency")),
    )
    assert scenario.directory.authenticate(f"Bearer {rotated['secret']}").key.id == scenario.mine
    with pytest.raises(InvalidApiKey):
        scenario.directory.authenticate(f"Bearer {old}")
    shown = await admin.get_key(scenario.mine)
    assert [shown[name] for name in ("rpm", "tpm", "max_concurrency")] == [5, 5, 5]


async def test_an_account_goes_only_where_it_may(scenario: AccountScenario) -> None:
    admin, asked = scenario.accounts, []

    async def refuse(account_id: int) -> None:
        asked.append(account_id)
        raise Conflict("The last administrator")

    admin._rules = attrs.evolve(admin._rules, check_account_may_go=refuse)
    rows = len(await scenario.list_rows())
    for change in (admin.edit_account("acme", {"status": "disabled"}), admin.delete_account("acme")):
        with pytest.raises(Conflict, match="administrator"):
            await change
    assert asked == [scenario.ada.account_id] * 2
    assert (await admin.edit_account("acme", {"rpm": 5}))["status"] == "active"
    assert [action for action, *_ in await scenario.find_news(rows)] == ["account.edited"]


ACCOUNTS = [{"name": "filed", "rpm": 5}]
KEYS = [{"name": "k", "account": "filed", "secret": SECRET, "webhook_url": HOOK}]


async def declare_all(scenario: AccountScenario, accounts: list[dict[str, Any]], keys: list[dict[str, Any]]) -> None:
    specs = [parse_table(fields, AccountSpec) for fields in accounts], [parse_table(fields, KeySpec) for fields in keys]
    await declare(scenario.accounts, *specs)


async def test_what_the_file_declares_is_on_record_as_the_files_and_only_where_it_changes_something(
    scenario: AccountScenario,
) -> None:
    rows = len(await scenario.list_rows())
    for _ in range(3):
        await declare_all(scenario, ACCOUNTS, KEYS)
    await declare_all(scenario, [{"name": "filed", "rpm": 6}], [{**KEYS[0], "secret": f"{SECRET}-too"}])
    await declare_all(scenario, [], [])
    assert await scenario.find_news(rows) == [
        ("account.created", "filed", {"rpm": [None, 5]}),
        ("key.created", "filed/k", {"webhook_url": "changed"}),
        ("account.edited", "filed", {"rpm": [5, 6]}),
        ("key.edited", "filed/k", {"key": ["sk-…file", "sk-…-too"], "secret": "changed"}),
        ("account.edited", "filed", {"status": ["active", "disabled"], "declared": [True, False]}),
        (
            "key.edited",
            "filed/k",
            {"status": ["active", "disabled"], "locked": [[], ["status"]], "declared": [True, False]},
        ),
    ]
    assert {row.actor_kind for row in (await scenario.list_rows())[rows:]} == {FILE.kind}
    assert "canary" not in str(await scenario.list_rows())


async def test_what_the_file_declares_is_not_rotated(scenario: AccountScenario) -> None:
    await declare_all(scenario, ACCOUNTS, KEYS)
    key_id = scenario.directory.authenticate(f"Bearer {SECRET}").key.id
    with pytest.raises(Conflict, match="configuration file"):
        await scenario.accounts.rotate_key(key_id, {})


async def test_a_secret_that_the_file_gives_away_is_no_other_keys_former_one_any_more(
    scenario: AccountScenario,
) -> None:
    old = scenario.secrets[0]
    new = (await scenario.accounts.rotate_key(scenario.mine, {}))["secret"]
    with pytest.raises(Conflict):
        await scenario.accounts.add_key({"name": "k", "account": "acme", "secret": old})
    await declare_all(scenario, ACCOUNTS, [{**KEYS[0], "secret": old}])
    assert scenario.directory.authenticate(f"Bearer {old}").account.name == "filed"
    assert scenario.directory.authenticate(f"Bearer {new}").key.id == scenario.mine
    assert (await scenario.accounts.get_key(scenario.mine))["former_until"] is None


class FullStore(Repositories):
    """A store in which no key can be changed."""

    async def put_key(self, key: ApiKey, audit: AuditRow | None = None, *, original: ApiKey | None = None) -> None:
        raise StoreUnavailable(f"No room for {key.name}, {audit} and {original}")


async def test_a_secret_that_could_not_be_stored_is_not_shown_and_the_old_one_stays() -> None:
    scenario = await AccountScenario(FullStore()).open()
    with pytest.raises(StoreUnavailable):
        await scenario.accounts.rotate_key(scenario.mine, {})
    assert scenario.directory.authenticate(f"Bearer {scenario.secrets[0]}").key.id == scenario.mine


async def test_the_last_use_of_a_key_counts_what_other_nodes_have_stored(scenario: AccountScenario) -> None:
    async def read() -> list[Any]:
        listed = [key["last_used_at"] for key in await scenario.accounts.list_keys()]
        assert listed == [
            (await scenario.accounts.get_key(key_id))["last_used_at"] for key_id in (scenario.mine, scenario.theirs)
        ]
        return listed

    rows = [
        attrs.evolve(ROW, id=f"req_{number}", key_id=scenario.mine, started_ms=(NOW + number) * 1000)
        for number in (1, 3)
    ]
    await scenario.store.post(rows)
    assert await read() == [None, None], "a process that is alone knows of every use since its start"
    scenario.accounts._rules = attrs.evolve(scenario.accounts._rules, shared=True)
    assert await read() == [build_time(NOW + 3), None]
    scenario.now = NOW + 9.0
    for secret in scenario.secrets:
        scenario.directory.authenticate(f"Bearer {secret}")
    assert await read() == [build_time(NOW + 9)] * 2
