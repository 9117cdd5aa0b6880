"""Words of the command line: the options that commands share, and their way into the admin API's fields."""

import functools
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click

from gateway.cli.admin_client import CliContext

Command = Callable[..., None]
Json = dict[str, Any]

DEFAULT_CONFIG = Path("config/gateway.toml")
TAKE_BACK = "none"
"""What a setting is changed to in order to have none."""
_FALSE = frozenset({"0", "false", "no", "off"})

_PATH = click.Path(path_type=Path, readable=False)  # who opens it says what is the matter with it
config_option = click.option(
    "--config",
    "config_path",
    type=_PATH,
    help=f"The configuration file.  [default: {DEFAULT_CONFIG} if there is one]",
)
data_option = click.option(
    "--data",
    type=_PATH,
    default="data",
    envvar="GATEWAY_DATA",
    show_default=True,
    show_envvar=True,
    help="The data folder.",
)


def client_command(command: Command, *, channels: bool = False, offline: bool = True) -> Command:
    """The options of every command that talks to the admin API; they become the ``CliContext`` it is given.

    The environment is the root command's object. A command that is none of ``offline`` has no use for a file.
    """
    file_option: Callable[[Command], Command] = config_option if offline else _no_option

    @file_option
    @data_option
    @click.option("--json", "as_json", is_flag=True, help="Print the admin API's JSON.")
    @functools.wraps(command)
    def wrapped(*args: Any, as_json: bool, data: Path, config_path: Path | None = None, **options: Any) -> None:
        environ = click.get_current_context().find_root().obj
        discover = channels and may_discover(environ)
        place = CliContext(data, find_config(config_path), environ, discover=discover, as_json=as_json)
        command(place, *args, **options)

    return wrapped


def _no_option(command: Command) -> Command:
    return command


running_command = functools.partial(client_command, offline=False)
"""Where no gateway runs, there is nothing to do."""
channel_command = functools.partial(client_command, channels=True)
"""Where no gateway runs, channels are looked for as ``serve`` would."""


def find_config(path: Path | None) -> Path | None:
    """The configuration file that was asked for, or the one that lies here."""
    return path or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)


def may_discover(environ: Mapping[str, str]) -> bool:
    """Whether unconfigured providers may be looked for."""
    return environ.get("GATEWAY_DISCOVER", "1").strip().lower() not in _FALSE


class ListByDefault(click.Group):
    """A group whose command, where none is named, is ``list``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``list`` before options that stand alone."""
        bare = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["list", *args] if bare else args)


class NumberOrNone(click.ParamType[Any]):
    """A number, whole where ``whole`` says so, or ``none``. ``name`` is its unit. The gateway checks its range."""

    def __init__(self, *, whole: bool, name: str) -> None:
        self.name = name
        self._whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Text into a number."""
        if value == TAKE_BACK:
            return value
        try:
            return int(value) if self._whole else _read_amount(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor '{TAKE_BACK}'", param, ctx)


class Amount(click.ParamType[Any]):
    """Dollars; the gateway checks their range."""

    name = "USD"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Text into a number."""
        try:
            return _read_amount(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


class Day(click.ParamType[date]):
    """A day in UTC."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        """Text into a day."""
        try:
            return value if isinstance(value, date) else date.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no date such as 2027-01-31", param, ctx)


def _read_amount(text: str) -> float:
    """Dollars as JSON carries them. Raises ``ValueError``, also where that would be another amount."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("nan")
    if not amount.is_finite():
        raise ValueError("is no amount in dollars")
    number = float(amount)
    if Decimal(repr(number)) != amount:
        raise ValueError("has more digits than an amount is kept with")
    return number


_COUNT = NumberOrNone(whole=True, name="N")
_AMOUNT = NumberOrNone(whole=False, name="USD")


def _apply(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def bound_options(command: Command) -> Command:
    """What may be spent and how fast, of accounts and keys alike."""
    return _apply(
        command,
        click.option("--quota-usd", type=_AMOUNT, help="What may be spent, in dollars."),
        click.option(
            "--quota-period",
            type=click.Choice(["none", "lifetime", "daily", "monthly"]),
            help="Over which time; lifetime if not given.",
        ),
        click.option(
            "--quota-status",
            type=click.Choice(["403", "429", TAKE_BACK]),
            help="HTTP status once it is used up; 403 of a lifetime and 429 of a day or month if not given.",
        ),
        click.option("--rpm", type=_COUNT, help="Requests per minute."),
        click.option("--burst", type=_COUNT, help="Requests that may start at once; default: those of a minute."),
        click.option("--tpm", type=_COUNT, help="Tokens per minute."),
        click.option("--max-concurrency", type=_COUNT, help="Concurrent requests."),
    )


def account_options(command: Command) -> Command:
    """Everything that an account can be told."""
    words = "The groups its keys may be of. May be repeated."
    return bound_options(click.option("--groups", "--group", multiple=True, metavar="GROUP,…", help=words)(command))


def key_options(command: Command) -> Command:
    """Everything that a key can be told."""
    more = _apply(
        command,
        click.option("--models", multiple=True, metavar="GLOB,…", help="Only these models. May be repeated."),
        click.option("--group", "--groups", metavar="GROUP", help="Only the channels of this group."),
        click.option("--expires-at", metavar="TIME", help="Such as 2027-01-31 or 2027-01-31T12:00:00Z."),
        click.option("--allow-ips", multiple=True, metavar="NETWORK,…", help="Only from there. May be repeated."),
        click.option("--webhook-url", metavar="URL", help="Told of the end of each of its videos."),
    )
    return bound_options(more)


def _read_pairs(_: click.Context, param: click.Parameter, given: tuple[str, ...]) -> Json | str | None:
    """``NAME=VALUE`` again and again -> a table; a value may have any sign in it."""
    if not given:
        return None
    if given == (TAKE_BACK,):
        return TAKE_BACK
    for text in given:
        if not text.partition("=")[0].strip() or "=" not in text:
            # What was written may be a secret: it is not shown.
            raise click.BadParameter(f"expected {param.metavar}, or '{TAKE_BACK}' alone")
    return {name.strip(): value for name, _, value in (text.partition("=") for text in given)}


def channel_options(command: Command) -> Command:
    """Everything that a channel can be told."""
    return _way_options(_serving_options(command))


def _way_options(command: Command) -> Command:
    """How the provider is reached."""
    return _apply(
        command,
        click.option("--provider", help="Such as openai, anthropic, ollama; custom: any OpenAI-compatible server."),
        click.option("--base-url", metavar="URL", help="Where it is, up to before /chat/completions."),
        click.option(
            "--api-key",
            "api_keys",
            multiple=True,
            metavar="KEY",
            help="Its key; the shell's history keeps it. May be repeated: calls take turns.",
        ),
        click.option("--api-key-stdin", is_flag=True, help="Read keys from standard input, one a line."),
        click.option("--proxy", metavar="URL", help="Reach it through this proxy."),
        click.option(
            "--header",
            "headers",
            multiple=True,
            callback=_read_pairs,
            metavar="NAME=VALUE",
            help="Sent with every request to it; given ones replace all. May be repeated.",
        ),
        *(
            click.option(f"--{name}-timeout", f"{name.replace('-', '_')}_timeout_s", type=_SECONDS, help=words)
            for name, words in _TIMEOUTS
        ),
    )


_SECONDS = NumberOrNone(whole=False, name="SECONDS")
_TIMEOUTS = (
    ("connect", "To connect; 10 if not given."),
    ("first-byte", "Until a stream's first event; 120 if not given."),
    ("idle", "Between two events of a stream; 120 if not given."),
    ("total", "For a whole answer; 1800 if not given."),
)


def _serving_options(command: Command) -> Command:
    """What it serves, to whom, and before which others."""
    return _apply(
        command,
        click.option(
            "--model",
            "--models",
            "models",
            multiple=True,
            metavar="GLOB,…",
            help="Serve these; with --sync only these of the provider's. May be repeated.",
        ),
        click.option("--sync/--no-sync", default=None, help="Serve what the provider lists, asked again and again."),
        click.option(
            "--map",
            "model_map",
            multiple=True,
            callback=_read_pairs,
            metavar="OURS=THEIRS",
            help="The provider's own name of a model; given ones replace all. May be repeated.",
        ),
        click.option(
            "--group", "--groups", "groups", multiple=True, metavar="GROUP,…", help="Only for keys of these groups."
        ),
        click.option("--priority", type=_COUNT, help="The highest is asked first; 0 if not given."),
        click.option("--weight", type=_COUNT, help="Its part of the calls among equals; 1 if not given."),
        click.option("--max-concurrency", type=_COUNT, help="Calls at the same time."),
        click.option("--rpm", type=_COUNT, help="Calls a minute."),
        click.option("--price-multiplier", type=_FACTOR, help="1.2 charges a fifth more than the price list."),
        click.option("--owned-by", metavar="NAME", help="Whose its models are, as callers are told."),
        click.option(
            "--allow-field",
            "--allow-fields",
            "allow_fields",
            multiple=True,
            metavar="FIELD,…",
            help="Let callers send these, which change what is bought; 'tools.web_search*' is a provider's own tool.",
        ),
    )


_FACTOR = NumberOrNone(whole=False, name="X")


def exit_unless(fine: bool) -> None:
    """End with 1 where something is not ``fine``."""
    if not fine:
        click.get_current_context().exit(1)


def read_fields(options: Json) -> Json:
    """Options that were given -> fields of the admin API. ``none`` becomes null, but for a period, where it is one."""
    fields: Json = {}
    for name, given in options.items():
        value: Any = given
        if isinstance(given, tuple):
            value = [item.strip() for text in given for item in text.split(",")] or None
        if value is None:
            continue
        if value in (TAKE_BACK, [TAKE_BACK]) and name != "quota_period":
            value = None
        fields[name] = int(value) if name == "quota_status" and value else value
    return fields


def new_fields(options: Json) -> Json:
    """``parse_fields`` for something new: what has no value is left out."""
    return {name: value for name, value in read_fields(options).items() if value is not None}


def changed_fields(options: Json) -> Json:
    """``parse_fields`` for a change: there must be one."""
    fields = read_fields(options)
    if not fields:
        raise click.UsageError("Nothing to change: give at least one of the options")
    return fields
