"""The dialect of SQLite that the gateways of a run have in common, and with it what SQLAlchemy makes of each statement.

An engine compiles every statement anew that it has not seen: a fifth of what it costs to start a gateway, and as much
again with its first call. What is compiled is the same for all of them; connections and pools stay each one's own.
"""

from typing import Any, Self

from sqlalchemy import Engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.util import LRUCache

_STATEMENTS = 1000


class OneDialect(SQLiteDialect_aiosqlite):
    """There is one, whoever asks for another: compiled statements are kept by the very object of the dialect."""

    supports_statement_cache = True
    _one: Self | None = None
    _compiled: LRUCache[Any, Any] = LRUCache(_STATEMENTS)

    def __new__(cls, **_options: Any) -> Self:
        return super().__new__(cls) if cls._one is None else cls._one

    def __init__(self, **options: Any) -> None:
        if self._one is None:
            super().__init__(**options)
            type(self)._one = self

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        engine.update_execution_options(compiled_cache=cls._compiled)


def share() -> None:
    """From here on every engine of this process has it."""
    registry.register("sqlite.aiosqlite", __name__, OneDialect.__name__)
