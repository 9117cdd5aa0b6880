"""What clients, operators and upgrades depend on, as files that a change of it must change too.

Each test compares the running program with one file in ``tests/architecture/surface/``: the OpenAPI document and the
command tree without their prose, the database schema, the error codes, the headers of answers. A refactoring leaves
all of them alone. After a change that is meant, write them anew and read their diff::

    UPDATE_SURFACE=1 make test ARGS=tests/architecture/test_public_surface.py
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import click
import orjson
import pytest

from gateway.cli.main import main
from gateway.error_status import STATUS
from tests.support.fault_scene import PRICE
from tests.support.gateway import CHAT, HELLO, KEY, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer, chat_script
from tests.support.started_gateways import StartGateway

SURFACE = Path(__file__).parent / "surface"
PROSE = frozenset({"description", "summary", "title", "example", "examples"})
NAMED = frozenset(
    {"properties", "patternProperties", "$defs", "schemas", "parameters", "headers", "responses", "paths"}
)
"""Objects of an OpenAPI document whose keys are names: a field may be called ``description``."""
DATED = frozenset({"Date"})
NOWHERE = {"channel": [channel("http://127.0.0.1:9/v1")]}
MESSAGES = "/v1/messages"


def assert_unchanged(name: str, found: str) -> None:
    """Compare ``found`` with the file ``name``, or write the file if ``UPDATE_SURFACE`` is set."""
    path = SURFACE / name
    if os.environ.get("UPDATE_SURFACE"):
        path.write_text(found)
    assert path.read_text().splitlines() == found.splitlines(), f"{name} differs; see this test's module"


def write_json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode() + "\n"


def drop_prose(value: Any, *, names: bool = False) -> Any:
    """``value`` without its texts for readers. ``names``: its keys are names of things, none of them is a text."""
    if isinstance(value, list):
        return [drop_prose(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: drop_prose(item, names=key in NAMED and not names)
        for key, item in value.items()
        if names or key not in PROSE
    }


def test_prose_is_dropped_and_a_field_of_that_name_is_kept() -> None:
    schema = {"description": "of a thing", "properties": {"description": {"type": "string", "description": "its own"}}}
    assert drop_prose(schema) == {"properties": {"description": {"type": "string"}}}


INLINED = ("#/components/schemas/", "#/components/parameters/")
EMPTY: tuple[tuple[str, Any], ...] = (("required", []), ("properties", {}))


def inline(value: Any, components: Any) -> Any:
    """``value`` with schemas and parameters in the place of references to them, and without empty lists of fields.

    Neither a shape's name under ``components`` nor the order of its required fields changes what clients send and get.
    """
    if isinstance(value, list):
        return [inline(item, components) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("$ref", "").startswith(INLINED):
        _, _, kind, name = value["$ref"].split("/")
        value = components[kind][name] | {key: item for key, item in value.items() if key != "$ref"}
    return {
        key: sorted(item) if key == "required" and isinstance(item, list) else inline(item, components)
        for key, item in value.items()
        if (key, item) not in EMPTY
    }


def test_a_reference_is_compared_as_what_it_stands_for() -> None:
    components = {"schemas": {"Name": {"type": "string"}}}
    named = {"properties": {"name": {"$ref": "#/components/schemas/Name"}}, "required": []}
    assert inline(named, components) == {"properties": {"name": {"type": "string"}}}
    assert inline({"required": ["b", "a"]}, components) == inline({"required": ["a", "b"]}, components)


def list_parts(document: Any) -> dict[str, Any]:
    """Each operation and each component, under the words that find it."""
    document = inline(document, document["components"])
    operations = {
        f"{method.upper()} {path}": {name: value for name, value in operation.items() if name != "tags"}
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    components = {
        f"{kind} {name}": value for kind, parts in document["components"].items() for name, value in parts.items()
    }
    return operations | components


async def test_openapi_document(standing_with: StartGateway) -> None:
    gateway = await standing_with(NOWHERE)
    async with gateway.client.get(f"{gateway.url}/openapi.json") as response:
        parts = list_parts(await response.json())
    lines = [
        f"{name} {orjson.dumps(drop_prose(part), option=orjson.OPT_SORT_KEYS).decode()}" for name, part in parts.items()
    ]
    assert_unchanged("openapi.txt", "\n".join(sorted(lines)) + "\n")


def describe_parameter(parameter: click.Parameter) -> str:
    kind = parameter.type
    values = "|".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else kind.name
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    marks = " required" * parameter.required + " repeated" * parameter.multiple
    return f"{parameter.param_type_name} {names} {values}{marks}"


def list_commands(command: click.Command, path: str) -> Iterator[str]:
    """A line for each command, and one for each of its parameters."""
    yield path
    yield from (f"{path}: {describe_parameter(parameter)}" for parameter in command.params)
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            yield from list_commands(inner, f"{path} {name}")


def test_command_tree() -> None:
    assert_unchanged("commands.txt", "\n".join(list_commands(main, "gateway")) + "\n")


async def test_database_schema(standing_with: StartGateway) -> None:
    gateway = await standing_with(NOWHERE)
    with closing(sqlite3.connect(gateway.folder.path / "gateway.db")) as database:
        rows = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name")
        assert_unchanged("schema.sql", "".join(f"{sql};\n" for (sql,) in rows))


def test_error_codes() -> None:
    assert_unchanged("error_codes.json", write_json(dict(STATUS)))


async def list_headers(sent: Any) -> list[str]:
    async with sent as response:
        await response.read()
        return [str(response.status), *sorted(response.headers.keys() - DATED)]


async def test_headers_of_answers(standing_with: StartGateway) -> None:
    limited = [{"name": "test", "account": "acme", "secret": KEY, "rpm": 1000, "tpm": 10**6}]
    async with (
        ScriptedUpstream([answer(COMPLETION)], chat_script("hi")) as upstream,
        aiohttp.ClientSession() as stranger,
    ):
        gateway = await standing_with({"channel": [channel(upstream.base_url)], "key": limited, "price": [PRICE]})
        found = {
            "chat": await list_headers(gateway.post()),
            "stream": await list_headers(gateway.post({**HELLO, "stream": True})),
            "refused": await list_headers(gateway.post({"model": "m"})),
            "refused, Anthropic's form": await list_headers(gateway.post({"model": "m"}, MESSAGES)),
            "unknown path": await list_headers(gateway.client.get(f"{gateway.url}/v1/nothing")),
            "not served": await list_headers(gateway.post({}, "/v1/images/variations")),
            "models": await list_headers(gateway.client.get(f"{gateway.url}/v1/models")),
            "healthz": await list_headers(gateway.client.get(f"{gateway.url}/healthz")),
            "no key": await list_headers(stranger.post(gateway.url + CHAT, json=HELLO)),
            "console": await list_headers(stranger.get(f"{gateway.url}/console", allow_redirects=False)),
        }
    assert_unchanged("headers.json", write_json(found))


@pytest.mark.parametrize("name", [path.name for path in sorted(SURFACE.iterdir())])
def test_every_file_is_compared(name: str) -> None:
    assert f'"{name}"' in Path(__file__).read_text(), f"no test compares {name}"
