"""The ``nodes`` commands: list the gateways on one database and lost changes, and settle a lost gateway's credit."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Sequence
from typing import Literal

import click

from gateway.cli.admin_client import call
from gateway.cli.audit_log import format_detail
from gateway.cli.context import CliContext, Json
from gateway.cli.options import ListByDefault, running_command
from gateway.cli.output import print_answer
from gateway.cli.table import Column, print_table
from gateway.cli.text import ABSENT, format_duration, format_moment, format_usd


def _format_state(node: Json) -> str:
    flags = (("this one", node["own"]), ("leader", node["leads"]), ("configuration differs", node["config_differs"]))
    labels = [label for label, is_set in flags if is_set]
    return f"{node['state']} ({', '.join(labels)})" if labels else str(node["state"])


NODES = (
    Column("ID", "id"),
    Column("STATE", _format_state),
    Column("BEAT", lambda node: f"{format_duration(node['beat_age_ms'] / 1000)} ago", align_right=True),
    Column("CLOCK", lambda node: f"{node['clock_offset_ms']:+} ms", align_right=True, drop=5),
    Column("ACTIVE", "active_requests", align_right=True, drop=6),
    Column("WAITING", "waiting_rows", align_right=True, drop=4),
    Column("CREDIT", lambda node: format_usd(node["outstanding_usd"]), align_right=True, drop=1),
    Column("STARTED", lambda node: format_moment(node["started_at"]), drop=3),
    Column("VERSION", "version", drop=7),
    Column("CONFIG", "config_digest", drop=8),
    Column("URL", "url", shrinks=True, width=16, hidden_value="-"),
)


LOST_CHANGE_COLUMNS = (
    Column("TIME", lambda change: format_moment(change["at"])),
    Column("BY", lambda change: change["actor"] or change["actor_kind"], shrinks=True, width=8),
    Column("WHAT", "action"),
    Column("OF", "subject", shrinks=True, width=12),
    Column("CHANGE", format_detail, hidden_value=ABSENT, shrinks=True, width=20),
    Column("APPLIED AGAIN", lambda change: format_detail({"detail": change["applied"]}), shrinks=True, width=20),
    Column("OPEN", "reason", shrinks=True, width=20, drop=1),
    Column("FOUND", lambda change: format_moment(change["found_at"]), drop=2),
)


@click.group(cls=ListByDefault, short_help="List the gateways on the same database.")
def nodes() -> None:
    """List the gateways (nodes) that use the same database, and settle the credit of a node that does not come back.

    A live node sends a heartbeat every two seconds. CLOCK: how far the database's clock was ahead at the last
    heartbeat. ACTIVE: the node's requests under way. WAITING: its finished requests that were not stored yet. CREDIT:
    its share of spending limits, which no other node can spend. STATE says if a node's configuration differs from that
    of most live nodes.

    \b
    Examples:
      gateway nodes
      gateway nodes --json
      gateway nodes forget 0123456789abcdef --release
      gateway nodes lost-changes
    """


@nodes.command("list")
@running_command
def list_nodes(context: CliContext) -> None:
    """List the gateways on the same database: the live and dead ones, and those that ended within a day or hold credit.

    A live node sends a heartbeat every two seconds. STATE says if a node's configuration differs from that of most live
    nodes.
    """
    print_answer(context, call(context, "GET", "nodes"), _print_nodes)


def _print_nodes(rows: Sequence[Json]) -> None:
    print_table(NODES, rows, "This gateway is the only one on its database.")


@nodes.command("lost-changes")
@running_command
def list_lost_changes(context: CliContext) -> None:
    """List the changes that the database had lost when another server replaced it. Newest last.

    What took rights away was applied again at once: see APPLIED AGAIN. OPEN says why the rest of a change was not: make
    such a change again if you still want it.

    \b
    Examples:
      gateway nodes lost-changes
      gateway nodes lost-changes --json
    """
    print_answer(context, call(context, "GET", "nodes", "lost-changes"), _print_lost_changes)


def _print_lost_changes(changes: Sequence[Json]) -> None:
    print_table(LOST_CHANGE_COLUMNS, changes[::-1], "The database has lost no changes.")


@nodes.command("forget")
@click.argument("node", metavar="ID")
@click.option("--release", "on_forget", flag_value="release", help="Nothing is charged for the credit that it had.")
@click.option("--charge", "on_forget", flag_value="charge", help="All of the credit that it had is charged.")
@running_command
def forget(context: CliContext, *, node: str, on_forget: Literal["release", "charge"] | None) -> None:
    """Settle the credit of a node that does not come back, without waiting for cluster.orphan_after_s.

    What the node had spent last and not stored is unknown: --release forgets it, --charge charges for the most that it
    can be. If it comes back after all, what it stores is charged exactly.

    \b
    Examples:
      gateway nodes forget 0123456789abcdef --release
      gateway nodes forget 0123456789abcdef --charge
    """
    if on_forget is None:
        raise click.UsageError("Give either --release or --charge")
    answer = call(context, "POST", "nodes", node, "forget", body={"leases": on_forget})
    print_answer(context, answer, _print_forgotten)


def _print_forgotten(node: Json) -> None:
    verb = "charged" if node["leases"] == "charge" else "released"
    click.echo(f"Node {node['id']}: {format_usd(node['outstanding_usd'])} {verb}.")
