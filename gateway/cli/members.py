"""The commands about members: who signs in to the console, and the links that let people in."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".
# ruff: noqa: PLC0415 - what serves is imported where no gateway runs.

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from gateway.cli.admin_client import AdminClient, CliContext, CliError, Json, ask, load_declared, look
from gateway.cli.options import ListByDefault, client_command
from gateway.cli.output import ABSENT, clean, format_moment, format_value, print_answer, print_cells

_ROLES = ("viewer", "member", "administrator")


@click.group(cls=ListByDefault)
def members() -> None:
    """Who signs in to the console, each for one account.

    A viewer looks at what is its account's, a member uses and changes it, an administrator everything. New ones come
    by a link: whoever opens it first chooses a name and a passphrase.

    \b
    Examples:
      gateway members
      gateway members invite team
      gateway members invite local --role administrator
      gateway members reset ann
      gateway members disable ann
    """


@members.command("list")
@client_command
def list_members(place: CliContext) -> None:
    """Every member."""
    print_answer(place, look(place, lambda admin: admin.get("members")), print_members)


@members.command("invite")
@click.argument("account")
@click.option("--role", type=click.Choice(_ROLES), default="member", show_default=True, help="What they may do.")
@click.option("--hours", type=click.IntRange(1, 720), default=72, show_default=True, help="How long the link is good.")
@client_command
def invite(place: CliContext, account: str, role: str, hours: int) -> None:
    """Make a link for a new member of ACCOUNT and print it, this once, on standard output."""
    body = {"account": account, "role": role, "hours": hours}
    made = ask(place, lambda admin: _make_link(place, admin, "links", body=body))
    print_answer(place, made, lambda link: print_link(link, f"Lets in one {role} of the account {account!r}"))


@members.command("reset")
@click.argument("name")
@client_command
def reset(place: CliContext, name: str) -> None:
    """Make a link to a new passphrase for NAME and print it, this once, on standard output.

    The passphrase that NAME has is good until the link is used. The second factor stays; see 'edit'.
    """

    async def make(admin: AdminClient) -> Json:
        return await _make_link(place, admin, "members", await _find_id(admin, name), "reset", body={})

    print_answer(place, ask(place, make), lambda link: print_link(link, f"Gives {name} a new passphrase"))


@members.command("edit")
@click.argument("name")
@click.option("--name", "new_name", metavar="NEW", help="Rename it.")
@click.option("--role", type=click.Choice(_ROLES), help="What it may do; it has to sign in again.")
@click.option("--no-second-factor", is_flag=True, help="Take its second factor away, for one who has lost it.")
@client_command
def edit(place: CliContext, name: str, new_name: str | None, role: str | None, *, no_second_factor: bool) -> None:
    """Change the member NAME."""
    given: Json = {"name": new_name, "role": role, "second_factor": False if no_second_factor else None}
    body = {field: value for field, value in given.items() if value is not None}
    if not body:
        raise click.UsageError("There is nothing to change")
    print_answer(place, _change(place, name, body), lambda member: print_members([member]))


@members.command("disable")
@click.argument("name")
@client_command
def disable(place: CliContext, name: str) -> None:
    """Let NAME in no more; it is signed out at once, everywhere."""
    _switch(place, name, "disabled")


@members.command("enable")
@click.argument("name")
@client_command
def enable(place: CliContext, name: str) -> None:
    """Let NAME in again."""
    _switch(place, name, "active")


@members.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def delete(place: CliContext, name: str, *, yes: bool) -> None:
    """Delete the member NAME for good. Its account and that one's keys stay."""
    if not yes:
        click.confirm(f"Delete the member {name}?", abort=True, err=True)

    async def remove(admin: AdminClient) -> Json:
        return await admin.call("DELETE", "members", await _find_id(admin, name))

    print_answer(place, ask(place, remove), lambda _: click.echo(f"The member {name} is deleted."))


def _switch(place: CliContext, name: str, status: str) -> None:
    changed = _change(place, name, {"status": status})
    print_answer(place, changed, lambda _: click.echo(f"The member {name} is {status}."))


def _change(place: CliContext, name: str, body: Json) -> Json:
    async def change(admin: AdminClient) -> Json:
        return await admin.call("PATCH", "members", await _find_id(admin, name), body=body)

    return ask(place, change)


async def _find_id(admin: AdminClient, name: str) -> str:
    """The id of the member of that name. Raises ``CliError``."""
    for member in (await admin.get("members"))["data"]:
        if member["name"] == name.lower():
            return str(member["id"])
    raise CliError(f"No member is called {name!r}; see: gateway members")


async def _make_link(place: CliContext, admin: AdminClient, *path: str, body: Json) -> Json:
    """A new link. Where no gateway runs it leads to where the next one will."""
    link = await admin.call("POST", *path, body=body)
    if not admin.offline:
        return link
    from gateway.serve import write_address

    server = load_declared(place.config, place.environ).config.server
    address = server.base_url.rstrip("/") or write_address(server.host, server.port)
    return {**link, "url": link["url"].replace(admin.url, address, 1)}


def print_link(link: Json, about: str) -> None:
    """The link on standard output, for ``$(…)``, and about it on standard error."""
    click.echo(link["url"])
    click.echo(f"{about}, once, until {link['expires_at']}. Shown once, only its hash is stored.", err=True)


def print_members(members: Sequence[Json]) -> None:
    """A table of members."""
    now = datetime.now(UTC)
    cells = [
        {
            ">ID": str(member["id"]),
            "NAME": clean(member["name"]),
            "ACCOUNT": member["account"],
            "ROLE": member["role"],
            "STATUS": member["status"],
            "2ND FACTOR": format_value(member["second_factor"]),
            "SIGNED IN": _format_when(member["signed_in_at"], now),
        }
        for member in members
    ]
    print_cells(cells, "There is no member; let one in: gateway members invite ACCOUNT")


def _format_when(text: str | None, now: datetime) -> str:
    if text is None:
        return ABSENT
    return format_moment(int(datetime.fromisoformat(text).timestamp() * 1000), now)
