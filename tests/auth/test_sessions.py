"""Who gets in, who stays, and what a session is good for."""

import asyncio
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from gateway.auth.passwords import HashCost, PasswordService
from gateway.auth.sessions import ENROLMENT_MS, SEEN_EVERY_MS, ClientInfo, SessionService, digest_reference
from gateway.domain.member import ABSOLUTE_MS, IDLE_MS, Forbidden, SecondFactorNeeded, WrongPassphrase
from gateway.errors import Conflict, InvalidRequest, NotFound, RateLimited
from tests.support.session_services import FROGS, HOME, TOADS, Desk

AWAY = ClientInfo("198.51.100.7", "Other/2.0")


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_who_knows_the_passphrase_gets_in(desk: Desk) -> None:
    ann = await desk.add()
    entry = await desk.sign_in(" Ann ")
    signed = entry.signed
    assert (signed.member.id, signed.account.name) == (ann.id, "acme")
    assert signed.member.signed_in_ms == desk.now_ms
    assert (signed.session.address, signed.session.agent) == (HOME.address, HOME.agent)
    assert signed.expires_ms == desk.now_ms + ABSOLUTE_MS
    assert await desk.sessions.find(entry.reference) == signed
    row = (await desk.list_told())[-1]
    assert (row.action, row.actor_kind, row.actor, row.member_id) == ("member.signed_in", "member", "ann", ann.id)
    assert (row.account_id, row.subject, row.address) == (ann.account_id, "ann", HOME.address)


@pytest.mark.parametrize(("name", "passphrase"), [("ann", TOADS), ("bob", FROGS), ("", ""), (FROGS, "ann")])
async def test_who_does_not_gets_the_same_word_whatever_is_wrong(desk: Desk, name: str, passphrase: str) -> None:
    await desk.add()
    with capture_logs() as lines, pytest.raises(WrongPassphrase) as refused:
        await desk.sign_in(name, passphrase)
    assert refused.value.message == WrongPassphrase().message
    known = "ann" if name == "ann" else None
    told = {"event": "sign_in_refused", "log_level": "warning", "member": known, "address": HOME.address}
    assert lines == [told], "a name that nobody has may be a passphrase"
    assert await desk.list_told() == []


async def test_a_reference_is_not_kept_and_no_two_are_alike(desk: Desk) -> None:
    ann = await desk.add()
    entries = [await desk.sign_in() for _ in range(3)]
    references = {entry.reference for entry in entries}
    assert len(references) == 3
    assert all(len(reference) >= 43 for reference in references)
    kept = await desk.store.list_sessions(ann.id)
    assert {session.digest for session in kept} == set(map(digest_reference, references))
    assert not any(reference in repr((kept, entries)) for reference in references)


async def test_whoever_signs_in_again_gets_another_reference_and_the_old_one_is_gone(desk: Desk) -> None:
    await desk.add("ann")
    await desk.add("bob")
    first = await desk.sign_in("ann")
    again = await desk.sign_in("bob", visitor=attrs.evolve(HOME, reference=first.reference))
    assert await desk.sessions.find(first.reference) is None
    assert await desk.sessions.find(again.reference) == again.signed
    odd = await desk.sign_in("bob", visitor=attrs.evolve(HOME, reference="\udcff nobody's"))
    assert await desk.sessions.find(odd.reference) is not None


async def test_a_reference_that_somebody_chose_opens_nothing(desk: Desk) -> None:
    """What was put into a browser before its user signs in is not what it is known by afterwards."""
    await desk.add()
    entry = await desk.sign_in(visitor=attrs.evolve(HOME, reference="chosen"))
    assert entry.reference != "chosen"
    assert await desk.sessions.find("chosen") is None


async def test_a_session_ends_unused_and_is_kept_by_use(desk: Desk) -> None:
    await desk.add()
    entry = await desk.sign_in()
    for _ in range(3):
        desk.now_s += IDLE_MS / 1000 - 1
        assert await desk.sessions.find(entry.reference) is not None
    desk.now_s += IDLE_MS / 1000
    assert await desk.sessions.find(entry.reference) is None


async def test_a_look_that_is_no_use_keeps_nothing(desk: Desk) -> None:
    await desk.add()
    entry = await desk.sign_in()
    desk.now_s += IDLE_MS / 1000 - 1
    assert await desk.sessions.find(entry.reference, used=False) is not None
    desk.now_s += 1
    assert await desk.sessions.find(entry.reference, used=False) is None


async def test_a_session_ends_however_much_it_is_used(desk: Desk) -> None:
    await desk.add()
    entry = await desk.sign_in()
    began_s = desk.now_s
    while desk.now_s - began_s < ABSOLUTE_MS / 1000 - 600:
        desk.now_s += 600
        assert await desk.sessions.find(entry.reference) is not None
    desk.now_s = began_s + ABSOLUTE_MS / 1000
    assert await desk.sessions.find(entry.reference) is None


async def test_use_is_written_once_a_minute(desk: Desk) -> None:
    ann = await desk.add()
    entry = await desk.sign_in()
    began_ms, seen = desk.now_ms, set()
    for _ in range(5):
        desk.now_s += SEEN_EVERY_MS / 2000
        await desk.sessions.find(entry.reference)
        seen.add((await desk.store.list_sessions(ann.id))[0].seen_ms - began_ms)
    assert seen == {0, SEEN_EVERY_MS, 2 * SEEN_EVERY_MS}


async def test_a_store_that_cannot_be_written_to_shuts_nobody_out(desk: Desk) -> None:
    await desk.add()
    entry = await desk.sign_in()
    desk.store.full = True
    desk.now_s += 2 * SEEN_EVERY_MS / 1000
    assert await desk.sessions.find(entry.reference) is not None


@pytest.mark.parametrize("what", ["member", "account"])
async def test_who_is_disabled_is_out_at_once_and_does_not_get_in(desk: Desk, what: str) -> None:
    ann = await desk.add()
    entry = await desk.sign_in()
    if what == "member":
        await desk.store.put_member(ann, attrs.evolve(ann, status="disabled"))
    else:
        await desk.accounts.put_account(attrs.evolve(entry.signed.account, status="disabled"))
    assert await desk.sessions.find(entry.reference) is None
    with pytest.raises(Forbidden):
        await desk.sign_in()
    with pytest.raises(WrongPassphrase):
        await desk.sign_in(passphrase=TOADS)


async def test_with_a_second_factor_the_passphrase_is_not_enough(desk: Desk) -> None:
    _, recovery = await desk.add_with_second_factor()
    with pytest.raises(SecondFactorNeeded):
        await desk.sign_in()
    with pytest.raises(WrongPassphrase):
        await desk.sign_in(passphrase=TOADS, code=desk.code())
    with pytest.raises(WrongPassphrase):
        await desk.sign_in(code="000000" if desk.code() != "000000" else "000001")
    assert (await desk.sign_in(code=desk.code())).signed.member.has_second_factor
    with pytest.raises(WrongPassphrase):
        await desk.sign_in(code=desk.code())
    assert len((await desk.sign_in(code=recovery[0])).signed.member.recovery) == len(recovery) - 1


async def test_of_many_who_come_with_one_code_one_gets_in(desk: Desk) -> None:
    _, recovery = await desk.add_with_second_factor()
    for code in (desk.code(), recovery[3]):
        tries = (desk.sign_in(code=code, visitor=ClientInfo(f"203.0.113.{n}")) for n in range(6))
        done = await asyncio.gather(*tries, return_exceptions=True)
        assert [type(one) for one in done].count(WrongPassphrase) == 5


async def test_codes_are_guessed_no_faster_than_passphrases(desk: Desk) -> None:
    await desk.add_with_second_factor()
    wrong = next(code for code in map("{:06}".format, range(9)) if code not in {desk.code(n) for n in (-1, 0, 1)})
    for _ in range(5):
        with pytest.raises(SecondFactorNeeded):
            await desk.sign_in()
        with pytest.raises(WrongPassphrase):
            await desk.sign_in(code=wrong)
    with pytest.raises(RateLimited) as limited:
        await desk.sign_in(code=desk.code())
    assert limited.value.retry_after_s == 1
    desk.now_s += 1
    await desk.sign_in(code=desk.code())


async def test_who_guesses_waits_and_whoever_is_in_stays_in(desk: Desk) -> None:
    await desk.add()
    entry = await desk.sign_in()
    for _ in range(5):
        with pytest.raises(WrongPassphrase):
            await desk.sign_in(passphrase=TOADS, visitor=AWAY)
    with pytest.raises(RateLimited):
        await desk.sign_in(visitor=AWAY)
    assert await desk.sessions.find(entry.reference) is not None
    await desk.sign_in()


async def test_a_hash_of_another_cost_is_made_anew_when_its_owner_comes(desk: Desk) -> None:
    before = await desk.add()
    dearer = PasswordService(HashCost(16, 1, 1))
    store, delays = desk.store, desk.sessions._throttle
    sessions = SessionService(store, dearer, desk.factors, delays, clock=desk.clock)
    entry = await sessions.sign_in("ann", FROGS, None, HOME)
    after = await desk.store.find_member(before.id)
    assert after is not None
    assert dearer.is_worn(before.passphrase)
    assert not dearer.is_worn(after.passphrase)
    assert await sessions.find(entry.reference) is not None, "its session goes on"
    await sessions.sign_in("ann", FROGS, None, HOME)
    dearer.close()


async def test_who_leaves_is_out(desk: Desk) -> None:
    await desk.add()
    here, there = await desk.sign_in(), await desk.sign_in(visitor=AWAY)
    await desk.sessions.sign_out(here.signed, HOME)
    assert await desk.sessions.find(here.reference) is None
    assert await desk.sessions.find(there.reference) is not None
    assert (await desk.list_actions())[-1] == "member.signed_out"


async def test_ones_own_sessions_are_seen_and_ended_one_by_one_or_all(desk: Desk) -> None:
    await desk.add("ann")
    await desk.add("bob")
    old = await desk.sign_in()
    desk.now_s += IDLE_MS / 1000
    mine = [await desk.sign_in() for _ in range(3)]
    others = await desk.sign_in("bob")
    me = mine[0].signed
    listed = {session.id for session in await desk.sessions.list_sessions(me)}
    assert listed == {entry.signed.session.id for entry in mine}
    for foreign in (others.signed.session.id, old.signed.session.id, "nothing", ""):
        with pytest.raises(NotFound):
            await desk.sessions.end_session(me, foreign, HOME)
    await desk.sessions.end_session(me, mine[1].signed.session.id, HOME)
    assert await desk.sessions.find(mine[1].reference) is None
    assert await desk.sessions.end_others(me, HOME) == 2, "the old one too"
    assert await desk.sessions.end_others(me, HOME) == 0
    assert [await desk.sessions.find(entry.reference) is not None for entry in (mine[0], mine[2], others)] == [
        True,
        False,
        True,
    ]
    assert (await desk.list_actions()).count("session.ended") == 2


async def test_another_passphrase_ends_every_session_but_goes_on_with_this(desk: Desk) -> None:
    await desk.add()
    here, there = await desk.sign_in(), await desk.sign_in(visitor=AWAY)
    with pytest.raises(WrongPassphrase):
        await desk.sessions.change_passphrase(here.signed, TOADS, TOADS, HOME)
    with pytest.raises(InvalidRequest) as refused:
        await desk.sessions.change_passphrase(here.signed, FROGS, "ann ann ann ann", HOME)
    assert refused.value.param == "passphrase"
    assert await desk.sessions.find(there.reference) is not None
    entry = await desk.sessions.change_passphrase(here.signed, FROGS, TOADS, HOME)
    assert [await desk.sessions.find(old.reference) for old in (here, there)] == [None, None]
    assert await desk.sessions.find(entry.reference) == entry.signed
    with pytest.raises(WrongPassphrase):
        await desk.sign_in(passphrase=FROGS)
    await desk.sign_in(passphrase=TOADS)
    assert "member.passphrase_changed" in await desk.list_actions()


async def test_of_two_new_passphrases_at_once_one_is_taken(desk: Desk) -> None:
    await desk.add()
    here = await desk.sign_in()
    changes = (desk.sessions.change_passphrase(here.signed, FROGS, new, HOME) for new in (TOADS, TOADS * 2))
    done = await asyncio.gather(*changes, return_exceptions=True)
    assert [type(one) for one in done].count(Conflict) == 1


async def test_a_stolen_session_does_not_guess_the_passphrase(desk: Desk) -> None:
    await desk.add()
    here = await desk.sign_in()
    asks = (
        lambda: desk.sessions.change_passphrase(here.signed, TOADS, TOADS, AWAY),
        lambda: desk.sessions.enrol(here.signed, TOADS, AWAY),
    )
    for number in range(5):
        with pytest.raises(WrongPassphrase):
            await asks[number % 2]()
    for ask in asks:
        with pytest.raises(RateLimited):
            await ask()


async def enrol(desk: Desk, entry: Any) -> str:
    return (await desk.sessions.enrol(entry.signed, FROGS, HOME)).secret


async def test_a_second_factor_is_in_force_with_its_first_code(desk: Desk) -> None:
    ann = await desk.add()
    entry = await desk.sign_in()
    with pytest.raises(WrongPassphrase):
        await desk.sessions.enrol(entry.signed, TOADS, HOME)
    with pytest.raises(Conflict):
        await desk.sessions.confirm(entry.signed, "123456", HOME)
    secret = await enrol(desk, entry)
    await desk.sign_in()  # it is not in force yet
    code = desk.code(secret=secret)
    with pytest.raises(InvalidRequest) as refused:
        await desk.sessions.confirm(entry.signed, "12345", HOME)
    assert refused.value.param == "code"
    codes = await desk.sessions.confirm(entry.signed, f"{code[:3]} {code[3:]}", HOME)
    assert len(codes) == 10
    with pytest.raises(SecondFactorNeeded):
        await desk.sign_in()
    with pytest.raises(WrongPassphrase):
        await desk.sign_in(code=code)
    with pytest.raises(Conflict):
        await desk.sessions.confirm(entry.signed, code, HOME)
    signed = await desk.sessions.find(entry.reference)
    assert signed is not None
    with pytest.raises(Conflict):
        await desk.sessions.enrol(signed, FROGS, HOME)
    kept = await desk.store.find_member(ann.id)
    assert secret not in repr(attrs.astuple(kept))  # type: ignore[arg-type]
    assert (await desk.list_actions()).count("member.second_factor_added") == 1


async def test_a_second_factor_waits_ten_minutes_and_for_the_session_that_asked(desk: Desk) -> None:
    await desk.add()
    here, there = await desk.sign_in(), await desk.sign_in(visitor=AWAY)
    secret = await enrol(desk, here)
    with pytest.raises(Conflict):
        await desk.sessions.confirm(there.signed, desk.code(secret=secret), HOME)
    desk.now_s += ENROLMENT_MS / 1000
    with pytest.raises(Conflict):
        await desk.sessions.confirm(here.signed, desk.code(secret=secret), HOME)
    await enrol(desk, there)
    assert len(desk.sessions._enrolments) == 1, "and what waited in vain is forgotten"


async def test_a_second_factor_that_was_confirmed_is_not_replaced_by_one_that_still_waits(desk: Desk) -> None:
    """Whoever had the passphrase and a session began one; then its owner made the account safe."""
    await desk.add()
    thief, owner = await desk.sign_in(visitor=AWAY), await desk.sign_in()
    stolen, own = await enrol(desk, thief), await enrol(desk, owner)
    await desk.sessions.confirm(owner.signed, desk.code(secret=own), HOME)
    signed = await desk.sessions.find(thief.reference)
    assert signed is not None
    with pytest.raises(Conflict):
        await desk.sessions.confirm(signed, desk.code(secret=stolen), AWAY)


async def test_a_second_factor_goes_with_passphrase_and_code(desk: Desk) -> None:
    ann, recovery = await desk.add_with_second_factor()
    entry = await desk.sign_in(code=desk.code(-1))
    for passphrase, code in ((TOADS, desk.code()), (FROGS, desk.code(-1)), (FROGS, "aaaa-bbbb-cccc-dddd")):
        with pytest.raises(WrongPassphrase):
            await desk.sessions.remove_second_factor(entry.signed, passphrase, code, HOME)
    with pytest.raises(SecondFactorNeeded):
        await desk.sessions.remove_second_factor(entry.signed, FROGS, "", HOME)
    await desk.sessions.remove_second_factor(entry.signed, FROGS, recovery[0], HOME)
    bare = await desk.store.find_member(ann.id)
    assert bare is not None
    assert (bare.totp, bare.recovery) == (None, ())
    await desk.sign_in()
    signed = await desk.sessions.find(entry.reference)
    assert signed is not None
    with pytest.raises(Conflict):
        await desk.sessions.remove_second_factor(signed, FROGS, "", HOME)
    assert "member.second_factor_removed" in await desk.list_actions()


async def test_no_passphrase_code_or_reference_is_told_to_log_or_trail(desk: Desk) -> None:
    canary = "c4nary of the seven seas"
    with capture_logs() as lines:
        await desk.add(passphrase=canary)
        first = await desk.sign_in(passphrase=canary)
        for name, passphrase in (("ann", canary + "!"), (canary, "ann"), (canary, canary)):
            with pytest.raises(WrongPassphrase) as refused:
                await desk.sign_in(name, passphrase)
            assert "c4nary" not in str(refused.value)
        secret = (await desk.sessions.enrol(first.signed, canary, HOME)).secret
        codes = await desk.sessions.confirm(first.signed, desk.code(secret=secret), HOME)
        last = await desk.sign_in(passphrase=canary, code=codes[0])
        await desk.sessions.change_passphrase(last.signed, canary, canary + "?", HOME)
    said = repr([*lines, *await desk.list_told(), await desk.store.list_members(), first, last])
    said += repr([await desk.store.list_sessions(member.id) for member in await desk.store.list_members()])
    for word in ("c4nary", first.reference, last.reference, secret, *codes):
        assert word not in said


async def test_a_browser_that_says_strange_things_is_no_trouble(desk: Desk) -> None:
    await desk.add()
    strange = ClientInfo("x" * 500, "\x1b[2J\ud800 evil \n" + "y" * 5000)
    session = (await desk.sign_in(visitor=strange)).signed.session
    assert len(session.address) == 64
    assert session.agent.startswith("[2J evil y")
    assert len(session.agent) <= 256
