"""``attrs.frozen`` whose comparison, hash and representation are ordinary methods.

attrs generates and compiles these three methods for each class, which takes a fifth of the CPU time of importing the
gateway. Here they are built from C functions of the standard library, with the same behaviour.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import attrs

__all__ = ["frozen", "quick_frozen"]

if TYPE_CHECKING:
    from attrs import frozen
    from attrs import frozen as quick_frozen
else:

    def frozen(cls: type | None = None, *, eq: bool = True, kw_only: bool = False) -> Any:
        """``attrs.frozen``. ``eq`` says whether objects with equal fields are equal."""
        return _decorate(attrs.frozen, cls, eq=eq, kw_only=kw_only)

    def quick_frozen(cls: type | None = None, *, eq: bool = True, kw_only: bool = False) -> Any:
        """Like ``frozen``, for types of which every request creates new objects.

        A frozen attrs class sets each field through a call, and these calls are most of the cost of a new object.
        Classes with this decorator are ordinary at run time. mypy sees ``attrs.frozen`` and checks that no code changes
        them.
        """
        return _decorate(attrs.define, cls, eq=eq, kw_only=kw_only)


def _decorate(make: Callable[..., Any], cls: type | None, *, eq: bool, kw_only: bool) -> Any:
    def decorate(undecorated: type) -> type:
        own_names = undecorated.__dict__.keys()
        frozen_class: Any = make(undecorated, eq=False, repr=False, kw_only=kw_only)
        if eq and "__eq__" not in own_names:
            frozen_class.__eq__, frozen_class.__hash__ = _make_comparison(
                [field.name for field in attrs.fields(frozen_class) if field.eq]
            )
        if "__repr__" not in own_names:
            frozen_class.__repr__ = _represent
        return frozen_class  # type: ignore[no-any-return]

    return decorate if cls is None else decorate(cls)


def _make_comparison(names: list[str]) -> tuple[Callable[[Any, object], bool], Callable[[Any], int]]:
    """Return ``__eq__`` and ``__hash__`` over the fields with these names."""
    read_fields: Callable[[Any], Any] = attrgetter(*names) if names else lambda _: ()

    def is_equal(self: Any, other_object: object) -> bool:
        return (
            bool(read_fields(self) == read_fields(other_object))
            if other_object.__class__ is self.__class__
            else NotImplemented
        )

    def compute_hash(self: Any) -> int:
        return hash((self.__class__, read_fields(self)))

    return is_equal, compute_hash


def _represent(self: Any) -> str:
    fields = (f"{field.name}={getattr(self, field.name)!r}" for field in attrs.fields(self.__class__) if field.repr)
    return f"{self.__class__.__qualname__.rsplit('>.', 1)[-1]}({', '.join(fields)})"
