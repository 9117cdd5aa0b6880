"""What the command prints for people: tables, one thing with all its fields, and the greeting of a gateway."""
# ruff: noqa: PLC0415 - rich is imported where a table is printed: `gateway serve` needs none.

import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
import orjson

from gateway import __version__

if TYPE_CHECKING:
    from gateway.cli.admin_client import CliContext
    from gateway.options import StartupInfo

Json = dict[str, Any]
Cells = dict[str, str]
"""What a row of a table has in each column."""

ABSENT = "-"
_RARE = ("QUOTA", ">LEFT", "LIMITS", "GROUPS", "MODELS", "EXPIRES")
"""What few accounts and keys have."""
_NOT_CHAT = ("embed", "image", "video", "tts", "whisper", "dall-e", "moderation", "rerank", "speech", "transcribe")
_ORDINALS: Mapping[int, str] = MappingProxyType({2: "2nd", 3: "3rd"})
_WIDE = 100
"""Columns of a terminal from which a table of requests has room for one more, and one of keys for more air."""


def greet(address: str, welcome: "StartupInfo") -> None:
    """Where the gateway is, what it serves and, with a first key, a call to copy."""
    click.echo(f"\nModel gateway {__version__} answers at {address}")
    click.echo(f"  models    {_format_models(welcome)}")
    for line in format_console(address, welcome.setup_token):
        click.echo(line)
    if welcome.secret is None:
        click.echo(f"  base_url  {address}/v1\n  keys      make a key: {name_command()} keys create\n")
        return
    body = {"model": pick_model(welcome.models), "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    click.echo(f"  key       {welcome.secret}")
    click.echo("            shown once, only its hash is stored\n")
    click.echo("Try it:\n")
    click.echo(f"  curl -N {address}/v1/chat/completions \\")
    click.echo(f"    -H 'Authorization: Bearer {welcome.secret}' -H 'Content-Type: application/json' \\")
    click.echo(f"    -d {shlex.quote(orjson.dumps(body).decode())}\n")
    click.echo("Or with an OpenAI SDK, here in Python:\n")
    click.echo("  from openai import OpenAI")
    click.echo(f'  client = OpenAI(base_url="{address}/v1", api_key="{welcome.secret}")\n')


def format_console(address: str, setup_token: str | None) -> Iterator[str]:
    """Where the console is, and while it has no administrator the link that makes one."""
    if setup_token is None:
        yield f"  console   {address}/console"
        return
    yield f"  console   {address}/console/setup#{setup_token}"
    yield "            open this link in a browser: it makes you the administrator, and is good once"


def _format_models(welcome: "StartupInfo") -> str:
    if welcome.demo:
        return f"{', '.join(welcome.models)} (the built-in demo: no channel is configured)"
    if not welcome.models:
        return f"being asked of the providers; see: {name_command()} models"
    return f"{len(welcome.models)}; see: {name_command()} models"


def name_command() -> str:
    """How the command is called from where it was called: it need not be on the path."""
    if shutil.which("gateway"):
        return "gateway"
    return sys.argv[0] if Path(sys.argv[0]).name == "gateway" else "python -m gateway"


def pick_model(models: Sequence[str]) -> str:
    """A model to greet with: the demo's, or the first whose name does not say that it is no chat model."""
    if "demo-chat" in models:
        return "demo-chat"
    chat = (model for model in models if not any(word in model.lower() for word in _NOT_CHAT))
    return next(chat, models[0] if models else "YOUR-MODEL")


def print_json(value: Any, *, lines: bool = False) -> None:
    """``value`` as JSON, indented or on one line."""
    click.echo(orjson.dumps(value, option=0 if lines else orjson.OPT_INDENT_2).decode())


def print_answer(place: "CliContext", answer: Json, for_people: Callable[[Any], None]) -> None:
    """The API's JSON, or what ``for_people`` makes of it; of a listing it is given the items."""
    if place.as_json:
        print_json(answer)
    else:
        for_people(answer["data"] if answer.get("object") == "list" else answer)


def print_cells(cells: Sequence[Cells], empty: str, *, rare: Sequence[str] = (), gap: int = 2) -> None:
    """A table of cells by their column; a ``rare`` column only where one has something in it."""
    columns = [
        name for name in (cells[0] if cells else ()) if name not in rare or any(cell[name] != ABSENT for cell in cells)
    ]
    print_table(columns, [[cell[name] for name in columns] for cell in cells], empty, gap=gap)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str, *, gap: int = 2) -> None:
    """A table without a frame; a column whose title begins with ``>`` is aligned to the right.

    Such a column, and one without a title, is never folded.
    """
    if not rows:
        click.echo(empty, err=True)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for title in columns:
        right = title.startswith(">")
        table.add_column(
            title.removeprefix(">"),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right or not title,
        )
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    Console(highlight=False).print(table)


def print_fields(fields: Mapping[str, Any]) -> None:
    """One thing, a field a line; an amount says by itself that it is in dollars."""
    names = {name: name.removesuffix("_usd").replace("_", " ") for name in fields}
    width = max(map(len, names.values()), default=0)
    for name, value in fields.items():
        text = format_usd(value) if name.endswith("_usd") else format_value(value)
        click.echo(f"{names[name]:<{width}}  {clean(text)}")


def clean(text: str) -> str:
    """``text`` without what would steer a terminal: a caller chooses the name of the model it asks for."""
    return "".join(mark if mark.isprintable() else "\ufffd" for mark in text)


def format_value(value: Any) -> str:
    """A JSON value for people."""
    if value is None or value in ([], {}):
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}={format_value(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_usd(amount: float | None) -> str:
    """Dollars, with as many decimals as there are, two at least."""
    if amount is None:
        return ABSENT
    size = abs(amount)
    whole, _, decimals = f"{size:,.{4 if size >= 1 else 9}f}".partition(".")
    return f"{'-' if amount < 0 else ''}${whole}.{decimals.rstrip('0'):0<2}"


def format_quota(fields: Json) -> str:
    """``$5.00 daily``."""
    if fields["quota_usd"] is None:
        return ABSENT
    return f"{format_usd(fields['quota_usd'])} {fields['quota_period']}"


def format_limits(fields: Json) -> str:
    """``60 rpm, 8 at once``."""
    named = (("rpm", "rpm"), ("burst", "burst"), ("tpm", "tpm"), ("max_concurrency", "at once"))
    return ", ".join(f"{fields[name]} {label}" for name, label in named if fields.get(name) is not None) or ABSENT


def format_moment(started_ms: int, now: datetime, zone: tzinfo | None = None) -> str:
    """The time of day; of another day than ``now``'s, the date and the minute. In ``zone``, or this machine's."""
    moment = datetime.fromtimestamp(started_ms / 1000, UTC).astimezone(zone)
    today = moment.date() == now.astimezone(zone).date()
    return moment.strftime("%H:%M:%S" if today else "%m-%d %H:%M")


_COUNTED = {"estimate": "~", "bound": "?"}
"""What stands before numbers of tokens that are not the provider's."""


def format_request(row: Json, now: datetime) -> Cells:
    """The cells of a request by their column.

    ``~``: what it used is estimated; ``?``: what its provider says cannot be; ``!``: the cost went above a quota.
    """
    ending = row["error_code"] or ("" if row["ending"] == "completed" else row["ending"])
    first = row["first_byte_ms"]
    return {
        "TIME": format_moment(row["started_ms"], now),
        "KEY": row["key_name"],
        "MODEL": row["model"] or ABSENT,
        "CHANNEL": _format_channel(row),
        ">IN/OUT": _format_used(row),
        ">COST": format_usd(row["cost_usd"]) + ("!" if row["overrun_nanos"] > 0 else ""),
        ">FIRST": ABSENT if first is None else str(first),
        ">MS": str(row["total_ms"]),
        "STATUS": f"{row['status']} {ending}".rstrip(),
    }


def _format_used(row: Json) -> str:
    """``55/7``, and what else there was: ``55/7 3.3s``, ``900ch`` of a text that was spoken, ``2img``."""
    estimate = _COUNTED.get(row["usage_source"], "")
    characters, images, seconds = row["characters"], row["images"], row["duration_ms"] / 1_000
    media = f"{characters}ch" if characters else f"{seconds:.1f}s" if seconds else f"{images}img" if images else ""
    tokens = f"{row['prompt_tokens']}/{row['completion_tokens']}"
    return estimate + (media if media and tokens == "0/0" else f"{tokens} {media}".rstrip())


def _format_channel(row: Json) -> str:
    """``up1``, and ``up1 (2nd)`` where it had the last word of several attempts."""
    number = row["attempts"]
    nth = _ORDINALS.get(number, f"{number}th")
    return f"{row['channel'] or ABSENT} ({nth})" if number > 1 else row["channel"] or ABSENT


def print_accounts(accounts: Sequence[Json]) -> None:
    """A table of accounts."""
    cells = [
        {
            "NAME": account["name"],
            "STATUS": account["status"],
            **_format_money(account),
            "LIMITS": format_limits(account),
            "GROUPS": format_value(account["groups"]),
            "MADE": "file" if account["declared"] else "here",
        }
        for account in accounts
    ]
    print_cells(cells, "There is no account.", rare=_RARE)


def print_keys(keys: Sequence[Json]) -> None:
    """A table of keys."""
    cells = [
        {
            ">ID": str(key["id"]),
            "NAME": key["name"],
            "ACCOUNT": key["account"],
            "KEY": key["key"],
            "STATUS": key["status"],
            **_format_money(key),
            "LIMITS": format_limits(key),
            "MODELS": format_value(key["models"]),
            "EXPIRES": (key["expires_at"] or ABSENT)[:10],
        }
        for key in keys
    ]
    print_cells(cells, "There is no key; make one: gateway keys create", rare=_RARE, gap=1 if is_narrow() else 2)


def is_narrow() -> bool:
    """Whether the terminal has no room for what only few need."""
    from rich.console import Console

    return Console().width < _WIDE


def _format_money(fields: Json) -> Cells:
    return {
        "QUOTA": format_quota(fields),
        ">SPENT": format_usd(fields["spent_usd"]),
        ">LEFT": format_usd(fields["left_usd"]),
    }


def print_new_key(key: Json) -> None:
    """The secret on standard output, for ``$(…)``, and about it on standard error."""
    click.echo(key["secret"])
    about = f"Key {key['id']} ({key['name']}) of the account {key['account']!r}"
    click.echo(f"{about}. Shown once, only its hash is stored.", err=True)


def print_models(models: Sequence[Json]) -> None:
    """A table of models."""
    rows = [[model["id"], model["owned_by"], format_value(model["channels"])] for model in models]
    print_table(("MODEL", "OWNED BY", "CHANNELS"), rows, "There is no model; see: gateway channels test")


def print_reload(report: Json) -> None:
    """What a new configuration has changed, a line each."""
    waiting = [f"{line} changed: needs a restart" for line in report["needs_restart"]]
    for line in [*report["changes"], *waiting] or ["Nothing has changed."]:
        click.echo(clean(line))


def print_requests(rows: Sequence[Json]) -> None:
    """A table of requests."""
    now = datetime.now(UTC)
    cells = [format_request(row, now) for row in rows]
    if is_narrow():
        cells = [{name: text for name, text in cell.items() if name != ">FIRST"} for cell in cells]
    print_cells(cells, "No request is recorded.", gap=1)


_LINE = {"TIME": 8, "KEY": 8, "MODEL": 16, "CHANNEL": 10, ">IN/OUT": 8, ">COST": 10, ">MS": 6, "STATUS": 0}


def format_line(cells: Mapping[str, str]) -> str:
    """Cells on a line of their own, for rows that come one by one; a long cell pushes the rest aside."""
    parts = (
        f"{clean(cells[name]):>{width}}" if name.startswith(">") else f"{clean(cells[name]):<{width}}"
        for name, width in _LINE.items()
    )
    return " ".join(parts).rstrip()


async def print_as_they_come(rows: AsyncIterator[Json], *, as_json: bool) -> None:
    """Requests, a line each."""
    if not as_json:
        click.echo(format_line({name: name.removeprefix(">") for name in _LINE}))
    async for row in rows:
        if as_json:
            print_json(row, lines=True)
        else:
            click.echo(format_line(format_request(row, datetime.now(UTC))))
