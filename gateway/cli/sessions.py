"""The ``sessions`` commands: list, show and end the sessions that clients name in their requests."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from typing import Any

import click

from gateway.cli.admin_client import AdminClient, run
from gateway.cli.context import CliContext, CliError, Json
from gateway.cli.objects import resolve_key_id
from gateway.cli.options import ListByDefault, client_command, confirm, limit_option
from gateway.cli.output import print_answer, print_fields
from gateway.cli.table import Column, print_table
from gateway.cli.text import ABSENT, format_usd, format_value
from gateway.cli.times import parse_past

_NAME = click.argument("name")
_ACCOUNT = click.option("--account", metavar="NAME", help="The account, if several have a session of this name.")


def _find_state(row: Json) -> str:
    return "ended" if row["ended_at"] else f"{row['running']} running" if row["running"] else ABSENT


_SESSIONS = (
    Column("SESSION", "session", shrinks=True, width=12),
    Column("ACCOUNT", "account", shrinks=True, width=8, drop=2),
    Column("KEY", "key", shrinks=True, width=8, hidden_value=ABSENT),
    Column("USER", lambda row: row["end_user"] or ABSENT, shrinks=True, width=8, hidden_value=ABSENT),
    Column("LAST", lambda row: format_value(row["settled_at"]), drop=1),
    Column("REQUESTS", lambda row: f"{row['requests']:,}", align_right=True),
    Column("IN/OUT", lambda row: f"{row['prompt_tokens']}/{row['completion_tokens']}", align_right=True),
    Column("CACHED", lambda row: f"{row['cached_share']:.0%}", align_right=True, drop=3),
    Column("SPENT", lambda row: format_usd(row["spent_usd"]), align_right=True),
    Column("BUDGET", lambda row: format_usd(row["budget_usd"]), align_right=True, hidden_value=ABSENT),
    Column("LEFT", lambda row: format_usd(row["budget_left_usd"]), align_right=True, hidden_value=ABSENT),
    Column("STATE", _find_state, hidden_value=ABSENT),
)


@click.group(cls=ListByDefault)
def sessions() -> None:
    """Show the sessions that clients name in their requests: conversations, and runs of agents.

    KEY and USER are those of the session's last request. An ended session takes no more requests.

    \b
    Examples:
      gateway sessions
      gateway sessions --key agent --since 24h
      gateway sessions show run1
      gateway sessions end run1
    """


@sessions.command("list")
@limit_option
@click.option("--account", metavar="NAME", help="Only sessions of this account.")
@click.option("--key", metavar="KEY", help="Only sessions with a request of this key: an id, a name or the last four.")
@click.option("--user", "end_user", metavar="NAME", help="Only sessions with a request made for this end user.")
@click.option("--since", metavar="TIME", callback=parse_past, help="Only sessions used since: 24h, yesterday, a time.")
@client_command
def list_sessions(context: CliContext, *, limit: int, **query: Any) -> None:
    """List the sessions that were used last, the last one first."""

    async def work(admin: AdminClient) -> Json:
        filters = await resolve_key_id(admin, query)
        page: Json = await admin.get("request-sessions", query={**filters, "limit": limit})
        while page["next"] is not None and len(page["data"]) < limit:  # one page searches a limited number of requests
            remaining_query = {"limit": limit - len(page["data"]), "before": page["next"]}
            next_page = await admin.get("request-sessions", query={**filters, **remaining_query})
            page = {**next_page, "data": [*page["data"], *next_page["data"]]}
        return page

    print_answer(context, run(context, work), lambda rows: print_table(_SESSIONS, rows, "No sessions."))


@sessions.command("show", short_help="Show a session.")
@_NAME
@_ACCOUNT
@client_command
def show_session(context: CliContext, name: str, account: str | None) -> None:
    """Show the session NAME."""
    print_answer(context, run(context, lambda admin: _find(admin, name, account)), print_fields)


@sessions.command("end", short_help="End a session.")
@_NAME
@_ACCOUNT
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def end_session(context: CliContext, name: str, account: str | None, *, yes: bool) -> None:
    """End the session NAME: its active requests are cancelled, and later ones refused. This cannot be undone."""
    if not yes:
        confirm(f"End the session {name} for good?")

    async def work(admin: AdminClient) -> Json:
        session = await _find(admin, name, account)
        return await admin.call("POST", "request-sessions", session["id"], "end")

    print_answer(context, run(context, work), lambda ended: click.echo(_format_end(name, ended)))


def _format_end(name: str, ended: Json) -> str:
    cancelled = f"; {ended['cancelled']:,} requests were cancelled" if ended["cancelled"] else ""
    return f"The session {name} is ended{cancelled}."


async def _find(admin: AdminClient, name: str, account: str | None) -> Json:
    """Return the session of this name. Raises ``CliError`` if there is none, or several."""
    sessions: list[Json] = (await admin.get("request-sessions", query={"session": name, "account": account}))["data"]
    if not sessions:
        raise CliError(f"There is no session '{name}'; see: gateway sessions")
    if len(sessions) > 1:
        accounts = ", ".join(session["account"] for session in sessions)
        raise CliError(f"Several accounts have a session '{name}': name one with --account ({accounts})")
    return sessions[0]
