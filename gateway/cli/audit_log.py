"""The ``audit-log`` command."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Sequence
from typing import Any

import click

from gateway.cli.admin_client import run
from gateway.cli.context import CliContext, Json
from gateway.cli.options import client_command, limit_option
from gateway.cli.output import print_answer
from gateway.cli.table import Column, print_table
from gateway.cli.text import ABSENT, format_change, format_moment, format_usd, format_value

_PAIR_LENGTH = 2


def format_detail(row: Json) -> str:
    """Format the changed fields in the ``detail`` of ``row``, with their values before and after; ``-`` for none."""
    return "; ".join(_format_change(*change) for change in row["detail"].items()) or ABSENT


def _format_change(name: str, value: Any) -> str:
    """Format a change: ``rpm 60 → 120``, ``rpm 60`` without a former value, or ``api_keys changed`` for a secret."""
    if isinstance(value, list) and len(value) == _PAIR_LENGTH:
        old_value, new_value = value
        if old_value not in (None, "", []):
            return format_change(name, old_value, new_value)
        value = new_value
    label = name.removesuffix("_usd")
    return f"{label.replace('_', ' ')} {format_value(value) if label == name else format_usd(value)}"


CHANGES = (
    Column("NO", "sequence", align_right=True),
    Column("TIME", lambda row: format_moment(row["at"])),
    Column("BY", lambda row: row["actor"] or row["actor_kind"], shrinks=True, width=8),
    Column("FROM", "address", hidden_value=ABSENT, drop=1),
    Column("WHAT", "action"),
    Column("OF", "subject", shrinks=True, width=12),
    Column("CHANGE", format_detail, hidden_value=ABSENT, shrinks=True, width=20),
)


@click.command("audit-log", short_help="Show the audit log.")
@limit_option
@click.option("--before", type=int, metavar="NO", help="Only changes before this number.")
@click.option("--account", metavar="NAME", help="Only changes of this account.")
@click.option("--actor", metavar="WHO", help="Only changes by this member, or by: token, file, gateway.")
@click.option("--action", metavar="WHAT", help="Only this action, such as key.created; key: all actions on keys.")
@client_command
def audit_log(context: CliContext, **query: Any) -> None:
    """Show the audit log: who changed accounts, keys, channels, members, money and settings. Newest last.

    BY is a member, or 'token': the admin token, which this command uses; 'file': the configuration file; 'gateway': the
    gateway itself. Values of secrets are not recorded.

    \b
    Examples:
      gateway audit-log
      gateway audit-log --account team --action key
      gateway audit-log --actor ada --limit 100
      gateway audit-log --json
    """
    listing = run(context, lambda admin: admin.get("audit-trail", query=query))
    print_answer(context, listing, print_changes)


def print_changes(rows: Sequence[Json]) -> None:
    """Print a table of changes, newest last. The ``rows`` come newest first."""
    print_table(CHANGES, rows[::-1], "No changes recorded.")
