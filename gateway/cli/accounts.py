"""The ``accounts`` and ``keys`` commands."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Callable, Mapping
from typing import Any

import click

from gateway.cli import output
from gateway.cli.admin_client import call, run
from gateway.cli.billing import add_credit_commands
from gateway.cli.context import CliContext
from gateway.cli.new_key import create_key
from gateway.cli.objects import call_object, edit_object
from gateway.cli.options import Command, ListByDefault, client_command, search_options
from gateway.cli.resource_options import account_options, build_changes, build_new_fields, key_options
from gateway.cli.toggles import add_toggles

_KEY = click.argument("name_or_id", metavar="KEY")


@click.group(cls=ListByDefault)
def accounts() -> None:
    """Manage accounts.

    Every key belongs to an account. The account's quota and rate limits apply to all its keys together, in addition to
    those of each key.

    \b
    Examples:
      gateway accounts
      gateway accounts add team --quota-usd 50 --quota-period monthly
      gateway accounts top-up team 20 --reference invoice-17
      gateway accounts edit team --rpm 600 --quota-usd none
      gateway accounts disable team
    """


@accounts.command("list")
@search_options
@client_command
def list_accounts(context: CliContext, **query: Any) -> None:
    """List accounts. SPENT and LEFT are for the current day, month or lifetime, as the quota says."""
    output.print_answer(context, call(context, "GET", "accounts", query=query), output.print_accounts)


@accounts.command("add")
@click.argument("name")
@account_options
@client_command
def add_account(context: CliContext, name: str, **options: Any) -> None:
    """Add the account NAME."""
    fields = build_new_fields(options)
    account = call(context, "POST", "accounts", body={"name": name, **fields})
    output.print_answer(context, account, lambda _: click.echo(f"The account {name} is added."))
    _warn_of_unpriced(context, fields)


@accounts.command("edit")
@click.argument("name")
@click.option("--name", "new_name", metavar="NEW", help="Rename it.")
@account_options
@client_command
def edit_account(context: CliContext, name: str, new_name: str | None, **options: Any) -> None:
    """Edit the account NAME. Use 'none' to clear a setting."""
    fields = build_changes({"name": new_name, **options})
    edit_object(context, "accounts", name, fields)
    _warn_of_unpriced(context, fields)


@click.group(cls=ListByDefault)
def keys() -> None:
    """Manage API keys.

    A key can be limited to models, a group of channels, IP addresses, an expiry date, a quota and rate limits. KEY is
    its id, its name, or the last four characters of its secret.

    \b
    Examples:
      gateway keys
      gateway keys list --search Kfbh
      KEY=$(gateway keys add laptop)
      gateway keys add --account team --models 'gpt-*,demo-*' --expires-at 30d
      gateway keys edit laptop --quota-usd 5 --quota-period daily --models none
      gateway keys set-balance 3 2.50
      gateway keys edit 3 --webhook-url https://app.example.com/videos
      gateway keys webhook-secret 3
      gateway keys rotate laptop --overlap-h 1
      gateway keys disable laptop
    """


@keys.command("list")
@click.option("--account", metavar="NAME", help="Only keys of this account.")
@search_options
@client_command
def list_keys(context: CliContext, **query: Any) -> None:
    """List API keys by their last four characters. SPENT and LEFT are for the day, month or lifetime of the quota.

    --search looks at names, last four characters, groups and the names of accounts.
    """
    output.print_answer(context, call(context, "GET", "keys", query=query), output.print_keys)


@keys.command("add")
@click.argument("name", required=False)
@click.option("--account", help="Its account.  [default: the only one]")
@click.option("--name", "same_name", metavar="NAME", help="The same as the argument.")
@key_options
@client_command
def add_key(context: CliContext, name: str | None, same_name: str | None, account: str | None, **options: Any) -> None:
    """Create the API key NAME and print it. It cannot be shown again. NAME is by default key-2 or the next."""
    if name is not None and same_name not in {None, name}:
        raise click.UsageError("Give one name")
    fields = build_new_fields({"name": name or same_name, **options})
    output.print_answer(context, run(context, lambda admin: create_key(admin, account, fields)), output.print_new_key)
    _warn_of_unpriced(context, fields)


@keys.command("edit")
@_KEY
@click.option("--name", metavar="NEW", help="Rename it.")
@key_options
@client_command
def edit_key(context: CliContext, name_or_id: str, **options: Any) -> None:
    """Edit KEY. Use 'none' to clear a setting."""
    fields = build_changes(options)
    edit_object(context, "keys", name_or_id, fields)
    _warn_of_unpriced(context, fields)


@keys.command("rotate")
@_KEY
@click.option(
    "--overlap-h",
    type=click.IntRange(0, 720),
    default=24,
    show_default=True,
    metavar="HOURS",
    help="How long the old secret keeps working.",
)
@client_command
def rotate_key(context: CliContext, name_or_id: str, overlap_h: int) -> None:
    """Give KEY a new secret and print it. It cannot be shown again."""
    new_key = call_object(context, "POST", "keys", name_or_id, "rotate", body={"overlap_h": overlap_h})
    output.print_answer(context, new_key, output.print_new_key)


@keys.command("webhook-secret")
@_KEY
@client_command
def show_webhook_secret(context: CliContext, name_or_id: str) -> None:
    """Print the webhook signing secret of KEY, in the format of Standard Webhooks libraries."""
    answer = call_object(context, "GET", "keys", name_or_id, "webhook-secret")
    output.print_answer(context, answer, lambda signing_secret: click.echo(signing_secret["secret"]))


def _add_show(group: click.Group, path: str, argument: Callable[[Command], Command], noun: str) -> None:
    @group.command("show", help=f"Show the {noun}.")
    @argument
    @client_command
    def show(context: CliContext, *, name_or_id: str) -> None:
        output.print_answer(context, call_object(context, "GET", path, name_or_id), output.print_fields)


for _add in (_add_show, add_toggles, add_credit_commands):
    _add(accounts, "accounts", click.argument("name_or_id", metavar="NAME"), "account")
    _add(keys, "keys", _KEY, "key")


def _warn_of_unpriced(context: CliContext, fields: Mapping[str, Any]) -> None:
    """Warn about models without a price on standard error if ``fields`` set a spending limit."""
    if fields.get("quota_usd") is not None:
        output.print_unpriced_models(output.list_unpriced_models(call(context, "GET", "models")))
