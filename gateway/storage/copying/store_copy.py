"""Copies every row from one store to another in one transaction of the target, and compares the two."""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

import attrs

from gateway.frozen import frozen
from gateway.storage.copying.tables import TOTALS, CopiedTable, Row, list_tables
from gateway.storage.postgres.values import mend
from gateway.storage.schema import REVISION


class CopyFailed(Exception):
    """A store was not copied, or two could not be compared; the message is for the operator."""


class CopySource(Protocol):
    """A store whose rows can all be read as of one moment. ``name`` is for messages."""

    name: str

    async def read_schema(self) -> str: ...

    def read_rows(self, table: CopiedTable) -> AsyncIterator[list[Row]]: ...

    async def read_counters(self, tables: Sequence[CopiedTable]) -> Mapping[str, int]:
        """Return for each table with a ``counter_column`` the last number assigned, even if its row is deleted.

        Tables that never had a row may be left out.
        """
        ...

    async def fetch(self, statement: str) -> list[Row]: ...


class CopyTarget(CopySource, Protocol):
    """An empty store in a transaction. ``strict`` says whether it rejects text with U+0000."""

    strict: bool

    async def write_rows(self, table: CopiedTable, rows: Sequence[Row]) -> None: ...

    async def write_counters(self, tables: Sequence[CopiedTable], counters: Mapping[str, int]) -> None:
        """Let each table continue after its last number."""
        ...


@frozen
class CopyReport:
    """The result of a copy.

    Attributes:
        rows: the number of copied rows by table.
        mended_count: the number of rows from which U+0000 was removed.
        charged_nanos: the sum of all charges by entries.
        agrees: whether the charges by entries, by days and by requests are equal.
    """

    rows: Mapping[str, int]
    mended_count: int
    charged_nanos: int
    agrees: bool


@attrs.define
class _Sum:
    """The number and the SHA-256 of rows."""

    rows: int = 0
    digest: "hashlib._Hash" = attrs.field(factory=hashlib.sha256)

    def add(self, rows: Sequence[Row]) -> None:
        self.rows += len(rows)
        for row in rows:
            self.digest.update(repr(row).encode())

    def finish(self) -> tuple[int, str]:
        return self.rows, self.digest.hexdigest()


async def copy_store(source: CopySource, target: CopyTarget, progress: Callable[[str, int], None]) -> CopyReport:
    """Copy every row of ``source``, and compare counts, checksums and charges; return the counts and the charges.

    ``progress`` is called with a table and the number of its rows written. ``target`` is not committed; after
    ``CopyFailed`` it must not be.
    """
    tables = list_tables()
    await _check_schema(source)
    await _check_empty(target, tables)
    counts: dict[str, int] = {}
    mended_count = 0
    for table in tables:
        expected_sum, mended_rows = await _copy_table(source, target, table, progress)
        await _compare(target, table, expected_sum)
        counts[table.name] = expected_sum.rows
        mended_count += mended_rows
    await target.write_counters(tables, await source.read_counters(tables))
    totals = await source.fetch(TOTALS)
    if await target.fetch(TOTALS) != totals:
        raise CopyFailed(f"The charges in {target.name} are not those of {source.name}. Nothing was copied")
    agrees = all(
        entry_nanos == counted_nanos == requested_nanos
        for _, _, entry_nanos, counted_nanos, requested_nanos, _ in totals
    )
    return CopyReport(counts, mended_count, sum(total[2] for total in totals), agrees)


async def _check_schema(source: CopySource) -> None:
    schema = await source.read_schema()
    if schema > REVISION:
        raise CopyFailed(f"{source.name} is of a newer version: schema {schema}, and this one knows {REVISION}")
    if schema != REVISION:
        state_text = f"has schema {schema}" if schema else "has no tables of a gateway"
        raise CopyFailed(
            f"{source.name} {state_text}; {REVISION} is needed. Start this version of the gateway with it once"
        )


async def _check_empty(target: CopyTarget, tables: Sequence[CopiedTable]) -> None:
    filled_tables = [table.name for table in tables if await target.fetch(f"SELECT 1 FROM {table.name} LIMIT 1")]  # noqa: S608 - our own
    if filled_tables:
        raise CopyFailed(f"{target.name} has data already (in {', '.join(filled_tables[:3])}). Name an empty database")


async def _copy_table(
    source: CopySource, target: CopyTarget, table: CopiedTable, progress: Callable[[str, int], None]
) -> tuple[_Sum, int]:
    written_sum, mended_count = _Sum(), 0
    async for source_rows in source.read_rows(table):
        rows = source_rows
        if target.strict:
            rows = [tuple(mend(row)) for row in source_rows]
            mended_count += sum(old_row != new_row for old_row, new_row in zip(source_rows, rows, strict=True))
        await target.write_rows(table, rows)
        written_sum.add(rows)
        progress(table.name, written_sum.rows)
    return written_sum, mended_count


async def _compare(target: CopyTarget, table: CopiedTable, expected_sum: _Sum) -> None:
    stored_sum = _Sum()
    async for rows in target.read_rows(table):
        stored_sum.add(rows)
    if stored_sum.finish() != expected_sum.finish():
        difference = "the number of rows" if stored_sum.rows != expected_sum.rows else "the checksum"
        raise CopyFailed(f"{target.name}: {difference} of {table.name} is not that of the source. Nothing was copied")
