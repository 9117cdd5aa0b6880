"""The ``members`` commands: console users and their invitations."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".
# ruff: noqa: PLC0415 - the server is imported only if no gateway runs.

from collections.abc import Sequence
from typing import Any

import click

from gateway.cli.admin_client import AdminClient, run
from gateway.cli.context import CliContext, Json, load_file_config
from gateway.cli.objects import call_object, find_id, find_member, print_edit
from gateway.cli.options import ListByDefault, client_command, confirm, search_options
from gateway.cli.output import print_answer
from gateway.cli.table import Column, print_table
from gateway.cli.text import format_moment

_ROLES = ("viewer", "member", "administrator")
MEMBERS = (
    Column("ID", "id", align_right=True),
    Column("NAME", "name", shrinks=True, width=12),
    Column("ACCOUNT", "account", shrinks=True, width=8),
    Column("ROLE", "role"),
    Column("STATUS", "status", status=True),
    Column("2ND FACTOR", "second_factor", drop=1),
    Column("SIGNED IN", lambda member: format_moment(member["signed_in_at"])),
)
PASSKEYS = (
    Column("ID", "id", align_right=True),
    Column("PASSKEY", "name", shrinks=True, width=16),
    Column("ADDED", lambda passkey: format_moment(passkey["created_at"])),
    Column("USED", lambda passkey: format_moment(passkey["used_at"])),
)


@click.group(cls=ListByDefault)
def members() -> None:
    """Manage the users of the console.

    Each member belongs to one account. A viewer sees the account's data, a member can also use and change it, an
    administrator can do everything. Invite new members with a link, on which they choose a name and a passphrase.

    \b
    Examples:
      gateway members
      gateway members invite team
      gateway members invite local --role administrator
      gateway members reset ann
      gateway members show ann
      gateway members edit ann --may-read-bodies
      gateway members disable ann
    """


@members.command("list")
@click.option("--account", metavar="NAME", help="Only members of this account.")
@search_options
@client_command
def list_members(context: CliContext, **query: Any) -> None:
    """List members."""
    print_answer(context, run(context, lambda admin: admin.get("members", query=query)), print_members)


@members.command("show")
@click.argument("name")
@client_command
def show_member(context: CliContext, name: str) -> None:
    """Show the member NAME with its passkeys."""

    async def work(admin: AdminClient) -> Json:
        return await admin.get("members", str((await find_member(admin, name))["id"]))

    print_answer(context, run(context, work), print_member)


@members.command("invite")
@click.argument("account")
@click.option("--role", type=click.Choice(_ROLES), default="member", show_default=True, help="Role of the new member.")
@click.option("--hours", type=click.IntRange(1, 720), default=72, show_default=True, help="Validity of the link.")
@client_command
def invite(context: CliContext, account: str, role: str, hours: int) -> None:
    """Create an invitation to ACCOUNT and print its one-time link."""
    body = {"account": account, "role": role, "hours": hours}
    new_link = run(context, lambda admin: _create_link(context, admin, "links", body=body))
    print_answer(context, new_link, lambda link: print_link(link, f"Invitation for account '{account}' as {role}"))


@members.command("reset")
@click.argument("name")
@client_command
def reset(context: CliContext, name: str) -> None:
    """Create a link on which the member NAME chooses a new passphrase, and print it.

    The current passphrase works until the link is used. The second factor stays; to remove it use 'edit'.
    """

    async def work(admin: AdminClient) -> Json:
        return await _create_link(context, admin, "members", await find_id(admin, "members", name), "reset", body={})

    print_answer(context, run(context, work), lambda link: print_link(link, f"Passphrase reset for {name}"))


@members.command("edit")
@click.argument("name")
@click.option("--name", "new_name", metavar="NEW", help="New name.")
@click.option("--role", type=click.Choice(_ROLES), help="New role; the member must sign in again.")
@click.option("--no-second-factor", is_flag=True, help="Remove authenticator and passkeys of a member who lost them.")
@click.option("--no-passkeys", is_flag=True, help="Remove the passkeys.")
@click.option(
    "--may-read-bodies/--may-not-read-bodies",
    default=None,
    help="Whether the member may read kept prompts and answers of its account.",
)
@client_command
def edit(
    context: CliContext, name: str, new_name: str | None, *, no_second_factor: bool, no_passkeys: bool, **options: Any
) -> None:
    """Edit the member NAME."""
    fields: Json = {
        **options,
        "name": new_name,
        "second_factor": False if no_second_factor else None,
        "passkeys": False if no_passkeys else None,
    }
    body = {field: value for field, value in fields.items() if value is not None}
    if not body:
        raise click.UsageError("There is nothing to change")

    async def work(admin: AdminClient) -> tuple[Json, Json]:
        old_member = await find_member(admin, name)
        return old_member, await admin.call("PATCH", "members", str(old_member["id"]), body=body)

    old_member, new_member = run(context, work)
    print_answer(context, new_member, lambda _: print_edit(old_member["name"], old_member, new_member, body))


@members.command("disable")
@click.argument("name")
@client_command
def disable(context: CliContext, name: str) -> None:
    """Disable the member NAME and end all of its sessions."""
    _set_status(context, name, "disabled")


@members.command("enable")
@click.argument("name")
@client_command
def enable(context: CliContext, name: str) -> None:
    """Enable the member NAME."""
    _set_status(context, name, "active")


@members.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def delete(context: CliContext, name: str, *, yes: bool) -> None:
    """Delete the member NAME. The account and its keys stay."""
    if not yes:
        confirm(f"Delete the member {name}?")
    answer = call_object(context, "DELETE", "members", name)
    print_answer(context, answer, lambda _: click.echo(f"The member {name} is deleted."))


def _set_status(context: CliContext, name: str, status: str) -> None:
    answer = call_object(context, "PATCH", "members", name, body={"status": status})
    print_answer(context, answer, lambda _: click.echo(f"The member {name} is {status}."))


async def _create_link(context: CliContext, admin: AdminClient, *path: str, body: Json) -> Json:
    """Create a link. If no gateway runs, the link has the address at which the next one will answer."""
    link = await admin.call("POST", *path, body=body)
    if not admin.offline:
        return link
    from gateway.serve import format_address

    server = load_file_config(context.config, context.environ).config.server
    address = server.base_url.rstrip("/") or format_address(server.host, server.port, tls=bool(server.tls_certificate))
    return {**link, "url": link["url"].replace(admin.url, address, 1)}


def print_link(link: Json, heading: str) -> None:
    """Print the link to standard output, so that ``$(…)`` captures it, and the rest to standard error."""
    click.echo(link["url"])
    click.echo(f"{heading}, valid once until {link['expires_at']}. It is not shown again.", err=True)


def print_member(member: Json) -> None:
    """Print the facts of a member, and a table of its passkeys."""
    factors = [
        name for name, is_set in (("authenticator", member["authenticator"]), ("passkey", member["passkeys"])) if is_set
    ]
    facts = {
        "account": member["account"],
        "role": member["role"],
        "status": member["status"],
        "second factor": " or ".join(factors) or "none",
        "reads bodies": "yes" if member["may_read_bodies"] or member["role"] == "administrator" else "no",
        "signed in": format_moment(member["signed_in_at"]),
    }
    click.echo(member["name"])
    for label, fact in facts.items():
        click.echo(f"  {label:<14}{fact}")
    if member["passkey_list"]:
        click.echo()
        print_table(PASSKEYS, member["passkey_list"], "")


def print_members(members: Sequence[Json]) -> None:
    """Print a table of members."""
    print_table(MEMBERS, members, "No members. Invite one: gateway members invite ACCOUNT")
