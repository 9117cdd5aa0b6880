"""The ``files`` commands: list and delete clients' files."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from typing import Any

import click

from gateway.cli.admin_client import run
from gateway.cli.context import CliContext
from gateway.cli.objects import call_object
from gateway.cli.options import ListByDefault, client_command, confirm, limit_option
from gateway.cli.output import print_answer
from gateway.cli.table import Column, print_table
from gateway.cli.text import format_bytes, format_moment

FILES = (
    Column("TIME", lambda file: format_moment(file["created_at"])),
    Column("ID", "id"),
    Column("ACCOUNT", lambda file: file["account"] or "-", drop=3),
    Column("NAME", "filename", shrinks=True, width=8),
    Column("PURPOSE", "purpose", drop=2),
    Column("SIZE", lambda file: format_bytes(file["bytes"]), align_right=True),
    Column("EXPIRES", lambda file: format_moment(file["expires_at"]) if file["expires_at"] else "never", drop=1),
)


@click.group(cls=ListByDefault)
def files() -> None:
    """List and delete the files of all accounts: those that clients sent, and results of batches.

    \b
    Examples:
      gateway files
      gateway files --account team --purpose batch
      gateway files --search report
      gateway files delete file-0123456789abcdef0123456789abcdef
    """


@files.command("list")
@limit_option
@click.option("--account", metavar="NAME", help="Only files of this account.")
@click.option("--purpose", metavar="WORD", help="Only files for this purpose, such as batch or batch_output.")
@click.option("--search", metavar="TEXT", help="Only files whose id or name contains this text.")
@client_command
def list_files(context: CliContext, **query: Any) -> None:
    """List the last files, newest last. NAME is what the client called the file."""
    listing = run(context, lambda admin: admin.get("files", query=query))
    print_answer(context, listing, lambda rows: print_table(FILES, rows[::-1], "No files stored."))


@files.command("delete")
@click.argument("file_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def delete_file(context: CliContext, file_id: str, *, yes: bool) -> None:
    """Delete the file ID. A batch that reads it goes on."""
    if not yes:
        confirm(f"Delete the file {file_id}?")
    deleted = call_object(context, "DELETE", "files", file_id)
    print_answer(context, deleted, lambda _: click.echo(f"The file {deleted['name']} is deleted."))
