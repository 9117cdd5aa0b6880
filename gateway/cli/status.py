"""The ``health`` and ``running`` commands: the state of the running gateway and its requests in progress."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Mapping, Sequence
from typing import Any

import click

from gateway.cli.admin_client import call, is_running
from gateway.cli.context import CliContext, CliError, Json
from gateway.cli.objects import call_object
from gateway.cli.options import ListByDefault, exit_unless, running_command
from gateway.cli.output import print_answer, print_fields
from gateway.cli.table import Column, print_table
from gateway.cli.text import format_bytes, format_duration, format_value

_NODE_DIGITS = 8


def _format_channel(request: Json) -> str:
    attempts = f" ({request['attempts']} attempts)" if request["attempts"] > 1 else ""
    return format_value(request["channel"]) + attempts


RUNNING = (
    Column("ID", "id"),
    Column("ACCOUNT", "account", drop=2),
    Column("KEY", "key_name", shrinks=True, width=8),
    Column("MODEL", "model", shrinks=True, width=12),
    Column("CHANNEL", _format_channel, shrinks=True, width=10),
    Column("PHASE", "phase"),
    Column("FOR", lambda request: format_duration(request["running_ms"] / 1000), align_right=True),
    Column("FROM", "address", hidden_value="-", drop=1),
    Column("NODE", lambda request: (request["node"] or "")[:_NODE_DIGITS], hidden_value="", drop=3),
)


@click.command(short_help="Show the health of the running gateway.")
@click.option("--node", metavar="ID", help="Another node of the cluster; 'gateway nodes' lists them.")
@running_command
def health(context: CliContext, *, node: str | None) -> None:
    """Show memory, CPU, event-loop lag, database and queues of the running gateway.

    A high event-loop lag delays every request. Exits with 1 if requests cannot be recorded at the moment.

    \b
    Examples:
      gateway health
      gateway health --node 5898f9daa2780720
      gateway health --json
    """
    report = _get(context, "health", node=node)
    print_answer(context, report, print_health)
    exit_unless(report["store"]["writable"] and not report["queue"]["failing"])


@click.group(cls=ListByDefault)
def running() -> None:
    """List or cancel requests in progress.

    \b
    Examples:
      gateway running
      gateway running cancel req_0123456789abcdef01234567
    """


@running.command("list")
@running_command
def list_running(context: CliContext) -> None:
    """List requests in progress, oldest first. PHASE: 'reading' the body, 'waiting', or 'streaming' the response.

    In a cluster those of all nodes are listed, and NODE is the beginning of the id of the one that has a request.
    """
    listing = _get(context, "running")
    print_answer(context, listing, print_running_requests)
    if listing["unanswered"] and not context.as_json:
        click.echo(f"Not asked, or without an answer: {', '.join(listing['unanswered'])} (gateway nodes)", err=True)


@running.command("cancel")
@click.argument("request_id", metavar="ID")
@running_command
def cancel_running(context: CliContext, request_id: str) -> None:
    """Cancel the request ID, or the only one that begins so, at its provider; what has been delivered is charged."""
    _require_running(context)
    answer = call_object(context, "POST", "running", request_id, "cancel")
    print_answer(context, answer, _print_cancellation)


def _print_cancellation(answer: Json) -> None:
    if answer["cancelled"]:
        click.echo(f"The request {answer['id']} was cancelled.")
    else:
        click.echo(f"No node that answers has the request. Sent to the others: {', '.join(answer['unanswered'])}")


def _get(context: CliContext, path: str, **query: Any) -> Json:
    _require_running(context)
    return call(context, "GET", path, query=query)


def _require_running(context: CliContext) -> None:
    if not is_running(context):
        raise CliError(f"No gateway runs with the data folder {context.data}")


def print_running_requests(requests: Sequence[Json]) -> None:
    """Print a table of requests in progress."""
    print_table(RUNNING, requests, "No requests in progress.")


def _format_database(store: Json) -> str:
    size, log = format_bytes(store["bytes"]), store["wal_bytes"]
    return f"{size} on a PostgreSQL server" if log is None else f"{size} + {format_bytes(log)} WAL"


def _format_refusals(count: int) -> str:
    return f"; {count} REFUSED by the database (gateway doctor)" if count else ""


def _format_limits(limits: Json) -> str:
    if limits["server"] is None:
        return "in memory"
    state = f"shared by {limits['gateways']} gateways" if limits["reached"] else "NOT REACHED"
    return f"{limits['server']}; {state}"


def print_health(report: Json) -> None:
    """Print a health report, a line for each part."""
    lag_ms, store, queue = report["loop_lag_ms"], report["store"], report["queue"]
    cpu = f"{report['cpu_s']:.1f} s ({report['cpu_s'] / max(report['uptime_s'], 1) * 100:.1f} % of a core)"
    commit = "none yet" if store["last_commit_ms"] is None else f"{store['last_commit_ms']:g} ms"
    node = {} if report["node"] is None else {"node": report["node"]}
    print_fields(
        {
            **node,
            "version": f"{report['version']}, Python {report['python']}, process {report['pid']}",
            "up": f"{format_duration(report['uptime_s'])}, since {report['started_at']}",
            "memory": format_bytes(report["memory_bytes"]),
            "cpu": cpu,
            "event-loop lag": f"p50 {lag_ms['p50']:.1f} ms, p99 {lag_ms['p99']:.1f} ms, max {lag_ms['max']:.1f} ms",
            "in progress": f"{report['running']} requests, {report['connections']} connections, "
            f"{report['tasks']} tasks, {report['open_files'] or '?'} open files",
            "database": f"{_format_database(store)}; "
            f"schema {store['schema']}; {'' if store['writable'] else 'NOT '}writable; last commit {commit}",
            "queue": f"{queue['waiting_rows']} records waiting{'; WRITES FAIL' if queue['failing'] else ''}"
            f"{_format_refusals(queue['set_aside'])}",
            "rate limits": _format_limits(report["limits"]),
            "journal": format_bytes(report["journal_bytes"]),
            "media": _format_folder(report["media"]),
            "videos": f"{report['videos']['open']} in progress; {_format_folder(report['videos']['kept'])}",
            "channels": _format_channels(report["channels"]),
        }
    )


def _format_channels(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {health.replace('_', ' ')}" for health, count in counts.items() if count)


def _format_folder(usage: Json | None) -> str:
    return "?" if usage is None else f"{usage['files']} files, {format_bytes(usage['bytes'])}"
