"""Prints usage with bars, credits, forecasts, and the result of the ledger check."""
# ruff: noqa: PLC0415 - rich is imported only to print a table: other commands start faster without it.

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Any

import click

from gateway.cli.table import (
    GAP,
    Column,
    FilledColumn,
    draw,
    fill_column,
    fill_columns,
    fit_columns,
    measure,
    print_table,
)
from gateway.cli.text import ABSENT, Json, clean, format_usd
from gateway.domain.price import NANOS_PER_USD

_LABEL_WIDTH = 24
"""Minimum width of the first column, unless its texts are shorter."""
_MIN_BAR_CHARS, _MAX_BAR_CHARS = 6, 30
_PARTIAL_BLOCKS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
"""Block characters for the eighths of a character cell."""
_KIND_LABELS = {"top_up": "top-up", "set": "set", "orphan": "orphan"}
_EMPTY_USAGE = {
    "requests": 0,
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "cached_tokens": 0,
    "cost_nanos": 0,
    "saved_nanos": 0,
    "cost_usd": 0.0,
    "saved_usd": 0.0,
}
_REMAINDERS = ("unlisted", "other", "unattributed")
"""The fields with the sums of what usage by user, session or tag does not list on lines of its own."""
CREDITS = (
    Column("TIME", "at"),
    Column("KIND", lambda credit: _KIND_LABELS[credit["kind"]]),
    Column("AMOUNT", lambda credit: _format_difference(credit["amount_usd"]), align_right=True),
    Column("REFERENCE", "reference", hidden_value=ABSENT, shrinks=True, width=9),
    Column("NOTE", "note", hidden_value=ABSENT, shrinks=True, width=12),
)


def print_usage(usage: Json) -> None:
    """Print a table of usage with a bar for each row and the total at the end."""
    from rich.console import Console

    axis, lines, total = usage["by"].partition(":")[0], usage["data"], usage["total"]
    lines = [
        *lines,
        *({**rest, axis: f"({name})"} for name in _REMAINDERS if (rest := usage.get(name, {})).get("requests")),
    ]
    period = f"{usage['since']} to {usage['until']} (UTC)"
    if not lines:
        click.echo(f"No usage from {period}.", err=True)
        return
    click.echo(f"Usage from {period}\n")
    if axis == "day":
        lines = list(fill_days(lines))
    elif unlisted_usage := _find_unlisted_usage(lines, total):
        lines = [*lines, {axis: ABSENT, **unlisted_usage}]
    console = Console()
    lines_and_total = [*lines, {**total, axis: "total"}]
    decimals = find_decimals([line["cost_usd"] for line in lines_and_total])
    columns = list_usage_columns(axis, decimals, saves=any(line["saved_nanos"] for line in lines))
    filled_columns, bar_width = fit_usage(fill_columns(columns, lines_and_total), console.width)
    if bar_width:
        bars = format_bars(lines, bar_width, as_text=console.options.ascii_only)
        filled_columns = [*filled_columns, fill_column(Column("", str), [*bars, ""])]
    draw(console, filled_columns, GAP)


def _find_unlisted_usage(lines: Sequence[Json], total: Json) -> Json | None:
    """Return the usage without a row, that is, requests without a channel or model; None if there is none."""
    unlisted_usage = {name: total[name] - sum(line[name] for line in lines) for name in _EMPTY_USAGE}
    if not unlisted_usage["requests"]:
        return None
    costs = {f"{name}_usd": unlisted_usage[f"{name}_nanos"] / NANOS_PER_USD for name in ("cost", "saved")}
    return {**unlisted_usage, **costs}


def list_usage_columns(axis: str, decimals: int, *, saves: bool = False) -> list[Column]:
    """List the columns of a usage table.

    ``decimals`` is the number of decimals of the costs. If ``saves`` is true, a column shows what caches have saved.
    """
    saved_column = Column("SAVED", lambda line: _format_savings(line["saved_usd"], decimals), align_right=True, drop=4)
    return [
        Column(axis.upper(), axis, shrinks=True, width=_LABEL_WIDTH),
        Column("REQUESTS", lambda line: f"{line['requests']:,}", align_right=True, drop=1),
        Column("IN", lambda line: f"{line['prompt_tokens']:,}", align_right=True, drop=2),
        Column("OUT", lambda line: f"{line['completion_tokens']:,}", align_right=True, drop=2),
        Column("CACHED", _format_cached_tokens, align_right=True, drop=3),
        *((saved_column,) if saves else ()),
        Column("COST", lambda line: format_cost(line["cost_usd"], decimals), align_right=True),
    ]


def _format_cached_tokens(line: Json) -> str:
    """Format the cached tokens, and their share of the prompts from 1 % on: ``1,200 (80%)``."""
    cached_tokens = line["cached_tokens"]
    percent = 100 * cached_tokens // max(line["prompt_tokens"], 1)
    return f"{cached_tokens:,} ({percent}%)" if percent else f"{cached_tokens:,}"


def _format_savings(amount: float, decimals: int) -> str:
    """Format what caches have saved, in dollars; negative if they cost more."""
    return ("-" if amount < 0 else "") + format_cost(abs(amount), decimals)


def fill_days(lines: Sequence[Json]) -> Iterator[Json]:
    """Yield ``lines``, at least one, with a line without usage for each missing day between them."""
    expected_day = date.fromisoformat(lines[0]["day"])
    for line in lines:
        usage_day = date.fromisoformat(line["day"])
        while expected_day < usage_day:
            yield {"day": expected_day.isoformat(), **_EMPTY_USAGE}
            expected_day += timedelta(days=1)
        yield line
        expected_day = usage_day + timedelta(days=1)


def fit_usage(filled_columns: list[FilledColumn], width: int) -> tuple[list[FilledColumn], int]:
    """Return the columns that fit into ``width``, and the width of the bars; 0 means no room for bars."""
    filled_columns, _ = fit_columns(filled_columns, width - GAP - _MIN_BAR_CHARS, GAP)
    if measure(filled_columns, GAP) > width - GAP - _MIN_BAR_CHARS:
        return filled_columns, 0
    bar_width = (
        width - GAP - measure(filled_columns, GAP) - (filled_columns[0].natural_width - filled_columns[0].min_width)
    )
    return filled_columns, max(_MIN_BAR_CHARS, min(_MAX_BAR_CHARS, bar_width))


def format_bars(lines: Sequence[Json], width: int, *, as_text: bool) -> list[str]:
    """Return a bar for each line's cost, or for its requests if all costs are 0. With ``as_text`` bars are ASCII."""
    field = "cost_nanos" if any(line["cost_nanos"] for line in lines) else "requests"
    max_amount = max(line[field] for line in lines)
    return [_format_bar(line[field], max_amount, width, as_text=as_text) for line in lines]


def _format_bar(amount: int, max_amount: int, width: int, *, as_text: bool) -> str:
    if not amount or not width:
        return ""
    if as_text:
        return "#" * max(1, width * amount // max_amount)
    blocks, eighths = divmod(max(1, width * len(_PARTIAL_BLOCKS) * amount // max_amount), len(_PARTIAL_BLOCKS))
    return "█" * blocks + _PARTIAL_BLOCKS[eighths]


def find_decimals(costs: Sequence[float]) -> int:
    """Return the number of decimals for a table's costs. The last cost is the total; larger totals get fewer."""
    total = costs[-1]
    max_decimals = 4 if total >= 1 else 6 if total >= 0.01 else 9  # noqa: PLR2004 - a dollar, a cent
    if any(0 < cost < 10**-max_decimals for cost in costs):
        return max_decimals
    return max(2, *(len(f"{cost:.{max_decimals}f}".rstrip("0").partition(".")[2]) for cost in costs))


def format_cost(amount: float, decimals: int) -> str:
    """Format dollars. An amount too small for ``decimals`` is shown as ``<$0.0001``."""
    min_shown = 10**-decimals
    return f"<${min_shown:.{decimals}f}" if 0 < amount < min_shown else f"${amount:,.{decimals}f}"


def print_credit(owner_text: str, credit_answer: Json) -> None:
    """Print the effect of a top-up or a new balance, and the remaining amount."""
    amount, reference = credit_answer["amount_usd"], credit_answer["reference"]
    if not credit_answer["added"]:
        credit = f"{_KIND_LABELS[credit_answer['kind']]} of {_format_difference(amount)} at {credit_answer['at']}"
        message = f"Nothing changed: the reference '{reference}' was used before, for the {credit}"
    elif credit_answer["kind"] == "set":
        message = f"The balance of {owner_text} is set ({_format_difference(amount)})"
    else:
        message = (
            f"Added {format_usd(amount)} to {owner_text}"
            if amount >= 0
            else f"Took {format_usd(-amount)} from {owner_text}"
        )
    click.echo(clean(f"{message}. {_format_balance(credit_answer)}."))


def _format_balance(credit_answer: Json) -> str:
    held_text = (
        f", and {format_usd(credit_answer['held_usd'])} is held for running requests"
        if credit_answer["held_usd"]
        else ""
    )
    reset_text = f" until {credit_answer['resets_at']}" if credit_answer["resets_at"] else ""
    return f"{format_usd(credit_answer['left_usd'])} is left{reset_text}{held_text}"


def _format_difference(amount: float) -> str:
    return f"{'+' if amount >= 0 else ''}{format_usd(amount)}"


def print_credits(rows: Sequence[Json]) -> None:
    """Print a table of credits."""
    print_table(CREDITS, rows, "No credits recorded.")


def _format_minute(moment: str | None) -> str:
    """Format a time of the admin API: ``2027-01-31 12:00``; ``-`` for None."""
    return ABSENT if moment is None else moment[:16].replace("T", " ")


def _name_limit(forecast: Json) -> str:
    name = f"{forecast['owner']} {forecast['name']}"
    subject = f"{forecast['subject']} of {name}" if forecast["subject"] else name
    return f"{subject} ({forecast['limit']})" if forecast["limit"] else subject


def _format_reached(forecast: Json) -> str:
    if forecast["spent_usd"] >= forecast["limit_usd"]:
        return "used up"
    if forecast["reached_at"] is None:
        return "not within a year" if forecast["ends_at"] is None else "not in this period"
    return _format_minute(forecast["reached_at"])


FORECASTS = (
    Column("QUOTA OF", _name_limit, shrinks=True, width=16),
    Column("SPENT", lambda forecast: format_usd(forecast["spent_usd"]), align_right=True),
    Column("LIMIT", lambda forecast: format_usd(forecast["limit_usd"]), align_right=True),
    Column("UNTIL", lambda forecast: _format_minute(forecast["ends_at"]), hidden_value=ABSENT, drop=1),
    Column("EXPECTED", lambda forecast: format_usd(forecast["expected_usd"]), align_right=True, hidden_value=ABSENT),
    Column("REACHED", _format_reached),
    Column("BY", lambda forecast: forecast["basis"].replace("_", " ").replace("window", "period"), drop=2),
)


def print_forecasts(rows: Sequence[Json]) -> None:
    """Print a table of the forecasts of quotas and limits."""
    print_table(FORECASTS, rows, "No key or account with a quota.")


def print_audit(report: Json) -> None:
    """Print the result of the ledger check."""
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
    if report["overruns"]:
        click.echo("\nExceeded limits:\n")
        click.echo("\n".join(f"  {clean(overrun)}" for overrun in report["overruns"]))
