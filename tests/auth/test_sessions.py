"""Who gets in, who stays, and what a session is good for."""

import asyncio
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from gateway.auth.passwords import HashCost, PasswordService
from gateway.auth.sessions import ENROLMENT_TTL_MS, SEEN_INTERVAL_MS, ClientInfo, SessionService, digest_reference
from gateway.domain.member import ABSOLUTE_MS, IDLE_MS, Forbidden, SecondFactorNeeded, WrongPassphrase
from gateway.errors import Conflict, InvalidRequest, NotFound, RateLimited
from tests.support.session_services import FROGS, HOME, TOADS, SessionServices

AWAY = ClientInfo("198.51.100.7", "Other/2.0")


@pytest.fixture
def services() -> SessionServices:
    return SessionServices()


async def test_who_knows_the_passphrase_gets_in(services: SessionServices) -> None:
    ann = await services.add()
    entry = await services.sign_in(" Ann ")
    signed = entry.user
    assert (signed.member.id, signed.account.name) == (ann.id, "acme")
    assert signed.member.signed_in_ms == services.now_ms
    assert (signed.session.address, signed.session.agent) == (HOME.address, HOME.agent)
    assert signed.expires_ms == services.now_ms + ABSOLUTE_MS
    assert await services.sessions.find(entry.reference) == signed
    row = (await services.list_audit_trail())[-1]
    assert (row.action, row.actor_kind, row.actor, row.member_id) == ("member.signed_in", "member", "ann", ann.id)
    assert (row.account_id, row.subject, row.address) == (ann.account_id, "ann", HOME.address)


@pytest.mark.parametrize(("name", "passphrase"), [("ann", TOADS), ("bob", FROGS), ("", ""), (FROGS, "ann")])
async def test_who_does_not_gets_the_same_word_whatever_is_wrong(
    services: SessionServices, name: str, passphrase: str
) -> None:
    await services.add()
    with capture_logs() as lines, pytest.raises(WrongPassphrase) as refused:
        await services.sign_in(name, passphrase)
    assert refused.value.message == WrongPassphrase().message
    known = "ann" if name == "ann" else None
    reported = {"event": "sign_in_refused", "log_level": "warning", "member": known, "address": HOME.address}
    assert lines == [reported], "a name that nobody has may be a passphrase"
    assert await services.list_audit_trail() == []


async def test_a_reference_is_not_kept_and_no_two_are_alike(services: SessionServices) -> None:
    ann = await services.add()
    entries = [await services.sign_in() for _ in range(3)]
    references = {entry.reference for entry in entries}
    assert len(references) == 3
    assert all(len(reference) >= 43 for reference in references)
    kept = await services.store.list_sessions(ann.id)
    assert {session.digest for session in kept} == set(map(digest_reference, references))
    assert not any(reference in repr((kept, entries)) for reference in references)


async def test_whoever_signs_in_again_gets_another_reference_and_the_old_one_is_gone(services: SessionServices) -> None:
    await services.add("ann")
    await services.add("bob")
    first = await services.sign_in("ann")
    again = await services.sign_in("bob", visitor=attrs.evolve(HOME, reference=first.reference))
    assert await services.sessions.find(first.reference) is None
    assert await services.sessions.find(again.reference) == again.user
    odd = await services.sign_in("bob", visitor=attrs.evolve(HOME, reference="\udcff nobody's"))
    assert await services.sessions.find(odd.reference) is not None


async def test_a_reference_that_somebody_chose_opens_nothing(services: SessionServices) -> None:
    """What was put into a browser before its user signs in is not what it is known by afterwards."""
    await services.add()
    entry = await services.sign_in(visitor=attrs.evolve(HOME, reference="chosen"))
    assert entry.reference != "chosen"
    assert await services.sessions.find("chosen") is None


async def test_a_session_ends_unused_and_is_kept_by_use(services: SessionServices) -> None:
    await services.add()
    entry = await services.sign_in()
    for _ in range(3):
        services.now_s += IDLE_MS / 1000 - 1
        assert await services.sessions.find(entry.reference) is not None
    services.now_s += IDLE_MS / 1000
    assert await services.sessions.find(entry.reference) is None


async def test_a_look_that_is_no_use_keeps_nothing(services: SessionServices) -> None:
    await services.add()
    entry = await services.sign_in()
    services.now_s += IDLE_MS / 1000 - 1
    assert await services.sessions.find(entry.reference, records_use=False) is not None
    services.now_s += 1
    assert await services.sessions.find(entry.reference, records_use=False) is None


async def test_a_session_ends_however_much_it_is_used(services: SessionServices) -> None:
    await services.add()
    entry = await services.sign_in()
    began_s = services.now_s
    while services.now_s - began_s < ABSOLUTE_MS / 1000 - 600:
        services.now_s += 600
        assert await services.sessions.find(entry.reference) is not None
    services.now_s = began_s + ABSOLUTE_MS / 1000
    assert await services.sessions.find(entry.reference) is None


async def test_use_is_written_once_a_minute(services: SessionServices) -> None:
    ann = await services.add()
    entry = await services.sign_in()
    began_ms, seen = services.now_ms, set()
    for _ in range(5):
        services.now_s += SEEN_INTERVAL_MS / 2000
        await services.sessions.find(entry.reference)
        seen.add((await services.store.list_sessions(ann.id))[0].seen_ms - began_ms)
    assert seen == {0, SEEN_INTERVAL_MS, 2 * SEEN_INTERVAL_MS}


async def test_a_store_that_cannot_be_written_to_shuts_nobody_out(services: SessionServices) -> None:
    await services.add()
    entry = await services.sign_in()
    services.store.full = True
    services.now_s += 2 * SEEN_INTERVAL_MS / 1000
    assert await services.sessions.find(entry.reference) is not None


@pytest.mark.parametrize("what", ["member", "account"])
async def test_who_is_disabled_is_out_at_once_and_does_not_get_in(services: SessionServices, what: str) -> None:
    ann = await services.add()
    entry = await services.sign_in()
    if what == "member":
        await services.store.put_member(ann, attrs.evolve(ann, status="disabled"))
    else:
        await services.accounts.put_account(attrs.evolve(entry.user.account, status="disabled"))
    assert await services.sessions.find(entry.reference) is None
    with pytest.raises(Forbidden):
        await services.sign_in()
    with pytest.raises(WrongPassphrase):
        await services.sign_in(passphrase=TOADS)


async def test_with_a_second_factor_the_passphrase_is_not_enough(services: SessionServices) -> None:
    _, recovery = await services.add_with_second_factor()
    with pytest.raises(SecondFactorNeeded):
        await services.sign_in()
    with pytest.raises(WrongPassphrase):
        await services.sign_in(passphrase=TOADS, code=services.code())
    with pytest.raises(WrongPassphrase):
        await services.sign_in(code="000000" if services.code() != "000000" else "000001")
    assert (await services.sign_in(code=services.code())).user.member.has_second_factor
    with pytest.raises(WrongPassphrase):
        await services.sign_in(code=services.code())
    assert len((await services.sign_in(code=recovery[0])).user.member.recovery) == len(recovery) - 1


async def test_of_many_who_come_with_one_code_one_gets_in(services: SessionServices) -> None:
    _, recovery = await services.add_with_second_factor()
    for code in (services.code(), recovery[3]):
        tries = (services.sign_in(code=code, visitor=ClientInfo(f"203.0.113.{n}")) for n in range(6))
        done = await asyncio.gather(*tries, return_exceptions=True)
        assert [type(one) for one in done].count(WrongPassphrase) == 5


async def test_codes_are_guessed_no_faster_than_passphrases(services: SessionServices) -> None:
    await services.add_with_second_factor()
    wrong = next(code for code in map("{:06}".format, range(9)) if code not in {services.code(n) for n in (-1, 0, 1)})
    for _ in range(5):
        with pytest.raises(SecondFactorNeeded):
            await services.sign_in()
        with pytest.raises(WrongPassphrase):
            await services.sign_in(code=wrong)
    with pytest.raises(RateLimited) as limited:
        await services.sign_in(code=services.code())
    assert limited.value.retry_after_s == 1
    services.now_s += 1
    await services.sign_in(code=services.code())


async def test_who_guesses_waits_and_whoever_is_in_stays_in(services: SessionServices) -> None:
    await services.add()
    entry = await services.sign_in()
    for _ in range(5):
        with pytest.raises(WrongPassphrase):
            await services.sign_in(passphrase=TOADS, visitor=AWAY)
    with pytest.raises(RateLimited):
        await services.sign_in(visitor=AWAY)
    assert await services.sessions.find(entry.reference) is not None
    await services.sign_in()


async def test_a_hash_of_another_cost_is_made_anew_when_its_owner_comes(services: SessionServices) -> None:
    before = await services.add()
    dearer = PasswordService(HashCost(16, 1, 1))
    store, delays = services.store, services.sessions._throttle
    sessions = SessionService(
        store, dearer, services.factors, delays, values=services.values, clock=services.clock, is_local=True
    )
    entry = await sessions.sign_in("ann", FROGS, None, HOME)
    after = await services.store.find_member(before.id)
    assert after is not None
    assert dearer.needs_rehash(before.passphrase)
    assert not dearer.needs_rehash(after.passphrase)
    assert await sessions.find(entry.reference) is not None, "its session goes on"
    await sessions.sign_in("ann", FROGS, None, HOME)
    dearer.close()


async def test_who_leaves_is_out(services: SessionServices) -> None:
    await services.add()
    here, there = await services.sign_in(), await services.sign_in(visitor=AWAY)
    await services.sessions.sign_out(here.user, HOME)
    assert await services.sessions.find(here.reference) is None
    assert await services.sessions.find(there.reference) is not None
    assert (await services.list_actions())[-1] == "member.signed_out"


async def test_ones_own_sessions_are_seen_and_ended_one_by_one_or_all(services: SessionServices) -> None:
    await services.add("ann")
    await services.add("bob")
    old = await services.sign_in()
    services.now_s += IDLE_MS / 1000
    mine = [await services.sign_in() for _ in range(3)]
    others = await services.sign_in("bob")
    me = mine[0].user
    listed = {session.id for session in await services.sessions.list_sessions(me)}
    assert listed == {entry.user.session.id for entry in mine}
    for foreign in (others.user.session.id, old.user.session.id, "nothing", ""):
        with pytest.raises(NotFound):
            await services.sessions.end_session(me, foreign, HOME)
    await services.sessions.end_session(me, mine[1].user.session.id, HOME)
    assert await services.sessions.find(mine[1].reference) is None
    assert await services.sessions.end_others(me, HOME) == 2, "the old one too"
    assert await services.sessions.end_others(me, HOME) == 0
    assert [await services.sessions.find(entry.reference) is not None for entry in (mine[0], mine[2], others)] == [
        True,
        False,
        True,
    ]
    assert (await services.list_actions()).count("session.ended") == 2


async def test_another_passphrase_ends_every_session_but_goes_on_with_this(services: SessionServices) -> None:
    await services.add()
    here, there = await services.sign_in(), await services.sign_in(visitor=AWAY)
    with pytest.raises(WrongPassphrase):
        await services.sessions.change_passphrase(here.user, TOADS, TOADS, HOME)
    with pytest.raises(InvalidRequest) as refused:
        await services.sessions.change_passphrase(here.user, FROGS, "ann ann ann ann", HOME)
    assert refused.value.param == "passphrase"
    assert await services.sessions.find(there.reference) is not None
    entry = await services.sessions.change_passphrase(here.user, FROGS, TOADS, HOME)
    assert [await services.sessions.find(old.reference) for old in (here, there)] == [None, None]
    assert await services.sessions.find(entry.reference) == entry.user
    with pytest.raises(WrongPassphrase):
        await services.sign_in(passphrase=FROGS)
    await services.sign_in(passphrase=TOADS)
    assert "member.passphrase_changed" in await services.list_actions()


async def test_of_two_new_passphrases_at_once_one_is_taken(services: SessionServices) -> None:
    await services.add()
    here = await services.sign_in()
    changes = (services.sessions.change_passphrase(here.user, FROGS, new, HOME) for new in (TOADS, TOADS * 2))
    done = await asyncio.gather(*changes, return_exceptions=True)
    assert [type(one) for one in done].count(Conflict) == 1


async def test_a_stolen_session_does_not_guess_the_passphrase(services: SessionServices) -> None:
    await services.add()
    here = await services.sign_in()
    asks = (
        lambda: services.sessions.change_passphrase(here.user, TOADS, TOADS, AWAY),
        lambda: services.sessions.enrol(here.user, TOADS, AWAY),
    )
    for number in range(5):
        with pytest.raises(WrongPassphrase):
            await asks[number % 2]()
    for ask in asks:
        with pytest.raises(RateLimited):
            await ask()


async def enrol(services: SessionServices, entry: Any) -> str:
    return (await services.sessions.enrol(entry.user, FROGS, HOME)).secret


async def test_a_second_factor_is_in_force_with_its_first_code(services: SessionServices) -> None:
    ann = await services.add()
    entry = await services.sign_in()
    with pytest.raises(WrongPassphrase):
        await services.sessions.enrol(entry.user, TOADS, HOME)
    with pytest.raises(Conflict):
        await services.sessions.confirm(entry.user, "123456", HOME)
    secret = await enrol(services, entry)
    await services.sign_in()  # it is not in force yet
    code = services.code(secret=secret)
    with pytest.raises(InvalidRequest) as refused:
        await services.sessions.confirm(entry.user, "12345", HOME)
    assert refused.value.param == "code"
    codes = await services.sessions.confirm(entry.user, f"{code[:3]} {code[3:]}", HOME)
    assert len(codes) == 10
    with pytest.raises(SecondFactorNeeded):
        await services.sign_in()
    with pytest.raises(WrongPassphrase):
        await services.sign_in(code=code)
    with pytest.raises(Conflict):
        await services.sessions.confirm(entry.user, code, HOME)
    signed = await services.sessions.find(entry.reference)
    assert signed is not None
    with pytest.raises(Conflict):
        await services.sessions.enrol(signed, FROGS, HOME)
    kept = await services.store.find_member(ann.id)
    assert secret not in repr(attrs.astuple(kept))  # type: ignore[arg-type]
    assert (await services.list_actions()).count("member.second_factor_added") == 1


async def test_a_second_factor_waits_ten_minutes_and_for_the_session_that_asked(services: SessionServices) -> None:
    await services.add()
    here, there = await services.sign_in(), await services.sign_in(visitor=AWAY)
    secret = await enrol(services, here)
    with pytest.raises(Conflict):
        await services.sessions.confirm(there.user, services.code(secret=secret), HOME)
    services.now_s += ENROLMENT_TTL_MS / 1000
    with pytest.raises(Conflict):
        await services.sessions.confirm(here.user, services.code(secret=secret), HOME)
    await enrol(services, there)
    assert len(services.values) == 1, "and what waited in vain is forgotten"


async def test_a_second_factor_that_was_confirmed_is_not_replaced_by_one_that_still_waits(
    services: SessionServices,
) -> None:
    """Whoever had the passphrase and a session began one; then its owner made the account safe."""
    await services.add()
    thief, owner = await services.sign_in(visitor=AWAY), await services.sign_in()
    stolen, own = await enrol(services, thief), await enrol(services, owner)
    await services.sessions.confirm(owner.user, services.code(secret=own), HOME)
    signed = await services.sessions.find(thief.reference)
    assert signed is not None
    with pytest.raises(Conflict):
        await services.sessions.confirm(signed, services.code(secret=stolen), AWAY)


async def test_a_second_factor_goes_with_passphrase_and_code(services: SessionServices) -> None:
    ann, recovery = await services.add_with_second_factor()
    entry = await services.sign_in(code=services.code(-1))
    for passphrase, code in ((TOADS, services.code()), (FROGS, services.code(-1)), (FROGS, "aaaa-bbbb-cccc-dddd")):
        with pytest.raises(WrongPassphrase):
            await services.sessions.remove_second_factor(entry.user, passphrase, code, HOME)
    with pytest.raises(SecondFactorNeeded):
        await services.sessions.remove_second_factor(entry.user, FROGS, "", HOME)
    await services.sessions.remove_second_factor(entry.user, FROGS, recovery[0], HOME)
    bare = await services.store.find_member(ann.id)
    assert bare is not None
    assert (bare.totp, bare.recovery) == (None, ())
    await services.sign_in()
    signed = await services.sessions.find(entry.reference)
    assert signed is not None
    with pytest.raises(Conflict):
        await services.sessions.remove_second_factor(signed, FROGS, "", HOME)
    assert "member.second_factor_removed" in await services.list_actions()


async def test_no_passphrase_code_or_reference_is_told_to_log_or_trail(services: SessionServices) -> None:
    canary = "c4nary of the seven seas"
    with capture_logs() as lines:
        await services.add(passphrase=canary)
        first = await services.sign_in(passphrase=canary)
        for name, passphrase in (("ann", canary + "!"), (canary, "ann"), (canary, canary)):
            with pytest.raises(WrongPassphrase) as refused:
                await services.sign_in(name, passphrase)
            assert "c4nary" not in str(refused.value)
        secret = (await services.sessions.enrol(first.user, canary, HOME)).secret
        codes = await services.sessions.confirm(first.user, services.code(secret=secret), HOME)
        last = await services.sign_in(passphrase=canary, code=codes[0])
        await services.sessions.change_passphrase(last.user, canary, canary + "?", HOME)
    text = repr([*lines, *await services.list_audit_trail(), await services.store.list_members(), first, last])
    text += repr([await services.store.list_sessions(member.id) for member in await services.store.list_members()])
    for word in ("c4nary", first.reference, last.reference, secret, *codes):
        assert word not in text


async def test_a_browser_that_says_strange_things_is_no_trouble(services: SessionServices) -> None:
    await services.add()
    strange = ClientInfo("x" * 500, "\x1b[2J\ud800 evil \n" + "y" * 5000)
    session = (await services.sign_in(visitor=strange)).user.session
    assert len(session.address) == 64
    assert session.agent.startswith("[2J evil y")
    assert len(session.agent) <= 256
