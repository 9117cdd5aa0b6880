"""What administrators do about members, and what they cannot."""

from typing import Any

import attrs
import orjson
import pytest

from gateway.domain.audit_log import Actor
from gateway.domain.member import LINK_MS, SecondFactorNeeded
from gateway.domain.member_spec import InviteSpec, MemberSpec
from gateway.errors import Conflict, InvalidRequest, NotFound
from tests.support.session_services import Desk

CHIEF = Actor("member", "chief", 1, 1, None, "192.0.2.9")


@pytest.fixture
async def desk() -> Desk:
    desk = Desk()
    await desk.add("chief", role="administrator")
    return desk


async def test_members_are_listed_with_their_account_and_nothing_secret(desk: Desk) -> None:
    other = await desk.add_account("other")
    await desk.add_with_second_factor("ann")
    await desk.add("bob", account_id=other.id, status="disabled")
    everyone = await desk.members.list_members()
    assert [(one["name"], one["account"], one["status"], one["second_factor"]) for one in everyone] == [
        ("chief", "acme", "active", False),
        ("ann", "acme", "active", True),
        ("bob", "other", "disabled", False),
    ]
    assert [one["name"] for one in await desk.members.list_members("other")] == ["bob"]
    with pytest.raises(NotFound):
        await desk.members.list_members("nowhere")
    assert {"passphrase", "totp", "recovery"}.isdisjoint(everyone[1])


@pytest.mark.parametrize("change", [{"role": "viewer"}, {"status": "disabled"}])
async def test_another_role_or_status_ends_its_sessions(desk: Desk, change: dict[str, Any]) -> None:
    ann = await desk.add("ann")
    entry = await desk.sign_in("ann")
    changed = await desk.members.edit(ann.id, MemberSpec(**change), CHIEF)
    assert changed.items() >= change.items()
    assert await desk.store.list_sessions(ann.id) == []
    assert await desk.sessions.find(entry.reference) is None


async def test_another_name_does_not(desk: Desk) -> None:
    ann = await desk.add("ann")
    entry = await desk.sign_in("ann")
    await desk.members.edit(ann.id, MemberSpec(name="Anna"), CHIEF)
    signed = await desk.sessions.find(entry.reference)
    assert signed is not None
    assert signed.member.name == "anna"
    for name, kind in (("chief", Conflict), ("<b>", InvalidRequest)):
        with pytest.raises(kind):
            await desk.members.edit(ann.id, MemberSpec(name=name), CHIEF)


async def test_a_lost_second_factor_is_taken_away(desk: Desk) -> None:
    ann, _ = await desk.add_with_second_factor("ann")
    with pytest.raises(SecondFactorNeeded):
        await desk.sign_in("ann")
    shown = await desk.members.edit(ann.id, MemberSpec(second_factor=False), CHIEF)
    assert (shown["second_factor"], shown["recovery_left"]) == (False, 0)
    await desk.sign_in("ann")


async def test_what_changed_is_told_with_who_changed_it(desk: Desk) -> None:
    ann, _ = await desk.add_with_second_factor("ann")
    await desk.members.edit(ann.id, MemberSpec(role="viewer", second_factor=False, status="active"), CHIEF)
    await desk.members.edit(ann.id, MemberSpec(role="viewer"), CHIEF)
    await desk.members.delete(ann.id)
    edited, deleted = await desk.list_told()
    assert (edited.action, edited.actor, edited.member_id, edited.address) == (
        "member.edited",
        "chief",
        1,
        CHIEF.address,
    )
    assert (edited.account_id, edited.subject) == (ann.account_id, "ann")
    assert orjson.loads(edited.detail) == {"role": ["member", "viewer"], "second_factor": [True, False]}
    assert (deleted.action, deleted.actor_kind, deleted.subject) == ("member.deleted", "token", "ann")


async def test_the_last_administrator_is_not_seen_out(desk: Desk) -> None:
    for spec in (MemberSpec(role="member"), MemberSpec(status="disabled")):
        with pytest.raises(Conflict):
            await desk.members.edit(1, spec, CHIEF)
    with pytest.raises(Conflict):
        await desk.members.delete(1, CHIEF)
    await desk.members.edit(1, MemberSpec(name="boss"), CHIEF)
    await desk.add("deputy", role="administrator")
    await desk.members.delete(1, CHIEF)


async def test_the_last_administrators_account_may_not_go(desk: Desk) -> None:
    acme, other = (await desk.accounts.list_accounts())[0], await desk.add_account("other")
    await desk.members.check_account_may_go(other.id)
    with pytest.raises(Conflict):
        await desk.members.check_account_may_go(acme.id)
    deputy = await desk.add("deputy", role="administrator", account_id=other.id)
    for account in (acme, other):
        await desk.members.check_account_may_go(account.id)
    await desk.store.put_member(deputy, attrs.evolve(deputy, status="disabled"))
    with pytest.raises(Conflict):
        await desk.members.check_account_may_go(acme.id)


async def test_where_nobody_administers_any_account_may_go() -> None:
    desk = Desk()
    await desk.add("ann")
    await desk.members.check_account_may_go((await desk.accounts.list_accounts())[0].id)


@pytest.mark.parametrize("member_id", [0, 99, 2**62])
async def test_what_is_not_there_is_not_found(desk: Desk, member_id: int) -> None:
    for ask in (
        desk.members.edit(member_id, MemberSpec(role="viewer"), CHIEF),
        desk.members.delete(member_id, CHIEF),
        desk.members.reset(member_id, CHIEF),
        desk.members.delete_link("abc", CHIEF),
        desk.members.invite(InviteSpec("nowhere"), CHIEF),
    ):
        with pytest.raises(NotFound):
            await ask


async def test_nobody_is_invited_where_nobody_may_come_in(desk: Desk) -> None:
    off = await desk.add_account("off", status="disabled")
    ann = await desk.add("ann", status="disabled")
    for ask in (desk.members.invite(InviteSpec(off.name), CHIEF), desk.members.reset(ann.id, CHIEF)):
        with pytest.raises(Conflict):
            await ask


async def test_links_are_listed_while_they_are_good(desk: Desk) -> None:
    invite = await desk.members.invite(InviteSpec("acme", "viewer", 1), CHIEF)
    reset = await desk.members.reset(1)
    listed = await desk.members.list_links()
    assert {link["id"] for link in listed} == {invite["id"], reset["id"]}
    shown = {link["kind"]: link for link in listed}
    assert (shown["invite"]["account"], shown["invite"]["role"], shown["invite"]["name"]) == ("acme", "viewer", None)
    assert (shown["reset"]["name"], shown["reset"]["created_by"]) == ("chief", "token")
    assert shown["invite"]["created_by"] == "chief"
    assert "token" not in shown["invite"]
    desk.now_s += 3600
    assert [link["kind"] for link in await desk.members.list_links()] == ["reset"]
    desk.now_s += LINK_MS / 1000 - 3600
    assert await desk.members.list_links() == []


async def test_a_link_is_taken_back(desk: Desk) -> None:
    made = await desk.members.invite(InviteSpec("acme"), CHIEF)
    await desk.members.delete_link(made["id"], CHIEF)
    with pytest.raises(NotFound):
        await desk.members.delete_link(made["id"], CHIEF)
    assert [row.action for row in await desk.list_told()] == ["link.created", "link.deleted"]
