"""``asyncio.sleep`` replaced for one module. A patch of the function itself would also count what others sleep."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest


class _Asyncio:
    """The package with another ``sleep``."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


def replace_sleep(monkeypatch: pytest.MonkeyPatch, module: str, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Let the module of this dotted name, which imports the package ``asyncio``, wait by ``sleep``."""
    monkeypatch.setattr(f"{module}.asyncio", _Asyncio(sleep))
