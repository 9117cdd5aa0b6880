"""The commands about requests: what was asked, and how it went."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import contextlib
from typing import Any

import click

from gateway.cli import output as cli_show
from gateway.cli.admin_client import AdminClient, CliContext, look, need_running
from gateway.cli.options import ListByDefault, client_command
from gateway.cli.output import print_answer


@click.group(cls=ListByDefault)
def requests() -> None:
    """What was asked, by which key, and how it went.

    A cost with a '!' went above a quota: the call cost more than was held for it. A '~' marks estimated tokens.
    'up1 (2nd)': it took a second attempt, and up1 had the last word; 'tried' in --json has them all.

    \b
    Examples:
      gateway requests --follow
      gateway requests --limit 100 --model demo-chat
      gateway requests --channel openai
      gateway requests --status 429 --json
      gateway requests --status error --since 2027-01-31 --text "context length"
      gateway requests --since 2027-01-01 --until 2027-01-31 --export csv > january.csv
      gateway requests list --help
    """


@requests.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="The last N.", metavar="N")
@click.option("--account", metavar="NAME", help="Only of this account.")
@click.option("--key", type=int, metavar="ID", help="Only of this key.")
@click.option("--model", help="Only of this model.")
@click.option("--channel", metavar="NAME", help="Only over this channel.")
@click.option("--status", metavar="HTTP", help="Only with this status, such as 200 or 429; 'error', or 'ok'.")
@click.option("--since", metavar="TIME", help="Only from this time on: 2027-01-31, or 2027-01-31T12:00 (UTC).")
@click.option("--until", metavar="TIME", help="Only until then; a day counts whole.")
@click.option("--text", help="Only with this in the error's text or code; or the one request of this id.")
@click.option("--follow", "-f", is_flag=True, help="Print new ones as they end, until Ctrl-C.")
@click.option("--export", type=click.Choice(["csv", "jsonl"]), help="Print all of them, the newest first.")
@client_command
def list_requests(place: CliContext, *, follow: bool, export: str | None, limit: int, **query: Any) -> None:
    """The last requests, newest at the end."""
    if export:
        look(place, lambda admin: _print_file(admin, {**query, "format": export}))
        return
    query["limit"] = limit
    if not follow:
        listing = look(place, lambda admin: admin.get("requests", query=query))
        listing["data"].reverse()
        print_answer(place, listing, cli_show.print_requests)
        if listing["more"] and len(listing["data"]) < limit:
            click.echo(f"Looked back to {listing['searched_to']}; for older ones: --until", err=True)
        return
    need_running(place, "follow")
    with contextlib.suppress(KeyboardInterrupt):
        look(place, lambda admin: cli_show.print_as_they_come(admin.follow_requests(query), as_json=place.as_json))


async def _print_file(admin: AdminClient, query: dict[str, Any]) -> None:
    async for piece in admin.download("requests", "export", query=query):
        click.echo(piece, nl=False)
