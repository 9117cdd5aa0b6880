"""``frozen`` does what ``attrs.frozen`` does."""

from typing import Any

import attrs
import pytest

from gateway.frozen import frozen, quick_frozen

DECORATORS = (attrs.frozen, frozen, quick_frozen)


def make_class(decorate: Any, *, eq: bool = True) -> Any:
    class Point:
        x: int
        y: list[int] = attrs.field(factory=list, eq=False)
        secret: str = attrs.field(default="s", repr=False)
        doubled: int = attrs.field(init=False, default=attrs.Factory(lambda point: 2 * point.x, takes_self=True))

    return decorate(Point) if eq else decorate(eq=False)(Point)


@pytest.mark.parametrize("decorate", DECORATORS)
def test_objects_compare_hash_and_print_by_their_fields(decorate: Any) -> None:
    point = make_class(decorate)
    one, same, other, secret = point(1, [1]), point(1, [2]), point(2), point(1, secret="t")
    assert (one == same, one == other, one == secret, one == 1, one != same) == (True, False, False, False, False)
    assert (hash(one) == hash(same), len({one, same, other, secret})) == (True, 3)
    assert repr(one) == "Point(x=1, y=[1], doubled=2)"
    assert attrs.evolve(one, x=3) == point(3)


@pytest.mark.parametrize("decorate", DECORATORS)
def test_objects_may_compare_by_identity_and_methods_of_a_class_stay(decorate: Any) -> None:
    point = make_class(decorate, eq=False)
    assert (point(1) == point(1), len({point(1), point(1)})) == (False, 2)

    class Never:
        def __eq__(self, _other: object) -> bool:
            return False

        def __hash__(self) -> int:
            return 1

        def __repr__(self) -> str:
            return "never"

    never = decorate(Never)
    assert (never() == never(), hash(never()), repr(never())) == (False, 1, "never")


@pytest.mark.parametrize("decorate", DECORATORS)
def test_a_class_without_fields_equals_itself_and_a_class_below_does_not(decorate: Any) -> None:
    @decorate
    class Empty:
        pass

    @decorate
    class Below(Empty):
        pass

    assert (Empty() == Empty(), hash(Empty()) == hash(Empty()), Empty() == Below(), repr(Below())) == (
        True,
        True,
        False,
        "Below()",
    )


@pytest.mark.parametrize("decorate", DECORATORS[:2])
def test_no_field_can_be_set_or_deleted(decorate: Any) -> None:
    point = make_class(decorate)(1)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        point.x = 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 2
