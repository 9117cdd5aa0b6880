"""The ``settings``, ``groups`` and ``prices`` commands: show and change these while the gateway runs."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Sequence
from typing import Any

import click
import orjson

from gateway.cli.admin_client import AdminClient, call, run
from gateway.cli.context import CliContext, CliError, Json
from gateway.cli.objects import print_edit
from gateway.cli.options import Amount, Command, ListByDefault, client_command
from gateway.cli.output import print_answer
from gateway.cli.table import Column, print_table
from gateway.cli.text import ABSENT, clean, format_change, format_usd
from gateway.wording import did_you_mean

_AMOUNT_OPTIONS = (
    ("input", "input_usd_per_million", "Per million prompt tokens."),
    ("cached-input", "cached_input_usd_per_million", "Per million cached prompt tokens; default: as --input."),
    ("output", "output_usd_per_million", "Per million completion tokens."),
    ("cache-write", "cache_write_usd_per_million", "Per million tokens written to a cache; default: as --input."),
    (
        "cache-write-long",
        "cache_write_long_usd_per_million",
        "Per million tokens written to a cache for an hour; default: as --cache-write.",
    ),
    ("audio-input", "audio_input_usd_per_million", "Per million prompt tokens of audio; default: as --input."),
    (
        "cached-audio-input",
        "cached_audio_input_usd_per_million",
        "Per million cached prompt tokens of audio; default: as --audio-input.",
    ),
    ("audio-output", "audio_output_usd_per_million", "Per million completion tokens of audio; default: as --output."),
    ("image-input", "image_input_usd_per_million", "Per million prompt tokens of images; default: as --input."),
    (
        "cached-image-input",
        "cached_image_input_usd_per_million",
        "Per million cached prompt tokens of images; default: as --image-input.",
    ),
    ("image-output", "image_output_usd_per_million", "Per million completion tokens of images; default: as --output."),
    ("video-input", "video_input_usd_per_million", "Per million prompt tokens of video; default: as --input."),
    ("video-output", "video_output_usd_per_million", "Per million completion tokens of video; default: as --output."),
    ("reasoning", "reasoning_usd_per_million", "Per million tokens of reasoning that are counted beside the output."),
    ("citation", "citation_usd_per_million", "Per million tokens of quoted pages that are counted beside the prompt."),
    ("search", "usd_per_search", "Per search of the web by the provider, or of a rerank."),
    ("file-search", "usd_per_file_search", "Per search of files that the provider keeps."),
    ("call", "usd_per_call", "Per request to the provider."),
    ("image", "usd_per_image", "Per generated image."),
    ("second", "usd_per_second", "Per second of video or audio."),
    ("characters", "usd_per_million_characters", "Per million characters of speech."),
)


def _list_settings(sections: Json) -> list[Json]:
    return [
        {"name": f"{section}.{key}", **setting} for section, keys in sections.items() for key, setting in keys.items()
    ]


def _build_amount_column(title: str, field: str) -> Column:
    return Column(title, lambda price: format_usd(price[field] or None), align_right=True, hidden_value=ABSENT)


SETTINGS = (
    Column("SETTING", "name"),
    Column("VALUE", "value", shrinks=True, width=10),
    Column("FROM", "source"),
    Column("ABOUT", "about", shrinks=True, width=16),
)
GROUPS = (
    Column("GROUP", "name", shrinks=True, width=12),
    Column("MULTIPLIER", "price_multiplier", align_right=True),
    Column("FROM", "source"),
    Column("KEYS", "keys", align_right=True),
    Column("CHANNELS", "channels", align_right=True),
)
PRICES = (
    Column("MODEL", "model", shrinks=True, width=16),
    Column("PROVIDER", "provider", hidden_value=ABSENT),
    _build_amount_column("INPUT", "input_usd_per_million"),
    _build_amount_column("CACHED", "cached_input_usd_per_million"),
    _build_amount_column("OUTPUT", "output_usd_per_million"),
    _build_amount_column("IMAGE", "usd_per_image"),
    _build_amount_column("SECOND", "usd_per_second"),
    _build_amount_column("CHARACTERS", "usd_per_million_characters"),
    Column("FROM", lambda price: price["source"] + ("" if price["in_force"] else " (overridden)")),
)
_NON_RATE_FIELDS = frozenset({"model", "provider", "source", "in_force", "free"})
_NAME = click.argument("name", metavar="SECTION.KEY")
_NEGATIVE_NUMBERS = {"ignore_unknown_options": True}
_UNPRICED_GROUP: Json = {"price_multiplier": 1}


@click.group(cls=ListByDefault)
def settings() -> None:
    """Show or change settings. Values from the configuration file or the environment are read-only here.

    \b
    Examples:
      gateway settings
      gateway settings list routing
      gateway settings set routing.retry_ratio 0.5
      gateway settings set videos.webhook_hosts 'app.example.com,*.example.org'
      gateway settings reset routing.retry_ratio
    """


@settings.command("list")
@click.argument("section", required=False)
@client_command
def list_settings(context: CliContext, section: str | None) -> None:
    """List all settings, or those of SECTION.

    FROM says where a value comes from: default, file, environment, or console. A value set by 'gateway settings set' is
    one of the console.
    """
    answer = call(context, "GET", "settings")
    if section is not None:
        if section not in answer["sections"]:
            hint = did_you_mean(section, answer["sections"]) or f"; expected one of {', '.join(answer['sections'])}"
            raise CliError(f"Unknown section '{section}'{hint}")
        answer = {"sections": {section: answer["sections"][section]}}
    print_answer(context, answer, lambda _: print_table(SETTINGS, _list_settings(answer["sections"]), "No settings."))


@settings.command("set", context_settings=_NEGATIVE_NUMBERS)
@_NAME
@click.argument("value")
@client_command
def set_setting(context: CliContext, name: str, value: str) -> None:
    """Set SECTION.KEY to VALUE. Separate the items of a list with commas; 'none' is an empty list."""

    async def work(admin: AdminClient) -> tuple[Json, Json]:
        section, key = _split_name(name)
        setting = (await admin.get("settings"))["sections"].get(section, {}).get(key, {})
        body = {"value": parse_value(value, setting.get("type"))}
        return setting, await admin.call("PUT", "settings", section, key, body=body)

    old_value, new_value = run(context, work)
    print_answer(context, new_value, lambda _: _print_change(name, old_value, new_value))


@settings.command("reset")
@_NAME
@client_command
def reset_setting(context: CliContext, name: str) -> None:
    """Reset SECTION.KEY to its default."""

    async def work(admin: AdminClient) -> tuple[Json, Json]:
        section, key = _split_name(name)
        setting = (await admin.get("settings"))["sections"].get(section, {}).get(key, {})
        return setting, await admin.call("DELETE", "settings", section, key)

    old_value, new_value = run(context, work)
    print_answer(context, new_value, lambda _: _print_change(name, old_value, new_value))


@click.group(cls=ListByDefault)
def groups() -> None:
    """Show or change the price multipliers of key groups.

    \b
    Examples:
      gateway groups
      gateway groups set vip 0.8
      gateway groups reset vip
    """


@groups.command("list")
@client_command
def list_groups(context: CliContext) -> None:
    """List the groups of keys, accounts and channels, and those with a price multiplier."""
    print_answer(context, call(context, "GET", "groups"), lambda rows: print_table(GROUPS, rows, "No groups."))


@groups.command("set")
@click.argument("name")
@click.argument("multiplier", type=float)
@client_command
def set_group(context: CliContext, name: str, multiplier: float) -> None:
    """Charge keys of the group NAME the price times MULTIPLIER; 0.8 is 20 % less."""
    body = {"price_multiplier": multiplier}

    async def work(admin: AdminClient) -> tuple[Json, Json]:
        return await _find_group(admin, name), await admin.call("PUT", "groups", name, body=body)

    old_value, new_value = run(context, work)
    print_answer(context, new_value, lambda _: print_edit(name, old_value, new_value, body))


@groups.command("reset")
@click.argument("name")
@client_command
def reset_group(context: CliContext, name: str) -> None:
    """Remove the price multiplier of the group NAME."""

    async def work(admin: AdminClient) -> tuple[Json, Json]:
        return await _find_group(admin, name), await admin.call("DELETE", "groups", name)

    old_value, new_value = run(context, work)
    print_answer(context, new_value, lambda _: print_edit(name, old_value, _UNPRICED_GROUP, _UNPRICED_GROUP))


async def _find_group(admin: AdminClient, name: str) -> Json:
    """Return the group; for a group that is not in use, return the defaults."""
    groups = (await admin.get("groups"))["data"]
    return next((group for group in groups if group["name"] == name), _UNPRICED_GROUP)


@click.group(cls=ListByDefault)
def prices() -> None:
    """Show or change model prices, in dollars.

    Prices set here override the built-in ones. Prices of the configuration file override both.

    \b
    Examples:
      gateway prices
      gateway prices --model gpt-5-mini
      gateway prices set 'my-*' --input 0.5 --output 1.5
      gateway prices set my-image-model --provider openrouter --image 0.04
      gateway prices reset 'my-*'
    """


@prices.command("list")
@click.option("--model", help="Only prices that match this model, including built-in ones.")
@click.option("--all", "with_shipped", is_flag=True, help="Include built-in prices.")
@client_command
def list_prices(context: CliContext, model: str | None, *, with_shipped: bool) -> None:
    """List the prices of the configuration file, and those set in the console or with this command."""
    answer = run(context, lambda admin: admin.get("prices", query={"model": model}))
    if model is None and not with_shipped:
        own_prices = [price for price in answer["data"] if price["source"] != "shipped"]
        answer = {**answer, "data": own_prices, "total": len(own_prices)}
    print_answer(context, answer, _print_prices)


def _amount_options(command: Command) -> Command:
    for option, name, help_text in reversed(_AMOUNT_OPTIONS):
        command = click.option(f"--{option}", name, type=Amount(), help=help_text)(command)
    return command


@prices.command("set")
@click.argument("model")
@click.option("--provider", help="Only with this provider, such as openai.")
@click.option("--free", is_flag=True, help="The model costs nothing.")
@_amount_options
@client_command
def set_price(context: CliContext, model: str, *, free: bool, **fields: Any) -> None:
    """Set rates of MODEL, a name or glob; the others stay as they are. Tiers and sizes: in the configuration file."""
    rates = {name: value for name, value in fields.items() if value is not None}
    if free == bool(rates.keys() - {"provider"}):
        raise click.UsageError("expected a rate such as --input 0.25, or --free if the model costs nothing")

    async def work(admin: AdminClient) -> tuple[Json, Json]:
        old_value = await _find_price(admin, model, fields["provider"])
        kept_rates = (
            {}
            if free or old_value.get("free")
            else {name: old_value[name] for name in old_value if name not in _NON_RATE_FIELDS}
        )
        return old_value, await admin.call("PUT", "prices", model, body={**kept_rates, **rates, "free": free})

    old_value, new_value = run(context, work)
    print_answer(context, new_value, lambda _: _print_rates(new_value, old_value))


@prices.command("reset")
@click.argument("model")
@click.option("--provider", help="The price for this provider.")
@client_command
def reset_price(context: CliContext, model: str, provider: str | None) -> None:
    """Remove a price of MODEL that was set here."""

    async def work(admin: AdminClient) -> tuple[Json, Json, Json]:
        old_value = await _find_price(admin, model, provider)
        answer = await admin.call("DELETE", "prices", model, query={"provider": provider})
        return old_value, answer, await _find_price(admin, model, provider)

    old_value, answer, new_value = run(context, work)
    print_answer(
        context, answer, lambda _: _print_rates({**new_value, "model": model, "provider": provider}, old_value)
    )


async def _find_price(admin: AdminClient, model: str, provider: str | None) -> Json:
    """Return the price of ``model`` set here, else the built-in price with that name; empty without a price."""
    prices = (await admin.get("prices"))["data"]
    for source, provider_name in (("console", provider), ("shipped", provider), ("shipped", None)):
        for price in prices:
            if (price["model"], price["provider"], price["source"]) == (model, provider_name, source):
                match: Json = price
                return match
    return {}


def parse_value(text: str, kind: str | None) -> Any:
    """Parse the value of a setting. Return an invalid text unchanged: the gateway reports the problem."""
    if kind == "list":
        return [] if text == "none" else [item.strip() for item in text.split(",")]
    if kind in {"integer", "number", "boolean"}:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
    return text


def _split_name(name: str) -> tuple[str, str]:
    section, _, key = name.partition(".")
    if not key:
        raise click.BadParameter("expected a section and a key, such as routing.retry_ratio", param_hint="SECTION.KEY")
    return section, key


def _print_change(name: str, old_value: Json, new_value: Json) -> None:
    click.echo(clean(f"{name}: {format_change('value', old_value['value'], new_value['value'])}"))


def _print_rates(new_value: Json, old_value: Json) -> None:
    """Print the changed rates, such as ``my-*: input $0.50 → $1.00``, or a change from or to a free price."""
    name = new_value["model"] + (f" at {new_value['provider']}" if new_value["provider"] else "")
    if old_value.get("free") or new_value.get("free"):
        click.echo(clean(f"{name}: {_summarize(old_value)} → {_summarize(new_value)}"))
        return
    old_rates, new_rates = (
        {f"{option}_usd": price.get(field) or None for option, field, _ in _AMOUNT_OPTIONS}
        for price in (old_value, new_value)
    )
    print_edit(name, old_rates, new_rates, new_rates)


def _summarize(price: Json) -> str:
    """Return a price in short form: ``$0.25/$2.00`` for input and output tokens, ``free``, or ``no price``."""
    if "free" not in price:
        return "no price"
    if price["free"]:
        return "free"
    return f"{format_usd(price['input_usd_per_million'])}/{format_usd(price['output_usd_per_million'])}"


def _print_prices(rows: Sequence[Json]) -> None:
    print_table(PRICES, rows, "No prices set. Built-in prices: gateway prices --all")
