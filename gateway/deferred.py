"""Tables whose values are created or imported on first access: a process uses only a few of them."""

from collections.abc import Awaitable, Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class Deferred(dict[K, V]):
    """A constant ``Mapping`` whose ``makers`` create each value on first use. Later look-ups cost no Python call."""

    def __init__(self, makers: Mapping[K, Callable[[], V]]) -> None:
        super().__init__()
        self._makers = makers

    def __missing__(self, key: K) -> V:
        value = self[key] = self._makers[key]()
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._makers

    def __iter__(self) -> Iterator[K]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...

    @overload
    def get(self, key: K, default: V | T, /) -> V | T: ...

    def get(self, key: K, default: Any = None, /) -> Any:
        return self[key] if key in self._makers else default

    def keys(self) -> KeysView[K]:  # type: ignore[override]  # dict's own views contain only created values
        return KeysView(self)

    def values(self) -> ValuesView[V]:  # type: ignore[override]
        return ValuesView(self)

    def items(self) -> ItemsView[K, V]:  # type: ignore[override]
        return ItemsView(self)


@cache
def load(place: str) -> Any:
    """Return the object at ``place``, such as ``"formats.rerank:RERANK"``. Its module is imported if necessary."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"gateway.{module}"), name)


def defer(places: Mapping[K, str]) -> Mapping[K, Any]:
    """Return the table of the objects at ``places``."""
    return MappingProxyType(Deferred({key: partial(load, place) for key, place in places.items()}))


def defer_function(place: str) -> Callable[..., Any]:
    """Return a function that calls the function at ``place``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return load(place)(*args, **kwargs)

    return call


def defer_handler(place: str) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function that awaits the one at ``place``."""

    async def handle(*args: Any, **kwargs: Any) -> Any:
        return await load(place)(*args, **kwargs)

    return handle


class Once(Generic[T]):
    """Creates an object on the first call; every later call returns the same object. ``made``: None before."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.made: T | None = None

    def __call__(self) -> T:
        if self.made is None:
            self.made = self._make()
        return self.made

    def if_made(self, act: Callable[[T], V]) -> V | None:
        """Return ``act(object)``; None before the first call."""
        return None if self.made is None else act(self.made)
