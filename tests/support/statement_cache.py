"""The dialects that the gateways of a run have in common, and with them what SQLAlchemy makes of each statement.

An engine compiles every statement anew that it has not seen: a fifth of what it costs to start a gateway, and as much
again with its first call. What is compiled is the same for all of them; connections and pools stay each one's own.
"""

from typing import Any, ClassVar, Self

from sqlalchemy import Engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

_STATEMENTS = 1000


class _Shared(DefaultDialect):
    """Each class has one dialect for its options: SQLAlchemy keeps compiled statements by that object."""

    _made: ClassVar[dict[object, Any]] = {}
    _compiled: ClassVar[LRUCache[Any, Any]] = LRUCache(_STATEMENTS)

    def __new__(cls, **options: Any) -> Self:
        key = (cls, *sorted((name, repr(value)) for name, value in options.items() if name != "dbapi"))
        if key not in cls._made:
            cls._made[key] = super().__new__(cls)
        one: Self = cls._made[key]
        return one

    def __init__(self, **options: Any) -> None:
        if not self.__dict__:
            super().__init__(**options)

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        engine.update_execution_options(compiled_cache=cls._compiled)


class OneSqlite(_Shared, SQLiteDialect_aiosqlite):
    """The one for SQLite."""

    supports_statement_cache = True


class OnePostgres(_Shared, PGDialect_asyncpg):
    """Those for PostgreSQL: one for each isolation level."""

    supports_statement_cache = True


def share() -> None:
    """Make every engine of this process, from here on, use them."""
    registry.register("sqlite.aiosqlite", __name__, OneSqlite.__name__)
    registry.register("postgresql.asyncpg", __name__, OnePostgres.__name__)
