"""Options of accounts, keys and channels, and the fields of the bodies that they become."""

from collections.abc import Callable
from typing import Any

import click

from gateway.cli.context import Json
from gateway.cli.options import NO_LIMIT, Command, NumberOrNone
from gateway.cli.times import parse_future

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
    groups_text = "Groups that its keys may use. May be repeated."
    return _add_options(
        limit_options(command),
        click.option("--groups", "--group", multiple=True, metavar="GROUP,…", help=groups_text),
        click.option(
            "--timezone",
            metavar="ZONE",
            help="Where days and months of its quotas and limits begin, such as Europe/Berlin.  [default: UTC]",
        ),
    )


def key_options(command: Command) -> Command:
    """Add all options of a key."""
    command_with_options = _add_options(
        _add_rule_options(command),
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
    )
    return limit_options(_keeping_options(command_with_options))


def _add_rule_options(command: Command) -> Command:
    """Add the options for what holds for all requests of a key."""
    return _add_options(
        command,
        click.option("--max-session-usd", type=_AMOUNT, help="Highest budget of a session, in dollars."),
        click.option(
            "--show-account/--hide-account",
            default=None,
            help="Let it see the limits of its account, or not.  [default: hidden]",
        ),
    )


def _keeping_options(command: Command) -> Command:
    """Add the options for what is kept of a key's requests."""
    return _add_options(
        command,
        click.option(
            "--keep-bodies",
            metavar="RULE",
            help="Of which requests prompts and answers are kept: none, on_request, errors, sampled:0.05 or all.",
        ),
        click.option(
            "--resumable/--not-resumable",
            default=None,
            help="Let clients take up its streams again, or not.  [default: not]",
        ),
        click.option(
            "--cache-ttl-s",
            type=_COUNT,
            metavar="SECONDS",
            help="For how long its answers are given again to equal requests; 0: never.",
        ),
    )


def _parse_pairs(_: click.Context, param: click.Parameter, pairs: tuple[str, ...]) -> Json | str | None:
    """Parse repeated ``NAME=VALUE`` options; None without any. A single ``none`` stays. Raises ``BadParameter``."""
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
