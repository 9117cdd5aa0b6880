"""Options shared by commands, and their conversion to fields of the admin API."""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click

from gateway.cli.admin_client import TOKEN_VARIABLE, URL_VARIABLE, CliContext
from gateway.cli.times import parse_day, parse_future
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
    """Return whether to discover providers: ``GATEWAY_DISCOVER`` does not switch it off."""
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
        needs_help = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return ["list", *args] if needs_help else args


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


_COUNT = NumberOrNone(whole_numbers=True, name="N")
_AMOUNT = NumberOrNone(whole_numbers=False, name="USD")


def _add_options(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def _parse_options_table(_: click.Context, param: click.Parameter, text: str | None) -> Json | str | None:
    """Parse ``NAME=VALUE,…`` into a table of numbers and booleans; None and ``NO_LIMIT`` stay.

    Raises ``BadParameter``.
    """
    if text in {None, NO_LIMIT}:
        return text
    table: Json = {}
    for part in (text or "").split(","):
        name, is_pair, value = (piece.strip() for piece in part.partition("="))
        if not name or not is_pair:
            raise click.BadParameter(f"expected {param.metavar}, or '{NO_LIMIT}' alone")
        is_flag, number = value in {"true", "false"}, _COUNT if value.isdecimal() else _AMOUNT
        table[name] = value == "true" if is_flag else number.convert(value, param, None)
    return table


def limit_options(command: Command) -> Command:
    """Add the options for quota and rate limits of accounts and keys."""
    return _add_options(
        command,
        click.option("--quota-usd", type=_AMOUNT, help="Spending limit in dollars."),
        click.option(
            "--quota-period",
            type=click.Choice(["none", "lifetime", "daily", "monthly"]),
            help="Period of the quota.  [default: lifetime]",
        ),
        click.option(
            "--quota-status",
            type=click.Choice(["403", "429", NO_LIMIT]),
            help="HTTP status when it is exceeded.  [default: 403 for lifetime, 429 for daily and monthly quotas]",
        ),
        click.option("--rpm", type=_COUNT, help="Requests per minute."),
        click.option("--burst", type=_COUNT, help="Requests that may start at once.  [default: as --rpm]"),
        click.option("--tpm", type=_COUNT, help="Tokens per minute."),
        click.option("--max-concurrency", type=_COUNT, help="Max concurrent requests."),
    )


def account_options(command: Command) -> Command:
    """Add all options of an account."""
    text = "Groups that its keys may use. May be repeated."
    return limit_options(click.option("--groups", "--group", multiple=True, metavar="GROUP,…", help=text)(command))


def key_options(command: Command) -> Command:
    """Add all options of a key."""
    add_time_options = _add_options(
        command,
        click.option("--models", multiple=True, metavar="GLOB,…", help="Allow only these models. May be repeated."),
        click.option("--group", "--groups", metavar="GROUP", help="Use the channels of this group."),
        click.option(
            "--expires-at", metavar="TIME", callback=parse_future, help="Expiry: 30d, 2027-01-31 or 2027-01-31T12:00Z."
        ),
        click.option("--allow-ips", multiple=True, metavar="NETWORK,…", help="IP allowlist. May be repeated."),
        click.option("--webhook-url", metavar="URL", help="Called when a video job of this key ends."),
        click.option("--user", metavar="NAME", help="End user of all its requests, whomever its callers name."),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            callback=_parse_pairs,
            metavar="NAME=VALUE",
            help="Tag of all its requests; replaces all previous ones. May be repeated.",
        ),
        click.option(
            "--loops",
            callback=_parse_options_table,
            metavar="same_prompt=5,window_s=300",
            help="Refuse a conversation that is sent more often than that, unchanged.",
        ),
        click.option("--max-session-usd", type=_AMOUNT, help="Highest budget of a session, in dollars."),
        click.option(
            "--show-account/--hide-account",
            default=None,
            help="Let it see the limits of its account, or not.  [default: hidden]",
        ),
    )
    return limit_options(add_time_options)


def _parse_pairs(_: click.Context, param: click.Parameter, pairs: tuple[str, ...]) -> Json | str | None:
    """Parse repeated ``NAME=VALUE`` options; None if there are none. Raises ``BadParameter``."""
    if not pairs:
        return None
    if pairs == (NO_LIMIT,):
        return NO_LIMIT
    for text in pairs:
        if not text.partition("=")[0].strip() or "=" not in text:
            # The text may be a secret, so the message must not repeat it.
            raise click.BadParameter(f"expected {param.metavar}, or '{NO_LIMIT}' alone")
    return {name.strip(): value for name, _, value in (text.partition("=") for text in pairs)}


def channel_options(command: Command) -> Command:
    """Add all options of a channel."""
    return _connection_options(_serving_options(command))


def _connection_options(command: Command) -> Command:
    return _add_options(
        command,
        click.option("--provider", help="Such as openai, anthropic, ollama; custom: any OpenAI-compatible server."),
        click.option("--base-url", metavar="URL", help="URL of the provider's API, without /chat/completions."),
        click.option(
            "--api-key",
            "api_keys",
            multiple=True,
            metavar="KEY",
            help="API key; stays in the shell's history. May be repeated: keys are used in turn.",
        ),
        click.option("--api-key-stdin", is_flag=True, help="Read API keys from standard input, one per line."),
        click.option(
            "--proxy", metavar="URL", help="Connect through this proxy; none: directly; default: as HTTPS_PROXY says."
        ),
        click.option(
            "--header",
            "headers",
            multiple=True,
            callback=_parse_pairs,
            metavar="NAME=VALUE",
            help="Header of every request; replaces all previous ones. May be repeated.",
        ),
        *(
            click.option(f"--{name}-timeout", f"{name.replace('-', '_')}_timeout_s", type=_SECONDS, help=text)
            for name, text in _TIMEOUT_OPTIONS
        ),
    )


_SECONDS = NumberOrNone(whole_numbers=False, name="SECONDS")
_TIMEOUT_OPTIONS = (
    ("connect", "Timeout to connect.  [default: 10]"),
    ("first-byte", "Timeout for a stream's first event.  [default: 120]"),
    ("idle", "Timeout between two events of a stream.  [default: 120]"),
    ("total", "Timeout for the whole response.  [default: 1800]"),
)


def _serving_options(command: Command) -> Command:
    return _add_options(
        command,
        click.option(
            "--model",
            "--models",
            "models",
            multiple=True,
            metavar="GLOB,…",
            help="Serve these models; with --sync a filter. May be repeated.",
        ),
        click.option("--sync/--no-sync", default=None, help="Serve the models that the provider lists."),
        click.option(
            "--map",
            "model_map",
            multiple=True,
            callback=_parse_pairs,
            metavar="OURS=THEIRS",
            help="Model alias; replaces all previous ones. May be repeated.",
        ),
        click.option(
            "--group", "--groups", "groups", multiple=True, metavar="GROUP,…", help="Serve only keys of these groups."
        ),
        click.option("--priority", type=_COUNT, help="The highest is tried first.  [default: 0]"),
        click.option("--weight", type=_COUNT, help="Share of requests among equal priorities.  [default: 1]"),
        click.option("--max-concurrency", type=_COUNT, help="Max concurrent requests."),
        _QUEUE_OPTION,
        click.option("--rpm", type=_COUNT, help="Requests per minute."),
        click.option("--price-multiplier", type=_FACTOR, help="1.2 charges 20 % more than the price list."),
        click.option("--owned-by", metavar="NAME", help="owned_by of its models in GET /v1/models."),
        click.option(
            "--allow-field",
            "--allow-fields",
            "allow_fields",
            multiple=True,
            metavar="FIELD,…",
            help="Let clients send fields that change the price; 'tools.web_search*' is a tool of the provider.",
        ),
    )


_QUEUE_OPTION = click.option(
    "--queue",
    callback=_parse_options_table,
    metavar="length=50,wait_s=120,one_model=true,…",
    help="Let requests wait while --max-concurrency is reached.",
)
_FACTOR = NumberOrNone(whole_numbers=False, name="X")


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


def build_fields(options: Json) -> Json:
    """Convert the given options to fields of the admin API. ``none`` becomes null, except where it is a valid value."""
    fields: Json = {}
    for name, option_value in options.items():
        value: Any = option_value
        if isinstance(option_value, tuple):
            value = [item.strip() for text in option_value for item in text.split(",")] or None
        if value is None:
            continue
        if name == "proxy":
            value = None if value == "default" else value
        elif value in (NO_LIMIT, [NO_LIMIT]) and name != "quota_period":
            value = None
        fields[name] = int(value) if name == "quota_status" and value else value
    return fields


def build_new_fields(options: Json) -> Json:
    """Convert options with ``build_fields`` for a new object: null fields are left out."""
    return {name: value for name, value in build_fields(options).items() if value is not None}


def build_changes(options: Json) -> Json:
    """Convert options with ``build_fields`` for a change. Raises ``click.UsageError`` without any option."""
    fields = build_fields(options)
    if not fields:
        raise click.UsageError("Nothing to change: give at least one of the options")
    return fields
