"""The ``requests`` commands: list, show, follow, export and replay requests of the log."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import click

from gateway.cli.admin_client import FOLLOW_INTERVAL_S, AdminClient, call, require_running, run
from gateway.cli.context import CliContext, Json
from gateway.cli.objects import resolve_key_id
from gateway.cli.options import ListByDefault, client_command, limit_option
from gateway.cli.output import print_answer, print_json
from gateway.cli.output_requests import print_bodies, print_request
from gateway.cli.replays import replay
from gateway.cli.table import Column, format_line, print_table
from gateway.cli.text import format_moment, format_outcome, format_usd, format_value
from gateway.cli.times import parse_past

_SOURCE_MARKS = {"estimate": "~", "bound": "?"}
"""Prefix of token counts that the provider did not report, or that were limited to what is possible."""
_ID_DIGITS = 12
"""Number of an id's hexadecimal digits shown in lists: ten for the time in milliseconds, and two random digits."""
_PAGE_ROWS = 1000
_ORDINALS = {2: "2nd", 3: "3rd"}


def _format_channel(row: Json) -> str:
    """Format a request's channel: ``up1``, or ``up1 (2nd)`` if it got the second attempt."""
    channel, attempts = format_value(row["channel"]), row["attempts"]
    return f"{channel} ({_ORDINALS.get(attempts, f'{attempts}th')})" if attempts > 1 else channel


def _format_usage(row: Json) -> str:
    """Format a request's usage: tokens ``55/7``, seconds ``3.3s``, characters of speech ``900ch``, images ``2img``."""
    source_mark = _SOURCE_MARKS.get(row["usage_source"], "")
    characters, images, seconds = row["characters"], row["images"], row["duration_ms"] / 1_000
    media = f"{characters}ch" if characters else f"{seconds:.1f}s" if seconds else f"{images}img" if images else ""
    tokens = f"{row['prompt_tokens']}/{row['completion_tokens']}"
    return source_mark + (media if media and tokens == "0/0" else f"{tokens} {media}".rstrip())


def _format_cost(row: Json) -> str:
    return "no price" if row["unpriced"] else format_usd(row["cost_usd"]) + ("!" if row["overrun_nanos"] > 0 else "")


def _format_error(row: Json) -> str:
    return " ".join(row["error"].split())


REQUESTS = (
    Column("ID", lambda row: row["id"].removeprefix("req_")[:_ID_DIGITS], width=_ID_DIGITS, drop=1),
    Column("TIME", lambda row: format_moment(row["started_ms"]), width=8),
    Column("KEY", "key_name", width=8, shrinks=True),
    Column("MODEL", "model", width=16, shrinks=True),
    Column("CHANNEL", _format_channel, width=10, shrinks=True),
    Column("IN/OUT", _format_usage, width=8, align_right=True),
    Column("COST", _format_cost, width=10, align_right=True),
    Column("FIRST", lambda row: format_value(row["first_byte_ms"]), align_right=True, drop=2),
    Column("MS", "total_ms", width=6, align_right=True),
    Column("OUTCOME", format_outcome, width=16, shrinks=True, status=True),
    Column("ERROR", _format_error, hidden_value="", width=24, shrinks=True, drop=3),
)


@click.group(cls=ListByDefault)
def requests() -> None:
    """Show the request log.

    '!' after a cost: it exceeded the reservation, and with it a quota. '~' before tokens: an estimate. 'up1 (2nd)': up1
    answered the second attempt; 'show' has all attempts. ID is the beginning of an id; 'show' takes any beginning
    that no other request has.

    \b
    Examples:
      gateway requests --follow
      gateway requests show 01993ac4d5e6
      gateway requests replay 01993ac4d5e6 --model gpt-5-mini --key lab
      gateway requests --limit 100 --model demo-chat
      gateway requests --channel openai
      gateway requests --user u-17 --since 24h
      gateway requests --status 429 --json
      gateway requests --outcome failed --since 24h --text "context length"
      gateway requests --since 2027-01-01 --until 2027-01-31 --export csv > january.csv
      gateway requests list --help
    """


@requests.command("list")
@limit_option
@click.option("--account", metavar="NAME", help="Only requests of this account.")
@click.option("--key", metavar="KEY", help="Only requests of this key: an id, a name or the last four characters.")
@click.option("--model", help="Only requests for this model.")
@click.option("--route", metavar="NAME", help="Only requests for this route.")
@click.option("--user", "end_user", metavar="NAME", help="Only requests made for this end user.")
@click.option("--session", metavar="NAME", help="Only requests of this session.")
@click.option("--tag", metavar="NAME=VALUE", help="Only requests with this tag.")
@click.option("--channel", metavar="NAME", help="Only requests that this channel served.")
@click.option("--status", metavar="HTTP", help="Only this HTTP status, such as 200 or 429; 'error', or 'ok'.")
@click.option("--outcome", metavar="WORD", help="Only this outcome: completed, failed, refused, blocked, ...")
@click.option("--failed", "outcome", flag_value="failed", help="The same as --outcome failed.")
@click.option(
    "--since", metavar="TIME", callback=parse_past, help="From then on: 24h, yesterday, 2027-01-31T12:00 (UTC)."
)
@click.option("--until", metavar="TIME", callback=parse_past, help="Up to this time; a date includes the whole day.")
@click.option("--text", help="Only errors with this text or code; or the request with this ID.")
@click.option("--unpriced", is_flag=True, help="Only to models without a price.")
@click.option("--shadow", is_flag=True, help="Only copies for shadow models.")
@click.option("--follow", "-f", is_flag=True, help="Print new requests as they end, until Ctrl-C.")
@click.option("--export", type=click.Choice(["csv", "jsonl"]), help="Print all matching requests, newest first.")
@client_command
def list_requests(context: CliContext, *, follow: bool, export: str | None, limit: int, **query: Any) -> None:
    """List the last requests, newest last."""
    for flag in ("unpriced", "shadow"):
        query[flag] = "true" if query[flag] else None
    if export:
        run(context, lambda admin: _print_export(admin, {**query, "format": export}))
        return
    query["limit"] = limit
    if not follow:
        listing = run(context, lambda admin: _list(admin, query))
        listing["data"].reverse()
        print_answer(context, listing, print_requests)
        if listing["more"] and len(listing["data"]) < limit:
            click.echo(f"Searched back to {listing['searched_to']}; for older requests use --until", err=True)
        return
    require_running(context, "follow")
    with contextlib.suppress(KeyboardInterrupt):
        run(context, lambda admin: _follow(admin, query, as_json=context.as_json))


@requests.command("show")
@click.argument("request_id", metavar="ID")
@click.option("--body", is_flag=True, help="Show what was asked and answered, if it was kept. The look is audited.")
@client_command
def show_request(context: CliContext, request_id: str, *, body: bool) -> None:
    """Show a request with its error, attempts and cost. ID: its id, or any beginning that no other request has."""
    if body:
        print_answer(context, call(context, "GET", "requests", request_id, "body"), print_bodies)
    else:
        print_answer(context, call(context, "GET", "requests", request_id), print_request)


requests.add_command(replay)


async def _list(admin: AdminClient, query: Json) -> Json:
    return await admin.get("requests", query=await resolve_key_id(admin, query))


async def _follow(admin: AdminClient, query: Json, *, as_json: bool) -> None:
    await _print_new_rows(follow_requests(admin, await resolve_key_id(admin, query)), as_json=as_json)


async def follow_requests(admin: AdminClient, query: Mapping[str, Any]) -> AsyncIterator[Json]:
    """Yield the latest matching requests, then new requests, without end."""
    page = await admin.get("requests", query=query)
    rows, last_id, has_more = page["data"][::-1], page["newest"], False
    while True:
        for row in rows:
            yield row
        if not has_more:
            await asyncio.sleep(FOLLOW_INTERVAL_S)
        page = await admin.get("requests", query={**query, "after": last_id, "limit": _PAGE_ROWS})
        rows, last_id, has_more = page["data"], page["next"], page["more"]


async def _print_export(admin: AdminClient, query: Json) -> None:
    query = await resolve_key_id(admin, query)
    async for piece in admin.download("requests", "export", query=query):
        click.echo(piece, nl=False)


def print_requests(rows: Sequence[Json]) -> None:
    """Print a table of requests."""
    print_table(REQUESTS, rows, "No requests found.")


async def _print_new_rows(rows: AsyncIterator[Json], *, as_json: bool) -> None:
    if not as_json:
        click.echo(format_line(REQUESTS))
    async for row in rows:
        if as_json:
            print_json(row, on_one_line=True)
        else:
            click.echo(format_line(REQUESTS, row))
