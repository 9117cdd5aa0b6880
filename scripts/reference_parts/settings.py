"""docs/reference/settings.md: the settings, from the classes that parse them and from config/gateway.toml."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs
import orjson

from gateway.config.loader import find_data
from gateway.config.merge import EDITABLE
from gateway.config.reload import AT_START, TABLES_AT_START
from gateway.config.schema import Config
from gateway.parsing import find_about, find_check
from scripts.reference_parts.markdown import join_blocks, write_table, write_text

_HEADER = re.compile(r"(?:# )?\[+(\w+)\]+$")
_KEY = re.compile(r"# (\w+) = \S.*?(?:\s{2,}# (.+))?$")
_MORE = re.compile(r"#\s{20,}# (.+)")
_TYPES: Mapping[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    Decimal: "number",
    bool: "true or false",
    dict: "table",
}
_INTRODUCTION = """\
# Settings

This page is generated from the program. `config/gateway.toml` has the same settings as a commented file.

The gateway reads `config/gateway.toml`, or the file that `--config` names. Every setting is optional. A string may
refer to an environment variable: `"${NAME}"`. Each key of a section in single brackets can also be set as the variable
`GATEWAY_<SECTION>__<KEY>`, for instance `GATEWAY_SERVER__PORT=9000`. A variable takes precedence over the file.

`gateway check` reports every problem of the file. `gateway reload` applies the file to the running gateway.

## Other variables

| Variable | Meaning |
| --- | --- |
| `GATEWAY_DATA` | The data folder, as `--data` |
| `GATEWAY_URL` | The gateway that commands call, as `--url`: on another machine, or any node of a cluster |
| `GATEWAY_ADMIN_TOKEN` | The admin token of the gateway at `GATEWAY_URL` |
| `GATEWAY_DISCOVER` | `0`: neither provider keys of the environment nor local model servers are used |
| `GATEWAY_KEY` | The API key of `gateway chat` |
| `GATEWAY_BACKUP_PASSPHRASE` | The passphrase of `gateway backup --encrypt` and of `gateway restore` |
| `NO_COLOR` | Any value switches off the colors of commands |

The variables of providers are in [Providers](providers.md).
"""
_TABLES = """\
## Tables

A table in double brackets may occur several times. What the file declares is read-only in the console and in the
commands.
"""


def build_settings() -> str:
    """Build the page."""
    sections = [field for field in attrs.fields(Config) if attrs.has(_find_plain(field.type))]
    tables = [field for field in attrs.fields(Config) if field not in sections]
    comments = read_comments(find_data("gateway.toml").read_text())
    blocks = [_INTRODUCTION]
    for field in sections:
        blocks += _build_section(field.name, _find_plain(field.type))
    blocks.append(_TABLES)
    for field in tables:
        blocks += _build_table(field.name, get_args(field.type)[0], comments)
    return join_blocks(blocks)


def read_comments(text: str) -> dict[str, str]:
    """Return what the commented file says of each key, by ``section.key``."""
    found: dict[str, str] = {}
    section = path = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            section, path = header[1], ""
        elif key := _KEY.match(line):
            path = f"{section}.{key[1]}"
            found[path] = key[2] or ""
        elif path and (more := _MORE.match(line)):
            found[path] += f" {more[1]}"
        else:
            path = ""
    return found


def _build_section(name: str, kind: type[Any]) -> Iterator[str]:
    yield f"## [{name}]"
    yield write_text(_describe(kind))
    yield f"Applied by: {_find_way(name)}."
    yield write_table(
        ("Key", "Type", "Default", "Description"),
        (
            (f"`{field.name}`", write_text(_name_type(field)), _write_default(field), write_text(find_about(field)))
            for field in attrs.fields(kind)
        ),
    )


def _build_table(name: str, kind: type[Any], comments: Mapping[str, str]) -> Iterator[str]:
    yield f"### [[{name}]]"
    yield write_text(_describe(kind))
    yield f"Applied by: {'a restart' if name in TABLES_AT_START else '`gateway reload`'}."
    yield write_table(
        ("Key", "Type", "Default", "Description"),
        (
            (
                f"`{field.name}`",
                write_text(_name_type(field)),
                _write_default(field),
                write_text(find_about(field) or comments.get(f"{name}.{field.name}", "")),
            )
            for field in attrs.fields(kind)
        ),
    )


def _describe(kind: type[Any]) -> str:
    """Return the first paragraph of a class's docstring, without the name of the section at its beginning."""
    text = (kind.__doc__ or "").partition("\n\n")[0]
    text = " ".join(text.replace("``", "`").split())
    text = re.sub(r"^`\[+\w+\]+`[.:]?\s*", "", text)
    return text[:1].upper() + text[1:]


def _find_way(section: str) -> str:
    if section in AT_START:
        return "a restart"
    return "`gateway reload`, the console, or `gateway settings`" if section in EDITABLE else "`gateway reload`"


def _name_type(field: "attrs.Attribute[Any]") -> str:
    check = find_check(field)
    kind = _find_plain(field.type)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f"`{_write_value(choice)}`" for choice in get_args(kind))
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        words = "list of tables" if attrs.has(inner) else "list"
    elif get_origin(kind) is not None:
        words = _TYPES[get_origin(kind)]
    else:
        words = "table" if attrs.has(kind) else _TYPES.get(kind, "date and time")
    if check is None:
        return words
    return (
        f"{words}{rest}" if (rest := check.expected.removeprefix("a number")) != check.expected else f"{words}: {rest}"
    )


def _find_plain(kind: Any) -> Any:
    """Return ``X`` for ``X | None``, else the type itself."""
    if get_origin(kind) in {Union, UnionType}:
        return next(one for one in get_args(kind) if one is not type(None))
    return kind


def _write_default(field: "attrs.Attribute[Any]") -> str:
    if field.default is attrs.NOTHING:
        return "required"
    default = field.default.factory() if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[union-attr, arg-type]
    return "" if default is None else f"`{_write_value(default)}`"


def _write_value(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)
    if attrs.has(type(value)):
        return "{}"
    return orjson.dumps(list(value) if isinstance(value, tuple) else value).decode()
