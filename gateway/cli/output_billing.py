"""Prints usage with its bars, credits, and the result of an audit."""
# ruff: noqa: PLC0415 - rich is imported where a table is printed.

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Any

import click

from gateway.cli.table import GAP, Column, FilledColumn, draw, fill, fill_column, fit, measure, print_table
from gateway.cli.text import ABSENT, Json, clean, format_usd

_LABEL_WIDTH = 24
"""The least width of the first column, unless its texts are shorter."""
_MIN_BAR, _MAX_BAR = 6, 30
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
"""Eighths of a character."""
_KINDS = {"top_up": "top-up", "set": "set", "orphan": "orphan"}
_UNUSED = {
    "requests": 0,
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "cached_tokens": 0,
    "cost_nanos": 0,
    "cost_usd": 0.0,
}
CREDITS = (
    Column("TIME", "at"),
    Column("KIND", lambda credit: _KINDS[credit["kind"]]),
    Column("AMOUNT", lambda credit: _format_difference(credit["amount_usd"]), right=True),
    Column("REFERENCE", "reference", usual=ABSENT, shrinks=True, width=9),
    Column("NOTE", "note", usual=ABSENT, shrinks=True, width=12),
)


def print_usage(usage: Json) -> None:
    """Print a table of usage: a bar for each row, and the total at the end."""
    from rich.console import Console

    axis, lines, total = usage["by"], usage["data"], usage["total"]
    period = f"{usage['since']} to {usage['until']} (UTC)"
    if not lines:
        click.echo(f"No usage from {period}.", err=True)
        return
    click.echo(f"Usage from {period}\n")
    if axis == "day":
        lines = list(fill_days(lines))
    console = Console()
    filled, bar = fit_usage(
        fill(list_usage_columns(axis, total["cost_usd"]), [*lines, {**total, axis: "total"}]), console.width
    )
    if bar:
        bars = format_bars(lines, bar, plain=console.options.ascii_only)
        filled = [*filled, fill_column(Column("", str), [*bars, ""])]
    draw(console, filled, GAP)


def list_usage_columns(axis: str, total_usd: float) -> list[Column]:
    """List the columns of a usage table; ``total_usd`` decides on the decimals of the costs."""
    return [
        Column(axis.upper(), axis, shrinks=True, width=_LABEL_WIDTH),
        Column("REQUESTS", lambda line: f"{line['requests']:,}", right=True, drop=1),
        Column("IN", lambda line: f"{line['prompt_tokens']:,}", right=True, drop=2),
        Column("OUT", lambda line: f"{line['completion_tokens']:,}", right=True, drop=2),
        Column("CACHED", lambda line: f"{line['cached_tokens']:,}", right=True, drop=3),
        Column("COST", lambda line: format_cost(line["cost_usd"], total_usd), right=True),
    ]


def fill_days(lines: Sequence[Json]) -> Iterator[Json]:
    """Yield ``lines``, and one without usage for each day between them."""
    expected = date.fromisoformat(lines[0]["day"])
    for line in lines:
        used = date.fromisoformat(line["day"])
        while expected < used:
            yield {"day": expected.isoformat(), **_UNUSED}
            expected += timedelta(days=1)
        yield line
        expected = used + timedelta(days=1)


def fit_usage(filled: list[FilledColumn], width: int) -> tuple[list[FilledColumn], int]:
    """Return the columns that fit into ``width``, and the width of their bars; 0: there is no room for bars."""
    filled, _ = fit(filled, width - GAP - _MIN_BAR, GAP)
    if measure(filled, GAP) > width - GAP - _MIN_BAR:
        return filled, 0
    rest = width - GAP - measure(filled, GAP) - (filled[0].natural - filled[0].least)
    return filled, max(_MIN_BAR, min(_MAX_BAR, rest))


def format_bars(lines: Sequence[Json], width: int, *, plain: bool) -> list[str]:
    """Return a bar for each line, relative to the highest cost; if all costs are 0, to the most requests.

    Any amount above 0 gets a visible bar. ``plain``: use ASCII only.
    """
    field = "cost_nanos" if any(line["cost_nanos"] for line in lines) else "requests"
    most = max(line[field] for line in lines)
    return [_format_bar(line[field], most, width, plain=plain) for line in lines]


def _format_bar(amount: int, most: int, width: int, *, plain: bool) -> str:
    if not amount or not width:
        return ""
    if plain:
        return "#" * max(1, width * amount // most)
    whole, part = divmod(max(1, width * len(_EIGHTHS) * amount // most), len(_EIGHTHS))
    return "█" * whole + _EIGHTHS[part]


def format_cost(amount: float, total: float) -> str:
    """Format dollars with the decimals that all amounts of a table with this ``total`` have.

    A smaller amount is shown as ``<$0.0001``.
    """
    if total >= 1:
        decimals = 4
    elif total >= 0.01:  # noqa: PLR2004 - a cent
        decimals = 6
    else:
        decimals = 9 if total else 2
    least = 10**-decimals
    return f"<${least:.{decimals}f}" if 0 < amount < least else f"${amount:,.{decimals}f}"


def print_credit(whose: str, credited: Json) -> None:
    """Print what a top-up or a new balance changed, and the remaining amount."""
    amount, reference = credited["amount_usd"], credited["reference"]
    if not credited["added"]:
        known = f"{_KINDS[credited['kind']]} of {_format_difference(amount)} at {credited['at']}"
        done = f"Nothing changed: the reference '{reference}' was used before, for the {known}"
    elif credited["kind"] == "set":
        done = f"The balance of {whose} is set ({_format_difference(amount)})"
    else:
        done = f"Added {format_usd(amount)} to {whose}" if amount >= 0 else f"Took {format_usd(-amount)} from {whose}"
    click.echo(clean(f"{done}. {_format_balance(credited)}."))


def _format_balance(credited: Json) -> str:
    held = f", and {format_usd(credited['held_usd'])} is held for running requests" if credited["held_usd"] else ""
    until = f" until {credited['resets_at']}" if credited["resets_at"] else ""
    return f"{format_usd(credited['left_usd'])} is left{until}{held}"


def _format_difference(amount: float) -> str:
    return f"{'+' if amount >= 0 else ''}{format_usd(amount)}"


def print_credits(credited: Sequence[Json]) -> None:
    """Print a table of credits."""
    print_table(CREDITS, credited, "No credits recorded.")


def print_audit(report: Json) -> None:
    """Print the result of an audit."""
    if not report["ok"]:
        click.echo("The ledger does not match:\n")
        click.echo("\n".join(f"  {clean(problem)}" for problem in report["problems"]))
        return
    facts: tuple[tuple[str, Any], ...] = (
        ("balances", report["purses"]),
        ("charged", format_usd(report["charged_usd"])),
        ("reserved", f"{report['open_holds'] + report['video_holds']} ({format_usd(report['held_usd'])})"),
        ("by videos", f"{report['video_holds']} ({format_usd(report['video_held_usd'])})"),
        ("not written", f"{report['waiting_rows']} requests"),
    )
    click.echo("The ledger is correct: every balance is the sum of its entries.\n")
    for name, value in facts:
        click.echo(f"  {name:<13}{value}")
