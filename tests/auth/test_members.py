"""What administrators do about members, and what they cannot."""

from typing import Any

import attrs
import orjson
import pytest

from gateway.auth.last_administrator import check_account_may_go
from gateway.domain.audit_log import Actor
from gateway.domain.member import LINK_LIFETIME_MS, SecondFactorNeeded
from gateway.domain.member_spec import InviteSpec, MemberSpec
from gateway.errors import Conflict, InvalidRequest, NotFound
from tests.support.session_services import SessionServices

CHIEF = Actor("member", "chief", 1, 1, None, "192.0.2.9")


@pytest.fixture
async def services() -> SessionServices:
    services = SessionServices()
    await services.add("chief", role="administrator")
    return services


async def test_members_are_listed_with_their_account_and_nothing_secret(services: SessionServices) -> None:
    other = await services.add_account("other")
    await services.add_with_second_factor("ann")
    await services.add("bob", account_id=other.id, status="disabled")
    everyone = await services.members.list_members()
    assert [(one["name"], one["account"], one["status"], one["second_factor"]) for one in everyone] == [
        ("chief", "acme", "active", False),
        ("ann", "acme", "active", True),
        ("bob", "other", "disabled", False),
    ]
    assert [one["name"] for one in await services.members.list_members("other")] == ["bob"]
    with pytest.raises(NotFound):
        await services.members.list_members("nowhere")
    assert {"passphrase", "totp", "recovery"}.isdisjoint(everyone[1])


@pytest.mark.parametrize("change", [{"role": "viewer"}, {"status": "disabled"}])
async def test_another_role_or_status_ends_its_sessions(services: SessionServices, change: dict[str, Any]) -> None:
    ann = await services.add("ann")
    entry = await services.sign_in("ann")
    changed = await services.members.edit(ann.id, MemberSpec(**change), CHIEF)
    assert changed.items() >= change.items()
    assert await services.store.list_sessions(ann.id) == []
    assert await services.sessions.find(entry.reference) is None


async def test_another_name_does_not(services: SessionServices) -> None:
    ann = await services.add("ann")
    entry = await services.sign_in("ann")
    await services.members.edit(ann.id, MemberSpec(name="Anna"), CHIEF)
    signed = await services.sessions.find(entry.reference)
    assert signed is not None
    assert signed.member.name == "anna"
    for name, kind in (("chief", Conflict), ("<b>", InvalidRequest)):
        with pytest.raises(kind):
            await services.members.edit(ann.id, MemberSpec(name=name), CHIEF)


async def test_a_lost_second_factor_is_taken_away(services: SessionServices) -> None:
    ann, _ = await services.add_with_second_factor("ann")
    with pytest.raises(SecondFactorNeeded):
        await services.sign_in("ann")
    shown = await services.members.edit(ann.id, MemberSpec(second_factor=False), CHIEF)
    assert (shown["second_factor"], shown["recovery_left"]) == (False, 0)
    await services.sign_in("ann")


async def test_what_changed_is_told_with_who_changed_it(services: SessionServices) -> None:
    ann, _ = await services.add_with_second_factor("ann")
    await services.members.edit(ann.id, MemberSpec(role="viewer", second_factor=False, status="active"), CHIEF)
    await services.members.edit(ann.id, MemberSpec(role="viewer"), CHIEF)
    await services.members.delete(ann.id)
    edited, deleted = await services.list_audit_trail()
    assert (edited.action, edited.actor, edited.member_id, edited.address) == (
        "member.edited",
        "chief",
        1,
        CHIEF.address,
    )
    assert (edited.account_id, edited.subject) == (ann.account_id, "ann")
    assert orjson.loads(edited.detail) == {"role": ["member", "viewer"], "second_factor": [True, False]}
    assert (deleted.action, deleted.actor_kind, deleted.subject) == ("member.deleted", "token", "ann")


async def test_the_last_administrator_is_not_seen_out(services: SessionServices) -> None:
    for spec in (MemberSpec(role="member"), MemberSpec(status="disabled")):
        with pytest.raises(Conflict):
            await services.members.edit(1, spec, CHIEF)
    with pytest.raises(Conflict):
        await services.members.delete(1, CHIEF)
    await services.members.edit(1, MemberSpec(name="boss"), CHIEF)
    await services.add("deputy", role="administrator")
    await services.members.delete(1, CHIEF)


async def test_the_last_administrators_account_may_not_go(services: SessionServices) -> None:
    acme, other = (await services.accounts.list_accounts())[0], await services.add_account("other")
    await check_account_may_go(services.store, services.accounts, other.id)
    with pytest.raises(Conflict):
        await check_account_may_go(services.store, services.accounts, acme.id)
    deputy = await services.add("deputy", role="administrator", account_id=other.id)
    for account in (acme, other):
        await check_account_may_go(services.store, services.accounts, account.id)
    await services.store.put_member(deputy, attrs.evolve(deputy, status="disabled"))
    with pytest.raises(Conflict):
        await check_account_may_go(services.store, services.accounts, acme.id)


async def test_where_nobody_administers_any_account_may_go() -> None:
    services = SessionServices()
    await services.add("ann")
    await check_account_may_go(services.store, services.accounts, (await services.accounts.list_accounts())[0].id)


@pytest.mark.parametrize("member_id", [0, 99, 2**62])
async def test_what_is_not_there_is_not_found(services: SessionServices, member_id: int) -> None:
    for ask in (
        services.members.edit(member_id, MemberSpec(role="viewer"), CHIEF),
        services.members.delete(member_id, CHIEF),
        services.members.reset(member_id, CHIEF),
        services.members.delete_link("abc", CHIEF),
        services.members.invite(InviteSpec("nowhere"), CHIEF),
    ):
        with pytest.raises(NotFound):
            await ask


async def test_nobody_is_invited_where_nobody_may_come_in(services: SessionServices) -> None:
    off = await services.add_account("off", status="disabled")
    ann = await services.add("ann", status="disabled")
    for ask in (services.members.invite(InviteSpec(off.name), CHIEF), services.members.reset(ann.id, CHIEF)):
        with pytest.raises(Conflict):
            await ask


async def test_links_are_listed_while_they_are_good(services: SessionServices) -> None:
    invite = await services.members.invite(InviteSpec("acme", "viewer", 1), CHIEF)
    reset = await services.members.reset(1)
    listed = await services.members.list_links()
    assert {link["id"] for link in listed} == {invite["id"], reset["id"]}
    shown = {link["kind"]: link for link in listed}
    assert (shown["invite"]["account"], shown["invite"]["role"], shown["invite"]["name"]) == ("acme", "viewer", None)
    assert (shown["reset"]["name"], shown["reset"]["created_by"]) == ("chief", "token")
    assert shown["invite"]["created_by"] == "chief"
    assert "token" not in shown["invite"]
    services.now_s += 3600
    assert [link["kind"] for link in await services.members.list_links()] == ["reset"]
    services.now_s += LINK_LIFETIME_MS / 1000 - 3600
    assert await services.members.list_links() == []


async def test_a_link_is_taken_back(services: SessionServices) -> None:
    made = await services.members.invite(InviteSpec("acme"), CHIEF)
    await services.members.delete_link(made["id"], CHIEF)
    with pytest.raises(NotFound):
        await services.members.delete_link(made["id"], CHIEF)
    assert [row.action for row in await services.list_audit_trail()] == ["link.created", "link.deleted"]
