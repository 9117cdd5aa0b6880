"""The commands about money: credits of accounts and keys, usage, and the audit."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import click

from gateway.cli.admin_client import CliContext, Json, call, look
from gateway.cli.options import Amount, Command, Day, client_command
from gateway.cli.output import print_answer
from gateway.cli.output_billing import print_audit, print_credit, print_credits, print_usage

_AXES = ("day", "model", "key", "account")
_MAX_DAYS = 3660
_AUDIT_TIMEOUT_S = 600.0
"""It reads every entry there is."""
_NEGATIVE_AMOUNTS = {"ignore_unknown_options": True}
"""``-5`` is an amount here, no option."""


def add_credit_commands(group: click.Group, path: str, which: Callable[[Command], Command], noun: str) -> None:
    """``top-up``, ``set-balance`` and ``credits``, the same for accounts and keys."""

    def credit(verb: str, kind: str, text: str) -> None:
        @group.command(verb, help=text, context_settings=_NEGATIVE_AMOUNTS)
        @which
        @click.argument("amount_usd", metavar="USD", type=Amount())
        @click.option(
            "--reference",
            help="Of your own, such as a payment's: what was done under it is not done again.",
        )
        @click.option("--note", metavar="TEXT", help="Kept with the credit.")
        @client_command
        def command(place: CliContext, *, which: str, **fields: Any) -> None:
            body = {"kind": kind, **{name: value for name, value in fields.items() if value is not None}}
            answer = call(place, "POST", path, str(which), "credits", body=body)
            print_answer(place, answer, lambda credited: print_credit(f"the {noun} {which}", credited))

    credit(
        "top-up",
        "top_up",
        f"Add USD to what the {noun} may spend, or with less than 0 take it away. "
        "Of a daily or monthly quota it is for that day or month.",
    )
    credit(
        "set-balance",
        "set",
        f"Make USD what the {noun} has left, with what running requests hold counted in. "
        "Of a daily or monthly quota it is for that day or month.",
    )

    @group.command("credits", help=f"What was added to the {noun}'s quota and taken away, newest first.")
    @which
    @click.option(
        "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="The last N.", metavar="N"
    )
    @client_command
    def list_credits(place: CliContext, *, which: str, limit: int) -> None:
        listing = look(place, lambda admin: admin.get(path, str(which), "credits", query={"limit": limit}))
        print_answer(place, listing, print_credits)


@click.command(short_help="What was used: requests, tokens and cost.")
@click.option("--by", type=click.Choice(_AXES), default="day", show_default=True, help="What a row is about.")
@click.option("--since", type=Day(), help="The first day.  [default: the last 30]")
@click.option("--until", type=Day(), help="The last day.  [default: today]")
@click.option("--days", type=click.IntRange(1, _MAX_DAYS), metavar="N", help="The last N days, instead of --since.")
@click.option("--account", metavar="NAME", help="Only of this account.")
@click.option("--key", type=int, metavar="ID", help="Only of this key.")
@click.option("--model", help="Only of this model.")
@client_command
def usage(place: CliContext, *, since: date | None, until: date | None, days: int | None, **query: Any) -> None:
    """What was used: requests, tokens and cost, with a bar for each row's share of the dearest.

    Days are UTC's, and a request is of the day on which it ended. Where nothing costs anything, bars are shares of
    the most requests. What was refused is a request too, and costs nothing. A narrow terminal is shown fewer columns;
    --json has them all.

    \b
    Examples:
      gateway usage
      gateway usage --by model --days 7
      gateway usage --by key --since 2027-01-01 --until 2027-01-31 --account team
      gateway usage --json
    """
    if days is not None:
        if since is not None:
            raise click.UsageError("Give either --days or --since")
        end = until or datetime.now(UTC).date()
        since = end - timedelta(days=min(days - 1, (end - date.min).days))
    if since and until and since > until:
        raise click.UsageError("--since is after --until")
    answer = look(place, lambda admin: admin.get("usage", query={**query, "since": since, "until": until}))
    print_answer(place, answer, lambda _: print_usage(answer))


@click.command(short_help="Is every balance the sum of its entries?")
@client_command
def audit(place: CliContext) -> None:
    """Add every balance up again from its entries, and compare. Exits with 1 where something does not agree.

    The gateway may be at work meanwhile. What was charged is added up three times: from the entries, from each day's
    sums and from the requests.

    \b
    Examples:
      gateway audit
      gateway audit --json
    """
    report: Json = look(place, lambda admin: admin.call("GET", "audit", timeout_s=_AUDIT_TIMEOUT_S))
    print_answer(place, report, print_audit)
    if not report["ok"]:
        click.get_current_context().exit(1)
