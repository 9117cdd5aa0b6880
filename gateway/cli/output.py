"""Prints answers of the admin API as JSON, by field, or as tables; new keys, models without a price, and reloads."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import orjson

from gateway.cli.table import Column, print_table
from gateway.cli.text import Json, clean, format_limits, format_quota, format_usd, format_value

if TYPE_CHECKING:
    from gateway.cli.context import CliContext

_MAX_SHOWN_MODELS = 5
_MONEY_COLUMNS = (
    Column("QUOTA", format_quota, hidden_value="-", drop=3),
    Column("SPENT", lambda row: format_usd(row["spent_usd"]), align_right=True),
    Column("LEFT", lambda row: format_usd(row["left_usd"]), align_right=True, hidden_value="-"),
    Column("LIMITS", format_limits, hidden_value="-", shrinks=True, width=7, drop=2),
)
ACCOUNTS = (
    Column("NAME", "name", shrinks=True, width=12),
    Column("STATUS", "status", status=True),
    *_MONEY_COLUMNS,
    Column("GROUPS", "groups", hidden_value="-", shrinks=True, width=6, drop=1),
    Column("MADE", lambda account: "file" if account["declared"] else "here"),
)
KEYS = (
    Column("ID", "id", align_right=True),
    Column("NAME", "name", shrinks=True, width=8),
    Column("ACCOUNT", "account", shrinks=True, width=8),
    Column("KEY", "key"),
    Column("STATUS", "status", status=True),
    *_MONEY_COLUMNS,
    Column("MODELS", "models", hidden_value="-", shrinks=True, width=8, drop=1),
    Column("EXPIRES", lambda key: format_value(key["expires_at"])[:10], hidden_value="-", drop=4),
)
MODELS = (
    Column("MODEL", "id", shrinks=True, width=24),
    Column("OWNED BY", "owned_by", shrinks=True, width=12),
    Column("KIND", "kind", drop=1),
    Column("CONTEXT", "context_window", align_right=True, drop=2),
    Column("CHANNELS", "channels", shrinks=True, width=16),
    Column("PRICE", lambda model: _format_price(model["price"]), align_right=True),
)


def _format_price(price: Json | None) -> str:
    """Format a price per million input and output tokens: ``$0.25/$2.00``; else ``no price``, ``free`` or ``other``."""
    if price is None:
        return "no price"
    rates = price["input_usd_per_million"], price["output_usd_per_million"]
    if any(rates):
        return "/".join(map(format_usd, rates))
    return "other" if any(isinstance(rate, float) and rate for rate in price.values()) else "free"


def print_json(value: Any, *, on_one_line: bool = False) -> None:
    """Print ``value`` as JSON: indented, or with ``on_one_line`` on one line."""
    click.echo(orjson.dumps(value, option=0 if on_one_line else orjson.OPT_INDENT_2).decode())


def print_answer(context: "CliContext", answer: Json, print_text: Callable[[Any], None]) -> None:
    """Print an answer as JSON, or with ``print_text``. For a list, ``print_text`` gets the items."""
    if context.as_json:
        print_json(answer)
    else:
        print_text(answer["data"] if answer.get("object") == "list" else answer)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one field per line. Amounts are shown in dollars, without the suffix ``_usd`` in their names."""
    names = {name: name.removesuffix("_usd").replace("_", " ") for name in fields}
    width = max(map(len, names.values()), default=0)
    for name, value in fields.items():
        text = format_usd(value) if name.endswith("_usd") else format_value(value)
        click.echo(f"{names[name]:<{width}}  {clean(text)}")


def print_accounts(accounts: Sequence[Json]) -> None:
    """Print a table of accounts."""
    print_table(ACCOUNTS, accounts, "No accounts. Add one: gateway accounts add NAME")


def print_keys(keys: Sequence[Json]) -> None:
    """Print a table of keys."""
    print_table(KEYS, keys, "No keys. Create one: gateway keys add NAME")


def print_models(models: Sequence[Json], *, is_filtered: bool = False) -> None:
    """Print a table of models. ``is_filtered``, whether a filter was used, changes only the line for an empty table."""
    hint = "No model is known to fit." if is_filtered else "No models. Check your channels: gateway channels test"
    print_table(MODELS, models, hint)


def list_unpriced_models(models: Json) -> list[str]:
    """Return the names of the models without a price; routes are left out."""
    return [model["id"] for model in models["data"] if model["price"] is None and not model["route"]]


def print_unpriced_models(names: Sequence[str]) -> None:
    """Print a warning to standard error that these models have no price; no output for an empty list."""
    if names:
        shown_names = ", ".join(names[:_MAX_SHOWN_MODELS]) + (
            ", \N{HORIZONTAL ELLIPSIS}" if len(names) > _MAX_SHOWN_MODELS else ""
        )
        count = f"{len(names)} models have" if len(names) > 1 else "1 model has"
        click.echo(
            f"{count} no price: {clean(shown_names)}. Keys and accounts with a spending limit cannot use them, unless "
            "billing.unpriced is 'free'. List them: gateway models list --unpriced. Set a price: gateway prices --help",
            err=True,
        )


def print_new_key(key: Json) -> None:
    """Print the secret to standard output, for capture with ``$(…)``, and the rest to standard error."""
    click.echo(key["secret"])
    heading = f"Key {key['id']} ({key['name']}) of account '{key['account']}'"
    click.echo(f"{heading}. Copy it now: it is not shown again, only its hash is stored.", err=True)


def print_reload(report: Json) -> None:
    """Print the changes of a reload, one per line."""
    restart = [f"{line} changed: needs a restart" for line in report["needs_restart"]]
    for line in [*report["changes"], *restart] or ["Nothing has changed."]:
        click.echo(clean(line))
