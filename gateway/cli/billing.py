"""The ``top-up``, ``set-balance``, ``credits``, ``usage`` and ``verify`` commands."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import click

from gateway.cli.admin_client import AdminClient, run
from gateway.cli.context import CliContext, Json
from gateway.cli.objects import call_object, resolve_key_id
from gateway.cli.options import Amount, Command, Day, client_command, limit_option
from gateway.cli.output import print_answer
from gateway.cli.output_billing import print_audit, print_credit, print_credits, print_forecasts, print_usage

_AXES = ("day", "hour", "model", "key", "account", "channel", "provider", "user", "session", "tag:NAME")
_MAX_DAYS = 3660
_AUDIT_TIMEOUT_S = 600.0
"""Timeout of the ledger check, which reads every entry."""
_NEGATIVE_AMOUNTS = {"ignore_unknown_options": True}
"""Settings of a command that let click parse ``-5`` as an amount, not as an option."""


class _UsageAxis(click.ParamType[str]):
    """What rows are grouped by: one of a few names, or ``tag:`` and the name of a tag."""

    name = "axis"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in _AXES and not value.startswith("tag:"):
            self.fail(f"{value!r} is not one of {', '.join(_AXES)}", param, ctx)
        return str(value)


def add_credit_commands(group: click.Group, path: str, argument: Callable[[Command], Command], noun: str) -> None:
    """Add ``top-up``, ``set-balance`` and ``credits`` to the group of accounts or keys."""

    def add_credit_command(verb: str, kind: str, text: str) -> None:
        @group.command(verb, help=text, context_settings=_NEGATIVE_AMOUNTS)
        @argument
        @click.argument("amount_usd", metavar="USD", type=Amount())
        @click.option("--reference", help="Idempotency reference, e.g. an invoice number.")
        @click.option("--note", metavar="TEXT", help="Note to store with the credit.")
        @client_command
        def command(context: CliContext, *, name_or_id: str, **fields: Any) -> None:
            body = {"kind": kind, **{name: value for name, value in fields.items() if value is not None}}
            answer = call_object(context, "POST", path, name_or_id, "credits", body=body)
            print_answer(context, answer, lambda credit_answer: print_credit(f"the {noun} {name_or_id}", credit_answer))

    add_credit_command(
        "top-up",
        "top_up",
        f"Add USD to the quota of the {noun}; a negative amount is subtracted. "
        "With a daily or monthly quota it applies to the current day or month.",
    )
    add_credit_command(
        "set-balance",
        "set",
        f"Set the remaining balance of the {noun} (including amounts held by running requests). "
        "With a daily or monthly quota it applies to the current day or month.",
    )

    @group.command("credits", help=f"List top-ups and balance changes of the {noun}, newest first.")
    @argument
    @limit_option
    @client_command
    def list_credits(context: CliContext, *, name_or_id: str, limit: int) -> None:
        listing = call_object(context, "GET", path, name_or_id, "credits", query={"limit": limit})
        print_answer(context, listing, print_credits)


@click.command(short_help="Show requests, tokens and cost over time.")
@click.option(
    "--by", type=_UsageAxis(), default="day", show_default=True, help=f"Group rows by this: {', '.join(_AXES)}."
)
@click.option("--since", type=Day(), help="First day: 2027-01-31, yesterday or 7d.  [default: 30 days ago]")
@click.option("--until", type=Day(), help="Last day.  [default: today]")
@click.option("--days", type=click.IntRange(1, _MAX_DAYS), metavar="N", help="The last N days, instead of --since.")
@click.option("--account", metavar="NAME", help="Only this account.")
@click.option("--key", metavar="KEY", help="Only this key: an id, a name or the last four characters.")
@click.option("--model", help="Only this model.")
@click.option("--forecast", is_flag=True, help="Show when quotas and limits are reached, of all or these.")
@client_command
def usage(
    context: CliContext, *, since: date | None, until: date | None, days: int | None, forecast: bool, **query: Any
) -> None:
    """Show requests, tokens and cost, with a bar for each row's cost relative to the highest.

    Days and hours are UTC; by hour, the default is the last 24 hours. A request counts on the day on which it ended. If
    all costs are 0, the bars show requests. Refused requests are counted and cost nothing. By user, session and tag,
    rows in brackets have the rest. A narrow terminal shows fewer columns; --json has them all. With --forecast, show
    the quotas of keys and accounts, and when each is reached if the last seven weeks repeat; with less than a week of
    requests, if the current period goes on.

    \b
    Examples:
      gateway usage
      gateway usage --by model --since 7d
      gateway usage --by key --since 2027-01-01 --until 2027-01-31 --account team
      gateway usage --by user --key chat-app
      gateway usage --by tag:team
      gateway usage --forecast --account team
      gateway usage --json
    """
    if forecast:
        _print_forecasts(context, {**query, "since": since, "until": until, "days": days})
        return
    if days is not None:
        if since is not None:
            raise click.UsageError("Give either --days or --since")
        end = until or datetime.now(UTC).date()
        since = end - timedelta(days=min(days - 1, (end - date.min).days))
    if since and since > datetime.now(UTC).date():
        raise click.UsageError(f"--since is in the future: {since}")
    if since and until and since > until:
        raise click.UsageError("--since is after --until")
    parameters = {**query, "since": since, "until": until}

    async def work(admin: AdminClient) -> Json:
        return await admin.get("usage", query=await resolve_key_id(admin, parameters))

    answer = run(context, work)
    print_answer(context, answer, lambda _: print_usage(answer))


def _print_forecasts(context: CliContext, options: Json) -> None:
    if any(options[name] for name in ("since", "until", "days", "model")):
        raise click.UsageError("--forecast goes with --account and --key only")
    query = {name: options[name] for name in ("account", "key")}

    async def work(admin: AdminClient) -> Json:
        return await admin.get("usage", "forecast", query=await resolve_key_id(admin, query))

    report = run(context, work)
    print_answer(context, report, lambda _: print_forecasts(report["data"]))


@click.command(short_help="Verify the ledger.")
@client_command
def verify(context: CliContext) -> None:
    """Verify the ledger: recompute every balance from its entries. Exits with 1 if something does not match.

    Charges are added up from the entries, from the daily sums and from the requests. The gateway may run meanwhile.

    \b
    Examples:
      gateway verify
      gateway verify --json
    """
    report: Json = run(context, lambda admin: admin.call("GET", "audit", timeout_s=_AUDIT_TIMEOUT_S))
    print_answer(context, report, print_audit)
    if not report["ok"]:
        click.get_current_context().exit(1)
