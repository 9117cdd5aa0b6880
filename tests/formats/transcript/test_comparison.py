"""How two answers to one request differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.transcript.comparison import MAX_COMPARED_UNITS, compare_texts, compute_cosine, find_vector

TEXT = st.text(alphabet="ab \n", max_size=60)


@given(TEXT, TEXT)
def test_both_texts_can_be_put_together_from_the_changes(old_text: str, new_text: str) -> None:
    changes = compare_texts(old_text, new_text)
    assert changes is not None
    for kind, text in (("old", old_text), ("new", new_text)):
        assert "".join(change.text for change in changes if change.kind in {kind, "same"}) == text


def test_longer_texts_are_compared_by_lines_and_the_longest_not_at_all() -> None:
    words = "word " * MAX_COMPARED_UNITS
    changes = compare_texts(f"{words}\nend\n", f"{words}\nEND\n")
    assert changes is not None
    assert [change.text for change in changes] == [f"{words}\n", "end\n", "END\n"]
    assert compare_texts("line\n" * (MAX_COMPARED_UNITS + 1), "") is None


@pytest.mark.parametrize(
    ("body", "vector"),
    [
        ({"data": [{"embedding": [1, 2.5]}]}, [1.0, 2.5]),
        ({"embedding": {"values": [1]}}, [1.0]),
        ({"embeddings": [{"values": [1]}, {"values": [2]}]}, [1.0]),
        ({"data": [{"embedding": "AACAPw=="}]}, []),
        ({"data": [{"embedding": [True]}]}, []),
        ([], []),
    ],
)
def test_the_first_vector_is_found(body: object, vector: list[float]) -> None:
    assert find_vector(body) == vector


def test_vectors_are_compared_by_their_angle() -> None:
    assert compute_cosine([1, 0], [0, 3]) == 0
    assert compute_cosine([1, 1], [2, 2]) == pytest.approx(1)
    assert compute_cosine([1], [1, 2]) is None
    assert compute_cosine([0], [1]) is None
    assert compute_cosine([float("inf")], [1]) is None
