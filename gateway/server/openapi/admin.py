"""Generate the admin API's part of the OpenAPI document from its operations."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import cleandoc
from itertools import pairwise
from typing import Any

import orjson

from gateway.frozen import frozen
from gateway.server.admin.operation import AdminOperation
from gateway.server.openapi import schema as s
from gateway.server.openapi.attrs_schema import Schema, build_spec_schema
from gateway.server.openapi.examples import build_example
from gateway.server.openapi.operation import (
    BYTES,
    EVENTS,
    JSON,
    OperationDoc,
    ResponseDoc,
    in_path,
    in_query,
    ref,
    stream,
)
from gateway.server.sessions import SAFE_METHODS

PREFIX = "Admin: "
_TAGS: Mapping[str, str] = {
    "setup": "signing in",
    "session": "signing in",
    "sessions": "signing in",
    "links": "members",
    "account": "accounts",
    "providers": "channels",
    "explain": "models and prices",
    "models": "models and prices",
    "prices": "models and prices",
    "routes": "models and prices",
    "groups": "models and prices",
    "limits": "limits",
    "deliveries": "videos",
    "usage": "requests and usage",
    "users": "requests and usage",
    "end-users": "requests and usage",
    "tags": "requests and usage",
    "tag-values": "requests and usage",
    "requests": "requests and usage",
    "request-sessions": "requests and usage",
    "running": "running calls",
    "alerts": "alerts",
    "audit": "books and audit trail",
    "audit-trail": "books and audit trail",
    "reload": "settings",
    "status": "health",
    "search": "health",
}
_TAG_DESCRIPTIONS: Mapping[str, str] = {
    "signing in": "Sessions of members, for the pages of the console.",
    "members": "Members, and the links that invite them or reset their passphrases.",
    "accounts": "Accounts, which pay for the requests of their keys.",
    "keys": "API keys.",
    "channels": "Connections to providers.",
    "models and prices": "Models, routes, the channels that serve them, and their prices.",
    "limits": "What keys, accounts, end users, sessions, tags and models may spend.",
    "requests and usage": "Request log and usage reports.",
    "running calls": "Requests that are being processed now.",
    "videos": "Video jobs and webhook deliveries.",
    "bodies": "Kept prompts and answers.",
    "sinks": "Where the rows of requests are delivered.",
    "cache": "Answers that are given again to equal requests.",
    "files": "Files of clients and batches.",
    "batches": "Batches of requests, which the gateway sends by itself.",
    "nodes": "The gateways that share the database.",
    "alerts": "Targets of alerts, and tests of them.",
    "books and audit trail": "Balance reconciliation and audit log.",
    "settings": "Settings of the gateway.",
    "health": "State of the process.",
}
"""The tags and their descriptions, in the order of the document."""
_NUMBERED_COLLECTIONS = frozenset({"keys", "members"})
"""Path segments whose ids are numbers."""
_PATH_PARAMETER = re.compile(r"\{(?P<name>[a-z_]+)(?::[^{}]*(?:\{[^{}]*\}[^{}]*)*)?\}")
_OTHER_MEDIA_TYPES: Mapping[str, tuple[str, ...]] = {"/requests/export": ("application/jsonl",)}
"""Additional media types of responses, by the operations' paths."""
_CREATED_STATUS = 201
_MIN_SHARED_FIELDS = 4
"""The fewest fields of an object that gets a schema of its own."""


@frozen
class AdminDocument:
    """The admin API's part of the document; ``schemas`` are for ``components``."""

    entries: tuple[OperationDoc, ...]
    schemas: Mapping[str, Schema]


def build_admin(operations: Sequence[AdminOperation], taken_names: Iterable[str] = ()) -> AdminDocument:
    """Generate the operations' entries and schemas. ``taken_names`` are the names of schemas that exist already."""
    schemas = _build_spec_schemas(operations)
    shared, named_schemas = _name_schemas(operations, {*taken_names, *schemas})
    entries = sorted((_build_entry(operation, shared) for operation in operations), key=lambda entry: _rank(entry.tag))
    return AdminDocument(
        tuple(entries),
        schemas
        | {name: _replace_shared(schema, shared, replaces_itself=False) for name, schema in named_schemas.items()},
    )


def _rank(tag: str) -> int:
    tag_name = tag.removeprefix(PREFIX)
    return [*_TAG_DESCRIPTIONS].index(tag_name) if tag_name in _TAG_DESCRIPTIONS else len(_TAG_DESCRIPTIONS)


def list_tags(entries: Iterable[OperationDoc]) -> list[Schema]:
    """Return the tags of entries with their descriptions."""
    names = dict.fromkeys(entry.tag for entry in entries)
    return [{"name": name, "description": _TAG_DESCRIPTIONS.get(name.removeprefix(PREFIX), "")} for name in names]


def _build_entry(operation: AdminOperation, shared: Mapping[str, str]) -> OperationDoc:
    summary, _, description = cleandoc(operation.handler.function.__doc__ or "").replace("``", "`").partition("\n")
    first_segment = operation.path.split("/")[1]
    path = _PATH_PARAMETER.sub(r"{\g<name>}", operation.full_path)
    spec_ref = (
        None if operation.handler.takes is None else ref(_name_spec(operation.handler.takes, operation.handler.partly))
    )
    return OperationDoc(
        operation.method,
        path,
        f"admin_{operation.handler.name}",
        f"{PREFIX}{_TAGS.get(first_segment, first_segment)}",
        summary.removesuffix(".") or f"{operation.method} {path}",  # python -OO removes docstrings
        description.strip(),
        rights=operation.access,
        parameters=(*_list_parts(operation), *map(in_query, operation.handler.query), *_list_headers(operation)),
        takes={} if spec_ref is None else {JSON: spec_ref},
        example=None
        if operation.handler.takes is None
        else build_example(operation.handler.takes, partly=operation.handler.partly),
        optional=operation.handler.takes is not None
        and not operation.handler.partly
        and not build_spec_schema(operation.handler.takes).get("required"),
        answer=_build_answer(operation, shared),
        faults=_list_faults(operation),
    )


def _build_answer(operation: AdminOperation, shared: Mapping[str, str]) -> ResponseDoc:
    description = (
        "The requested data."
        if operation.method in SAFE_METHODS
        else "Created."
        if operation.handler.status == _CREATED_STATUS
        else "Done."
    )
    schema: Schema = _replace_shared(_to_plain_json(operation.handler.answer), shared)
    if operation.handler.media_type == EVENTS:
        schema = stream(schema, "Events, and comments that keep the connection open.")
    elif operation.handler.media_type != JSON:
        schema = dict(BYTES)
    kinds = (operation.handler.media_type, *_OTHER_MEDIA_TYPES.get(operation.path, ()))
    return ResponseDoc(description, dict.fromkeys(kinds, schema), operation.handler.status)


def _list_parts(operation: AdminOperation) -> Iterator[Schema]:
    segments = operation.path.split("/")
    for previous, segment in pairwise(segments):
        match = _PATH_PARAMETER.fullmatch(segment)
        if match:
            schema = s.INTEGER if match["name"] == "id" and previous in _NUMBERED_COLLECTIONS else s.TEXT
            owner = (
                _convert_to_singular(previous)
                if previous and not _PATH_PARAMETER.fullmatch(previous)
                else match["name"]
            )
            yield in_path(match["name"], f"The {match['name']} of the {owner.replace('-', ' ')}.", schema)


def _list_headers(operation: AdminOperation) -> Iterator[Schema]:
    """Yield the header that proves that a console page sends the request, for changes that need no sign-in."""
    if operation.access == "anyone" and operation.method not in SAFE_METHODS:
        yield ref("Console", "parameters")


def _list_faults(operation: AdminOperation) -> tuple[int, ...]:
    """Return the error statuses of an operation."""
    names = {query.name for query in operation.handler.query}
    changes = operation.method not in SAFE_METHODS
    statuses = {
        400: changes or bool(names),
        401: True,
        403: True,
        404: "{" in operation.path
        or operation.handler.takes is not None
        or bool(names & {"account", "key"})
        or operation.access == "anyone",
        409: changes,
        413: operation.handler.takes is not None,
        415: operation.handler.takes is not None,
        429: operation.access == "anyone" or operation.handler.media_type != JSON,
        500: True,
        503: True,
    }
    return tuple(status for status, is_possible in statuses.items() if is_possible)


def _name_spec(kind: type, partly: bool) -> str:
    return f"{kind.__name__.removesuffix('Spec')}Change" if partly else kind.__name__


def _build_spec_schemas(operations: Iterable[AdminOperation]) -> dict[str, Schema]:
    return {
        _name_spec(operation.handler.takes, operation.handler.partly): build_spec_schema(
            operation.handler.takes, partly=operation.handler.partly
        )
        for operation in operations
        if operation.handler.takes is not None
    }


def _to_plain_json(schema: s.Schema) -> Any:
    """Return a schema as plain JSON, which can be compared."""
    return orjson.loads(orjson.dumps(schema, default=dict))


def _name_schemas(
    operations: Iterable[AdminOperation], taken_names: set[str]
) -> tuple[dict[str, str], dict[str, Schema]]:
    """Name the objects that occur in more than one place; return names by serialized schema, and schemas by name.

    Two objects that differ only in the order of their fields are the same.
    """
    counts: Counter[str] = Counter()
    candidates: dict[str, tuple[str, str]] = {}
    schemas: dict[str, Schema] = {}
    for operation in operations:
        words = [segment for segment in operation.path.split("/") if segment and not _PATH_PARAMETER.fullmatch(segment)]
        for object_name, schema in _list_objects(
            _to_plain_json(operation.handler.answer), _convert_to_camel_case(words[-1])
        ):
            serialized = _serialize(schema)
            counts[serialized] += 1
            schemas.setdefault(serialized, schema)
            candidates.setdefault(
                serialized, (object_name, f"New{object_name}" if operation.method == "POST" else f"{object_name}Record")
            )
    names: dict[str, str] = {}
    for serialized, count in counts.items():
        if count > 1:
            names[serialized] = _find_free_name(candidates[serialized], {*taken_names, *names.values()})
    return names, {name: schemas[serialized] for serialized, name in names.items()}


def _find_free_name(names: tuple[str, str], taken_names: set[str]) -> str:
    for candidate in (*names, *(f"{names[1]}{count}" for count in range(2, 100))):
        if candidate not in taken_names:
            return candidate
    raise ValueError(f"there are too many things called {names[0]}")


def _list_objects(schema: Any, object_name: str) -> Iterator[tuple[str, Schema]]:
    """Yield each object in a schema that has enough fields for a name, as a suggested name and its schema."""
    if isinstance(schema, list):
        for item in schema:
            yield from _list_objects(item, object_name)
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        if len(properties) >= _MIN_SHARED_FIELDS:
            yield object_name, schema
        for name, member in properties.items():
            yield from _list_objects(
                member, object_name if name == "data" else object_name + _convert_to_camel_case(name)
            )
    for name in ("items", "anyOf", "additionalProperties"):
        yield from _list_objects(schema.get(name), object_name)


def _replace_shared(schema: Any, shared: Mapping[str, str], *, replaces_itself: bool = True) -> Any:
    """Replace the objects in ``shared`` by references; the outermost object only if ``replaces_itself``."""
    if isinstance(schema, list):
        return [_replace_shared(item, shared) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if replaces_itself and "properties" in schema and (name := shared.get(_serialize(schema))):
        return ref(name)
    return {name: _replace_shared(member, shared) for name, member in schema.items()}


def _serialize(schema: Schema) -> str:
    return orjson.dumps(schema, option=orjson.OPT_SORT_KEYS).decode()


def _convert_to_singular(word: str) -> str:
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    return word if word.endswith("ss") else word.removesuffix("s")


def _convert_to_camel_case(word: str) -> str:
    """Return a path's segment as part of a schema's name: ``audit-trails`` becomes ``AuditTrail``."""
    return "".join(segment.title() for segment in re.split("[-_]", _convert_to_singular(word)))
