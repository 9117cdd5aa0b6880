"""Fills the tables of a migration from the stored requests.

Each part of the requests is one transaction, and a backfill that was interrupted goes on after its last part.
"""

from collections.abc import Callable
from typing import Any

from alembic import op
from sqlalchemy import Connection, text

from gateway.storage.migrations.run import open_scripts
from gateway.storage.postgres.unfinished import DELETE_ROW, PUT_ROW, READ_ROW, UNFINISHED_BACKFILL

PART_ROWS = 20_000
"""The maximum number of requests in one part."""
_FIND_PART = text("""
SELECT count(*) AS number, max(sequence) AS last
FROM (SELECT sequence FROM requests WHERE sequence > :after ORDER BY sequence LIMIT :part_rows) part
""")

AddPart = Callable[[Connection, int, int], None]
"""Adds the requests after one sequence and up to another."""
End = Callable[[Connection], None]
"""Completes the tables after the last part."""


def backfill(revision: str, add_part: AddPart, end: End | None = None) -> None:
    """Fill the tables of the migration ``revision`` while it runs.

    If other nodes use the database meanwhile, only note that this is to be done: ``run_part`` does it later. It takes
    ``add_part`` and ``end`` from the module of the migration.
    """
    connection = op.get_bind()
    if op.get_context().opts.get("is_in_use"):
        connection.execute(PUT_ROW, {"name": f"{UNFINISHED_BACKFILL}{revision}", "value": b"-1"})
        return
    after: int | None = -1
    while after is not None:
        after = _add_next_part(connection, after, add_part, end)


def run_part(connection: Connection, revision: str) -> bool:
    """Add the next part for the migration ``revision``, in the current transaction; return whether there may be more.

    The table ``cluster`` has the last sequence of the former part, and no such row after the end.
    """
    name = f"{UNFINISHED_BACKFILL}{revision}"
    module: Any = open_scripts().get_revision(revision).module
    after = int(connection.execute(READ_ROW, {"name": name}).scalar_one())
    last = _add_next_part(connection, after, module.add_part, getattr(module, "end", None))
    if last is None:
        connection.execute(DELETE_ROW, {"name": name})
        return False
    connection.execute(PUT_ROW, {"name": name, "value": str(last).encode()})
    return True


def _add_next_part(connection: Connection, after: int, add_part: AddPart, end: End | None) -> int | None:
    """Add the part after the sequence ``after`` and return its last sequence. After the last part return None."""
    part = connection.execute(_FIND_PART, {"after": after, "part_rows": PART_ROWS}).one()
    if part.number:
        add_part(connection, after, part.last)
    if part.number == PART_ROWS:
        return int(part.last)
    if end is not None:
        end(connection)
    return None
