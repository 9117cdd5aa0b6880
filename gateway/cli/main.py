"""The ``gateway`` command: ``serve`` runs a gateway; the other commands manage it."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import copy
import os
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

from gateway import __version__
from gateway.cli.options import MainGroup

_CONTEXT_SETTINGS = {"help_option_names": ["--help", "-h"], "max_content_width": 100}
_COMMAND_LOCATIONS = {
    "accounts": "accounts:accounts",
    "alerts": "alerts:alerts",
    "keys": "accounts:keys",
    "members": "members:members",
    "channels": "channels:channels",
    "chat": "chat:chat",
    "open": "chat:open_console",
    "explain": "channels:explain",
    "routes": "routes:routes",
    "limits": "limits:limits",
    "requests": "requests:requests",
    "sessions": "sessions:sessions",
    "sinks": "sinks:sinks",
    "running": "status:running",
    "videos": "videos:videos",
    "batches": "batches:batches",
    "files": "files:files",
    "bodies": "bodies:bodies",
    "cache": "cache:cache",
    "usage": "billing:usage",
    "users": "users:users",
    "verify": "billing:verify",
    "audit-log": "audit_log:audit_log",
    "completion": "completion:completion",
    "settings": "settings:settings",
    "groups": "settings:groups",
    "prices": "settings:prices",
    "health": "status:health",
    "nodes": "nodes:nodes",
    "backup": "backup:backup",
    "restore": "backup:restore",
    "downgrade": "backup:downgrade",
    "store": "store:store",
    "doctor": "doctor:doctor",
    "secrets": "secret_files:secrets",
    "serve": "serve:serve",
    "models": "models:models",
    "reload": "check:reload",
    "check": "check:check",
    "audit": "billing:verify",
    "changes": "audit_log:audit_log",
}
"""Module below ``gateway.cli`` and function of each command."""
_OLD_NAMES = frozenset({"audit", "changes"})


def _import_structlog() -> None:
    """Import structlog without rich, which costs 27 ms and 5 MB and serves only colored tracebacks."""
    rich_module = sys.modules.get("rich")
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import raises ModuleNotFoundError then
    import_module("structlog")
    if rich_module is None:
        del sys.modules["rich"]
    else:
        sys.modules["rich"] = rich_module


class CommandTable(MutableMapping[str, click.Command]):
    """The commands by name. A command's module is imported at its first lookup: ``serve`` imports no other command."""

    def __init__(self) -> None:
        self._commands: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._commands and name in _COMMAND_LOCATIONS:
            module, _, attribute = _COMMAND_LOCATIONS[name].partition(":")
            if "structlog" not in sys.modules:
                _import_structlog()
            command: click.Command = getattr(import_module(f"gateway.cli.{module}"), attribute)
            if name in _OLD_NAMES:
                command = copy.copy(command)
                command.hidden = True
            self._commands[name] = command
        return self._commands[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __contains__(self, name: object) -> bool:
        return name in _COMMAND_LOCATIONS or name in self._commands

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMAND_LOCATIONS)

    def __len__(self) -> int:
        return len(_COMMAND_LOCATIONS)


@click.group(cls=MainGroup, context_settings=_CONTEXT_SETTINGS, invoke_without_command=True)
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


main.commands = CommandTable()
