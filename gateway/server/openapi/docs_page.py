"""``/docs``: the document as a page. It is written once; only the gateway's address in it is each caller's own."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import attrs
import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gateway.server.auth import CONSOLE_HEADER
from gateway.server.console.page import ROOT
from gateway.server.console.static_files import find_static
from gateway.server.openapi.admin import PREFIX
from gateway.server.openapi.attrs_schema import Schema
from gateway.server.openapi.document import RIGHTS, get_document
from gateway.server.openapi.error_responses import list_codes
from gateway.server.openapi.operation import EVENTS, FORM, JSON, find_event
from gateway.server.openapi.schema_table import SchemaRow, list_rows, name_kind, resolve

ADDRESS = "https://gateway.invalid"
"""What stands in the page that is kept for the address of the gateway."""
_RIGHTS: Mapping[str, str] = MappingProxyType(
    {
        "key": "with a key",
        "anyone": "open to anyone",
        "viewer": "any member",
        "member": "members, not viewers",
        "administrator": "administrators",
    },
)
_TOKENS: Mapping[str, str] = MappingProxyType({"key": "GATEWAY_KEY", "anyone": ""})
_CODE = re.compile(r"`([^`]+)`")
_NAMES = re.compile(r"\{([a-z_]+)\}")
_INDENT = orjson.OPT_INDENT_2


@attrs.frozen
class DocsBody:
    """One form that a body or an answer has."""

    media_type: str
    rows: tuple[SchemaRow, ...]
    kind: str
    about: str


@attrs.frozen
class FieldDoc:
    """An answer."""

    status: str
    about: str
    bodies: tuple[DocsBody, ...]
    headers: tuple[str, ...]


@attrs.frozen
class DocsOperation:
    """One operation, as the page shows it."""

    id: str
    method: str
    path: str
    summary: str
    about: str
    rights: str
    parameters: tuple[SchemaRow, ...]
    bodies: tuple[DocsBody, ...]
    example: str
    answers: tuple[FieldDoc, ...]
    faults: tuple[str, ...]


@attrs.frozen
class Chapter:
    """The operations of one tag."""

    id: str
    title: str
    about: str
    operations: tuple[DocsOperation, ...]


def build_page(address: str) -> bytes:
    """The page for a caller who knows the gateway by ``address``."""
    return _build_page().replace(ADDRESS, str(escape(address))).encode()


@cache
def _build_page() -> str:
    document = get_document()
    env = Environment(
        loader=PackageLoader("gateway.server.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {"prose": build_prose, "line": build_line}
    chapters = list_chapters(document)
    return env.get_template("docs.html").render(
        root=ROOT,
        static=find_static,
        address=ADDRESS,
        info=document["info"],
        parts=(
            ("The public API", [chapter for chapter in chapters if not chapter.id.startswith("admin-")]),
            ("The admin API", [chapter for chapter in chapters if chapter.id.startswith("admin-")]),
        ),
        codes=list_codes(),
    )


def list_chapters(document: Mapping[str, Any]) -> list[Chapter]:
    """The document in reading order."""
    operations: dict[str, list[DocsOperation]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            operations[told["tags"][0]].append(_parse_operation(method.upper(), path, told, document))
    return [
        Chapter(_slug(tag["name"]), _title(tag["name"]), tag.get("description", ""), tuple(operations[tag["name"]]))
        for tag in document["tags"]
    ]


def _slug(tag: str) -> str:
    return re.sub(r"[^a-z]+", "-", tag.lower()).strip("-")


def _title(tag: str) -> str:
    title = tag.removeprefix(PREFIX)
    return title[:1].upper() + title[1:]


def _parse_operation(method: str, path: str, told: Schema, document: Mapping[str, Any]) -> DocsOperation:
    answers = {status: answer for status, answer in told["responses"].items() if "$ref" not in answer}
    return DocsOperation(
        id=told["operationId"],
        method=method,
        path=path,
        summary=told["summary"],
        about=told.get("description", ""),
        rights=_RIGHTS[told[RIGHTS]],
        parameters=tuple(_parse_parameter(each, document) for each in told.get("parameters", ())),
        bodies=_list_bodies(
            told.get("requestBody", {}).get("content", {}),
            document,
            nulls=told[RIGHTS] != "key",  # to a provider null is as good as nothing
        ),
        example=build_curl(method, path, told),
        answers=tuple(_parse_answer(status, answer, document) for status, answer in answers.items()),
        faults=tuple(status for status, answer in told["responses"].items() if "$ref" in answer),
    )


def _parse_parameter(told: Schema, document: Mapping[str, Any]) -> SchemaRow:
    told = resolve(told, document)
    kind = name_kind(told["schema"], document)
    return SchemaRow(told["name"], f"{told['in']}: {kind}", bool(told.get("required")), told["description"], "")


def _list_bodies(
    content: Mapping[str, Schema],
    document: Mapping[str, Any],
    *,
    nulls: bool = True,
) -> tuple[DocsBody, ...]:
    return tuple(_parse_body(kind, told["schema"], document, nulls=nulls) for kind, told in content.items())


def _parse_body(media_type: str, schema: Schema, document: Mapping[str, Any], *, nulls: bool) -> DocsBody:
    shown = find_event(schema) if media_type == EVENTS else schema
    kind = "events" if media_type == EVENTS else name_kind(shown, document)
    return DocsBody(media_type, list_rows(shown, document, nulls=nulls), kind, schema.get("description", ""))


def _parse_answer(status: str, told: Schema, document: Mapping[str, Any]) -> FieldDoc:
    headers = tuple(name for name in told.get("headers", ()) if name != "X-Request-Id")
    return FieldDoc(status, told["description"], _list_bodies(told.get("content", {}), document), headers)


def build_curl(method: str, path: str, told: Schema) -> str:
    """How the operation is called from a shell."""
    token = _TOKENS.get(told[RIGHTS], "ADMIN_TOKEN")
    content: Mapping[str, Schema] = told.get("requestBody", {}).get("content", {})
    place = _NAMES.sub(lambda found: found[1].upper(), path)
    lines = [f"curl {'' if method == 'GET' else f'-X {method} '}{ADDRESS}{place}"]
    if token:
        lines.append(f'-H "Authorization: Bearer ${token}"')
    elif any(each.get("$ref", "").endswith("/Console") for each in told.get("parameters", ())):
        lines.append(f"-H '{CONSOLE_HEADER}: 1'")
    media_type = next(iter(content), "")
    example: Any = content[media_type].get("example", {}) if content else {}
    if media_type == FORM:
        lines += [f"-F {_quote(f'{name}={value}')}" for name, value in example.items()]
    elif media_type == JSON:
        lines.append("-H 'Content-Type: application/json'")
        lines.append(f"-d {_quote(orjson.dumps(example, option=_INDENT).decode())}")
    return " \\\n  ".join(lines)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def build_prose(text: str) -> Markup:
    """Words of the document, in which `code` and paragraphs are all the art."""
    return Markup().join(Markup("<p>{}</p>").format(build_line(each)) for each in text.split("\n\n") if each.strip())


def build_line(text: str) -> Markup:
    """The same of a text that is one paragraph."""
    return Markup().join(_list_pieces(text))


def _list_pieces(text: str) -> Iterator[Markup]:
    for number, piece in enumerate(_CODE.split(text)):
        yield Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece)
