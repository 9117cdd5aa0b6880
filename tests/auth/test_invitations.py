"""How members come to be: the first by the token of the start, others by links; each of them once."""

import asyncio

import attrs
import pytest

from gateway.domain.account import Account
from gateway.domain.audit_log import Actor
from gateway.domain.member import LINK_GONE, SecondFactorNeeded, WrongPassphrase
from gateway.domain.member_spec import InviteSpec
from gateway.errors import Conflict, InvalidRequest, NotFound, RateLimited
from tests.support.session_services import FROGS, HOME, TOADS, Desk

CHIEF = Actor("member", "chief", 1, 1, None, "192.0.2.9")


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def set_up(desk: Desk, name: str = "chief", token: str | None = None) -> None:
    token = token or await desk.invitations.find_setup_token() or ""
    await desk.invitations.set_up(token, name, FROGS, HOME)


@pytest.mark.parametrize(
    ("accounts", "home"),
    [
        ([], "local"),
        ([("acme", "active")], "acme"),
        ([("acme", "active"), ("local", "active")], "local"),
        ([("acme", "disabled"), ("other", "active")], "other"),
        ([("local", "disabled")], "local-2"),
    ],
)
async def test_the_first_start_makes_an_administrator(desk: Desk, accounts: list[tuple[str, str]], home: str) -> None:
    for name, status in accounts:
        await desk.accounts.add_account(Account(0, name, status=status))  # type: ignore[arg-type]
    token = await desk.invitations.find_setup_token()
    assert token is not None
    entry = await desk.invitations.set_up(token, " Chief ", FROGS, HOME)
    signed = await desk.sessions.find(entry.reference)
    assert signed is not None
    assert (signed.member.name, signed.member.role, signed.account.name) == ("chief", "administrator", home)
    assert await desk.list_actions() == ["member.created", "member.signed_in"]
    await desk.sign_in("chief")


async def test_its_token_is_good_once_and_only_while_there_is_no_administrator(desk: Desk) -> None:
    token = await desk.invitations.find_setup_token()
    assert token is not None
    await set_up(desk)
    assert await desk.invitations.find_setup_token() is None
    chief = (await desk.store.list_members())[0]
    with pytest.raises(NotFound, match=LINK_GONE):
        await set_up(desk, "second", token)
    await desk.accounts.delete_account(chief.account_id)
    fresh = await desk.invitations.find_setup_token()
    assert fresh not in {None, token}
    with pytest.raises(NotFound):
        await set_up(desk, "second", token)
    await set_up(desk, "second", fresh)


@pytest.mark.parametrize("token", ["", "x", "\ud800", "Ünicode"])
async def test_another_token_makes_nobody(desk: Desk, token: str) -> None:
    with pytest.raises(NotFound):
        await desk.invitations.set_up(token, "chief", FROGS, HOME)
    assert await desk.store.list_members() == []
    assert await desk.accounts.list_accounts() == []


async def test_a_mistake_does_not_use_it_up(desk: Desk) -> None:
    token = await desk.invitations.find_setup_token() or ""
    names = (("<b>", FROGS, "name"), ("", FROGS, "name"), ("Token", FROGS, "name"), ("gateway", FROGS, "name"))
    for name, passphrase, param in (("chief", "short", "passphrase"), *names):
        with pytest.raises(InvalidRequest) as refused:
            await desk.invitations.set_up(token, name, passphrase, HOME)
        assert refused.value.param == param
    await set_up(desk, token=token)


async def test_of_two_who_open_it_at_once_one_is_the_administrator(desk: Desk) -> None:
    token = await desk.invitations.find_setup_token() or ""
    both = (desk.invitations.set_up(token, name, FROGS, HOME) for name in ("one", "two"))
    done = await asyncio.gather(*both, return_exceptions=True)
    assert [type(one) for one in done].count(NotFound) == 1
    assert len(await desk.store.list_members()) == 1


async def invite(desk: Desk, **fields: object) -> str:
    await desk.add_account()
    spec = attrs.evolve(InviteSpec("acme"), **fields)  # type: ignore[arg-type]
    return str((await desk.members.invite(spec, CHIEF))["token"])


async def test_a_link_says_what_it_is_for_and_lets_one_in(desk: Desk) -> None:
    token = await invite(desk, role="viewer")
    opened = await desk.invitations.open_link(token)
    assert (opened.link.kind, opened.account.name, opened.link.role, opened.member) == (
        "invite",
        "acme",
        "viewer",
        None,
    )
    await desk.invitations.open_link(token)  # a look uses nothing up
    entry = await desk.invitations.use_link(token, "Ann@Example.org", FROGS, None, HOME)
    assert (entry.signed.member.name, entry.signed.member.role) == ("ann@example.org", "viewer")
    assert await desk.sessions.find(entry.reference) == entry.signed
    for again in (desk.invitations.open_link(token), desk.invitations.use_link(token, "bob", FROGS, None, HOME)):
        with pytest.raises(NotFound, match=LINK_GONE):
            await again
    assert await desk.list_actions() == ["link.created", "member.created", "member.signed_in"]


async def test_a_link_is_not_used_up_by_a_mistake(desk: Desk) -> None:
    token = await invite(desk)
    await desk.add("ann")
    for name, passphrase, kind in ((None, FROGS, InvalidRequest), ("bob", "short", InvalidRequest)):
        with pytest.raises(kind):
            await desk.invitations.use_link(token, name, passphrase, None, HOME)
    with pytest.raises(Conflict):
        await desk.invitations.use_link(token, "ann", FROGS, None, HOME)
    await desk.invitations.use_link(token, "bob", FROGS, None, HOME)


async def test_of_many_who_use_a_link_at_once_one_gets_in(desk: Desk) -> None:
    token = await invite(desk)
    tries = (desk.invitations.use_link(token, f"m{n}", FROGS, None, HOME) for n in range(5))
    done = await asyncio.gather(*tries, return_exceptions=True)
    assert [type(one) for one in done].count(NotFound) == 4
    assert len(await desk.store.list_members()) == 1


@pytest.mark.parametrize("how", ["late", "taken back", "account disabled", "account gone", "never made"])
async def test_a_link_that_is_no_longer_good_opens_nothing(desk: Desk, how: str) -> None:
    token = await invite(desk, hours=2)
    account = (await desk.accounts.list_accounts())[0]
    desk.now_s += 2 * 3600 - 1
    await desk.invitations.open_link(token)
    if how == "late":
        desk.now_s += 1
    elif how == "taken back":
        await desk.members.delete_link((await desk.members.list_links())[0]["id"], CHIEF)
    elif how == "account disabled":
        await desk.accounts.put_account(attrs.evolve(account, status="disabled"))
    elif how == "account gone":
        await desk.accounts.delete_account(account.id)
    else:
        token = token[::-1]
    for ask in (desk.invitations.open_link(token), desk.invitations.use_link(token, "ann", FROGS, None, HOME)):
        with pytest.raises(NotFound, match=LINK_GONE) as refused:
            await ask
        assert refused.value.param == "token"
    assert await desk.store.list_members() == []


async def test_a_link_resets_a_passphrase_and_whoever_was_in_is_out(desk: Desk) -> None:
    ann = await desk.add("ann")
    before = await desk.sign_in()
    one, two = [str((await desk.members.reset(ann.id, CHIEF))["token"]) for _ in range(2)]
    opened = await desk.invitations.open_link(one)
    assert (opened.link.kind, opened.member and opened.member.name) == ("reset", "ann")
    await desk.sign_in()  # until it is used all is as it was
    entry = await desk.invitations.use_link(one, "ignored", TOADS, None, HOME)
    assert entry.signed.member.id == ann.id
    assert await desk.sessions.find(before.reference) is None
    with pytest.raises(WrongPassphrase):
        await desk.sign_in(passphrase=FROGS)
    await desk.sign_in(passphrase=TOADS)
    with pytest.raises(NotFound):  # the other link has gone with it
        await desk.invitations.use_link(two, None, FROGS, None, HOME)
    assert "member.passphrase_changed" in await desk.list_actions()


async def test_a_reset_link_does_not_stand_for_the_second_factor(desk: Desk) -> None:
    ann, recovery = await desk.add_with_second_factor()
    token = str((await desk.members.reset(ann.id, CHIEF))["token"])
    with pytest.raises(SecondFactorNeeded):
        await desk.invitations.use_link(token, None, TOADS, None, HOME)
    for _ in range(5):
        with pytest.raises(WrongPassphrase):
            await desk.invitations.use_link(token, None, TOADS, "aaaa-bbbb-cccc-dddd", HOME)
    with pytest.raises(RateLimited):
        await desk.invitations.use_link(token, None, TOADS, recovery[0], HOME)
    desk.now_s += 1
    await desk.invitations.use_link(token, None, TOADS, recovery[0], HOME)
    with pytest.raises(WrongPassphrase):
        await desk.sign_in(passphrase=TOADS, code=recovery[0])
    await desk.sign_in(passphrase=TOADS, code=desk.code())


async def test_who_is_disabled_gets_in_by_no_link(desk: Desk) -> None:
    ann = await desk.add()
    token = str((await desk.members.reset(ann.id, CHIEF))["token"])
    await desk.store.put_member(ann, attrs.evolve(ann, status="disabled"))
    with pytest.raises(NotFound):
        await desk.invitations.use_link(token, None, TOADS, None, HOME)


async def test_no_token_is_kept_or_told(desk: Desk) -> None:
    token = await invite(desk)
    told = repr([*await desk.list_told(), *await desk.store.list_links(), *await desk.members.list_links()])
    assert token not in told
