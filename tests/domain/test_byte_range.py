"""Ranges of bytes: what is one, what is to be ignored, and what no file has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.byte_range import ByteRange, RangeNotSatisfiable, read_range
from tests.support.table_rows import table_rows


@given(st.text(alphabet="bytes=0123456789-, \tx", max_size=40), st.integers(0, 10**12))
def test_whatever_is_asked_for_is_a_part_of_the_file_or_none(message: str, size: int) -> None:
    wanted = read_range([f"bytes={message}"])
    if wanted is None:
        return
    assert read_range([wanted.write()]) == wanted, "a provider is asked for the same"
    try:
        start, stop = wanted.find(size)
    except RangeNotSatisfiable:
        return
    assert 0 <= start < stop <= size


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_range_is_what_a_list_would_give(size: int, first: int, length: int) -> None:
    wanted = read_range([f"bytes={first}-{first + length}"])
    assert wanted == ByteRange(first, first + length)
    if first < size:
        assert wanted.find(size) == (first, min(first + length + 1, size))
    suffix = read_range([f"bytes=-{length + 1}"])
    assert suffix is not None
    assert suffix.find(size) == (max(size - length - 1, 0), size)


@table_rows("size", [0, 1, 100])
def test_no_file_has_none_of_its_last_bytes_or_any_beyond_its_end(size: int) -> None:
    for reported in ("bytes=-0", f"bytes={size}-", f"bytes={'9' * 8000}-", f"bytes={'9' * 50}-{'9' * 51}"):
        wanted = read_range([reported])
        assert wanted is not None
        with pytest.raises(RangeNotSatisfiable) as refused:
            wanted.find(size)
        assert refused.value.size == size
