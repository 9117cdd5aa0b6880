"""The ``nodes`` command: the gateways that use one database."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Sequence

import click

from gateway.cli.admin_client import CliContext, Json, call
from gateway.cli.options import running_command
from gateway.cli.output import print_answer
from gateway.cli.table import Column, print_table
from gateway.cli.text import format_duration, format_moment


def _format_state(node: Json) -> str:
    return f"{node['state']} (this one)" if node["own"] else str(node["state"])


NODES = (
    Column("ID", "id"),
    Column("STATE", _format_state),
    Column("BEAT", lambda node: f"{format_duration(node['beat_age_ms'] / 1000)} ago", right=True),
    Column("STARTED", lambda node: format_moment(node["started_at"]), drop=2),
    Column("VERSION", "version", drop=3),
    Column("CONFIG", "config_digest", drop=4),
    Column("URL", "url", shrinks=True, width=16, usual="-"),
)


@click.command(short_help="List the gateways on the same database.")
@running_command
def nodes(context: CliContext) -> None:
    """List the gateways that use the same database: the live ones, and those that ended within a day.

    A live one beats every two seconds. Another value under CONFIG means that its configuration differs.

    \b
    Examples:
      gateway nodes
      gateway nodes --json
    """
    print_answer(context, call(context, "GET", "nodes"), _print_nodes)


def _print_nodes(listed: Sequence[Json]) -> None:
    print_table(NODES, listed, "This gateway is the only one on its database.")
