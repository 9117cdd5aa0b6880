"""The ``alerts`` commands: list the targets of alerts and the last alerts, and test targets."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Sequence

import click

from gateway.cli.admin_client import call, is_running
from gateway.cli.context import CliContext, CliError, Json
from gateway.cli.options import ListByDefault, exit_unless, running_command
from gateway.cli.output import print_answer
from gateway.cli.table import Column, print_table
from gateway.cli.text import clean, format_moment

_MAX_SHOWN_ALERTS = 10
TARGETS = (
    Column("TARGET", "name", shrinks=True, width=12),
    Column("ADDRESS", "address", shrinks=True, width=16),
    Column("DELIVERED", "delivered", align_right=True),
    Column("FAILED", "failed", align_right=True),
    Column("LAST", lambda target: format_moment(target["last_delivered_at"])),
    Column("ERROR", "last_error", shrinks=True, width=16, hidden_value="-"),
)


@click.group(cls=ListByDefault)
def alerts() -> None:
    """List the targets of alerts and the last alerts, or test a target.

    Targets are the [[alert]] tables of the configuration file.

    \b
    Examples:
      gateway alerts
      gateway alerts test
      gateway alerts test ops-slack
    """


@alerts.command("list")
@running_command
def list_alerts(context: CliContext) -> None:
    """List the targets with their deliveries, and the last alerts since the start."""
    _require_running(context)
    print_answer(context, call(context, "GET", "alerts"), _print_alerts)


@alerts.command("test")
@click.argument("name", required=False)
@running_command
def test_alerts(context: CliContext, name: str | None) -> None:
    """Send a test alert to the target NAME, or to all. Exits with 1 if one did not take it."""
    _require_running(context)
    if name is None:
        test_results = call(context, "POST", "alerts", "test")["data"]
    else:
        test_results = [call(context, "POST", "alerts", name, "test")]
    print_answer(context, {"object": "list", "data": test_results}, lambda _: _print_test_results(test_results))
    exit_unless(all(result["delivered"] for result in test_results))


def _require_running(context: CliContext) -> None:
    if not is_running(context):
        raise CliError(f"No gateway runs with the data folder {context.data}; only a running gateway sends alerts")


def _print_alerts(answer: Json) -> None:
    print_table(TARGETS, answer["targets"], "No targets. Add an [[alert]] to the configuration file.")
    if answer["recent"]:
        click.echo("")
    for alert in answer["recent"][:_MAX_SHOWN_ALERTS]:
        click.echo(f"{format_moment(alert['at'])}  {clean(alert['message'])}")


def _print_test_results(test_results: Sequence[Json]) -> None:
    for result in test_results:
        click.echo(
            f"{result['name']}: " + ("delivered" if result["delivered"] else f"not delivered: {clean(result['error'])}")
        )
