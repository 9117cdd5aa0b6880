"""The ``bodies`` commands: what is kept of requests, its export and deletion, and a signed statement."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from typing import Any

import click

from gateway.cli.admin_client import AdminClient, call, run
from gateway.cli.context import CliContext, Json
from gateway.cli.objects import resolve_key_id
from gateway.cli.options import client_command, confirm
from gateway.cli.output import print_answer, print_fields
from gateway.cli.times import parse_past

_TIMEOUT_S = 600.0
"""Timeout of a deletion, which may overwrite gigabytes."""


@click.group()
def bodies() -> None:
    """Show how much is kept of prompts and answers, export and delete it. 'gateway requests show ID --body' shows one.

    \b
    Examples:
      gateway bodies status
      gateway bodies delete --request req_01993ac4d5e6f7a8b9c0d1e2
      gateway bodies delete --user ann@example.com
      gateway bodies delete --account acme --before 2027-01-31
      gateway bodies export --format openai --model gpt-5 --since 24h > chats.jsonl
      gateway bodies attest --account acme
    """


@bodies.command("status")
@client_command
def show_status(context: CliContext) -> None:
    """Show how many requests have kept bodies, and whether bodies can be written."""
    print_answer(context, call(context, "GET", "bodies"), print_fields)


@bodies.command("delete")
@click.option("--request", metavar="ID", help="Only of this request: its whole id.")
@click.option("--user", metavar="NAME", help="Only of this end user, as clients send its name.")
@click.option("--session", metavar="NAME", help="Only of this session.")
@click.option("--key", metavar="KEY", help="Only of this key: an id, a name or the last four characters.")
@click.option("--account", metavar="NAME", help="Only of this account. Alone: its data key is destroyed first.")
@click.option("--before", metavar="TIME", callback=parse_past, help="Only of requests that began before then.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def delete(context: CliContext, *, yes: bool, **options: Any) -> None:
    """Delete kept bodies that match all options, for good. Bodies of running requests may be kept afterwards."""
    if not any(options.values()):
        raise click.UsageError("Name whose bodies to delete, for instance with --account")
    if not yes:
        confirm("Delete these bodies for good?")

    async def work(admin: AdminClient) -> Json:
        body = await resolve_key_id(admin, options)
        fields = {name: value for name, value in body.items() if value is not None}
        if "key" in fields:
            fields["key"] = int(fields["key"])
        return await admin.call("POST", "bodies", "delete", body=fields, timeout_s=_TIMEOUT_S)

    print_answer(context, run(context, work), _print_deleted)


@bodies.command("export")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["raw", "openai"]),
    default="raw",
    show_default=True,
    help="raw: every body as it is kept; openai: completed chats as lines for fine-tuning.",
)
@click.option("--account", metavar="NAME", help="Only of this account.")
@click.option("--key", metavar="KEY", help="Only of this key: an id, a name or the last four characters.")
@click.option("--model", help="Only of requests for this model.")
@click.option("--route", metavar="NAME", help="Only of requests for this route.")
@click.option("--user", "end_user", metavar="NAME", help="Only of this end user.")
@click.option("--session", metavar="NAME", help="Only of this session.")
@click.option("--tag", metavar="NAME=VALUE", help="Only of requests with this tag.")
@click.option("--outcome", metavar="WORD", help="Only of requests with this outcome: completed, failed, ...")
@click.option("--since", metavar="TIME", callback=parse_past, help="Only of requests from then on.")
@click.option("--until", metavar="TIME", callback=parse_past, help="Only of requests up to then.")
@client_command
def export(context: CliContext, *, file_format: str, **query: Any) -> None:
    """Print kept prompts and answers as JSON lines, newest first. The export is in the audit log."""

    async def work(admin: AdminClient) -> None:
        fields = await resolve_key_id(admin, {**query, "format": file_format})
        async for piece in admin.download("bodies", "export", query=fields):
            click.echo(piece, nl=False)

    run(context, work)


@bodies.command("attest")
@click.option("--account", metavar="NAME", help="Only of this account.")
@client_command
def attest(context: CliContext, *, account: str | None) -> None:
    """Print a signed statement of what is kept, and of what was deleted, from the audit log.

    With --json the statement is a string beside its signature and the public key.
    """
    answer = call(context, "GET", "bodies", "attestation", query={"account": account})
    print_answer(context, answer, _print_attestation)


def _print_attestation(answer: Json) -> None:
    click.echo(answer["statement"])
    click.echo(f"Signature (Ed25519): {answer['signature']}", err=True)
    click.echo(answer["public_key"], nl=False, err=True)


def _print_deleted(answer: Json) -> None:
    pending = f" Other nodes still erase those of {answer['pending']:,}; they are hidden." if answer["pending"] else ""
    answers = f" {answer['answers']:,} cached answers are deleted, too." if answer["answers"] else ""
    click.echo(f"The bodies of {answer['requests']:,} requests are deleted.{pending}{answers}")
