"""A seal: nobody reads what it has closed, and nothing opens but what was closed as it is."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.storage.encryption import ROOT_BYTES, DecryptionFailed, SecretBox
from tests.support.table_rows import table_rows

SEAL = SecretBox(bytes(range(32)))
PLAIN = b'{"api_keys":["sk-canary-0123456789"]}'
NAMES = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.binary(), NAMES)
def test_what_was_sealed_is_opened_as_it_was(plain: bytes, about: str) -> None:
    assert SEAL.open(SEAL.seal(plain, context=about), context=about) == plain


def test_another_object_of_the_same_root_and_purpose_opens_it() -> None:
    """Another process, that is."""
    assert SecretBox(bytes(range(32))).open(SEAL.seal(PLAIN, context="a"), context="a") == PLAIN
    sealed = SEAL.derive("channels").seal(PLAIN, context="a")
    assert SecretBox(bytes(range(32))).derive("channels").open(sealed, context="a") == PLAIN


def test_a_value_sealed_by_the_first_version_opens_for_ever() -> None:
    """Made with this code once: how keys are derived must not change under a database that is in use."""
    sealed = bytes.fromhex("01b30dabbcc63eecfb1c59df929e147b604c706fb7a299c176b6a259564f3141604625")
    assert SEAL.derive("channels").open(sealed, context="channel:7") == b"canary"


def test_nothing_of_it_can_be_read_and_no_two_look_alike() -> None:
    sealed = [SEAL.seal(PLAIN, context="a") for _ in range(100)]
    assert len({value[1:13] for value in sealed}) == len({value[13:] for value in sealed}) == 100
    assert all(value[0] == 1 and len(value) == 1 + 12 + len(PLAIN) + 16 for value in sealed)
    assert not any(b"canary" in value or b"api_keys" in value for value in sealed)


@table_rows("bit", range(8))
def test_a_bit_that_changed_anywhere_is_noticed(bit: int) -> None:
    sealed = SEAL.seal(PLAIN, context="a")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1 << bit
        with pytest.raises(DecryptionFailed):
            SEAL.open(bytes(changed), context="a")


def test_a_value_that_was_cut_is_noticed() -> None:
    sealed = SEAL.seal(PLAIN, context="a")
    for cut in range(len(sealed)):
        for piece in (sealed[:cut], sealed[cut + 1 :]):
            with pytest.raises(DecryptionFailed):
                SEAL.open(piece, context="a")
    with pytest.raises(DecryptionFailed):
        SEAL.open(sealed + b"\0", context="a")


@given(st.binary(max_size=64))
def test_garbage_is_never_opened(garbage: bytes) -> None:
    with pytest.raises(DecryptionFailed):
        SEAL.open(garbage, context="a")


@table_rows(
    ("other", "about"),
    [
        (SEAL, "channel:8"),
        (SEAL, ""),
        (SecretBox(bytes(32)), "channel:7"),
        (SEAL.derive("channels"), "channel:7"),
        (SEAL.derive(""), "channel:7"),
    ],
)
def test_it_opens_for_its_row_its_purpose_and_its_root_alone(other: SecretBox, about: str) -> None:
    with pytest.raises(DecryptionFailed):
        other.open(SEAL.seal(PLAIN, context="channel:7"), context=about)
    with pytest.raises(DecryptionFailed):
        SEAL.open(other.seal(PLAIN, context=about), context="channel:7")


def test_purposes_are_apart_at_every_depth() -> None:
    seals = [SEAL, SEAL.derive("a"), SEAL.derive("b"), SEAL.derive("a").derive("b")]
    for one in seals:
        for other in seals:
            if one is not other:
                with pytest.raises(DecryptionFailed):
                    other.open(one.seal(PLAIN, context="x"), context="x")


def test_what_is_said_of_a_broken_seal_is_for_the_operator_and_no_secret() -> None:
    sealed = SecretBox(b"k" * 32).seal(PLAIN, context="channel:7")
    with pytest.raises(
        DecryptionFailed, match=r"'channel:7' cannot be opened: the master key .* same backup"
    ) as caught:
        SEAL.open(sealed, context="channel:7")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "canary" not in str(caught.value)
    assert sealed.hex() not in repr(caught.value)


@table_rows("size", [0, 16, ROOT_BYTES - 1, ROOT_BYTES + 1])
def test_a_root_has_its_size(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SecretBox(bytes(size))


def test_a_seal_shows_nothing_of_its_key() -> None:
    seal = SecretBox(b"secret-root-of-exactly-32-bytes!")
    seal.seal(PLAIN, context="a")
    assert "secret" not in repr(seal)
    assert "secret" not in str(seal)


def test_a_gateway_that_seals_nothing_does_not_load_the_package() -> None:
    code = (
        "import sys; from gateway.storage.channels import ChannelRepository;"
        "from gateway.storage.encryption import SecretBox;"
        "ChannelRepository(None, SecretBox(bytes(32))); print('cryptography' in sys.modules);"
        "SecretBox(bytes(32)).seal(b'', context=''); print('cryptography' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["False", "True"]
