"""How many and how large: said as ``n`` and ``size``, and in no other words that a provider might believe."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.images.params import COUNT_FIELDS, SIZE_FIELDS, check_fields, check_size, is_count
from tests.support.table_rows import table_rows

HARMLESS = {
    "model": "m", "prompt": "a cat", "n": 4, "size": "64x64", "quality": "high", "seed": 7, "guidance_scale": 3.5,
    "num_inference_steps": 20, "negative_prompt": "dogs", "image": "https://host/1.png", "frame_count": 2,
    "partial_images": 1, "svg": {"model": "x", "width": 5}, "metadata": {"count": 3}, "loras": [{"scale": 1}],
    "sequential_image_generation": "disabled", "enable_sequential": False, "batch_size": None, "width": "",
}  # fmt: skip
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def find_fields(body: dict[str, Any]) -> tuple[str | None, str | None]:
    """The fields that are refused, by each of the two checks."""
    found: list[str | None] = []
    checks: tuple[Callable[[], object], ...] = (lambda: check_fields(body, has_size=False), lambda: check_size(body))
    for check in checks:
        try:
            check()
        except InvalidRequest as fault:
            found.append(fault.param)
        else:
            found.append(None)
    return found[0], found[1]


def test_fields_that_say_nothing_of_it_are_taken() -> None:
    check_fields(HARMLESS, has_size=True)
    check_size(HARMLESS)


@table_rows("name", [name for name in COUNT_FIELDS if name != "n"])
def test_how_many_is_said_as_n(name: str) -> None:
    assert find_fields({"n": 1, name: 1}) == (name, None)


@table_rows("name", [name for name in SIZE_FIELDS if name != "size"])
def test_how_large_is_said_as_size(name: str) -> None:
    assert find_fields({name: 1024}) == (None, name)
    with pytest.raises(InvalidRequest, match="'size'"):
        check_fields({"size": "64x64", name: 1024}, has_size=True)


@table_rows("name", ["BATCH_SIZE", "batchSize", "Num-Images", "numberOfImages", "NumImages"])
def test_a_spelling_hides_no_number(name: str) -> None:
    assert is_count(name)
    assert find_fields({name: 2})[0] == name


@table_rows("name", ["N", "Size", "SIZE", "\u017fize", "Model", "frameCount", "Partial_Images", "STREAM"])
def test_the_conventions_own_fields_have_one_spelling(name: str) -> None:
    """Servers that take any find two fields of one name, and go by the last."""
    with pytest.raises(InvalidRequest, match=r"Unknown field .*; did you mean") as refused:
        check_fields({"n": 1, name: 2}, has_size=False)
    assert refused.value.param == name


@table_rows(
    ("body", "found"),
    [
        ({"extra_body": {"n": 4}}, ("extra_body.n", None)),
        ({"extra_body": {"size": "9x9"}}, (None, "extra_body.size")),
        ({"provider": {"options": {"fal": {"numImages": 4}}}}, ("provider.options.fal.numImages", None)),
        ({"image_config": {"image_size": "4K"}}, (None, "image_config.image_size")),
        ({"x" * 100: {"y" * 100: {"width": 1}}}, (None, "x" * 64)),
    ],
)
def test_objects_are_looked_into(body: dict[str, Any], found: tuple[str | None, str | None]) -> None:
    assert find_fields(body) == found


def test_a_shape_is_taken_of_models_that_take_no_size() -> None:
    check_size({"aspect_ratio": "16:9"}, needs_shape=True)
    for body in ({"resolution": "2k"}, {"aspectRatio": "16:9"}, {"x": {"aspect_ratio": "16:9"}}):
        with pytest.raises(InvalidRequest):
            check_size(body, needs_shape=True)


@given(st.dictionaries(st.text(max_size=8), NESTED, max_size=4))
def test_anything_can_be_looked_at(body: dict[str, Any]) -> None:
    assert all(param is None or len(param) <= 64 for param in find_fields(body))


def test_depth_is_no_trouble() -> None:
    body: dict[str, Any] = {"width": 1}
    for _ in range(5_000):
        body = {"x": body}
    assert find_fields(body) == (None, ("x." * 32))
