"""The commands about what a gateway goes by: settings, groups and prices, seen and set while it runs."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Sequence
from functools import partial
from typing import Any

import click
import orjson

from gateway.cli.admin_client import AdminClient, CliContext, CliError, Json, ask, call, look
from gateway.cli.options import Amount, Command, ListByDefault, client_command
from gateway.cli.output import ABSENT, clean, format_usd, format_value, print_answer, print_cells, print_fields

_AMOUNTS = (
    ("input", "input_usd_per_million", "A million tokens of the prompt."),
    ("cached-input", "cached_input_usd_per_million", "Of them those that come from a cache; as --input if not given."),
    ("output", "output_usd_per_million", "A million tokens of the answer."),
    ("cache-write", "cache_write_usd_per_million", "A million tokens written into a cache; as --input if not given."),
    ("image", "usd_per_image", "A picture."),
    ("second", "usd_per_second", "A second of video or sound."),
    ("characters", "usd_per_million_characters", "A million characters that are spoken."),
)
_COLUMNS = {
    ">INPUT": "input_usd_per_million",
    ">CACHED": "cached_input_usd_per_million",
    ">OUTPUT": "output_usd_per_million",
    ">IMAGE": "usd_per_image",
    ">SECOND": "usd_per_second",
    ">CHARACTERS": "usd_per_million_characters",
}
_NAME = click.argument("name", metavar="SECTION.KEY")
_NEGATIVE = {"ignore_unknown_options": True}


@click.group(cls=ListByDefault)
def settings() -> None:
    """What the gateway goes by. What its file or environment says is changed there, the rest here, at once.

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
def list_settings(place: CliContext, section: str | None) -> None:
    """Every setting, or those of one SECTION; FROM is who says it."""
    answer = call(place, "GET", "settings")
    if section is not None:
        if section not in answer["sections"]:
            raise CliError(f"There is no section {section!r}, but {', '.join(answer['sections'])}")
        answer = {"sections": {section: answer["sections"][section]}}
    print_answer(place, answer, _print_settings)


@settings.command("set", context_settings=_NEGATIVE)
@_NAME
@click.argument("value")
@client_command
def set_setting(place: CliContext, name: str, value: str) -> None:
    """Set SECTION.KEY to VALUE; of a list, its items with commas, or 'none'."""

    async def work(admin: AdminClient) -> Json:
        section, key = _split(name)
        told = (await admin.get("settings"))["sections"].get(section, {}).get(key, {})
        return await admin.call("PUT", "settings", section, key, body={"value": read_value(value, told.get("type"))})

    print_answer(place, ask(place, work), partial(_print_setting, name))


@settings.command("reset")
@_NAME
@client_command
def reset_setting(place: CliContext, name: str) -> None:
    """Take back what was set of SECTION.KEY."""
    print_answer(place, call(place, "DELETE", "settings", *_split(name)), partial(_print_setting, name))


@click.group(cls=ListByDefault)
def groups() -> None:
    """What the keys of a group pay, over the price of model and channel.

    \b
    Examples:
      gateway groups
      gateway groups set vip 0.8
      gateway groups reset vip
    """


@groups.command("list")
@client_command
def list_groups(place: CliContext) -> None:
    """Every group that keys, accounts or channels are of, or that pays something else."""
    print_answer(place, call(place, "GET", "groups"), _print_groups)


@groups.command("set")
@click.argument("name")
@click.argument("multiplier", type=float)
@client_command
def set_group(place: CliContext, name: str, multiplier: float) -> None:
    """Have the keys of the group NAME pay MULTIPLIER times the price: 0.8 is a fifth less."""
    answer = call(place, "PUT", "groups", name, body={"price_multiplier": multiplier})
    print_answer(place, answer, print_fields)


@groups.command("reset")
@click.argument("name")
@client_command
def reset_group(place: CliContext, name: str) -> None:
    """Take the multiplier of the group NAME back."""
    print_answer(place, call(place, "DELETE", "groups", name), print_fields)


@click.group(cls=ListByDefault)
def prices() -> None:
    """What models cost, in dollars: what is set here goes before the list that ships, and the file before both.

    \b
    Examples:
      gateway prices
      gateway prices --model gpt-5-mini
      gateway prices set 'my-*' --input 0.5 --output 1.5
      gateway prices set my-painter --provider openrouter --image 0.04
      gateway prices reset 'my-*'
    """


@prices.command("list")
@click.option("--model", help="Those that may be what this model costs, of the list that ships too.")
@click.option("--all", "everything", is_flag=True, help="Those of the list that ships too.")
@client_command
def list_prices(place: CliContext, model: str | None, *, everything: bool) -> None:
    """The prices of the file and those that were set here."""
    answer = look(place, lambda admin: admin.get("prices", query={"model": model}))
    if model is None and not everything:
        answer = {**answer, "data": [price for price in answer["data"] if price["source"] != "shipped"]}
    print_answer(place, answer, _print_prices)


def _amount_options(command: Command) -> Command:
    for option, name, words in reversed(_AMOUNTS):
        command = click.option(f"--{option}", name, type=Amount(), help=words)(command)
    return command


@prices.command("set")
@click.argument("model")
@click.option("--provider", help="Only at this one, such as openai.")
@_amount_options
@client_command
def set_price(place: CliContext, model: str, **fields: Any) -> None:
    """Say what MODEL, a name or a glob, costs; what is not given costs nothing. Tiers and sizes: in the file."""
    told = {name: value for name, value in fields.items() if value is not None}
    answer = call(place, "PUT", "prices", model, body=told)
    print_answer(place, answer, lambda price: _print_prices([price]))


@prices.command("reset")
@click.argument("model")
@click.option("--provider", help="The price that is only for this one.")
@client_command
def reset_price(place: CliContext, model: str, provider: str | None) -> None:
    """Take the price of MODEL back that was set here."""
    answer = ask(place, lambda admin: admin.call("DELETE", "prices", model, query={"provider": provider}))
    print_answer(place, answer, print_fields)


def read_value(text: str, kind: str | None) -> Any:
    """What stands on the command line, as JSON has it; where it is none of the kind, the gateway will say so."""
    if kind == "list":
        return [] if text == "none" else [item.strip() for item in text.split(",")]
    if kind in {"integer", "number", "boolean"}:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
    return text


def _split(name: str) -> tuple[str, str]:
    section, _, key = name.partition(".")
    if not key:
        raise click.BadParameter("expected a section and a key, such as routing.retry_ratio", param_hint="SECTION.KEY")
    return section, key


def _print_settings(answer: Json) -> None:
    cells = [
        {
            "SETTING": f"{section}.{key}",
            "VALUE": format_value(told["value"]),
            "FROM": told["source"],
            "ABOUT": told["about"],
        }
        for section, keys in answer["sections"].items()
        for key, told in keys.items()
    ]
    print_cells(cells, "There is no setting.")


def _print_setting(name: str, told: Json) -> None:
    click.echo(clean(f"{name} is {format_value(told['value'])} now (from: {told['source']})."))


def _print_groups(listed: Sequence[Json]) -> None:
    cells = [
        {
            "GROUP": group["name"],
            ">MULTIPLIER": f"{group['price_multiplier']:g}",
            "FROM": group["source"],
            ">KEYS": str(group["keys"]),
            ">CHANNELS": str(group["channels"]),
        }
        for group in listed
    ]
    print_cells(cells, "There is no group.")


def _print_prices(listed: Sequence[Json]) -> None:
    cells = [
        {
            "MODEL": price["model"],
            "PROVIDER": price["provider"] or ABSENT,
            **{title: format_usd(price[name]) if price[name] else ABSENT for title, name in _COLUMNS.items()},
            "FROM": price["source"] + ("" if price["in_force"] else " (not in force)"),
        }
        for price in listed
    ]
    print_cells(cells, "No price is set here; the list that ships: gateway prices --all", rare=("PROVIDER", *_COLUMNS))
