"""The ``secrets`` command: the master key that every gateway on one database is given."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import click

from gateway.cli.context import CliContext, CliError, load_file_config
from gateway.cli.options import local_command
from gateway.cli.output import print_answer

_MASTER_KEY_FILE = "master.key"


@click.group()
def secrets() -> None:
    """Show the master key.

    \b
    Examples:
      gateway secrets show
    """


@secrets.command("show")
@local_command
def show(context: CliContext) -> None:
    """Print the master key as the environment variable that gives it to another gateway. Treat it as a password.

    It encrypts what the database has of provider keys, and, if several gateways use one database, the other secrets
    that they share. It is the setting store.master_key, else the file master.key of the data folder.
    """
    key = load_file_config(context.config, context.environ).config.store.master_key
    if not key:
        path = context.data / _MASTER_KEY_FILE
        try:
            key = path.read_bytes().hex()
        except OSError as error:
            raise CliError(
                f"The master key {path} cannot be read: {error.strerror}. Name the data folder with --data or "
                "GATEWAY_DATA"
            ) from None
    print_answer(context, {"master_key": key}, lambda answer: click.echo(_format_variable(answer["master_key"])))


def _format_variable(key: str) -> str:
    return f"GATEWAY_STORE__MASTER_KEY={key}"
