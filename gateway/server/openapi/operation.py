"""One operation of the admin API in the OpenAPI document, and helpers to build its parts."""

from collections.abc import Mapping
from typing import Any

from gateway.frozen import frozen
from gateway.server.admin.handler import Query
from gateway.server.admin.operation import Access
from gateway.server.openapi import schema as s
from gateway.server.openapi.attrs_schema import Schema

JSON = "application/json"
FORM = "multipart/form-data"
EVENTS = "text/event-stream"
BYTES: s.Schema = {"type": "string", "format": "binary"}

_EMPTY_CONTENTS: Mapping[str, s.Schema] = {}


@frozen
class ResponseDoc:
    """The response with one status; ``contents`` are its schemas by media type."""

    about: str
    contents: Mapping[str, s.Schema] = _EMPTY_CONTENTS
    status: int = 200


@frozen
class OperationDoc:
    """One operation of the admin API, from which its entry in the document is built.

    Attributes:
        path: the whole path, with the names of its parameters in braces.
        name: the ``operationId``, which is unique and never changes.
        takes: the schemas of the request body by media type.
        example: a request body to show on the documentation page.
        optional: whether the request body may be missing.
        faults: the statuses of the operation's error responses.
    """

    method: str
    path: str
    name: str
    tag: str
    summary: str
    about: str
    rights: Access
    parameters: tuple[Schema, ...]
    takes: Mapping[str, s.Schema]
    example: Any
    optional: bool
    answer: ResponseDoc
    faults: tuple[int, ...]


def ref(name: str, section: str = "schemas") -> Schema:
    """Return a reference to a part of ``components``."""
    return {"$ref": f"#/components/{section}/{name}"}


def stream(event: s.Schema, description: str) -> Schema:
    """Return the schema of an event of a stream, in the form of OpenAPI 3.2: its fields, and the schema of its data."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": dict(event)}
    return {
        "type": "object",
        "properties": {"event": dict(s.TEXT), "data": data},
        "required": ["data"],
        "additionalProperties": True,
        "description": description,
    }


def find_event(schema: Schema) -> Schema:
    """Return the schema of an event's data, from a schema that ``stream`` has built."""
    content_schema: Schema = schema["properties"]["data"]["contentSchema"]
    return content_schema


def in_path(name: str, description: str, schema: s.Schema = s.TEXT) -> Schema:
    """Return a parameter in the path."""
    return {"name": name, "in": "path", "required": True, "description": description, "schema": dict(schema)}


def in_query(query: Query) -> Schema:
    """Return a parameter in the query string."""
    return {"name": query.name, "in": "query", "description": query.about, "schema": dict(query.schema)}
