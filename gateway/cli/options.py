"""What commands share: options and the types of their values, kinds of groups, and questions at the terminal."""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click

from gateway.cli.context import TOKEN_VARIABLE, URL_VARIABLE, CliContext
from gateway.cli.times import parse_day
from gateway.cli.verbs import find_verb, replace_command

Command = Callable[..., None]
Json = dict[str, Any]

DEFAULT_CONFIG = Path("config/gateway.toml")
NO_LIMIT = "none"
"""The option value that clears a setting."""
_GLOBAL_OPTIONS = {"--data": 2, "--config": 2, "--url": 2, "--json": 1}
"""Global options, with the number of command-line words that each takes."""
_FALSE_VALUES = frozenset({"0", "false", "no", "off"})

_PATH_TYPE = click.Path(path_type=Path, readable=False)  # opening the file reports a better error
config_option = click.option(
    "--config",
    "config_path",
    type=_PATH_TYPE,
    help=f"The configuration file.  [default: {DEFAULT_CONFIG} if there is one]",
)
data_option = click.option(
    "--data",
    type=_PATH_TYPE,
    default="data",
    envvar="GATEWAY_DATA",
    show_default=True,
    show_envvar=True,
    help="The data folder.",
)
url_option = click.option(
    "--url",
    envvar=URL_VARIABLE,
    show_envvar=True,
    metavar="URL",
    help=f"The gateway to call, anywhere, with the admin token in {TOKEN_VARIABLE}; --data is not used then.",
)
limit_option = click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="The last N.", metavar="N"
)

_SEARCH_OPTIONS = (
    click.option("--search", metavar="TEXT", help="Only with these words in their names."),
    click.option("--sort", metavar="FIELD", help="Sort by a field of --json; '-FIELD': in descending order."),
    click.option("--limit", type=click.IntRange(1, 1000), metavar="N", help="The first N."),
)


def search_options(command: Command) -> Command:
    """Add the options of lists that the gateway searches, sorts and cuts: ``search``, ``sort`` and ``limit``."""
    for option in reversed(_SEARCH_OPTIONS):
        command = option(command)
    return command


def client_command(command: Command, *, channels: bool = False, offline: bool = True, remote: bool = True) -> Command:
    """Add the options shared by commands that call the admin API, and pass them as a ``CliContext``.

    If ``channels`` is true and no gateway is running, channels are discovered as ``serve`` does. If ``offline`` is
    true, the command also works without a running gateway, with the configuration of ``--config``. If ``remote`` is
    true, the command can call a gateway on another machine.
    """
    file_option: Callable[[Command], Command] = config_option if offline else _no_option
    remote_option: Callable[[Command], Command] = url_option if remote else _no_option

    @file_option
    @data_option
    @remote_option
    @click.option("--json", "as_json", is_flag=True, help="Print the admin API's JSON.")
    @functools.wraps(command)
    def wrapped(
        *args: Any, as_json: bool, data: Path, config_path: Path | None = None, url: str | None = None, **options: Any
    ) -> None:
        environ = click.get_current_context().find_root().obj  # set by ``main``
        discover = channels and may_discover(environ)
        context = CliContext(data, find_config(config_path), environ, discover=discover, as_json=as_json, url=url)
        command(context, *args, **options)

    return wrapped


def _no_option(command: Command) -> Command:
    return command


local_command = functools.partial(client_command, remote=False)
running_command = functools.partial(client_command, offline=False)
channel_command = functools.partial(client_command, channels=True)


def find_config(path: Path | None) -> Path | None:
    """Return ``path`` or, if it is None, the default configuration file; None if that does not exist."""
    return path or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)


def may_discover(environ: Mapping[str, str]) -> bool:
    """Return whether to discover providers; False if ``GATEWAY_DISCOVER`` switches discovery off."""
    return environ.get("GATEWAY_DISCOVER", "1").strip().lower() not in _FALSE_VALUES


class GlobalOptions(click.Group):
    """A group that accepts ``--data``, ``--config``, ``--url`` and ``--json`` also before the name of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move leading global options behind the name of the command, which defines them."""
        end = 0
        while end < len(args) and (option := args[end].partition("="))[0] in _GLOBAL_OPTIONS:
            end += 1 if option[1] else _GLOBAL_OPTIONS[option[0]]
        command_args = self.add_command_name(ctx, args[end:])
        return super().parse_args(
            ctx,
            [*command_args[:1], *args[:end], *command_args[1:]]
            if command_args and command_args[0][:1] != "-"
            else command_args,
        )

    def add_command_name(self, ctx: click.Context, args: list[str]) -> list[str]:  # noqa: ARG002 - for subclasses
        """Return ``args`` with a command inserted at the beginning if the group has a default command."""
        return args

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, find_verb(self, cmd_name) or cmd_name)


class MainGroup(GlobalOptions):
    """The ``gateway`` command itself, which also accepts command names of other tools."""

    def add_command_name(self, ctx: click.Context, args: list[str]) -> list[str]:  # noqa: ARG002
        return replace_command(self, args)


class ListByDefault(GlobalOptions):
    """A group whose default command is ``list``."""

    def add_command_name(self, ctx: click.Context, args: list[str]) -> list[str]:
        needs_default = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return ["list", *args] if needs_default else args


class NumberOrNone(click.ParamType[Any]):
    """A number in the unit ``name``, or ``none``. The gateway checks the range."""

    def __init__(self, *, whole_numbers: bool, name: str) -> None:
        self.name = name
        self._whole_numbers = whole_numbers

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == NO_LIMIT:
            return value
        try:
            return int(value) if self._whole_numbers else _parse_amount(value)
        except ValueError:
            self.fail(f"'{value}' is neither a number nor '{NO_LIMIT}'", param, ctx)


class Amount(click.ParamType[Any]):
    """An amount in dollars; the gateway checks its range."""

    name = "USD"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return _parse_amount(value)
        except ValueError as error:
            self.fail(f"'{value}' {error}", param, ctx)


class Day(click.ParamType[date]):
    """A day in UTC."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        try:
            return value if isinstance(value, date) else parse_day(value, datetime.now(UTC))
        except (ValueError, OverflowError):
            self.fail(f"'{value}' is neither a date such as 2027-01-31, nor 'yesterday' or '7d'", param, ctx)


def _parse_amount(text: str) -> float:
    """Parse an amount in dollars. Raises ``ValueError``, also if JSON cannot represent the amount exactly."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("nan")
    if not amount.is_finite():
        raise ValueError("is not an amount in dollars")
    number = float(amount)
    if Decimal(repr(number)) != amount:
        raise ValueError("has too many digits")
    return number


def confirm(question: str) -> None:
    """Ask for confirmation. Raises ``Abort`` if the answer is no, ``UsageError`` without a terminal."""
    with require_terminal("--yes"):
        is_confirmed = click.confirm(question, err=True)
    if not is_confirmed:
        raise click.Abort


@contextmanager
def require_terminal(option: str) -> Iterator[None]:
    """Turn a failed prompt without a terminal into a ``UsageError`` that names the ``option`` to use instead."""
    try:
        yield
    except click.Abort:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        click.echo(err=True)
        raise click.UsageError(f"There is no terminal to ask: pass {option}") from None


def exit_unless(succeeded: bool) -> None:
    """Exit with 1 unless ``succeeded``."""
    if not succeeded:
        click.get_current_context().exit(1)
