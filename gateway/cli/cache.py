"""The ``cache`` commands: the answers that are given again to equal requests."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import click

from gateway.cli.admin_client import call
from gateway.cli.context import CliContext, Json
from gateway.cli.options import client_command, confirm
from gateway.cli.output import print_answer, print_fields

_TIMEOUT_S = 600.0
"""Timeout of a deletion, which may overwrite gigabytes."""


@click.group()
def cache() -> None:
    """Show how many answers are kept for equal requests and how often they were given, and delete them.

    \b
    Examples:
      gateway cache stats
      gateway cache clear
      gateway cache clear --user ann@example.com
    """


@cache.command("stats")
@client_command
def show_stats(context: CliContext) -> None:
    """Show how many answers this node keeps, and how often it gave them since its start."""
    print_answer(context, call(context, "GET", "cache"), print_fields)


@cache.command("clear")
@click.option("--account", metavar="NAME", help="Only answers to requests of this account.")
@click.option("--user", metavar="NAME", help="Only answers to requests of this end user, as clients send its name.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def clear(context: CliContext, *, yes: bool, **options: str | None) -> None:
    """Delete the kept answers that match all options; without an option all."""
    if not yes:
        confirm("Delete these answers?")
    fields = {name: value for name, value in options.items() if value is not None}
    print_answer(context, call(context, "POST", "cache", "clear", body=fields, timeout_s=_TIMEOUT_S), _print_cleared)


def _print_cleared(answer: Json) -> None:
    click.echo(f"{answer['answers']:,} answers are deleted.")
