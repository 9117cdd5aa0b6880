"""What every driver of the store of members promises: one suite, run over each of them."""

import asyncio
from typing import Any

import attrs
import pytest

from gateway.domain.account import Account
from gateway.domain.audit_log import AuditFilter, AuditRow
from gateway.domain.member import (
    ABSOLUTE_MS,
    IDLE_MS,
    LINK_GONE,
    Credential,
    Forbidden,
    InviteLink,
    Member,
    Session,
    WrongPassphrase,
)
from gateway.errors import Conflict, NotFound
from gateway.storage.accounts import AccountRepository
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.database import Database
from gateway.storage.members import MemberRepository

NOW = 1_800_000_000_000
HASH = "$argon2id$ann"
REPORTED = AuditRow(0, NOW, "token", "", None, "", "member.changed", None, "ann")


@attrs.frozen
class MemberScenario:
    """Every repository that members touch, and the account ``acme``."""

    members: MemberRepository
    accounts: AccountRepository
    audit_log: AuditLogRepository
    acme: Account

    async def count_reported(self) -> int:
        """How many audit rows there are."""
        return len(await self.audit_log.list_audit(AuditFilter(), 100))

    async def add(self, name: str = "ann", **values: Any) -> Member:
        """A new member of ``acme``."""
        return await self.members.add_member(make_member(self.acme, name, **values))

    async def sign_in(self, member: Member, digest: bytes = b"s" * 32, **values: Any) -> Session:
        """A new session."""
        session = Session(digest, member.id, NOW, NOW, "::1", "Browser")
        session = attrs.evolve(session, **values)
        await self.members.add_session(session, Credential(member.passphrase, is_known=True))
        return session


def make_member(account: Account, name: str = "ann", **values: Any) -> Member:
    """Of that account, with a passphrase."""
    return attrs.evolve(Member(0, account.id, name, "member", passphrase=HASH, created_ms=NOW), **values)


def make_link(account: Account, digest: bytes = b"l" * 32, **values: Any) -> InviteLink:
    """An invitation."""
    return attrs.evolve(InviteLink(digest, "invite", account.id, "viewer", NOW, NOW + 1000, created_by="ann"), **values)


@pytest.fixture
async def scenario(database: Database) -> MemberScenario:
    accounts = AccountRepository(database)
    acme = await accounts.add_account(Account(0, "acme"))
    return MemberScenario(MemberRepository(database), accounts, AuditLogRepository(database), acme)


async def test_a_member_is_read_back_as_it_was_written(scenario: MemberScenario) -> None:
    whole = make_member(
        scenario.acme, totp=b"\x00\xff", totp_step=7, recovery=("ab", "cd"), signed_in_ms=NOW, status="disabled"
    )
    made = await scenario.members.add_member(whole)
    assert made == attrs.evolve(whole, id=made.id)
    assert await scenario.members.find_member(made.id) == made
    assert await scenario.members.find_member_by_name("ann") == made
    assert await scenario.members.list_members() == [made]
    assert await scenario.members.find_member(made.id + 1) is None
    assert await scenario.members.find_member_by_name("Ann") is None


async def test_a_name_is_one_members_over_all_accounts(scenario: MemberScenario) -> None:
    other = await scenario.accounts.add_account(Account(0, "other"))
    ann, bob = await scenario.add("ann"), await scenario.add("bob")
    with pytest.raises(Conflict, match="'ann'") as refused:
        await scenario.members.add_member(make_member(other), REPORTED)
    assert refused.value.param == "name"
    with pytest.raises(Conflict, match="'ann'"):
        await scenario.members.put_member(bob, attrs.evolve(bob, name="ann"), REPORTED)
    await scenario.members.put_member(ann, attrs.evolve(ann, name="anna"), REPORTED)
    await scenario.members.put_member(bob, attrs.evolve(bob, name="ann"))
    assert [member.name for member in await scenario.members.list_members()] == ["anna", "ann"]
    assert await scenario.count_reported() == 1


async def test_a_member_needs_an_account(scenario: MemberScenario) -> None:
    with pytest.raises(NotFound, match="account"):
        await scenario.members.add_member(make_member(Account(scenario.acme.id + 7, "nowhere")), REPORTED)
    assert await scenario.count_reported() == 0


async def test_only_what_differs_is_changed(scenario: MemberScenario) -> None:
    """Two who change different things both succeed; who would write over another's change does not."""
    before = await scenario.add(recovery=("ab", "cd"))
    await scenario.members.put_member(before, attrs.evolve(before, recovery=("cd",)))
    await scenario.members.put_member(before, attrs.evolve(before, role="viewer"))
    now = await scenario.members.find_member(before.id)
    assert now == attrs.evolve(before, role="viewer", recovery=("cd",))
    with pytest.raises(Conflict, match="Another user"):
        await scenario.members.put_member(before, attrs.evolve(before, recovery=()), REPORTED)
    assert await scenario.members.find_member(before.id) == now
    assert await scenario.count_reported() == 0


async def test_what_is_not_there_is_not_changed(scenario: MemberScenario) -> None:
    anonymous = make_member(scenario.acme, id=99)
    with pytest.raises(NotFound):
        await scenario.members.put_member(anonymous, attrs.evolve(anonymous, role="viewer"), REPORTED)
    with pytest.raises(NotFound):
        await scenario.members.delete_member(99, REPORTED)
    assert await scenario.count_reported() == 0


async def test_the_last_administrator_stays(scenario: MemberScenario) -> None:
    assert not await scenario.members.is_administered()
    chief = await scenario.add("chief", role="administrator")
    assert await scenario.members.is_administered()
    changes: list[dict[str, Any]] = [{"role": "member"}, {"status": "disabled"}]
    for change in changes:
        with pytest.raises(Conflict, match="only administrator"):
            await scenario.members.put_member(chief, attrs.evolve(chief, **change), REPORTED)
    with pytest.raises(Conflict, match="only administrator"):
        await scenario.members.delete_member(chief.id, REPORTED)
    assert await scenario.members.list_members() == [chief]
    assert await scenario.count_reported() == 0
    await scenario.add("deputy", role="administrator")
    await scenario.members.delete_member(chief.id, REPORTED)
    assert [member.name for member in await scenario.members.list_members()] == ["deputy"]
    assert await scenario.count_reported() == 1


async def test_of_two_administrators_who_leave_at_once_one_stays(scenario: MemberScenario) -> None:
    one, two = [await scenario.add(name, role="administrator") for name in ("one", "two")]
    changes = (scenario.members.put_member(who, attrs.evolve(who, role="viewer")) for who in (one, two))
    done = await asyncio.gather(*changes, return_exceptions=True)
    assert [type(result) for result in done].count(Conflict) == 1
    assert await scenario.members.is_administered()


@pytest.mark.parametrize("what", [{"status": "disabled"}, {"role": "member"}])
async def test_an_administrator_of_an_account_that_is_disabled_is_none(
    scenario: MemberScenario, what: dict[str, Any]
) -> None:
    chief = await scenario.add("chief", role="administrator")
    await scenario.accounts.put_account(attrs.evolve(scenario.acme, status="disabled"))
    assert not await scenario.members.is_administered()
    await scenario.members.put_member(chief, attrs.evolve(chief, **what))  # nobody is locked out by it who was not
    assert not await scenario.members.is_administered()


async def test_a_session_is_found_with_whose_it_is(scenario: MemberScenario) -> None:
    ann = await scenario.add()
    session = await scenario.sign_in(ann)
    signed_in = attrs.evolve(ann, signed_in_ms=NOW)
    assert await scenario.members.find_session(session.digest) == (session, signed_in, scenario.acme)
    assert await scenario.members.find_session(b"other" * 8) is None
    await scenario.members.touch_session(session.digest, NOW + 5)
    await scenario.members.touch_session(session.digest, NOW + 4)
    await scenario.members.touch_session(b"other" * 8, NOW + 5)
    assert await scenario.members.list_sessions(ann.id) == [attrs.evolve(session, seen_ms=NOW + 5)]


async def test_sessions_are_listed_newest_first_and_end(scenario: MemberScenario) -> None:
    ann, bob = await scenario.add("ann"), await scenario.add("bob")
    mine = [await scenario.sign_in(ann, bytes([number]) * 32, created_ms=NOW + number) for number in range(3)]
    theirs = await scenario.sign_in(bob, b"b" * 32)
    assert await scenario.members.list_sessions(ann.id) == mine[::-1]
    assert await scenario.members.delete_sessions([mine[0].digest, mine[1].digest, b"x" * 32], REPORTED) == 2
    assert await scenario.members.list_sessions(ann.id) == [mine[2]]
    assert await scenario.members.list_sessions(bob.id) == [theirs]
    assert await scenario.members.delete_sessions([mine[0].digest], REPORTED) == 0
    assert await scenario.count_reported() == 1


async def test_a_new_session_takes_the_place_of_the_browsers_old_one(scenario: MemberScenario) -> None:
    ann = await scenario.add()
    old, other = await scenario.sign_in(ann, b"o" * 32), await scenario.sign_in(ann, b"p" * 32)
    new = attrs.evolve(old, digest=b"n" * 32)
    await scenario.members.add_session(new, Credential(HASH), REPORTED, replaces=old.digest)
    assert {session.digest for session in await scenario.members.list_sessions(ann.id)} == {new.digest, other.digest}
    assert await scenario.count_reported() == 1


@pytest.mark.parametrize(
    ("member", "proof"),
    [
        ({}, Credential("$argon2id$another")),
        ({"totp": b"x"}, Credential(HASH)),
        ({"totp": b"x", "totp_step": 7}, Credential(HASH, step=7)),
        ({"totp": b"x", "totp_step": 7}, Credential(HASH, step=6)),
        ({"totp": b"x", "recovery": ("ab",)}, Credential(HASH, recovery_digest="cd")),
    ],
)
async def test_what_does_not_prove_who_it_is_opens_no_session(
    scenario: MemberScenario, member: dict[str, Any], proof: Credential
) -> None:
    ann = await scenario.add(**member)
    old = await scenario.sign_in(ann, b"o" * 32)
    with pytest.raises(WrongPassphrase):
        await scenario.members.add_session(attrs.evolve(old, digest=b"n" * 32), proof, REPORTED, replaces=old.digest)
    assert await scenario.members.list_sessions(ann.id) == [old]
    assert await scenario.count_reported() == 0


async def test_nobody_who_is_disabled_gets_a_session(scenario: MemberScenario) -> None:
    off = await scenario.add("off", status="disabled")
    ann = await scenario.add("ann")
    await scenario.accounts.put_account(attrs.evolve(scenario.acme, status="disabled"))
    for member in (off, ann):
        with pytest.raises(Forbidden):
            await scenario.sign_in(member)
        assert await scenario.members.list_sessions(member.id) == []
    with pytest.raises(WrongPassphrase):
        await scenario.sign_in(attrs.evolve(ann, id=99))


async def test_a_code_opens_one_session(scenario: MemberScenario) -> None:
    """Of five who sign in at once with one code one does; of an authenticator and of paper alike."""
    ann = await scenario.add(totp=b"x", totp_step=7, recovery=("ab", "cd"))
    for proof in (Credential(HASH, step=8), Credential(HASH, recovery_digest="ab")):
        fresh = [Session(bytes([number]) * 32, ann.id, NOW, NOW) for number in range(5)]
        done = await asyncio.gather(
            *(scenario.members.add_session(session, proof) for session in fresh), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in done) == ["NoneType", *["WrongPassphrase"] * 4]
        await scenario.members.delete_sessions([session.digest for session in fresh])
    now = await scenario.members.find_member(ann.id)
    assert now == attrs.evolve(ann, totp_step=8, recovery=("cd",), signed_in_ms=NOW)


async def test_sessions_and_links_of_a_member_end_with_its_passphrase(scenario: MemberScenario) -> None:
    ann, bob = await scenario.add("ann"), await scenario.add("bob")
    for member in (ann, bob):
        await scenario.sign_in(member, member.name.encode().ljust(32))
        await scenario.members.add_link(
            make_link(scenario.acme, member.name.encode(), kind="reset", member_id=member.id)
        )
    await scenario.members.add_link(make_link(scenario.acme))
    after = attrs.evolve(ann, passphrase="new")
    await scenario.members.put_member(ann, after, REPORTED, link=b"ann", end_sessions=True)
    assert await scenario.members.list_sessions(ann.id) == []
    assert len(await scenario.members.list_sessions(bob.id)) == 1
    assert {link.digest for link in await scenario.members.list_links()} == {b"bob", b"l" * 32}
    with pytest.raises(NotFound, match=LINK_GONE):
        await scenario.members.put_member(after, ann, REPORTED, link=b"ann")
    assert (await scenario.members.find_member(ann.id) or ann).passphrase == "new"
    assert await scenario.count_reported() == 1


async def test_a_link_makes_one_member(scenario: MemberScenario) -> None:
    link = make_link(scenario.acme)
    await scenario.members.add_link(link)
    assert await scenario.members.find_link(link.digest) == link
    joining = (
        scenario.members.add_member(make_member(scenario.acme, f"m{n}"), REPORTED, link=link.digest) for n in range(3)
    )
    done = await asyncio.gather(*joining, return_exceptions=True)
    assert [type(result) for result in done].count(NotFound) == 2
    assert len(await scenario.members.list_members()) == 1
    assert await scenario.members.find_link(link.digest) is None
    assert await scenario.count_reported() == 1


async def test_a_link_stays_where_its_name_is_taken(scenario: MemberScenario) -> None:
    await scenario.add("ann")
    link = make_link(scenario.acme)
    await scenario.members.add_link(link)
    with pytest.raises(Conflict):
        await scenario.members.add_member(make_member(scenario.acme, "ann"), REPORTED, link=link.digest)
    assert await scenario.members.find_link(link.digest) == link


async def test_links_are_listed_newest_first_and_taken_back(scenario: MemberScenario) -> None:
    links = [make_link(scenario.acme, bytes([number]) * 32, created_ms=NOW + number) for number in range(3)]
    for link in links:
        await scenario.members.add_link(link, REPORTED)
    assert await scenario.members.list_links() == links[::-1]
    assert await scenario.members.delete_link(links[1].digest, REPORTED)
    assert not await scenario.members.delete_link(links[1].digest, REPORTED)
    assert await scenario.members.list_links() == [links[2], links[0]]
    assert await scenario.count_reported() == 4


@pytest.mark.parametrize("what", [{"account_id": 99}, {"member_id": 99}])
async def test_a_link_is_for_what_there_is(scenario: MemberScenario, what: dict[str, Any]) -> None:
    with pytest.raises(NotFound):
        await scenario.members.add_link(make_link(scenario.acme, **what), REPORTED)
    assert await scenario.members.list_links() == []
    assert await scenario.count_reported() == 0


async def test_what_is_over_is_swept(scenario: MemberScenario) -> None:
    ann = await scenario.add()
    idle, old = NOW - IDLE_MS, NOW - ABSOLUTE_MS
    await scenario.sign_in(ann, b"1" * 32, created_ms=idle - 5, seen_ms=idle)
    await scenario.sign_in(ann, b"2" * 32, created_ms=old, seen_ms=NOW)
    fresh = await scenario.sign_in(ann, b"3" * 32, created_ms=old + 1, seen_ms=idle + 1)
    await scenario.members.add_link(make_link(scenario.acme, b"4" * 32, expires_ms=NOW))
    good = make_link(scenario.acme, b"5" * 32, expires_ms=NOW + 1)
    await scenario.members.add_link(good)
    assert await scenario.members.sweep_sessions(NOW) == 3
    assert await scenario.members.sweep_sessions(NOW) == 0
    assert await scenario.members.list_sessions(ann.id) == [fresh]
    assert await scenario.members.list_links() == [good]


async def test_with_a_member_goes_what_is_its_own(scenario: MemberScenario) -> None:
    ann = await scenario.add()
    session = await scenario.sign_in(ann)
    await scenario.members.add_link(make_link(scenario.acme, kind="reset", member_id=ann.id))
    await scenario.members.delete_member(ann.id, REPORTED)
    assert await scenario.members.find_session(session.digest) is None
    assert await scenario.members.list_links() == []
    assert await scenario.count_reported() == 1


async def test_with_an_account_go_its_members(scenario: MemberScenario) -> None:
    ann = await scenario.add(role="administrator")
    session = await scenario.sign_in(ann)
    await scenario.members.add_link(make_link(scenario.acme))
    await scenario.accounts.delete_account(scenario.acme.id)
    assert await scenario.members.list_members() == []
    assert await scenario.members.find_session(session.digest) is None
    assert await scenario.members.find_link(b"l" * 32) is None
    assert not await scenario.members.is_administered()


async def test_ids_are_never_given_again(scenario: MemberScenario) -> None:
    first = await scenario.add("first")
    await scenario.members.delete_member(first.id)
    assert (await scenario.add("second")).id > first.id
