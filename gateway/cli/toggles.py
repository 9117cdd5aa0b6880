"""The commands ``disable``, ``enable`` and ``delete`` of accounts, keys and channels."""

from collections.abc import Callable

import click

from gateway.cli.admin_client import PROVIDER_TIMEOUT_S
from gateway.cli.context import CliContext, CliError
from gateway.cli.objects import call_object
from gateway.cli.options import Command, client_command, confirm, require_terminal
from gateway.cli.output import print_answer


def _confirm_option(noun: str) -> Callable[[Command], Command]:
    """Return the decorator that adds ``--confirm`` to the command ``delete`` of accounts; a no-op for other objects."""
    if noun != "account":
        return lambda command: command
    return click.option("--confirm", "name", metavar="NAME", help="The account's name: required for the only account.")


def add_toggles(group: click.Group, path: str, argument: Callable[[Command], Command], noun: str) -> None:
    """Add ``disable``, ``enable`` and ``delete`` to ``group``."""

    def add_toggle(verb: str, status: str) -> None:
        @group.command(verb, help=f"{verb.capitalize()} the {noun}.")
        @argument
        @client_command
        def command(context: CliContext, *, name_or_id: str) -> None:
            body = {"status": status}
            answer = call_object(context, "PATCH", path, name_or_id, body=body, timeout_s=PROVIDER_TIMEOUT_S)
            print_answer(context, answer, lambda _: click.echo(f"The {noun} {name_or_id} is {status}."))

    @group.command("delete", help=f"Delete the {noun}. Its requests stay in the log.")
    @argument
    @click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
    @_confirm_option(noun)
    @client_command
    def delete(context: CliContext, *, name_or_id: str, yes: bool, name: str | None = None) -> None:
        if noun == "account" and not yes and name is None:
            with require_terminal("--yes, or --confirm with its name"):
                name = click.prompt(f"This deletes the account {name_or_id} with all its keys. Type its name", err=True)
        elif not yes and name is None:
            confirm(f"Delete the {noun} {name_or_id}?")
        if name not in {None, name_or_id}:
            raise CliError(f"'{name}' is not the name of the account: nothing is deleted")
        query = {} if name is None else {"confirm": name}
        print_answer(
            context,
            call_object(context, "DELETE", path, name_or_id, query=query),
            lambda _: click.echo(f"The {noun} {name_or_id} is deleted."),
        )

    add_toggle("disable", "disabled")
    add_toggle("enable", "active")
