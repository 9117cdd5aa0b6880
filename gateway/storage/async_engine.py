"""SQLAlchemy's asyncio engine, imported without its ORM.

The package ``sqlalchemy.ext.asyncio`` imports the whole ORM for its sessions: 8 MB and 60 ms of each start. The gateway
uses only the Core, which is in the module ``sqlalchemy.ext.asyncio.engine``. So the package is imported here without
executing its code; access to any other name of the package executes it. Tested with SQLAlchemy 2.1.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any

_PACKAGE = "sqlalchemy.ext.asyncio"


def _import_empty() -> ModuleType | None:
    """Put the package into ``sys.modules`` without executing its code, and return it.

    Returns None if it is already imported, or not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if _PACKAGE in sys.modules or spec is None:
        return None
    package = sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    return package


def _execute_late(package: ModuleType) -> None:
    """Execute the code of ``package`` at the first access to a missing name (PEP 562)."""

    def find_name(name: str) -> Any:
        spec = package.__spec__
        if name.startswith("__") or spec is None or spec.loader is None:
            raise AttributeError(name)
        del package.__getattr__
        spec.loader.exec_module(package)
        return getattr(package, name)

    package.__getattr__ = find_name  # type: ignore[method-assign]


_package = _import_empty()

from sqlalchemy.ext.asyncio.engine import AsyncConnection, AsyncEngine, create_async_engine  # noqa: E402 - see above

if _package is not None:
    _execute_late(_package)

__all__ = ["AsyncConnection", "AsyncEngine", "create_async_engine"]
