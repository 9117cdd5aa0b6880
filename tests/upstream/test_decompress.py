"""Decoding in steps: any cut of any body, bounded whatever it was made small from."""

import gzip
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.decompress import MAX_MEMBERS, STEP_BYTES, Decompressor
from tests.support.table_rows import table_rows


def write_raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


FORMS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw": ("deflate", write_raw),
}


def read_all(encoding: str, packed: bytes, step: int) -> bytes:
    inflation, out = Decompressor(encoding), b""
    for start in range(0, len(packed), step):
        inflation.feed(packed[start : start + step])
        while piece := inflation.read_piece():
            assert len(piece) <= STEP_BYTES
            out += piece
    inflation.end()
    return out


@given(st.binary(max_size=300), st.integers(1, 40), st.sampled_from(sorted(FORMS)))
def test_any_cut_of_an_encoded_body_is_decoded(data: bytes, step: int, form: str) -> None:
    encoding, pack = FORMS[form]
    assert read_all(encoding, pack(data), step) == data


@table_rows("form", sorted(FORMS))
def test_a_bomb_comes_in_small_pieces(form: str) -> None:
    encoding, pack = FORMS[form]
    data = bytes(3_000_000)
    assert read_all(encoding, pack(data), 1 << 20) == data


@table_rows("step", [3, 1000])
def test_one_gzip_may_follow_another_within_bounds(step: int) -> None:
    packed = gzip.compress(b"one") + gzip.compress(b"") + gzip.compress(b"two")
    assert read_all("gzip", packed, step) == b"onetwo"
    with pytest.raises(zlib.error):
        read_all("gzip", gzip.compress(b"") * (MAX_MEMBERS + 1), step)


@table_rows("step", [3, 1000])
@table_rows("form", ["zlib", "raw"])
def test_nothing_follows_anything_else(form: str, step: int) -> None:
    encoding, pack = FORMS[form]
    with pytest.raises(zlib.error):
        read_all(encoding, pack(b"one") + pack(b"two"), step)


@given(st.binary(min_size=1, max_size=60), st.integers(1, 20), st.sampled_from(["gzip", "deflate"]))
def test_garbage_is_an_error_of_zlib_or_decoded(data: bytes, step: int, encoding: str) -> None:
    with suppress(zlib.error):
        read_all(encoding, data, step)


@table_rows("form", sorted(FORMS))
def test_a_body_that_is_cut_is_an_error_and_an_empty_one_is_none(form: str) -> None:
    encoding, pack = FORMS[form]
    with pytest.raises(zlib.error):
        read_all(encoding, pack(b"hello" * 100)[:-3], 1000)
    if encoding == "deflate":
        assert read_all(encoding, b"", 1) == b""
