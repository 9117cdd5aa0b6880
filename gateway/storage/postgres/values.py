"""Adapts values and columns so that PostgreSQL stores the same data as SQLite."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import text

from gateway.storage.async_engine import AsyncConnection

_MAX_BIG_INTEGER = 2**63 - 1
_WIDEN_COLUMNS = text("""
DO $$
DECLARE one record;
BEGIN
    FOR one IN
        SELECT c.relname AS place, string_agg(
            format(
                'ALTER COLUMN %I TYPE %s', a.attname,
                CASE WHEN a.atttypid = 'int4'::regtype THEN 'bigint' ELSE 'text COLLATE "C"' END
            ), ', ' ORDER BY a.attnum
        ) AS changes
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attnum > 0
            AND NOT a.attisdropped AND c.relname <> 'alembic_version'
            AND (a.atttypid IN ('int4'::regtype, 'varchar'::regtype)
                 OR (a.atttypid = 'text'::regtype AND a.attcollation <> 'pg_catalog."C"'::regcollation))
        GROUP BY c.relname
    LOOP
        EXECUTE format('ALTER TABLE %I %s', one.place, one.changes);
    END LOOP;
END $$
""")


async def widen_columns(connection: AsyncConnection) -> None:
    """Give every column its range in SQLite: 64 bits, texts of any length, ordered by their bytes."""
    await connection.execute(_WIDEN_COLUMNS)


def mend(row: Sequence[Any]) -> Sequence[Any]:
    """Return a row that PostgreSQL can store: no U+0000, ``?`` for lone surrogates, numbers clamped to 64 bits."""
    return row if all(map(_is_storable, row)) else tuple(map(_mend, row))


def _is_storable(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" not in value and (value.isascii() or _is_unicode(value))
    return not isinstance(value, int) or -_MAX_BIG_INTEGER <= value <= _MAX_BIG_INTEGER


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "").encode(errors="replace").decode()
    if isinstance(value, int) and not _is_storable(value):
        return max(-_MAX_BIG_INTEGER, min(value, _MAX_BIG_INTEGER))
    return value
