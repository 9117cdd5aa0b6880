"""The `gateway` command: runs a gateway, and asks or changes the one that runs."""
# ruff: noqa: PLC0415 - what serves is imported by the command that serves: the others start in a fraction of the time.
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import contextlib
import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from gateway import __version__
from gateway.cli import output as cli_show
from gateway.cli.admin_client import (
    PROVIDER_TIMEOUT_S,
    CliContext,
    CliError,
    Json,
    StartupError,
    ask,
    call,
    create_key,
    get_settled,
    load_declared,
    need_running,
    open_folder,
    probe,
)
from gateway.cli.audit_log import changes
from gateway.cli.billing import add_credit_commands, audit, usage
from gateway.cli.channels import channels, explain
from gateway.cli.members import members
from gateway.cli.options import (
    Command,
    ListByDefault,
    account_options,
    changed_fields,
    channel_command,
    client_command,
    config_option,
    data_option,
    exit_unless,
    find_config,
    key_options,
    may_discover,
    new_fields,
    running_command,
)
from gateway.cli.output import print_answer
from gateway.cli.output_channels import print_report
from gateway.cli.requests import requests
from gateway.cli.settings import groups, prices, settings
from gateway.cli.status import health, running
from gateway.cli.toggles import add_switches
from gateway.cli.videos import videos
from gateway.storage.data_folder import SECRETS, DataFolder, DataFolderDamaged, DataFolderLocked

if TYPE_CHECKING:
    from gateway.config.merge import FileConfig
    from gateway.domain.setting import Source

_CONTEXT = {"help_option_names": ["--help", "-h"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT, invoke_without_command=True)
@click.version_option(__version__, prog_name="gateway")
@click.pass_context
def main(ctx: click.Context) -> None:
    """One gateway for AI models: one key, one streaming-first API in front of many providers.

    \b
      gateway serve                      run it; the first start prints a key and a call to copy
      gateway keys create --name laptop  make another key
      gateway channels add openai        a way to a provider; asks for its key
      gateway models                     what can be called
      gateway explain gpt-5-mini         who would serve that, and at what price
      gateway requests --follow          watch the calls come in
      gateway running                    the calls under way
      gateway videos --follow            watch videos being made
      gateway usage                      what they cost, day by day
      gateway accounts top-up team 20    $20 more for an account that has a quota
      gateway members invite team        a link that lets somebody in to the console
      gateway audit                      is every balance the sum of its entries?
      gateway changes                    who changed what
      gateway check                      is everything set up right?
      gateway health                     how is the gateway that runs doing?
      gateway reload                     take in what the configuration file says now
      gateway settings                   what it goes by, and who says so

    The commands talk to the gateway that runs over the data folder (./data, or --data, or GATEWAY_DATA). Where none
    runs they open the folder themselves, with the configuration that 'gateway serve' would read.
    """
    ctx.obj = os.environ
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@main.command()
@config_option
@click.option("--host", help="Listen here; 0.0.0.0 is every address of the machine.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="0 is any free one.  [default: 8080]")
@click.option(
    "--renew-secret",
    "renew",
    multiple=True,
    type=click.Choice(list(SECRETS)),
    help="Make this file of the data folder anew if it is lost, and with it what depends on it.",
)
@data_option
def serve(config_path: Path | None, host: str | None, port: int | None, renew: tuple[str, ...], data: Path) -> None:
    """Run the gateway until it is told to end (Ctrl-C, SIGTERM).

    With no channel in the configuration, provider keys of the environment (OPENAI_API_KEY, …) and model servers on
    this machine are used, unless GATEWAY_DISCOVER=0; without any of them a built-in demo answers.

    \b
    Examples:
      gateway serve
      gateway serve --config /etc/gateway.toml --data /var/lib/gateway
      gateway serve --host 0.0.0.0 --port 9000
    """
    from gateway.config.exposure import check_secrets
    from gateway.config.loader import read_declared

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it waits until serve.py can hear it
    path = find_config(config_path)
    declared = _listen_at(load_declared(path, os.environ), host, port)

    def read_again() -> "FileConfig":
        # A file that lies here only since the start counts too; the one that was read stays the one.
        read = _listen_at(read_declared(path or find_config(None), os.environ), host, port)
        check_secrets(read.config, folder.admin_token())
        return read

    try:
        folder = open_folder(data)
    except DataFolderLocked as busy:
        raise StartupError(str(busy)) from None
    with contextlib.closing(folder):
        _run(folder, declared, read_again, renew)


def _run(
    folder: DataFolder, declared: "FileConfig", read_again: Callable[[], "FileConfig"], renew: tuple[str, ...]
) -> None:
    """Serve over ``folder`` until a signal ends it. Raises ``StartupError``."""
    from gateway.config.exposure import check_secrets
    from gateway.config.loader import ConfigError
    from gateway.log import configure_log
    from gateway.options import AppOptions
    from gateway.serve import PortInUse, run
    from gateway.storage.database import DatabaseStartupError

    config = declared.config
    configure_log(config.server.log_format)
    site = AppOptions(
        config,
        folder,
        os.environ,
        discover=may_discover(os.environ),
        sources=declared.sources,
        read_config=read_again,
        renew_secrets=renew,
    )
    try:
        check_secrets(config, folder.admin_token())
        run(site, cli_show.greet)
    except (ConfigError, PortInUse, DatabaseStartupError, DataFolderDamaged) as refused:
        raise StartupError(str(refused)) from None


def _listen_at(declared: "FileConfig", host: str | None, port: int | None) -> "FileConfig":
    """What is ``declared``, with the address of the command line, where that has one."""
    server = declared.config.server
    told = (("server.host", host), ("server.port", port))
    said: dict[str, Source] = dict.fromkeys((path for path, value in told if value is not None), "environment")
    host, port = server.host if host is None else host, server.port if port is None else port
    config = attrs.evolve(declared.config, server=attrs.evolve(server, host=host, port=port))
    return attrs.evolve(declared, config=config, sources={**declared.sources, **said})


@main.group(cls=ListByDefault)
def accounts() -> None:
    """Who pays: every key belongs to an account.

    What an account may spend and how fast holds for all its keys together; a key's own quota and limits count too.

    \b
    Examples:
      gateway accounts
      gateway accounts add team --quota-usd 50 --quota-period monthly
      gateway accounts top-up team 20 --reference invoice-17
      gateway accounts edit team --rpm 600 --quota-usd none
      gateway accounts disable team
    """


@accounts.command("list")
@client_command
def list_accounts(place: CliContext) -> None:
    """Every account; SPENT and LEFT are of its quota's day, month or lifetime."""
    print_answer(place, call(place, "GET", "accounts"), cli_show.print_accounts)


@accounts.command("add")
@click.argument("name")
@account_options
@client_command
def add_account(place: CliContext, name: str, **options: Any) -> None:
    """Add the account NAME."""
    made = call(place, "POST", "accounts", body={"name": name, **new_fields(options)})
    print_answer(place, made, cli_show.print_fields)


@accounts.command("edit")
@click.argument("name")
@click.option("--name", "new_name", metavar="NEW", help="Rename it.")
@account_options
@client_command
def edit_account(place: CliContext, name: str, new_name: str | None, **options: Any) -> None:
    """Change the account NAME; 'none' takes a setting back."""
    changed = call(place, "PATCH", "accounts", name, body=changed_fields({"name": new_name, **options}))
    print_answer(place, changed, cli_show.print_fields)


@main.group(cls=ListByDefault)
def keys() -> None:
    """What callers show: 'Authorization: Bearer sk-…'.

    A key may be bound to models, to a group of channels, to networks, to a time, to an amount and to a rate.

    \b
    Examples:
      gateway keys
      KEY=$(gateway keys create --name laptop)
      gateway keys create --account team --models 'gpt-*,demo-*' --expires-at 2027-01-31
      gateway keys edit 3 --quota-usd 5 --quota-period daily --models none
      gateway keys set-balance 3 2.50
      gateway keys edit 3 --webhook-url https://app.example.com/videos
      gateway keys webhook-secret 3
      gateway keys rotate 3 --overlap-h 1
      gateway keys disable 3
    """


@keys.command("list")
@client_command
def list_keys(place: CliContext) -> None:
    """Every key, by its last four characters; SPENT and LEFT are of its quota's day, month or lifetime."""
    print_answer(place, call(place, "GET", "keys"), cli_show.print_keys)


@keys.command("create")
@click.option("--account", help="Whose it is.  [default: the only account there is]")
@click.option("--name", help="[default: key-2, or the next that is free]")
@key_options
@client_command
def make_key(place: CliContext, account: str | None, **options: Any) -> None:
    """Make a key and print it, this once, on standard output."""
    fields = new_fields(options)
    print_answer(place, ask(place, lambda admin: create_key(admin, account, fields)), cli_show.print_new_key)


@keys.command("edit")
@click.argument("key_id", metavar="ID", type=int)
@click.option("--name", metavar="NEW", help="Rename it.")
@key_options
@client_command
def edit_key(place: CliContext, key_id: int, **options: Any) -> None:
    """Change the key ID; 'none' takes a setting back."""
    changed = call(place, "PATCH", "keys", str(key_id), body=changed_fields(options))
    print_answer(place, changed, cli_show.print_fields)


@keys.command("rotate")
@click.argument("key_id", metavar="ID", type=int)
@click.option("--overlap-h", type=click.IntRange(0, 720), default=24, show_default=True, metavar="HOURS")
@client_command
def rotate_key(place: CliContext, key_id: int, overlap_h: int) -> None:
    """Give the key ID another secret and print it, this once; the old one is good for some HOURS more, 0: for none."""
    rotated = call(place, "POST", "keys", str(key_id), "rotate", body={"overlap_h": overlap_h})
    print_answer(place, rotated, cli_show.print_new_key)


@keys.command("webhook-secret")
@click.argument("key_id", metavar="ID", type=int)
@client_command
def show_webhook_secret(place: CliContext, key_id: int) -> None:
    """Print what signs that which is told of the key ID's videos, as libraries of Standard Webhooks take it."""
    print_answer(
        place, call(place, "GET", "keys", str(key_id), "webhook-secret"), lambda told: click.echo(told["secret"])
    )


def _add_show(group: click.Group, path: str, which: Callable[[Command], Command], noun: str) -> None:
    @group.command("show", help=f"Show everything about the {noun}.")
    @which
    @client_command
    def show(place: CliContext, *, which: str) -> None:
        print_answer(place, call(place, "GET", path, str(which)), cli_show.print_fields)


for _add in (_add_show, add_switches, add_credit_commands):
    _add(accounts, "accounts", click.argument("which", metavar="NAME"), "account")
    _add(keys, "keys", click.argument("which", metavar="ID", type=int), "key")
main.add_command(channels)
main.add_command(explain)
main.add_command(usage)
main.add_command(audit)
main.add_command(requests)
main.add_command(changes)
main.add_command(videos)
for _command in (settings, groups, prices, health, running):
    main.add_command(_command)
main.add_command(members)


@main.group(cls=ListByDefault)
def models() -> None:
    """What can be called, and through which channels.

    \b
    Examples:
      gateway models
      gateway models --json
    """


@models.command("list")
@channel_command
def list_models(place: CliContext) -> None:
    """Every model, with the channels that serve it, best first."""
    print_answer(place, get_settled(place, "models"), cli_show.print_models)


@main.command(short_help="Take in what the configuration file says now.")
@running_command
def reload(place: CliContext) -> None:
    """Have the gateway that runs read its configuration again, and say what that changed.

    It reads the file it was started with, and applies it whole or not at all: exits with 1 where something is wrong
    with it. Calls under way finish as they began. SIGHUP does the same, and leaves what it did in the log. What
    [server], [store] and [ledger] say is in force after a restart.

    \b
    Examples:
      gateway reload
      gateway reload --data /var/lib/gateway
    """
    need_running(place, "reload")
    report = call(place, "POST", "reload", timeout_s=PROVIDER_TIMEOUT_S)
    print_answer(place, report, cli_show.print_reload)


@main.command(short_help="Is the configuration right, does every channel answer?")
@channel_command
def check(place: CliContext) -> None:
    """Is the configuration right, and does every channel answer? Exits with 1 where not.

    Channels, but for disabled ones, are tried by the gateway that runs over the data folder, as it has them in force;
    where none runs, by this command as the file has them, and the data folder is left as it is.

    \b
    Examples:
      gateway check
      gateway check --config new.toml
    """
    try:
        load_declared(place.config, place.environ)
    except CliError as trouble:
        report: Json = {"ok": False, "problems": trouble.message.splitlines(), "channels": []}
    else:
        results = probe(place, lambda admin: admin.test_channels())
        report = {"ok": all(result["ok"] for result in results), "problems": [], "channels": results}
    print_answer(place, report, functools.partial(print_report, config=place.config))
    exit_unless(report["ok"])
