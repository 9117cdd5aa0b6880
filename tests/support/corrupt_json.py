"""Well-formed JSON with something else at one place: what a reader meets that trusts nobody."""

from typing import Any

from hypothesis import strategies as st

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
_JUNK = _JSON | st.sampled_from([[], {}, [[]], [{}], -1, 2**63, "", "x", "auto", "function", [None], [1, "x"]])


def spoilt(value: Any) -> st.SearchStrategy[Any]:
    """``value`` with junk anywhere in it."""
    return st.builds(_lay, st.just(value), st.sampled_from(_places_in(value)), _JUNK)


def _places_in(value: Any) -> list[tuple[Any, ...]]:
    """The way to every place in ``value``."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *[(key, *way) for key, below in inner for way in _places_in(below)]]


def _lay(value: Any, way: tuple[Any, ...], junk: Any) -> Any:
    if not way:
        return junk
    copy = value.copy()
    copy[way[0]] = _lay(value[way[0]], way[1:], junk)
    return copy
