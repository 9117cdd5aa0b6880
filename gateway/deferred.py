"""Tables, functions and objects that are created or imported on first use: a process uses only a few of them."""

from collections.abc import Awaitable, Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class Deferred(dict[K, V]):
    """A constant ``Mapping`` whose ``makers`` create each value on first use. Later ``[key]`` costs no Python call."""

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
def load(import_path: str) -> Any:
    """Return the object at ``import_path``, such as ``"formats.rerank:RERANK"``. Its module is imported if needed."""
    module, _, name = import_path.partition(":")
    return getattr(import_module(f"gateway.{module}"), name)


def defer(import_paths: Mapping[K, str]) -> Mapping[K, Any]:
    """Return a table of the objects at ``import_paths``. Each is imported at the first access."""
    return MappingProxyType(Deferred({key: partial(load, import_path) for key, import_path in import_paths.items()}))


def defer_function(import_path: str) -> Callable[..., Any]:
    """Return a function that calls the function at ``import_path``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return load(import_path)(*args, **kwargs)

    return call


def defer_handler(import_path: str) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function that awaits the one at ``import_path``."""

    async def handle(*args: Any, **kwargs: Any) -> Any:
        return await load(import_path)(*args, **kwargs)

    return handle


class CreatedOnce(Generic[T]):
    """Creates an object on the first call; every later call returns the same object. ``instance`` is None before."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.instance: T | None = None

    def __call__(self) -> T:
        if self.instance is None:
            self.instance = self._make()
        return self.instance

    def if_made(self, act: Callable[[T], V]) -> V | None:
        """Return ``act(object)``; None before the first call."""
        return None if self.instance is None else act(self.instance)
