"""How members come to be: the first by the token of the start, others by links; each of them once."""

import asyncio

import attrs
import pytest

from gateway.domain.account import Account
from gateway.domain.audit_log import Actor
from gateway.domain.member import LINK_GONE, SecondFactorNeeded, WrongPassphrase
from gateway.domain.member_spec import InviteSpec
from gateway.errors import Conflict, InvalidRequest, NotFound, RateLimited
from tests.support.session_services import FROGS, HOME, TOADS, SessionServices

CHIEF = Actor("member", "chief", 1, 1, None, "192.0.2.9")


@pytest.fixture
def services() -> SessionServices:
    return SessionServices()


async def set_up(services: SessionServices, name: str = "chief", token: str | None = None) -> None:
    token = token or await services.invitations.find_setup_token() or ""
    await services.invitations.set_up(token, name, FROGS, HOME)


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
async def test_the_first_start_makes_an_administrator(
    services: SessionServices, accounts: list[tuple[str, str]], home: str
) -> None:
    for name, status in accounts:
        await services.accounts.add_account(Account(0, name, status=status))  # type: ignore[arg-type]
    token = await services.invitations.find_setup_token()
    assert token is not None
    entry = await services.invitations.set_up(token, " Chief ", FROGS, HOME)
    signed = await services.sessions.find(entry.reference)
    assert signed is not None
    assert (signed.member.name, signed.member.role, signed.account.name) == ("chief", "administrator", home)
    assert await services.list_actions() == ["member.created", "member.signed_in"]
    await services.sign_in("chief")


async def test_its_token_is_good_once_and_only_while_there_is_no_administrator(services: SessionServices) -> None:
    token = await services.invitations.find_setup_token()
    assert token is not None
    await set_up(services)
    assert await services.invitations.find_setup_token() is None
    chief = (await services.store.list_members())[0]
    with pytest.raises(NotFound, match=LINK_GONE):
        await set_up(services, "second", token)
    await services.accounts.delete_account(chief.account_id)
    fresh = await services.invitations.find_setup_token()
    assert fresh not in {None, token}
    with pytest.raises(NotFound):
        await set_up(services, "second", token)
    await set_up(services, "second", fresh)


@pytest.mark.parametrize("token", ["", "x", "\ud800", "Ünicode"])
async def test_another_token_makes_nobody(services: SessionServices, token: str) -> None:
    with pytest.raises(NotFound):
        await services.invitations.set_up(token, "chief", FROGS, HOME)
    assert await services.store.list_members() == []
    assert await services.accounts.list_accounts() == []


async def test_a_mistake_does_not_use_it_up(services: SessionServices) -> None:
    token = await services.invitations.find_setup_token() or ""
    names = (("<b>", FROGS, "name"), ("", FROGS, "name"), ("Token", FROGS, "name"), ("gateway", FROGS, "name"))
    for name, passphrase, param in (("chief", "short", "passphrase"), *names):
        with pytest.raises(InvalidRequest) as refused:
            await services.invitations.set_up(token, name, passphrase, HOME)
        assert refused.value.param == param
    await set_up(services, token=token)


async def test_of_two_who_open_it_at_once_one_is_the_administrator(services: SessionServices) -> None:
    token = await services.invitations.find_setup_token() or ""
    both = (services.invitations.set_up(token, name, FROGS, HOME) for name in ("one", "two"))
    done = await asyncio.gather(*both, return_exceptions=True)
    assert [type(one) for one in done].count(NotFound) == 1
    assert len(await services.store.list_members()) == 1


async def invite(services: SessionServices, **fields: object) -> str:
    await services.add_account()
    spec = attrs.evolve(InviteSpec("acme"), **fields)  # type: ignore[arg-type]
    return str((await services.members.invite(spec, CHIEF))["token"])


async def test_a_link_says_what_it_is_for_and_lets_one_in(services: SessionServices) -> None:
    token = await invite(services, role="viewer")
    opened = await services.invitations.open_link(token)
    assert (opened.link.kind, opened.account.name, opened.link.role, opened.member) == (
        "invite",
        "acme",
        "viewer",
        None,
    )
    await services.invitations.open_link(token)  # a look uses nothing up
    entry = await services.invitations.use_link(token, "Ann@Example.org", FROGS, None, HOME)
    assert (entry.user.member.name, entry.user.member.role) == ("ann@example.org", "viewer")
    assert await services.sessions.find(entry.reference) == entry.user
    for again in (
        services.invitations.open_link(token),
        services.invitations.use_link(token, "bob", FROGS, None, HOME),
    ):
        with pytest.raises(NotFound, match=LINK_GONE):
            await again
    assert await services.list_actions() == ["link.created", "member.created", "member.signed_in"]


async def test_a_link_is_not_used_up_by_a_mistake(services: SessionServices) -> None:
    token = await invite(services)
    await services.add("ann")
    for name, passphrase, kind in ((None, FROGS, InvalidRequest), ("bob", "short", InvalidRequest)):
        with pytest.raises(kind):
            await services.invitations.use_link(token, name, passphrase, None, HOME)
    with pytest.raises(Conflict):
        await services.invitations.use_link(token, "ann", FROGS, None, HOME)
    await services.invitations.use_link(token, "bob", FROGS, None, HOME)


async def test_of_many_who_use_a_link_at_once_one_gets_in(services: SessionServices) -> None:
    token = await invite(services)
    tries = (services.invitations.use_link(token, f"m{n}", FROGS, None, HOME) for n in range(5))
    done = await asyncio.gather(*tries, return_exceptions=True)
    assert [type(one) for one in done].count(NotFound) == 4
    assert len(await services.store.list_members()) == 1


@pytest.mark.parametrize("how", ["late", "taken back", "account disabled", "account gone", "never made"])
async def test_a_link_that_is_no_longer_good_opens_nothing(services: SessionServices, how: str) -> None:
    token = await invite(services, hours=2)
    account = (await services.accounts.list_accounts())[0]
    services.now_s += 2 * 3600 - 1
    await services.invitations.open_link(token)
    if how == "late":
        services.now_s += 1
    elif how == "taken back":
        await services.members.delete_link((await services.members.list_links())[0]["id"], CHIEF)
    elif how == "account disabled":
        await services.accounts.put_account(attrs.evolve(account, status="disabled"))
    elif how == "account gone":
        await services.accounts.delete_account(account.id)
    else:
        token = token[::-1]
    for ask in (services.invitations.open_link(token), services.invitations.use_link(token, "ann", FROGS, None, HOME)):
        with pytest.raises(NotFound, match=LINK_GONE) as refused:
            await ask
        assert refused.value.param == "token"
    assert await services.store.list_members() == []


async def test_a_link_resets_a_passphrase_and_whoever_was_in_is_out(services: SessionServices) -> None:
    ann = await services.add("ann")
    before = await services.sign_in()
    one, two = [str((await services.members.reset(ann.id, CHIEF))["token"]) for _ in range(2)]
    opened = await services.invitations.open_link(one)
    assert (opened.link.kind, opened.member and opened.member.name) == ("reset", "ann")
    await services.sign_in()  # until it is used all is as it was
    entry = await services.invitations.use_link(one, "ignored", TOADS, None, HOME)
    assert entry.user.member.id == ann.id
    assert await services.sessions.find(before.reference) is None
    with pytest.raises(WrongPassphrase):
        await services.sign_in(passphrase=FROGS)
    await services.sign_in(passphrase=TOADS)
    with pytest.raises(NotFound):  # the other link has gone with it
        await services.invitations.use_link(two, None, FROGS, None, HOME)
    assert "member.passphrase_changed" in await services.list_actions()


async def test_a_reset_link_does_not_stand_for_the_second_factor(services: SessionServices) -> None:
    ann, recovery = await services.add_with_second_factor()
    token = str((await services.members.reset(ann.id, CHIEF))["token"])
    with pytest.raises(SecondFactorNeeded):
        await services.invitations.use_link(token, None, TOADS, None, HOME)
    for _ in range(5):
        with pytest.raises(WrongPassphrase):
            await services.invitations.use_link(token, None, TOADS, "aaaa-bbbb-cccc-dddd", HOME)
    with pytest.raises(RateLimited):
        await services.invitations.use_link(token, None, TOADS, recovery[0], HOME)
    services.now_s += 1
    await services.invitations.use_link(token, None, TOADS, recovery[0], HOME)
    with pytest.raises(WrongPassphrase):
        await services.sign_in(passphrase=TOADS, code=recovery[0])
    await services.sign_in(passphrase=TOADS, code=services.code())


async def test_who_is_disabled_gets_in_by_no_link(services: SessionServices) -> None:
    ann = await services.add()
    token = str((await services.members.reset(ann.id, CHIEF))["token"])
    await services.store.put_member(ann, attrs.evolve(ann, status="disabled"))
    with pytest.raises(NotFound):
        await services.invitations.use_link(token, None, TOADS, None, HOME)


async def test_no_token_is_kept_or_told(services: SessionServices) -> None:
    token = await invite(services)
    message = repr(
        [*await services.list_audit_trail(), *await services.store.list_links(), *await services.members.list_links()]
    )
    assert token not in message
