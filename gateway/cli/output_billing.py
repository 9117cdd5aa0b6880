"""What the command prints for people about money: usage with its bars, credits, and the audit."""
# ruff: noqa: PLC0415 - rich is imported where a table is printed.

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Any

import click

from gateway.cli.output import ABSENT, Cells, Json, clean, format_usd, print_cells, print_table

_FEWER_COLUMNS: tuple[tuple[str, ...], ...] = (
    (),
    (">CACHED",),
    (">IN", ">OUT", ">CACHED"),
    (">REQUESTS", ">IN", ">OUT", ">CACHED"),
)
"""What is left out of a table of usage, as a terminal becomes narrower."""
_GAP = 2
_LEAST_LABEL = 24
_LEAST_BAR, _MOST_BAR = 6, 30
_PARTS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
"""Eighths of a column."""
_KINDS = {"top_up": "top-up", "set": "set"}
_UNUSED = {
    "requests": 0,
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "cached_tokens": 0,
    "cost_nanos": 0,
    "cost_usd": 0.0,
}


def print_usage(usage: Json) -> None:
    """A table of usage: a bar a row, and the total at the end."""
    from rich.console import Console

    axis, lines = usage["by"], usage["data"]
    range_ = f"{usage['since']} to {usage['until']} (UTC)"
    if not lines:
        click.echo(f"No usage from {range_}.", err=True)
        return
    click.echo(f"Usage from {range_}\n")
    if axis == "day":
        lines = list(fill_days(lines))
    console = Console()
    total = usage["total"]
    cells = [{axis.upper(): label, **_format_line(line, total)} for label, line in _label(lines, axis, total)]
    columns, room = fit_columns(cells, console.width)
    rows = [[cell[name] for name in columns] for cell in cells]
    if room:
        columns = [*columns, ""]
        for row, bar in zip(rows, [*format_bars(lines, room, plain=console.options.ascii_only), ""], strict=True):
            row.append(bar)
    print_table(columns, rows, "", gap=_GAP)


def fill_days(lines: Sequence[Json]) -> Iterator[Json]:
    """The lines, and one for each day between them that has none."""
    expected = date.fromisoformat(lines[0]["day"])
    for line in lines:
        used = date.fromisoformat(line["day"])
        while expected < used:
            yield {"day": expected.isoformat(), **_UNUSED}
            expected += timedelta(days=1)
        yield line
        expected = used + timedelta(days=1)


def fit_columns(cells: Sequence[Cells], width: int) -> tuple[list[str], int]:
    """The columns that a terminal of ``width`` has room for, and how wide their bars may be; 0: no room for any.

    The first column, which is folded where it has to be, gets what it wants before the bars get more than the least.
    """
    from rich.cells import cell_len

    def measure(name: str) -> int:
        return max(cell_len(name.removeprefix(">")), *(cell_len(clean(cell[name])) for cell in cells))

    label, *numbers = cells[0]
    wanted, columns = measure(label), [label]
    for left_out in _FEWER_COLUMNS:
        columns = [label, *(name for name in numbers if name not in left_out)]
        room = width - sum(measure(name) for name in columns[1:]) - _GAP * len(columns)
        if room >= min(wanted, _LEAST_LABEL) + _LEAST_BAR:
            return columns, max(_LEAST_BAR, min(_MOST_BAR, room - wanted))
    return columns, 0


def format_bars(lines: Sequence[Json], width: int, *, plain: bool) -> list[str]:
    """A bar a line: its share of the largest cost, or where nothing costs anything of the most requests.

    Whatever is more than nothing shows. ``plain``: in a mark that every terminal has.
    """
    measure = "cost_nanos" if any(line["cost_nanos"] for line in lines) else "requests"
    most = max(line[measure] for line in lines)
    return [_format_bar(line[measure], most, width, plain=plain) for line in lines]


def _format_bar(amount: int, most: int, width: int, *, plain: bool) -> str:
    if not amount or not width:
        return ""
    if plain:
        return "#" * max(1, width * amount // most)
    whole, part = divmod(max(1, width * len(_PARTS) * amount // most), len(_PARTS))
    return "█" * whole + _PARTS[part]


def _label(lines: Sequence[Json], axis: str, total: Json) -> Iterator[tuple[str, Json]]:
    for line in lines:
        yield line[axis] or ABSENT, line
    yield "total", total


def _format_line(line: Json, total: Json) -> Cells:
    return {
        ">REQUESTS": f"{line['requests']:,}",
        ">IN": f"{line['prompt_tokens']:,}",
        ">OUT": f"{line['completion_tokens']:,}",
        ">CACHED": f"{line['cached_tokens']:,}",
        ">COST": format_cost(line["cost_usd"], total["cost_usd"]),
    }


def format_cost(amount: float, total: float) -> str:
    """Dollars with as many decimals as every amount of a table with this ``total``, so that they can be compared.

    What is too little for those decimals says so.
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
    """What a credit did, and what is left now."""
    amount, reference = credited["amount_usd"], credited["reference"]
    if not credited["added"]:
        known = f"{_KINDS[credited['kind']]} of {_format_change(amount)} at {credited['at']}"
        done = f"Nothing is changed: the reference {reference!r} is known, for the {known}"
    elif credited["kind"] == "set":
        done = f"The balance of {whose} is set ({_format_change(amount)})"
    else:
        done = f"Added {format_usd(amount)} to {whose}" if amount >= 0 else f"Took {format_usd(-amount)} from {whose}"
    click.echo(clean(f"{done}. {_format_rest(credited)}."))


def _format_rest(credited: Json) -> str:
    held = f", and {format_usd(credited['held_usd'])} is held for running requests" if credited["held_usd"] else ""
    until = f" until {credited['resets_at']}" if credited["resets_at"] else ""
    return f"{format_usd(credited['left_usd'])} is left{until}{held}"


def _format_change(amount: float) -> str:
    return f"{'+' if amount >= 0 else ''}{format_usd(amount)}"


def print_credits(credited: Sequence[Json]) -> None:
    """A table of credits."""
    cells = [
        {
            "TIME": credit["at"],
            "KIND": _KINDS[credit["kind"]],
            ">AMOUNT": _format_change(credit["amount_usd"]),
            "REFERENCE": credit["reference"] or ABSENT,
            "NOTE": credit["note"] or ABSENT,
        }
        for credit in credited
    ]
    print_cells(cells, "No credit is recorded.", rare=("REFERENCE", "NOTE"))


def print_audit(report: Json) -> None:
    """What an audit found."""
    if not report["ok"]:
        click.echo("The books do not agree:\n")
        click.echo("\n".join(f"  {clean(problem)}" for problem in report["problems"]))
        return
    facts: tuple[tuple[str, Any], ...] = (
        ("balances", report["purses"]),
        ("charged", format_usd(report["charged_usd"])),
        ("open holds", f"{report['open_holds'] + report['video_holds']} ({format_usd(report['held_usd'])})"),
        ("of videos", f"{report['video_holds']} ({format_usd(report['video_held_usd'])})"),
        ("not written", f"{report['waiting_rows']} requests"),
    )
    click.echo("The books agree: every balance is the sum of its entries.\n")
    for name, value in facts:
        click.echo(f"  {name:<13}{value}")
