"""The ``gateway`` command: ``serve`` runs a gateway; the other commands manage it."""
# ruff: noqa: PLC0415 - the server is imported by ``serve`` only: the other commands start in a fraction of the time.
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import contextlib
import copy
import functools
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from gateway import __version__
from gateway.cli.accounts import accounts, keys
from gateway.cli.admin_client import (
    PROVIDER_TIMEOUT_S,
    AdminClient,
    CliContext,
    CliError,
    Json,
    StartupError,
    call,
    load_file_config,
    open_folder,
    require_running,
    run_without_trace,
)
from gateway.cli.alerts import alerts
from gateway.cli.audit_log import audit_log
from gateway.cli.backup import backup, downgrade, restore
from gateway.cli.batches import batches
from gateway.cli.billing import usage, verify
from gateway.cli.channels import channels, explain
from gateway.cli.chat import chat, open_console
from gateway.cli.completion import completion
from gateway.cli.doctor import doctor
from gateway.cli.members import members
from gateway.cli.nodes import nodes
from gateway.cli.objects import get_with_models
from gateway.cli.options import (
    ListByDefault,
    MainGroup,
    channel_command,
    config_option,
    data_option,
    exit_unless,
    find_config,
    may_discover,
    running_command,
)
from gateway.cli.output import (
    list_unpriced,
    print_answer,
    print_models,
    print_reload,
)
from gateway.cli.output_channels import print_report
from gateway.cli.requests import requests
from gateway.cli.secret_files import secrets
from gateway.cli.settings import groups, prices, settings
from gateway.cli.startup_message import print_startup_message
from gateway.cli.status import health, running
from gateway.cli.store import store
from gateway.cli.videos import videos
from gateway.storage.data_folder import DATABASE, SECRETS, DataFolder, DataFolderDamaged, DataFolderLocked

if TYPE_CHECKING:
    from gateway.config.merge import FileConfig
    from gateway.domain.setting import Source
    from gateway.log import LogFormat
    from gateway.options import StartupInfo

_CONTEXT = {"help_option_names": ["--help", "-h"], "max_content_width": 100}


@click.group(cls=MainGroup, context_settings=_CONTEXT, invoke_without_command=True)
@click.version_option(__version__, prog_name="gateway")
@click.pass_context
def main(ctx: click.Context) -> None:
    """One gateway for AI models: one key, one streaming-first API in front of many providers.

    \b
      gateway serve                      start the gateway; the first start prints a key
      gateway keys add laptop            create an API key
      gateway channels add openai        connect to a provider; asks for its API key
      gateway models                     list models
      gateway chat                       chat with a model here
      gateway open                       open the console in the browser
      gateway explain gpt-5-mini         explain how a model is routed, and its price
      gateway requests --follow          watch requests
      gateway running                    list requests in progress
      gateway videos --follow            watch video jobs in progress
      gateway usage                      show requests, tokens and cost by day
      gateway accounts top-up team 20    add $20 to the quota of an account
      gateway members invite team        invite a user to the console
      gateway verify                     verify the ledger
      gateway audit-log                  show who changed what
      gateway check                      check the configuration and test all channels
      gateway doctor                     find what is wrong with folder, database, disk or port
      gateway health                     show the health of the running gateway
      gateway alerts test                send a test alert to every target
      gateway reload                     reload the configuration file
      gateway settings                   show or change settings
      gateway backup FILE                back up the data folder, while the gateway runs
      gateway restore FILE               restore a backup into a new data folder
      gateway downgrade VERSION          take the database back to an older version
      gateway completion bash            print the script that completes commands in your shell

    The commands talk to the gateway that runs with the data folder (./data, --data, or GATEWAY_DATA). If none runs,
    they open the folder themselves, with the configuration that 'gateway serve' would read. With --url, or GATEWAY_URL,
    they call a gateway elsewhere, such as any node of a cluster; GATEWAY_ADMIN_TOKEN has its admin token. --data,
    --config, --url and --json may stand before or after a command. NO_COLOR switches colors off.
    """
    ctx.obj = os.environ
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@main.command()
@config_option
@click.option("--host", help="Address to listen on; 0.0.0.0: all.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; 0: any free one.  [default: 8080]")
@click.option(
    "--renew-secret",
    "renew",
    multiple=True,
    type=click.Choice(list(SECRETS)),
    help="Create this file of the data folder again if it is lost; what depends on the old one is lost.",
)
@click.option("--verbose", "-v", is_flag=True, help="Log also the requests of the console and the admin API.")
@data_option
def serve(
    config_path: Path | None, host: str | None, port: int | None, *, renew: tuple[str, ...], verbose: bool, data: Path
) -> None:
    """Run the gateway until Ctrl-C or SIGTERM.

    If no channel is configured, the gateway uses provider keys of the environment (OPENAI_API_KEY, …) and model servers
    on this machine, unless GATEWAY_DISCOVER=0; if there are none, a built-in demo.

    \b
    Examples:
      gateway serve
      gateway serve --config /etc/gateway.toml --data /var/lib/gateway
      gateway serve --host 0.0.0.0 --port 9000
    """
    from gateway.config.exposure import check_secrets
    from gateway.config.loader import read_declared

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # until serve.py handles it
    path = find_config(config_path)
    file_config = _set_address(load_file_config(path, os.environ), host, port)

    def reload_config() -> "FileConfig":
        # Without a file at the start, a default file that was created since is used.
        read = _set_address(read_declared(path or find_config(None), os.environ), host, port)
        check_secrets(read.config, folder.admin_token())
        return read

    first = not (data / DATABASE).exists()
    try:
        folder = open_folder(data)
    except DataFolderLocked as busy:
        raise StartupError(str(busy)) from None
    with contextlib.closing(folder):
        greet = _start_log(file_config.config.server.log_format, first=first, verbose=verbose)
        _serve(folder, file_config, reload_config, renew, greet)


def _start_log(log_format: "LogFormat", *, first: bool, verbose: bool) -> Callable[[str, "StartupInfo"], None]:
    """Set up the log; return what prints the startup message.

    The ``first`` start at a terminal logs only warnings until then: the message is what a newcomer has to read.
    """
    from gateway.log import configure_log

    level = logging.DEBUG if verbose else logging.INFO
    quiet = first and not verbose and sys.stderr.isatty()
    configure_log(log_format, logging.WARNING if quiet else level)

    def greet(address: str, info: "StartupInfo") -> None:
        print_startup_message(address, info)
        configure_log(log_format, level)

    return greet


def _serve(
    folder: DataFolder,
    file_config: "FileConfig",
    reload_config: Callable[[], "FileConfig"],
    renew: tuple[str, ...],
    greet: Callable[[str, "StartupInfo"], None],
) -> None:
    """Serve until a signal stops the gateway. Raises ``StartupError``."""
    from gateway.config.certificate import CertificateError, open_certificate
    from gateway.config.exposure import check_secrets
    from gateway.config.loader import ConfigError
    from gateway.options import AppOptions
    from gateway.serve import PortInUse
    from gateway.serve import run as run_server
    from gateway.storage.database import DatabaseStartupError
    from gateway.systemd import find_manager

    config = file_config.config
    options = AppOptions(
        config,
        folder,
        os.environ,
        discover=may_discover(os.environ),
        sources=file_config.sources,
        read_config=reload_config,
        renew_secrets=renew,
    )
    try:
        check_secrets(config, folder.admin_token())
        certificate = open_certificate(config.server.tls_certificate, config.server.tls_key)
        run_server(attrs.evolve(options, certificate=certificate), find_manager(os.environ), greet)
    except (ConfigError, CertificateError, PortInUse, DatabaseStartupError, DataFolderDamaged) as refused:
        raise StartupError(str(refused)) from None


def _set_address(file_config: "FileConfig", host: str | None, port: int | None) -> "FileConfig":
    """Apply the options ``--host`` and ``--port``; None: not given."""
    given: Json = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    sources: dict[str, Source] = dict.fromkeys((f"server.{name}" for name in given), "environment")
    config = attrs.evolve(file_config.config, server=attrs.evolve(file_config.config.server, **given))
    return attrs.evolve(file_config, config=config, sources={**file_config.sources, **sources})


for _command in (
    accounts,
    alerts,
    keys,
    members,
    channels,
    chat,
    open_console,
    explain,
    requests,
    running,
    videos,
    batches,
):
    main.add_command(_command)
for _command in (batches, usage, verify, audit_log, completion, settings, groups, prices, health, nodes):
    main.add_command(_command)
for _command in (backup, restore, downgrade, store, doctor, secrets):
    main.add_command(_command)


for _old, _command in (("audit", verify), ("changes", audit_log)):
    _alias = copy.copy(_command)
    _alias.hidden = True  # the old name
    main.add_command(_alias, _old)


@main.group(cls=ListByDefault)
def models() -> None:
    """List models and the channels that serve them.

    \b
    Examples:
      gateway models
      gateway models list gpt
      gateway models --json
    """


@models.command("list")
@click.argument("search", metavar="[TEXT]", required=False)
@click.option("--unpriced", is_flag=True, help="Only models without a price.")
@channel_command
def list_models(context: CliContext, search: str | None, *, unpriced: bool) -> None:
    """List models, each with its channels, best first. TEXT: only models whose names contain it.

    PRICE: dollars per million tokens of input and output; 'other' if the model is billed by another unit.
    """
    listing = get_with_models(context, "models")
    if unpriced:
        listing["data"] = [model for model in listing["data"] if model["price"] is None]
    if search:
        listing["data"] = [model for model in listing["data"] if search.lower() in model["id"].lower()]
    print_answer(context, listing, print_models)


@main.command(short_help="Reload the configuration file.")
@running_command
def reload(context: CliContext) -> None:
    """Reload the configuration file of the running gateway, and print what changed.

    If the file has a problem, nothing is applied and the command exits with 1. Running requests are not affected.
    SIGHUP does the same and logs the result. Changes of [server], [store], [ledger], [tracing],
    [[sign_in]] and [[alert]] need a restart.

    \b
    Examples:
      gateway reload
      gateway reload --data /var/lib/gateway
    """
    require_running(context, "reload")
    report = call(context, "POST", "reload", timeout_s=PROVIDER_TIMEOUT_S)
    print_answer(context, report, print_reload)


@main.command(short_help="Check the configuration and test all channels.")
@channel_command
def check(context: CliContext) -> None:
    """Check the configuration and test all active channels. Exits with 1 if there is a problem.

    The running gateway tests the channels it uses. If none runs, this command tests the channels of the configuration
    file, without changing the data folder.

    \b
    Examples:
      gateway check
      gateway check --config new.toml
    """
    from gateway.config.extras import list_missing

    try:
        problems = list_missing(load_file_config(context.config, context.environ).config)
    except CliError as error:
        problems = error.message.splitlines()
    if problems:
        report: Json = {"ok": False, "problems": problems, "channels": [], "unpriced": []}
    else:
        results, unpriced = run_without_trace(context, _test)
        ok = all(result["ok"] for result in results)
        report = {"ok": ok, "problems": [], "channels": results, "unpriced": unpriced}
    print_answer(context, report, functools.partial(print_report, config=context.config))
    exit_unless(report["ok"])


async def _test(admin: AdminClient) -> tuple[list[Json], list[str]]:
    """Test all active channels; return the results, and the models without a price."""
    return await admin.test_channels(), list_unpriced(await admin.get("models"))
