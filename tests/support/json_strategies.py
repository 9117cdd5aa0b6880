"""JSON values for hypothesis."""

from hypothesis import strategies as st

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("aé \n", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aé \n", max_size=5), inner, max_size=3),
    max_leaves=8,
)
