"""Codes of an authenticator are good about now and once; those on paper once each; and neither is kept to be read."""

import re

import attrs
import pyotp
import pytest

from gateway.auth.totp import RECOVERY_CODES, STEP_S, Totp, find_step
from gateway.domain.member import Credential, Member, SecondFactorNeeded, WrongPassphrase
from gateway.errors import InternalError
from gateway.storage.encryption import SecretBox

NOW_S = 1_800_000_010.0
STEP = int(NOW_S) // STEP_S
ANN = Member(3, 1, "ann", "member", passphrase="hash")
SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"


@pytest.fixture
def factors() -> Totp:
    return Totp(SecretBox(bytes(32)))


def code_of(step: int, secret: str = SECRET) -> str:
    return pyotp.TOTP(secret).generate_otp(step)


@pytest.mark.parametrize("step", [STEP - 1, STEP, STEP + 1])
def test_a_code_is_good_a_step_to_either_side(factors: Totp, step: int) -> None:
    assert find_step(SECRET, code_of(step), NOW_S) == step
    both, _ = factors.confirm(ANN, SECRET, step - 1)
    assert factors.verify(both, code_of(step), NOW_S) == Credential("hash", step=step)
    spaced = f" {code_of(step)[:3]} {code_of(step)[3:]}"
    assert factors.verify(both, spaced, NOW_S).step == step


@pytest.mark.parametrize("step", [STEP - 2, STEP + 2, STEP - 1000])
def test_a_code_of_another_time_is_not(factors: Totp, step: int) -> None:
    both, _ = factors.confirm(ANN, SECRET, 0)
    assert find_step(SECRET, code_of(step), NOW_S) is None
    with pytest.raises(WrongPassphrase):
        factors.verify(both, code_of(step), NOW_S)


def test_a_code_is_good_once(factors: Totp) -> None:
    """Not the one that it was set up with either, nor one before that."""
    both, _ = factors.confirm(ANN, SECRET, STEP)
    for step in (STEP - 1, STEP):
        with pytest.raises(WrongPassphrase):
            factors.verify(both, code_of(step), NOW_S)
    assert factors.verify(both, code_of(STEP + 1), NOW_S).step == STEP + 1


@pytest.mark.parametrize("code", [None, "", "   ", "12345", "1234567", "½½½½½½", "abcdef", "\ud800" * 6, "a" * 64])
def test_what_is_no_code_is_asked_for_again(factors: Totp, code: str | None) -> None:
    both, _ = factors.confirm(ANN, SECRET, 0)
    with pytest.raises(SecondFactorNeeded):
        factors.verify(both, code, NOW_S)


def test_who_has_none_needs_none(factors: Totp) -> None:
    assert factors.verify(ANN, None, NOW_S) == Credential("hash", is_known=True)
    assert factors.verify(ANN, "123456", NOW_S) == Credential("hash", is_known=True)


def test_each_recovery_code_stands_in_for_it(factors: Totp) -> None:
    both, codes = factors.confirm(ANN, SECRET, STEP)
    assert len(set(codes)) == RECOVERY_CODES == len(both.recovery)
    assert all(re.fullmatch(r"([a-z2-7]{4}-){3}[a-z2-7]{4}", code) for code in codes)
    for code in (codes[0], codes[0].upper(), codes[0].replace("-", " ")):
        proof = factors.verify(both, code, NOW_S)
        after = both.accept(proof)
        assert after is not None
        assert len(after.recovery) == RECOVERY_CODES - 1
        with pytest.raises(WrongPassphrase):
            factors.verify(after, code, NOW_S)
        assert factors.verify(after, codes[1], NOW_S).recovery_digest == both.recovery[1]


def test_nothing_of_it_is_kept_to_be_read(factors: Totp) -> None:
    both, codes = factors.confirm(ANN, SECRET, STEP)
    kept = repr(attrs.astuple(both))
    assert SECRET not in kept
    assert not any(code in kept or code.replace("-", "") in kept for code in codes)


@pytest.mark.parametrize("thief", [attrs.evolve(ANN, id=4), attrs.evolve(ANN, id=4, name="bob")])
def test_a_secret_is_sealed_for_one_member(factors: Totp, thief: Member) -> None:
    """Copied into another row of the database it opens nothing."""
    both, _ = factors.confirm(ANN, SECRET, 0)
    moved = attrs.evolve(thief, totp=both.totp)
    with pytest.raises(InternalError, match="recovery code"):
        factors.verify(moved, code_of(STEP), NOW_S)


def test_another_master_key_leaves_the_recovery_codes(factors: Totp) -> None:
    both, codes = factors.confirm(ANN, SECRET, 0)
    other = Totp(SecretBox(b"1" * 32))
    with pytest.raises(InternalError):
        other.verify(both, code_of(STEP), NOW_S)
    assert other.verify(both, codes[0], NOW_S).recovery_digest == both.recovery[0]


def test_an_authenticator_is_set_up_by_hand_by_link_or_by_image(factors: Totp) -> None:
    made = factors.enrol("ann@example.org")
    assert made.secret != factors.enrol("ann@example.org").secret
    assert made.secret not in repr(made)
    read = pyotp.parse_uri(made.uri)
    assert (read.secret, read.name, read.issuer) == (made.secret, "ann@example.org", "Model gateway")
    assert not made.qr_svg.startswith("<?xml")
    assert set(re.findall(r"<(\w+)", made.qr_svg)) == {"svg", "path"}
    assert set(re.findall(r" ([\w-]+)=", made.qr_svg)) == {"viewBox", "class", "fill", "stroke", "d"}
