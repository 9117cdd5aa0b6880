"""Tables of the commands: column definitions, and a renderer that fits them to the width of the terminal.

If a table is too wide, columns are left out, texts wrap between words, and long words are cut off with ``…``.
"""
# ruff: noqa: PLC0415 - rich is imported only to print a table: other commands start faster without it.

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from gateway.cli.text import clean, format_value
from gateway.frozen import frozen

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2
_WIDE_COLUMN = 40
"""If columns of up to this width cannot be shown whole, the gaps become narrower and columns may be left out."""
_COLORS = {
    "active": "green",
    "completed": "green",
    "delivered": "green",
    "ok": "green",
    "healthy": "green",
    "disabled": "yellow",
    "expired": "yellow",
    "recovering": "yellow",
    "untested": "yellow",
    "healthy,": "yellow",
    "cooling": "red",
    "failing": "red",
    "failing,": "red",
    "failed": "red",
    "interrupted": "red",
    "refused": "yellow",
    "blocked": "yellow",
}
"""Color of each status, by the status's first word."""


def _build_reader(reader: str | Callable[[Any], str]) -> Callable[[Any], str]:
    return (lambda row: format_value(row[reader])) if isinstance(reader, str) else reader


@frozen(eq=False)
class Column:
    """One column of a table.

    Attributes:
        read: returns the text of a cell; a string is the name of the field to format.
        width: the minimum width if the column ``shrinks``; in ``format_line``, the width of any column.
        shrinks: whether texts may wrap between words and long words may be cut.
        hidden_value: the column is left out if all cells have this text.
        drop: the order in which columns are left out on a narrow terminal, highest first; 0 means never.
        status: whether to color the text by its first word.
    """

    title: str
    read: Callable[[Any], str] = attrs.field(converter=_build_reader)
    align_right: bool = attrs.field(default=False, kw_only=True)
    width: int = attrs.field(default=0, kw_only=True)
    shrinks: bool = attrs.field(default=False, kw_only=True)
    hidden_value: str | None = attrs.field(default=None, kw_only=True)
    drop: int = attrs.field(default=0, kw_only=True)
    status: bool = attrs.field(default=False, kw_only=True)


@frozen
class FilledColumn:
    """A column with its cells and their maximum width, including the title."""

    column: Column
    cells: Sequence[str]
    natural_width: int

    @property
    def min_width(self) -> int:
        """The minimum width to which the column can shrink."""
        return (
            min(self.natural_width, max(self.column.width, len(self.column.title)))
            if self.column.shrinks
            else self.natural_width
        )


def print_table(columns: Sequence[Column], rows: Sequence[Any], empty_text: str) -> None:
    """Print ``rows`` as a table without borders; without rows, print ``empty_text`` to standard error."""
    if not rows:
        click.echo(empty_text, err=True)
        return
    from rich.console import Console

    console = Console(highlight=False)
    filled_columns, gap = fit_columns(fill_columns(columns, rows), console.width)
    draw(console, filled_columns, gap)


def fill_columns(columns: Sequence[Column], rows: Sequence[Any]) -> list[FilledColumn]:
    """Read the cells of all columns, and leave out columns of which every cell has the ``hidden_value``."""
    filled_columns = [fill_column(column, [clean(column.read(row)) for row in rows]) for column in columns]
    return [
        filled_column
        for filled_column in filled_columns
        if filled_column.column.hidden_value is None
        or any(cell != filled_column.column.hidden_value for cell in filled_column.cells)
    ]


def fill_column(column: Column, cells: Sequence[str]) -> FilledColumn:
    """Return a column with its cells' display width: some characters take two columns of the terminal."""
    from rich.cells import cell_len

    return FilledColumn(column, cells, max(map(cell_len, (column.title, *cells))))


def fit_columns(filled_columns: list[FilledColumn], width: int, min_gap: int = 1) -> tuple[list[FilledColumn], int]:
    """Return the columns that fit into ``width``, and the gap between columns, which is at least ``min_gap``."""
    if (
        sum(
            max(filled_column.min_width, min(filled_column.natural_width, _WIDE_COLUMN))
            for filled_column in filled_columns
        )
        + GAP * (len(filled_columns) - 1)
        <= width
    ):
        return filled_columns, GAP
    ranks = sorted({filled_column.column.drop for filled_column in filled_columns} - {0})
    while ranks and measure(filled_columns, min_gap) > width:
        rank = ranks.pop()
        filled_columns = [filled_column for filled_column in filled_columns if filled_column.column.drop != rank]
    return filled_columns, min_gap


def measure(filled_columns: Sequence[FilledColumn], gap: int) -> int:
    """Return the minimum width of a table."""
    return sum(filled_column.min_width for filled_column in filled_columns) + gap * (len(filled_columns) - 1)


def draw(console: "Console", filled_columns: Sequence[FilledColumn], gap: int) -> None:
    """Print columns that already fit the width of ``console``."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for filled_column, width in zip(
        filled_columns, find_widths(filled_columns, console.width - measure(filled_columns, gap)), strict=True
    ):
        table.add_column(
            filled_column.column.title,
            justify="right" if filled_column.column.align_right else "left",
            overflow="ellipsis",
            no_wrap=not filled_column.column.shrinks,
            width=width,
        )
    for row in zip(*(filled_column.cells for filled_column in filled_columns), strict=True):
        cells = zip(filled_columns, row, strict=True)
        table.add_row(
            *(
                Text(cell, style=find_color(cell) if filled_column.column.status else "")
                for filled_column, cell in cells
            )
        )
    console.print(table)


def find_widths(filled_columns: Sequence[FilledColumn], spare_width: int) -> list[int]:
    """Return the width of each column: the minimum, and a share of ``spare_width``, up to the width of its texts.

    If ``spare_width`` is negative, the widest of the columns that may shrink become narrower.
    """
    widths = [filled_column.min_width for filled_column in filled_columns]
    shrinking_indices = [index for index, filled_column in enumerate(filled_columns) if filled_column.column.shrinks]
    while spare_width < 0 and any(widths[index] > 1 for index in shrinking_indices):
        widths[max(shrinking_indices, key=widths.__getitem__)] -= 1
        spare_width += 1
    indices_by_need = sorted(
        range(len(filled_columns)), key=lambda index: filled_columns[index].natural_width - widths[index]
    )
    for served_count, index in enumerate(indices_by_need):
        added_width = min(
            filled_columns[index].natural_width - widths[index],
            max(0, spare_width) // (len(indices_by_need) - served_count),
        )
        widths[index] += added_width
        spare_width -= added_width
    return widths


def find_color(status: str) -> str:
    """Return the color of a status by its first word; empty for an unknown word."""
    return _COLORS.get(status.partition(" ")[0], "")


def format_line(columns: Sequence[Column], row: Any | None = None) -> str:
    """Format a row, or the titles, for a growing table. A long cell shifts the following cells.

    Columns without a ``width`` are left out.
    """
    if row is None:
        return click.style(_align([(column, column.title) for column in columns if column.width]), bold=True)
    return _align([(column, clean(column.read(row))) for column in columns if column.width])


def _align(texts: Sequence[tuple[Column, str]]) -> str:
    cells = []
    for column, text in texts:
        padding = " " * max(0, column.width - len(text))
        shown_text = click.style(text, fg=find_color(text)) if column.status and find_color(text) else text
        cells.append(padding + shown_text if column.align_right else shown_text + padding)
    return " ".join(cells).rstrip()
