"""The ``sinks`` commands: list the sinks of requests and how far their deliveries are, and test a sink."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Sequence

import click

from gateway.cli.admin_client import call, is_running
from gateway.cli.context import CliContext, CliError, Json
from gateway.cli.options import ListByDefault, exit_unless, running_command
from gateway.cli.output import print_answer
from gateway.cli.table import Column, print_table
from gateway.cli.text import clean, format_moment

SINKS = (
    Column("SINK", "name", shrinks=True, width=12),
    Column("KIND", "kind"),
    Column("ADDRESS", "address", shrinks=True, width=16),
    Column("FIELDS", "fields"),
    Column("DELIVERED", "delivered", align_right=True),
    Column("LOST", "lost", align_right=True),
    Column("LAG", lambda sink: f"{sink['lag_s']} s", align_right=True),
    Column("LAST", lambda sink: format_moment(sink["last_delivered_at"])),
    Column("ERROR", "last_error", shrinks=True, width=16, hidden_value="-"),
)


@click.group(cls=ListByDefault)
def sinks() -> None:
    """List the sinks of requests, or test one.

    Sinks are the [[sink]] tables of the configuration file.

    \b
    Examples:
      gateway sinks
      gateway sinks test langfuse
    """


@sinks.command("list")
@running_command
def list_sinks(context: CliContext) -> None:
    """List the sinks, with what they have delivered and lost, and how far they are behind."""
    _require_running(context)
    print_answer(context, call(context, "GET", "sinks"), _print_sinks)


@sinks.command("test")
@click.argument("name")
@running_command
def test_sink(context: CliContext, name: str) -> None:
    """Send the sink NAME a sample, and print the answer. Exits with 1 if the sink did not take it."""
    _require_running(context)
    result = call(context, "POST", "sinks", name, "test")
    print_answer(context, result, _print_result)
    exit_unless(result["delivered"])


def _require_running(context: CliContext) -> None:
    if not is_running(context):
        raise CliError(f"No gateway runs with the data folder {context.data}; only a running gateway delivers")


def _print_sinks(sink_rows: Sequence[Json]) -> None:
    print_table(SINKS, sink_rows, "No sinks. Add a [[sink]] to the configuration file.")


def _print_result(result: Json) -> None:
    state = "delivered" if result["delivered"] else "not delivered"
    click.echo(f"{result['name']}: {state}: {clean(result['answer'])}")
