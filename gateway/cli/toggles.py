"""``disable``, ``enable`` and ``delete``, the same for accounts, keys and channels."""

from collections.abc import Callable

import click

from gateway.cli.admin_client import PROVIDER_TIMEOUT_S, CliContext, call
from gateway.cli.options import Command, client_command
from gateway.cli.output import print_answer


def add_switches(
    group: click.Group,
    path: str,
    which: Callable[[Command], Command],
    noun: str,
    *,
    by: str = "with",
) -> None:
    """The three commands of ``group``; ``by`` says how calls are bound to the noun."""

    def switch(verb: str, status: str, text: str) -> None:
        @group.command(verb, help=text)
        @which
        @client_command
        def command(place: CliContext, *, which: str) -> None:
            body = {"status": status}
            changed = call(place, "PATCH", path, str(which), body=body, timeout_s=PROVIDER_TIMEOUT_S)
            print_answer(place, changed, lambda _: click.echo(f"The {noun} {which} is {status}."))

    @group.command("delete", help=f"Delete the {noun} for good. What was called stays on record.")
    @which
    @click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
    @client_command
    def delete(place: CliContext, *, which: str, yes: bool) -> None:
        if not yes:
            click.confirm(f"Delete the {noun} {which}?", abort=True, err=True)
        print_answer(
            place, call(place, "DELETE", path, str(which)), lambda _: click.echo(f"The {noun} {which} is deleted.")
        )

    switch("disable", "disabled", f"Take no calls {by} the {noun} from now on.")
    switch("enable", "active", f"Take calls {by} the {noun} again.")
