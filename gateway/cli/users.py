"""The ``users`` command: forget an end user."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import click

from gateway.cli.admin_client import AdminClient, run
from gateway.cli.context import CliContext, Json
from gateway.cli.options import client_command, confirm
from gateway.cli.output import print_answer

_TIMEOUT_S = 600.0
"""Timeout of the renaming, which may change millions of rows."""


@click.group()
def users() -> None:
    """Forget an end user. 'gateway usage --by user' shows what end users have used.

    \b
    Examples:
      gateway users forget u-17
      gateway users forget ann@example.com --account acme
    """


@users.command("forget")
@click.argument("user", metavar="NAME")
@click.option("--account", metavar="NAME", help="Only in this account.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def forget(context: CliContext, user: str, *, account: str | None, yes: bool) -> None:
    """Replace the end user NAME by a random name in all requests, sums, keys and videos. This cannot be undone.

    NAME is the user as clients send it.
    """
    if not yes:
        confirm(f"Replace the user {user} by a random name everywhere?")
    body = {"user": user} if account is None else {"user": user, "account": account}

    async def work(admin: AdminClient) -> Json:
        return await admin.call("POST", "users", "forget", body=body, timeout_s=_TIMEOUT_S)

    answer = run(context, work)
    print_answer(context, answer, _print_forgotten)


def _print_forgotten(answer: Json) -> None:
    click.echo(
        f"The user is {answer['name']} now: in {answer['requests']:,} requests, {answer['sums']:,} daily sums, "
        f"{answer['keys']:,} keys, {answer['videos']:,} videos and {answer['audit']:,} rows of the audit log. The kept "
        f"bodies of {answer['bodies']:,} requests and {answer['answers']:,} cached answers are deleted."
    )
