"""Serve the OpenAPI document as a page, ``/docs``. It is built once; only the gateway's address differs by client."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gateway.frozen import frozen
from gateway.server.console.routes import ROOT
from gateway.server.console.static_files import find_static
from gateway.server.openapi.admin import PREFIX
from gateway.server.openapi.attrs_schema import Schema
from gateway.server.openapi.document import RIGHTS, get_document
from gateway.server.openapi.error_responses import map_codes
from gateway.server.openapi.operation import EVENTS, FORM, JSON, find_event
from gateway.server.openapi.schema_table import SchemaRow, list_rows, name_kind, resolve
from gateway.server.sessions import CONSOLE_HEADER

ADDRESS = "https://gateway.invalid"
"""The placeholder for the gateway's address in the cached page."""
_RIGHTS_TEXTS: Mapping[str, str] = {
    "key": "with a key",
    "anyone": "open to anyone",
    "viewer": "any member",
    "member": "members, not viewers",
    "body_reader": "administrators, and members who may read kept bodies",
    "administrator": "administrators",
}
_TOKEN_VARIABLES: Mapping[str, str] = {"key": "GATEWAY_KEY", "anyone": ""}
_CODE_PATTERN = re.compile(r"`([^`]+)`")
_NAMES_PATTERN = re.compile(r"\{([a-z_]+)\}")
_INDENT = orjson.OPT_INDENT_2


@frozen
class DocsBody:
    """One media type of a request or response body."""

    media_type: str
    rows: tuple[SchemaRow, ...]
    kind: str
    about: str


@frozen
class DocsResponse:
    """One response of an operation, as the page shows it."""

    status: str
    about: str
    bodies: tuple[DocsBody, ...]
    headers: tuple[str, ...]


@frozen
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
    answers: tuple[DocsResponse, ...]
    faults: tuple[str, ...]


@frozen
class Chapter:
    """The operations of one tag."""

    id: str
    title: str
    about: str
    operations: tuple[DocsOperation, ...]


def build_page(address: str) -> bytes:
    """Return the page for a client that knows the gateway by ``address``."""
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
        codes=map_codes(),
    )


def list_chapters(document: Mapping[str, Any]) -> list[Chapter]:
    """Return the operations of the document by tag, in the order of the tags."""
    operations: dict[str, list[DocsOperation]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, fields in methods.items():
            operations[fields["tags"][0]].append(_parse_operation(method.upper(), path, fields, document))
    return [
        Chapter(
            _make_slug(tag["name"]),
            _format_title(tag["name"]),
            tag.get("description", ""),
            tuple(operations[tag["name"]]),
        )
        for tag in document["tags"]
    ]


def _make_slug(tag: str) -> str:
    return re.sub(r"[^a-z]+", "-", tag.lower()).strip("-")


def _format_title(tag: str) -> str:
    title = tag.removeprefix(PREFIX)
    return title[:1].upper() + title[1:]


def _parse_operation(method: str, path: str, fields: Schema, document: Mapping[str, Any]) -> DocsOperation:
    answers = {status: answer for status, answer in fields["responses"].items() if "$ref" not in answer}
    return DocsOperation(
        id=fields["operationId"],
        method=method,
        path=path,
        summary=fields["summary"],
        about=fields.get("description", ""),
        rights=_RIGHTS_TEXTS[fields[RIGHTS]],
        parameters=tuple(_parse_parameter(parameter, document) for parameter in fields.get("parameters", ())),
        bodies=_list_bodies(
            fields.get("requestBody", {}).get("content", {}),
            document,
            shows_nulls=fields[RIGHTS] != "key",  # for a provider null equals a missing field
        ),
        example=build_curl(method, path, fields),
        answers=tuple(_parse_answer(status, answer, document) for status, answer in answers.items()),
        faults=tuple(status for status, answer in fields["responses"].items() if "$ref" in answer),
    )


def _parse_parameter(fields: Schema, document: Mapping[str, Any]) -> SchemaRow:
    fields = resolve(fields, document)
    kind = name_kind(fields["schema"], document)
    return SchemaRow(fields["name"], f"{fields['in']}: {kind}", bool(fields.get("required")), fields["description"], "")


def _list_bodies(
    content: Mapping[str, Schema], document: Mapping[str, Any], *, shows_nulls: bool = True
) -> tuple[DocsBody, ...]:
    return tuple(
        _parse_body(kind, fields["schema"], document, shows_nulls=shows_nulls) for kind, fields in content.items()
    )


def _parse_body(media_type: str, schema: Schema, document: Mapping[str, Any], *, shows_nulls: bool) -> DocsBody:
    shown_schema = find_event(schema) if media_type == EVENTS else schema
    kind = "events" if media_type == EVENTS else name_kind(shown_schema, document)
    return DocsBody(
        media_type, list_rows(shown_schema, document, shows_nulls=shows_nulls), kind, schema.get("description", "")
    )


def _parse_answer(status: str, fields: Schema, document: Mapping[str, Any]) -> DocsResponse:
    headers = tuple(name for name in fields.get("headers", ()) if name != "X-Request-Id")
    return DocsResponse(status, fields["description"], _list_bodies(fields.get("content", {}), document), headers)


def build_curl(method: str, path: str, fields: Schema) -> str:
    """Return a curl command for the operation."""
    token = _TOKEN_VARIABLES.get(fields[RIGHTS], "ADMIN_TOKEN")
    content: Mapping[str, Schema] = fields.get("requestBody", {}).get("content", {})
    shown_path = _NAMES_PATTERN.sub(lambda match: match[1].upper(), path)
    lines = [f"curl {'' if method == 'GET' else f'-X {method} '}{ADDRESS}{shown_path}"]
    if token:
        lines.append(f'-H "Authorization: Bearer ${token}"')
    elif any(parameter.get("$ref", "").endswith("/Console") for parameter in fields.get("parameters", ())):
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
    """Format a text as HTML paragraphs, in which words between backticks are code."""
    return Markup().join(
        Markup("<p>{}</p>").format(build_line(paragraph)) for paragraph in text.split("\n\n") if paragraph.strip()
    )


def build_line(text: str) -> Markup:
    """Format a single paragraph as HTML, in which words between backticks are code."""
    return Markup().join(_list_pieces(text))


def _list_pieces(text: str) -> Iterator[Markup]:
    for number, piece in enumerate(_CODE_PATTERN.split(text)):
        yield Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece)
