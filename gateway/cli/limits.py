"""The ``limits`` commands: show and change what a key, account, end user, session, tag or model may spend."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from typing import Any

import click

from gateway.cli.admin_client import AdminClient, call, run
from gateway.cli.context import CliContext, CliError, Json
from gateway.cli.objects import print_edit
from gateway.cli.options import Amount, Command, ListByDefault, NumberOrNone, client_command, confirm
from gateway.cli.output import print_answer, print_fields
from gateway.cli.resource_options import build_fields
from gateway.cli.table import Column, print_table
from gateway.cli.text import ABSENT, format_usd
from gateway.cli.times import parse_future

_FIELDS = (
    "of", "keys", "usd", "window", "timezone", "rpm", "tpm", "soft", "status", "until", "raises", "max_subjects"
)  # fmt: skip
_NAME = click.argument("name")
_RATE = NumberOrNone(whole_numbers=True, name="number")
_SHARE = NumberOrNone(whole_numbers=False, name="share")
_LIMITS = (
    Column("LIMIT", "name", shrinks=True, width=16),
    Column("FOR EACH", lambda limit: limit["of"] or f"raises {limit['raises']}", shrinks=True, width=12),
    Column("USD", lambda limit: format_usd(limit["usd"]), align_right=True),
    Column("WINDOW", "window", hidden_value=ABSENT),
    Column("KEYS", lambda limit: ", ".join(limit["keys"]) or "all", shrinks=True, width=10, drop=1),
    Column("UNTIL", lambda limit: f"{limit['until']} (ended)" if limit["ended"] else limit["until"] or ABSENT),
    Column("FROM", "source"),
)
_SUBJECTS = (
    Column("ACCOUNT", "account", shrinks=True, width=12),
    Column("SUBJECT", lambda row: row["subject"] or ABSENT, shrinks=True, width=20),
    Column("SPENT", lambda row: format_usd(row["spent_usd"]), align_right=True),
    Column("RESERVED", lambda row: format_usd(row["held_usd"]), align_right=True),
    Column("LEFT", lambda row: format_usd(row["left_usd"]), align_right=True),
    Column("RESETS", "resets_at", hidden_value=ABSENT),
)


@click.group(cls=ListByDefault)
def limits() -> None:
    """Manage limits: what each key, account, end user, session, tag or model may spend in a window.

    Changes apply at once; running requests keep what they have reserved. Limits of the configuration file are
    read-only here.

    \b
    Examples:
      gateway limits
      gateway limits add "each user" --of user --usd 1 --window day
      gateway limits subjects "each user"
      gateway limits raise "each user" --usd 5 --until friday --why "the fair"
    """


@limits.command("list")
@client_command
def list_limits(context: CliContext) -> None:
    """List limits. FROM: file, or console (added in the console or with 'gateway limits add')."""
    print_answer(context, call(context, "GET", "limits"), _print_limits)


@limits.command("show", short_help="Show a limit.")
@_NAME
@client_command
def show_limit(context: CliContext, name: str) -> None:
    """Show the limit NAME."""
    print_answer(context, call(context, "GET", "limits", name), _print_limit)


def _limit_options(command: Command) -> Command:
    for option in (
        click.option("--of", metavar="KIND", help="key, account, user, session, tag:NAME or model:GLOB."),
        click.option("--key", "keys", metavar="NAME", multiple=True, help="Only this key's requests."),
        click.option("--usd", type=Amount(), help="What each may spend in a window."),
        click.option(
            "--window", help="hour, 5h, day, week, month, quarter, lifetime, or rolling, as in rolling:7d.  [month]"
        ),
        click.option(
            "--timezone", metavar="ZONE", help="Where windows begin, such as Europe/Berlin.  [that of the account]"
        ),
        click.option("--rpm", type=_RATE, help="Requests per minute of each, or 'none'."),
        click.option("--tpm", type=_RATE, help="Tokens per minute of each, or 'none'."),
        click.option("--soft", type=_SHARE, help="Warn from this share on, such as 0.8, or 'none'."),
        click.option("--status", type=click.Choice(["403", "429"]), help="The status of refusals."),
        click.option("--until", metavar="TIME", callback=parse_future, help="When the limit ends: friday, 7d, a day."),
        click.option("--why", metavar="TEXT", help="The reason, for the audit log."),
    ):
        command = option(command)
    return command


@limits.command("add", short_help="Add a limit.")
@_NAME
@_limit_options
@client_command
def add_limit(context: CliContext, name: str, why: str | None, **options: Any) -> None:
    """Add the limit NAME.

    \b
    Examples:
      gateway limits add "each user" --of user --usd 1 --window day --key chat-app
      gateway limits add "large models" --of 'model:gpt-5*' --usd 200 --window month
    """
    fields = _build_fields(options)

    async def work(admin: AdminClient) -> Json:
        if await _find_limit(admin, name):
            raise CliError(f"There is a limit '{name}' already; change it with: gateway limits edit")
        return await admin.call("PUT", "limits", name, body=fields, query={"reason": why})

    def print_new(limit: Json) -> None:
        _print_limits([limit])
        _print_counts_since(limit)

    print_answer(context, run(context, work), print_new)


@limits.command("edit", short_help="Change a limit.")
@_NAME
@_limit_options
@client_command
def edit_limit(context: CliContext, name: str, why: str | None, **options: Any) -> None:
    """Change the limit NAME; what is not named stays."""
    fields = _build_fields(options)

    async def work(admin: AdminClient) -> tuple[Json, Json]:
        before = await _find_limit(admin, name)
        if not before:
            raise CliError(f"There is no limit '{name}'; add it with: gateway limits add")
        fields_before = {field: before[field] for field in _FIELDS}
        return before, await admin.call("PUT", "limits", name, body={**fields_before, **fields}, query={"reason": why})

    before, after = run(context, work)

    def print_change(_: Json) -> None:
        print_edit(name, before, after, fields)
        _print_counts_since(after, before)

    print_answer(context, after, print_change)


@limits.command("raise", short_help="Raise a limit for a time.")
@_NAME
@click.option("--usd", type=Amount(), required=True, help="What each may spend in addition, in a window.")
@click.option("--until", metavar="TIME", required=True, callback=parse_future, help="The end: friday, 7d, 2027-01-31.")
@click.option("--why", metavar="TEXT", help="The reason, for the audit log.")
@client_command
def raise_limit(context: CliContext, name: str, usd: Any, until: str, why: str | None) -> None:
    """Raise the limit NAME until a time, by a second limit that ends by itself.

    \b
    Example:
      gateway limits raise "each user" --usd 5 --until friday --why "the fair"
    """

    async def work(admin: AdminClient) -> Json:
        if not await _find_limit(admin, name):
            raise CliError(f"There is no limit '{name}'; see: gateway limits")
        body = {"raises": name, "usd": usd, "until": until}
        return await admin.call("PUT", "limits", f"{name} until {until[:10]}", body=body, query={"reason": why})

    print_answer(context, run(context, work), lambda limit: _print_limits([limit]))


@limits.command("delete")
@_NAME
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def delete_limit(context: CliContext, name: str, *, yes: bool) -> None:
    """Delete the limit NAME."""
    if not yes:
        confirm(f"Delete the limit {name}?")
    answer = call(context, "DELETE", "limits", name)
    print_answer(context, answer, lambda _: click.echo(f"The limit {name} is deleted."))


@limits.command("subjects", short_help="Show who has spent what.")
@_NAME
@click.option("--limit", "count", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many.")
@client_command
def list_subjects(context: CliContext, name: str, count: int) -> None:
    """Show who has spent most under the limit NAME in the present window."""
    answer = call(context, "GET", "limits", name, "subjects", query={"limit": count})
    print_answer(context, answer, lambda rows: print_table(_SUBJECTS, rows, "Nobody has spent anything yet."))


def _build_fields(options: Json) -> Json:
    """Return the fields of a limit that the options name. Raises ``click.UsageError``."""
    fields = build_fields(options)
    if fields.get("status"):
        fields["status"] = int(fields["status"])
    if not fields:
        raise click.UsageError("Give a value, such as --usd 5")
    return fields


def _print_limits(rows: list[Json]) -> None:
    print_table(_LIMITS, rows, "No limits. Add one with: gateway limits add")


def _print_counts_since(limit: Json, before: Json | None = None) -> None:
    """Print since when a limit counts spending.

    For a changed limit this is only printed if the time has changed, or earlier spending is being counted.
    """
    since = limit.get("counts_since")
    if limit.get("filling"):
        click.echo(f"Counted is what is spent from {since} on. What was spent before is being counted.", err=True)
    elif since and since != (before or {}).get("counts_since"):
        click.echo(f"Counted is what was spent from {since} on.", err=True)
    elif before is None and limit["usd"] is not None and not limit["raises"]:
        click.echo("Counted is all that was spent.", err=True)


def _print_limit(limit: Json) -> None:
    print_fields({name: value for name, value in limit.items() if value not in (None, [])})


async def _find_limit(admin: AdminClient, name: str) -> Json:
    """Return the limit; empty if there is none."""
    all_limits = (await admin.get("limits"))["data"]
    return next((limit for limit in all_limits if limit["name"] == name), {})
