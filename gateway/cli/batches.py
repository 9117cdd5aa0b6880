"""The ``batches`` commands: list, show and cancel batches."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Sequence
from typing import Any

import click

from gateway.cli.admin_client import run
from gateway.cli.context import CliContext
from gateway.cli.objects import call_object
from gateway.cli.options import ListByDefault, client_command, limit_option
from gateway.cli.output import print_answer, print_fields
from gateway.cli.table import Column, print_table
from gateway.cli.text import Json, format_moment, format_value

BATCHES = (
    Column("TIME", lambda batch: format_moment(batch["created_at"])),
    Column("ID", "id"),
    Column("ACCOUNT", "account", drop=3),
    Column("MODEL", lambda batch: format_value(batch["model"]), shrinks=True, width=8, drop=2),
    Column("STATUS", "status", status=True),
    Column("DONE", lambda batch: f"{batch['completed']}/{batch['total']}", align_right=True),
    Column("FAILED", lambda batch: str(batch["failed"] or "-"), align_right=True, drop=1),
)
ERRORS = (
    Column("LINE", lambda error: format_value(error["line"]), align_right=True),
    Column("CODE", "code"),
    Column("MESSAGE", "message", shrinks=True, width=24),
)


@click.group(cls=ListByDefault)
def batches() -> None:
    """List and cancel the batches of all accounts.

    \b
    Examples:
      gateway batches
      gateway batches --live
      gateway batches --status failed --account team
      gateway batches show batch_0123456789abcdef0123456789abcdef
      gateway batches cancel batch_0123456789abcdef0123456789abcdef
    """


@batches.command("list")
@limit_option
@click.option("--account", metavar="NAME", help="Only batches of this account.")
@click.option("--status", metavar="WORD", help="Only batches with this status, such as in_progress or failed.")
@click.option("--live", is_flag=True, help="Only batches that have not ended.")
@client_command
def list_batches(context: CliContext, *, live: bool, **query: Any) -> None:
    """List the last batches, newest last. DONE counts answered requests, FAILED those with an error."""
    parameters = {**query, "live": "true" if live else None}
    listing = run(context, lambda admin: admin.get("batches", query=parameters))
    print_answer(context, listing, lambda rows: _print_batches(rows[::-1]))


@batches.command("show")
@click.argument("batch_id", metavar="ID")
@client_command
def show_batch(context: CliContext, batch_id: str) -> None:
    """Show a batch with its cost and its errors."""
    print_answer(context, call_object(context, "GET", "batches", batch_id), _print_batch)


@batches.command("cancel")
@click.argument("batch_id", metavar="ID")
@client_command
def cancel_batch(context: CliContext, batch_id: str) -> None:
    """Cancel the batch ID: requests under way may finish, and no other begins."""
    batch = call_object(context, "POST", "batches", batch_id, "cancel")
    print_answer(context, batch, lambda _: click.echo(f"The batch {batch['id']} is {batch['status']}."))


def _print_batches(rows: Sequence[Json]) -> None:
    print_table(BATCHES, rows, "No batches recorded.")


def _print_batch(batch: Json) -> None:
    print_fields({name: value for name, value in batch.items() if name != "errors"})
    if batch["errors"]:
        click.echo()
        print_table(ERRORS, batch["errors"], "")
