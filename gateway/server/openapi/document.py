"""The OpenAPI 3.1 document: the public API from ``public.yaml``, the admin API generated from its operations.

It is the same in every process of one version. It is built at the first request for it, and kept as bytes.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import orjson
import yaml

from gateway import __version__
from gateway.server.admin.operation import AdminOperation
from gateway.server.admin.routes import list_admin_operations
from gateway.server.openapi.admin import build_admin, list_tags
from gateway.server.openapi.attrs_schema import Schema
from gateway.server.openapi.error_responses import build_error_responses, make_error_response_name
from gateway.server.openapi.operation import OperationDoc, ResponseDoc, ref

RIGHTS = "x-rights"
"""The extension field of an operation: who may call it."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast; PyYAML can be built without it."""


def build_document(operations: Sequence[AdminOperation]) -> dict[str, Any]:
    """Build the document. Raises ``ValueError`` if two operations share a name, or method and path."""
    document = parse_public()
    components = document["components"]
    admin = build_admin(operations, components["schemas"])
    _check_names(admin.entries)
    document["info"]["version"] = __version__
    document["tags"] += list_tags(admin.entries)
    for entry in admin.entries:
        document["paths"].setdefault(entry.path, {})[entry.method.lower()] = build_operation(entry)
    components["schemas"] |= admin.schemas
    components["responses"] = build_error_responses(_list_faults(document["paths"].values()))
    return document


def parse_public() -> dict[str, Any]:
    """Load ``public.yaml`` without its ``x-shared``, with each operation's responses in the order of their statuses."""
    text = (files("gateway.server.openapi") / "public.yaml").read_bytes()
    document: dict[str, Any] = yaml.load(text, Loader=_Loader)  # noqa: S506 - either loader is a safe one
    del document["x-shared"]
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"] = dict(sorted(operation["responses"].items()))  # merge keys come first
    return document


def _list_faults(paths: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the error responses that operations refer to."""
    responses = [
        response for methods in paths for operation in methods.values() for response in operation["responses"].values()
    ]
    return sorted({response["$ref"].rpartition("/")[2] for response in responses if "$ref" in response})


def _check_names(entries: Iterable[OperationDoc]) -> None:
    seen_names: set[str] = set()
    for entry in entries:
        for entry_name in (entry.name, f"{entry.method} {entry.path}"):
            if entry_name in seen_names:
                raise ValueError(f"{entry_name!r} exists twice")
            seen_names.add(entry_name)


def build_operation(entry: OperationDoc) -> dict[str, Any]:
    """Build one operation of the admin API."""
    is_open = entry.rights == "anyone"
    document: dict[str, Any] = {
        "operationId": entry.name,
        "tags": [entry.tag],
        "summary": entry.summary,
        "description": entry.about,
        "parameters": list(entry.parameters),
        "requestBody": _build_body(entry),
        "responses": {
            str(entry.answer.status): _build_answer(entry.answer),
            **{str(status): ref(make_error_response_name(status), "responses") for status in sorted(entry.faults)},
        },
        "security": [] if is_open else [{"adminToken": []}, {"session": []}],
        RIGHTS: entry.rights,
    }
    return {name: value for name, value in document.items() if value or name == "security"}


def _build_body(entry: OperationDoc) -> Schema | None:
    if not entry.takes:
        return None
    content: dict[str, Schema] = {media_type: {"schema": dict(schema)} for media_type, schema in entry.takes.items()}
    if entry.example is not None:
        next(iter(content.values()))["example"] = entry.example
    return {"required": not entry.optional, "content": content}


def _build_answer(answer: ResponseDoc) -> Schema:
    return {
        "description": answer.about,
        "headers": {"X-Request-Id": ref("X-Request-Id", "headers")},
        "content": {media_type: {"schema": dict(schema)} for media_type, schema in answer.contents.items()},
    }


@cache
def serialize_document() -> bytes:
    """Build the document of this version as JSON."""
    return orjson.dumps(build_document(list_admin_operations()), default=dict)


def get_document() -> dict[str, Any]:
    """Return the document of this version, parsed anew: the parsed form would take much memory for long."""
    document: dict[str, Any] = orjson.loads(serialize_document())
    return document
