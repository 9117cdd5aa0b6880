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
TOLD = AuditRow(0, NOW, "token", "", None, "", "member.changed", None, "ann")


@attrs.frozen
class House:
    """Every repository that members touch, and the account ``acme``."""

    members: MemberRepository
    accounts: AccountRepository
    audit_log: AuditLogRepository
    acme: Account

    async def count_told(self) -> int:
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
async def house(database: Database) -> House:
    accounts = AccountRepository(database)
    acme = await accounts.add_account(Account(0, "acme"))
    return House(MemberRepository(database), accounts, AuditLogRepository(database), acme)


async def test_a_member_is_read_back_as_it_was_written(house: House) -> None:
    whole = make_member(
        house.acme, totp=b"\x00\xff", totp_step=7, recovery=("ab", "cd"), signed_in_ms=NOW, status="disabled"
    )
    made = await house.members.add_member(whole)
    assert made == attrs.evolve(whole, id=made.id)
    assert await house.members.find_member(made.id) == made
    assert await house.members.find_member_called("ann") == made
    assert await house.members.list_members() == [made]
    assert await house.members.find_member(made.id + 1) is None
    assert await house.members.find_member_called("Ann") is None


async def test_a_name_is_one_members_over_all_accounts(house: House) -> None:
    other = await house.accounts.add_account(Account(0, "other"))
    ann, bob = await house.add("ann"), await house.add("bob")
    with pytest.raises(Conflict, match="'ann'") as refused:
        await house.members.add_member(make_member(other), TOLD)
    assert refused.value.param == "name"
    with pytest.raises(Conflict, match="'ann'"):
        await house.members.put_member(bob, attrs.evolve(bob, name="ann"), TOLD)
    await house.members.put_member(ann, attrs.evolve(ann, name="anna"), TOLD)
    await house.members.put_member(bob, attrs.evolve(bob, name="ann"))
    assert [member.name for member in await house.members.list_members()] == ["anna", "ann"]
    assert await house.count_told() == 1


async def test_a_member_needs_an_account(house: House) -> None:
    with pytest.raises(NotFound, match="account"):
        await house.members.add_member(make_member(Account(house.acme.id + 7, "nowhere")), TOLD)
    assert await house.count_told() == 0


async def test_only_what_differs_is_changed(house: House) -> None:
    """Two who change different things both succeed; who would write over another's change does not."""
    before = await house.add(recovery=("ab", "cd"))
    await house.members.put_member(before, attrs.evolve(before, recovery=("cd",)))
    await house.members.put_member(before, attrs.evolve(before, role="viewer"))
    now = await house.members.find_member(before.id)
    assert now == attrs.evolve(before, role="viewer", recovery=("cd",))
    with pytest.raises(Conflict, match="Another user"):
        await house.members.put_member(before, attrs.evolve(before, recovery=()), TOLD)
    assert await house.members.find_member(before.id) == now
    assert await house.count_told() == 0


async def test_what_is_not_there_is_not_changed(house: House) -> None:
    nobody = make_member(house.acme, id=99)
    with pytest.raises(NotFound):
        await house.members.put_member(nobody, attrs.evolve(nobody, role="viewer"), TOLD)
    with pytest.raises(NotFound):
        await house.members.delete_member(99, TOLD)
    assert await house.count_told() == 0


async def test_the_last_administrator_stays(house: House) -> None:
    assert not await house.members.is_administered()
    chief = await house.add("chief", role="administrator")
    assert await house.members.is_administered()
    for change in ({"role": "member"}, {"status": "disabled"}):
        with pytest.raises(Conflict, match="only administrator"):
            await house.members.put_member(chief, attrs.evolve(chief, **change), TOLD)
    with pytest.raises(Conflict, match="only administrator"):
        await house.members.delete_member(chief.id, TOLD)
    assert await house.members.list_members() == [chief]
    assert await house.count_told() == 0
    await house.add("deputy", role="administrator")
    await house.members.delete_member(chief.id, TOLD)
    assert [member.name for member in await house.members.list_members()] == ["deputy"]
    assert await house.count_told() == 1


async def test_of_two_administrators_who_leave_at_once_one_stays(house: House) -> None:
    one, two = [await house.add(name, role="administrator") for name in ("one", "two")]
    changes = (house.members.put_member(who, attrs.evolve(who, role="viewer")) for who in (one, two))
    done = await asyncio.gather(*changes, return_exceptions=True)
    assert [type(result) for result in done].count(Conflict) == 1
    assert await house.members.is_administered()


@pytest.mark.parametrize("what", [{"status": "disabled"}, {"role": "member"}])
async def test_an_administrator_of_an_account_that_is_disabled_is_none(house: House, what: dict[str, Any]) -> None:
    chief = await house.add("chief", role="administrator")
    await house.accounts.put_account(attrs.evolve(house.acme, status="disabled"))
    assert not await house.members.is_administered()
    await house.members.put_member(chief, attrs.evolve(chief, **what))  # nobody is locked out by it who was not
    assert not await house.members.is_administered()


async def test_a_session_is_found_with_whose_it_is(house: House) -> None:
    ann = await house.add()
    session = await house.sign_in(ann)
    signed_in = attrs.evolve(ann, signed_in_ms=NOW)
    assert await house.members.find_session(session.digest) == (session, signed_in, house.acme)
    assert await house.members.find_session(b"other" * 8) is None
    await house.members.touch_session(session.digest, NOW + 5)
    await house.members.touch_session(session.digest, NOW + 4)
    await house.members.touch_session(b"other" * 8, NOW + 5)
    assert await house.members.list_sessions(ann.id) == [attrs.evolve(session, seen_ms=NOW + 5)]


async def test_sessions_are_listed_newest_first_and_end(house: House) -> None:
    ann, bob = await house.add("ann"), await house.add("bob")
    mine = [await house.sign_in(ann, bytes([number]) * 32, created_ms=NOW + number) for number in range(3)]
    theirs = await house.sign_in(bob, b"b" * 32)
    assert await house.members.list_sessions(ann.id) == mine[::-1]
    assert await house.members.delete_sessions([mine[0].digest, mine[1].digest, b"x" * 32], TOLD) == 2
    assert await house.members.list_sessions(ann.id) == [mine[2]]
    assert await house.members.list_sessions(bob.id) == [theirs]
    assert await house.members.delete_sessions([mine[0].digest], TOLD) == 0
    assert await house.count_told() == 1


async def test_a_new_session_takes_the_place_of_the_browsers_old_one(house: House) -> None:
    ann = await house.add()
    old, other = await house.sign_in(ann, b"o" * 32), await house.sign_in(ann, b"p" * 32)
    new = attrs.evolve(old, digest=b"n" * 32)
    await house.members.add_session(new, Credential(HASH), TOLD, replaces=old.digest)
    assert {session.digest for session in await house.members.list_sessions(ann.id)} == {new.digest, other.digest}
    assert await house.count_told() == 1


@pytest.mark.parametrize(
    ("member", "proof"),
    [
        ({}, Credential("$argon2id$another")),
        ({"totp": b"x"}, Credential(HASH)),
        ({"totp": b"x", "totp_step": 7}, Credential(HASH, step=7)),
        ({"totp": b"x", "totp_step": 7}, Credential(HASH, step=6)),
        ({"totp": b"x", "recovery": ("ab",)}, Credential(HASH, recovery="cd")),
    ],
)
async def test_what_does_not_prove_who_it_is_opens_no_session(
    house: House, member: dict[str, Any], proof: Credential
) -> None:
    ann = await house.add(**member)
    old = await house.sign_in(ann, b"o" * 32)
    with pytest.raises(WrongPassphrase):
        await house.members.add_session(attrs.evolve(old, digest=b"n" * 32), proof, TOLD, replaces=old.digest)
    assert await house.members.list_sessions(ann.id) == [old]
    assert await house.count_told() == 0


async def test_nobody_who_is_disabled_gets_a_session(house: House) -> None:
    off = await house.add("off", status="disabled")
    ann = await house.add("ann")
    await house.accounts.put_account(attrs.evolve(house.acme, status="disabled"))
    for member in (off, ann):
        with pytest.raises(Forbidden):
            await house.sign_in(member)
        assert await house.members.list_sessions(member.id) == []
    with pytest.raises(WrongPassphrase):
        await house.sign_in(attrs.evolve(ann, id=99))


async def test_a_code_opens_one_session(house: House) -> None:
    """Of five who sign in at once with one code one does; of an authenticator and of paper alike."""
    ann = await house.add(totp=b"x", totp_step=7, recovery=("ab", "cd"))
    for proof in (Credential(HASH, step=8), Credential(HASH, recovery="ab")):
        fresh = [Session(bytes([number]) * 32, ann.id, NOW, NOW) for number in range(5)]
        done = await asyncio.gather(
            *(house.members.add_session(session, proof) for session in fresh), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in done) == ["NoneType", *["WrongPassphrase"] * 4]
        await house.members.delete_sessions([session.digest for session in fresh])
    now = await house.members.find_member(ann.id)
    assert now == attrs.evolve(ann, totp_step=8, recovery=("cd",), signed_in_ms=NOW)


async def test_sessions_and_links_of_a_member_end_with_its_passphrase(house: House) -> None:
    ann, bob = await house.add("ann"), await house.add("bob")
    for member in (ann, bob):
        await house.sign_in(member, member.name.encode().ljust(32))
        await house.members.add_link(make_link(house.acme, member.name.encode(), kind="reset", member_id=member.id))
    await house.members.add_link(make_link(house.acme))
    after = attrs.evolve(ann, passphrase="new")
    await house.members.put_member(ann, after, TOLD, link=b"ann", end_sessions=True)
    assert await house.members.list_sessions(ann.id) == []
    assert len(await house.members.list_sessions(bob.id)) == 1
    assert {link.digest for link in await house.members.list_links()} == {b"bob", b"l" * 32}
    with pytest.raises(NotFound, match=LINK_GONE):
        await house.members.put_member(after, ann, TOLD, link=b"ann")
    assert (await house.members.find_member(ann.id) or ann).passphrase == "new"
    assert await house.count_told() == 1


async def test_a_link_makes_one_member(house: House) -> None:
    link = make_link(house.acme)
    await house.members.add_link(link)
    assert await house.members.find_link(link.digest) == link
    joining = (house.members.add_member(make_member(house.acme, f"m{n}"), TOLD, link=link.digest) for n in range(3))
    done = await asyncio.gather(*joining, return_exceptions=True)
    assert [type(result) for result in done].count(NotFound) == 2
    assert len(await house.members.list_members()) == 1
    assert await house.members.find_link(link.digest) is None
    assert await house.count_told() == 1


async def test_a_link_stays_where_its_name_is_taken(house: House) -> None:
    await house.add("ann")
    link = make_link(house.acme)
    await house.members.add_link(link)
    with pytest.raises(Conflict):
        await house.members.add_member(make_member(house.acme, "ann"), TOLD, link=link.digest)
    assert await house.members.find_link(link.digest) == link


async def test_links_are_listed_newest_first_and_taken_back(house: House) -> None:
    links = [make_link(house.acme, bytes([number]) * 32, created_ms=NOW + number) for number in range(3)]
    for link in links:
        await house.members.add_link(link, TOLD)
    assert await house.members.list_links() == links[::-1]
    assert await house.members.delete_link(links[1].digest, TOLD)
    assert not await house.members.delete_link(links[1].digest, TOLD)
    assert await house.members.list_links() == [links[2], links[0]]
    assert await house.count_told() == 4


@pytest.mark.parametrize("what", [{"account_id": 99}, {"member_id": 99}])
async def test_a_link_is_for_what_there_is(house: House, what: dict[str, Any]) -> None:
    with pytest.raises(NotFound):
        await house.members.add_link(make_link(house.acme, **what), TOLD)
    assert await house.members.list_links() == []
    assert await house.count_told() == 0


async def test_what_is_over_is_swept(house: House) -> None:
    ann = await house.add()
    idle, old = NOW - IDLE_MS, NOW - ABSOLUTE_MS
    await house.sign_in(ann, b"1" * 32, created_ms=idle - 5, seen_ms=idle)
    await house.sign_in(ann, b"2" * 32, created_ms=old, seen_ms=NOW)
    fresh = await house.sign_in(ann, b"3" * 32, created_ms=old + 1, seen_ms=idle + 1)
    await house.members.add_link(make_link(house.acme, b"4" * 32, expires_ms=NOW))
    good = make_link(house.acme, b"5" * 32, expires_ms=NOW + 1)
    await house.members.add_link(good)
    assert await house.members.sweep_sessions(NOW) == 3
    assert await house.members.sweep_sessions(NOW) == 0
    assert await house.members.list_sessions(ann.id) == [fresh]
    assert await house.members.list_links() == [good]


async def test_with_a_member_goes_what_is_its_own(house: House) -> None:
    ann = await house.add()
    session = await house.sign_in(ann)
    await house.members.add_link(make_link(house.acme, kind="reset", member_id=ann.id))
    await house.members.delete_member(ann.id, TOLD)
    assert await house.members.find_session(session.digest) is None
    assert await house.members.list_links() == []
    assert await house.count_told() == 1


async def test_with_an_account_go_its_members(house: House) -> None:
    ann = await house.add(role="administrator")
    session = await house.sign_in(ann)
    await house.members.add_link(make_link(house.acme))
    await house.accounts.delete_account(house.acme.id)
    assert await house.members.list_members() == []
    assert await house.members.find_session(session.digest) is None
    assert await house.members.find_link(b"l" * 32) is None
    assert not await house.members.is_administered()


async def test_ids_are_never_given_again(house: House) -> None:
    first = await house.add("first")
    await house.members.delete_member(first.id)
    assert (await house.add("second")).id > first.id
