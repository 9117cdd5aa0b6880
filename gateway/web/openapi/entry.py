"""One operation as the document has it, and the few words that its shapes are written in."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

from gateway.web.admin.doors import Access, Query
from gateway.web.admin.shapes import ANYTHING, TEXT, Shape
from gateway.web.openapi.nouns import Schema, allow_null

JSON = "application/json"
FORM = "multipart/form-data"
EVENTS = "text/event-stream"
BYTES: Shape = MappingProxyType({"type": "string", "format": "binary"})

Rights = Literal["key"] | Access
"""Who may call: whoever has a key, or whom a door of the admin API lets in."""
Language = Literal["openai", "anthropic"]
"""Whose form errors have."""

_NOTHING: Mapping[str, Shape] = MappingProxyType({})
_NO_LINKS: Mapping[str, tuple[str, str]] = MappingProxyType({})


@attrs.frozen
class Answer:
    """What is answered with one status.

    Attributes:
        headers: names of ``components.headers``.
        links: what can be asked next, by ``operationId``: a parameter of its path or query, and the runtime expression
            that says where in this answer its value stands.
    """

    about: str
    contents: Mapping[str, Shape] = _NOTHING
    status: int = 200
    headers: tuple[str, ...] = ()
    links: Mapping[str, tuple[str, str]] = _NO_LINKS


@attrs.frozen
class Entry:
    """One operation.

    Attributes:
        path: whole, with names in braces.
        name: its ``operationId``; unique, and for ever.
        takes: what its body may be, by media type.
        example: a body, for the page.
        optional: whether it may have no body.
        faults: the statuses that it may refuse with, besides those of every operation.
    """

    method: str
    path: str
    name: str
    tag: str
    summary: str
    about: str = ""
    rights: Rights = "key"
    parameters: tuple[Schema, ...] = ()
    takes: Mapping[str, Shape] = _NOTHING
    example: Any = None
    optional: bool = False
    answers: tuple[Answer, ...] = ()
    faults: tuple[int, ...] = ()
    language: Language = "openai"


def ref(name: str, place: str = "schemas") -> Schema:
    """What stands under ``components``."""
    return {"$ref": f"#/components/{place}/{name}"}


def told(shape: Shape, about: str, **more: Any) -> Schema:
    """A shape, with what it means."""
    return {**shape, "description": about, **more}


def body(needs: str, **fields: Shape) -> Schema:
    """A body of the public API: the fields that matter, of which null is as good as nothing; others may be there too.

    ``needs`` are the names of those that must be there, with spaces between them.
    """
    required = needs.split()
    properties = {name: dict(shape) if name in required else allow_null(shape) for name, shape in fields.items()}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": True}


def form(needs: str, **fields: Shape) -> Schema:
    """The same of a form, whose fields are texts and files."""
    properties = {name: dict(shape) for name, shape in fields.items()}
    return {"type": "object", "properties": properties, "required": needs.split(), "additionalProperties": True}


def answer(needs: str, **fields: Shape) -> Schema:
    """An answer, or a part of one; what a provider says besides is passed on."""
    return form(needs, **fields)


def stream(event: Shape, about: str) -> Schema:
    """One event of a stream, as OpenAPI 3.2 shows them: its fields, and what its data is."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": dict(event)}
    return {**form("data", event=TEXT, data=data), "description": about}


def find_event(schema: Schema) -> Schema:
    """What the data of an event is."""
    found: Schema = schema["properties"]["data"]["contentSchema"]
    return found


def matching(pattern: str, **more: Any) -> Schema:
    """A text that a pattern (ECMA-262) matches."""
    return {**TEXT, "pattern": pattern, **more}


def in_path(name: str, about: str, shape: Shape = TEXT) -> Schema:
    """A part of the path."""
    return {"name": name, "in": "path", "required": True, "description": about, "schema": dict(shape)}


def in_query(query: Query, *, required: bool = False) -> Schema:
    """A parameter of the query."""
    needed = {"required": True} if required else {}
    return {"name": query.name, "in": "query", **needed, "description": query.about, "schema": dict(query.shape)}


def in_header(name: str, about: str, shape: Shape = TEXT) -> Schema:
    """A header of the request."""
    return {"name": name, "in": "header", "description": about, "schema": dict(shape)}


def either(*shapes: Shape) -> Schema:
    """Any of these."""
    return {"anyOf": [dict(shape) for shape in shapes]}


def items(shape: Shape = ANYTHING, *, least: int = 0, most: int | None = None) -> Schema:
    """A list of these."""
    bounds = ({"minItems": least} if least else {}) | ({"maxItems": most} if most is not None else {})
    return {"type": "array", "items": dict(shape), **bounds}


def number(low: float, high: float) -> Schema:
    """A number between two."""
    return {"type": "number", "minimum": low, "maximum": high}


def whole(low: int, high: int) -> Schema:
    """A whole number between two."""
    return {"type": "integer", "minimum": low, "maximum": high}
