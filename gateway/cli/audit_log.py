"""The command about the audit trail: who changed what."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from gateway.cli.admin_client import CliContext, Json, look
from gateway.cli.options import client_command
from gateway.cli.output import (
    ABSENT,
    Cells,
    format_moment,
    format_usd,
    format_value,
    is_narrow,
    print_answer,
    print_cells,
)

_PAIR = 2


@click.command(short_help="Who changed what?")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="The last N.", metavar="N")
@click.option("--before", type=int, metavar="NO", help="Only older ones than the change of this number.")
@click.option("--account", metavar="NAME", help="Only what was changed of this account.")
@click.option("--actor", metavar="WHO", help="Only by this member, or by: token, file, gateway.")
@click.option("--action", metavar="WHAT", help="Only this: key.created, or key for all that was done to keys.")
@client_command
def changes(place: CliContext, **query: Any) -> None:
    """Who changed what: accounts, keys, channels, members, money, settings. The newest at the end.

    BY is a member, or 'token': whoever has the admin token, which this command uses; 'file': what the configuration
    file declares; 'gateway': the gateway itself. Of what is secret only that it was changed is on record.

    \b
    Examples:
      gateway changes
      gateway changes --account team --action key
      gateway changes --actor ada --limit 100
      gateway changes --json
    """
    listing = look(place, lambda admin: admin.get("audit-trail", query=query))
    print_answer(place, listing, print_changes)


def print_changes(rows: Sequence[Json]) -> None:
    """A table of changes, the newest at the end; a narrow terminal has no room for where they came from."""
    now, left_out = datetime.now(UTC), {"FROM"} if is_narrow() else set()
    cells = [_format_row(row, now) for row in reversed(rows)]
    cells = [{name: text for name, text in cell.items() if name not in left_out} for cell in cells]
    print_cells(cells, "No change is recorded.", rare=("FROM", "CHANGE"))


def _format_row(row: Json, now: datetime) -> Cells:
    at_ms = int(datetime.fromisoformat(row["at"]).timestamp() * 1000)
    return {
        ">NO": str(row["sequence"]),
        "TIME": format_moment(at_ms, now),
        "BY": row["actor"] or row["actor_kind"],
        "FROM": row["address"] or ABSENT,
        "WHAT": row["action"],
        "OF": row["subject"],
        "CHANGE": "; ".join(_format_change(*change) for change in row["detail"].items()) or ABSENT,
    }


def _format_change(name: str, value: Any) -> str:
    """``rpm 60 -> 120``; ``rpm 60`` where there was none; ``api_keys changed``."""
    write, plain = format_usd if name.endswith("_usd") else format_value, name.removesuffix("_usd")
    if not isinstance(value, list) or len(value) != _PAIR:
        return f"{plain} {format_value(value)}"
    before, after = value
    return f"{plain} {write(after)}" if before in (None, "", []) else f"{plain} {write(before)} -> {write(after)}"
