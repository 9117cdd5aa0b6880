"""Inserts rows by COPY, which costs a third of an INSERT for many rows."""

from collections.abc import Sequence
from typing import Any

import asyncpg
from sqlalchemy import Table
from sqlalchemy.exc import IntegrityError

from gateway.storage.async_engine import AsyncConnection
from gateway.storage.postgres.values import mend


async def copy_rows(
    connection: AsyncConnection, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """Insert rows in the current transaction. Raises ``IntegrityError``, ``DataError`` and asyncpg's errors."""
    driver = (await connection.get_raw_connection()).driver_connection
    if driver is None or not driver.is_in_transaction():
        raise RuntimeError("COPY outside of a transaction would commit by itself")
    try:
        await driver.copy_records_to_table(table.name, records=map(mend, rows), columns=columns)
    except asyncpg.IntegrityConstraintViolationError as error:
        raise IntegrityError(f"COPY {table.name}", None, error) from error
    except (TypeError, OverflowError) as error:  # as the driver reports it for other statements
        raise asyncpg.DataError(str(error)) from error
