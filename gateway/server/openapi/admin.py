"""Generate the admin API's part of the OpenAPI document from its operations."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import cleandoc
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import attrs
import orjson

from gateway.server.admin.operation import AdminOperation
from gateway.server.auth import SAFE
from gateway.server.openapi import schema as s
from gateway.server.openapi.attrs_schema import Schema, build_noun
from gateway.server.openapi.examples import build_sample
from gateway.server.openapi.operation import BYTES, EVENTS, JSON, Operation, ResponseDoc, in_path, in_query, ref, stream

PREFIX = "Admin: "
_TAGS: Mapping[str, str] = MappingProxyType(
    {
        "setup": "signing in",
        "session": "signing in",
        "sessions": "signing in",
        "links": "members",
        "account": "accounts",
        "providers": "channels",
        "explain": "models and prices",
        "models": "models and prices",
        "prices": "models and prices",
        "groups": "models and prices",
        "deliveries": "videos",
        "usage": "requests and usage",
        "requests": "requests and usage",
        "running": "running calls",
        "audit": "books and audit trail",
        "audit-trail": "books and audit trail",
        "reload": "settings",
        "status": "health",
    },
)
_ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "signing in": "Sessions of members, for the pages of the console.",
        "members": "Members, and the links that invite them or reset their passphrases.",
        "accounts": "Accounts, which pay for the requests of their keys.",
        "keys": "API keys.",
        "channels": "Connections to providers.",
        "models and prices": "Models, the channels that serve them, and their prices.",
        "requests and usage": "Request log and usage reports.",
        "running calls": "Requests that are being processed now.",
        "videos": "Video jobs and webhook deliveries.",
        "books and audit trail": "Balance reconciliation and audit log.",
        "settings": "Settings of the gateway.",
        "health": "State of the process.",
    },
)
"""The tags with their descriptions, in the order of the document."""
_NUMBERED = frozenset({"keys", "members"})
"""Whose ids are numbers."""
_PART = re.compile(r"\{(?P<name>[a-z_]+)(?::[^{}]*(?:\{[^{}]*\}[^{}]*)*)?\}")
_ALSO_AS: Mapping[str, tuple[str, ...]] = MappingProxyType({"/requests/export": ("application/jsonl",)})
"""Media types of answers that have more than one, by the operations' paths."""
_CREATED = 201
_LEAST_SHARED = 4
"""Fields of an object that is worth a name of its own."""


@attrs.frozen
class Admin:
    """What the operations come to: ``schemas`` are for ``components``."""

    entries: tuple[Operation, ...]
    schemas: Mapping[str, Schema]


def build_admin(operations: Sequence[AdminOperation], taken: Iterable[str] = ()) -> Admin:
    """Every operation as an entry. ``taken`` are the names of schemas that there are already."""
    schemas = _build_nouns(operations)
    shared, named = _name_shapes(operations, {*taken, *schemas})
    entries = sorted((_build_entry(operation, shared) for operation in operations), key=lambda entry: _rank(entry.tag))
    return Admin(tuple(entries), schemas | {name: _share(one, shared, whole=False) for name, one in named.items()})


def _rank(tag: str) -> int:
    known = tag.removeprefix(PREFIX)
    return [*_ABOUT].index(known) if known in _ABOUT else len(_ABOUT)


def list_tags(entries: Iterable[Operation]) -> list[Schema]:
    """The tags of entries, with their descriptions."""
    names = dict.fromkeys(entry.tag for entry in entries)
    return [{"name": name, "description": _ABOUT.get(name.removeprefix(PREFIX), "")} for name in names]


def _build_entry(operation: AdminOperation, shared: Mapping[str, str]) -> Operation:
    summary, _, about = cleandoc(operation.handler.__doc__ or "").replace("``", "`").partition("\n")
    first = operation.path.split("/")[1]
    path = _PART.sub(r"{\g<name>}", operation.full_path)
    noun = None if operation.takes is None else ref(_name_noun(operation.takes, operation.partly))
    return Operation(
        operation.method,
        path,
        f"admin_{find_name(operation)}",
        f"{PREFIX}{_TAGS.get(first, first)}",
        summary.removesuffix(".") or f"{operation.method} {path}",  # python -OO leaves no word of a handler's
        about.strip(),
        rights=operation.access,
        parameters=(*_list_parts(operation), *map(in_query, operation.query), *_list_headers(operation)),
        takes={} if noun is None else {JSON: noun},
        example=None if operation.takes is None else build_sample(operation.takes, partly=operation.partly),
        optional=operation.takes is not None
        and not operation.partly
        and not build_noun(operation.takes).get("required"),
        answer=_build_answer(operation, shared),
        faults=_list_faults(operation),
    )


def _build_answer(operation: AdminOperation, shared: Mapping[str, str]) -> ResponseDoc:
    about = (
        "What was asked for."
        if operation.method in SAFE
        else "It is made."
        if operation.status == _CREATED
        else "Done."
    )
    shape: Schema = _share(_thaw(operation.answer), shared)
    if operation.media_type == EVENTS:
        shape = stream(shape, "Events, and comments that keep it open.")
    elif operation.media_type != JSON:
        shape = dict(BYTES)
    kinds = (operation.media_type, *_ALSO_AS.get(operation.path, ()))
    return ResponseDoc(about, dict.fromkeys(kinds, shape), operation.status)


def find_name(operation: AdminOperation) -> str:
    """The name of its handler: what people read in a client that was made from the document."""
    handler: Any = operation.handler
    return str(getattr(handler, "__name__", None) or handler.func.__name__).strip("_")


def _list_parts(operation: AdminOperation) -> Iterator[Schema]:
    parts = operation.path.split("/")
    for before, part in pairwise(parts):
        found = _PART.fullmatch(part)
        if found:
            shape = s.INTEGER if found["name"] == "id" and before in _NUMBERED else s.TEXT
            owner = _singular(before) if before and not _PART.fullmatch(before) else found["name"]
            yield in_path(found["name"], f"Of the {owner.replace('-', ' ')}.", shape)


def _list_headers(operation: AdminOperation) -> Iterator[Schema]:
    """What shows that a page of ours asks, where there is no token to show."""
    if operation.access == "anyone" and operation.method not in SAFE:
        yield ref("Console", "parameters")


def _list_faults(operation: AdminOperation) -> tuple[int, ...]:
    """The statuses that a operation may refuse with."""
    names = {query.name for query in operation.query}
    changes = operation.method not in SAFE
    told = {
        400: changes or bool(names),
        401: True,
        403: True,
        404: "{" in operation.path
        or operation.takes is not None
        or bool(names & {"account", "key"})
        or operation.access == "anyone",
        409: changes,
        413: operation.takes is not None,
        415: operation.takes is not None,
        429: operation.access == "anyone" or operation.media_type != JSON,
        500: True,
        503: True,
    }
    return tuple(status for status, may in told.items() if may)


def _name_noun(kind: type, partly: bool) -> str:
    return f"{kind.__name__.removesuffix('Spec')}Change" if partly else kind.__name__


def _build_nouns(operations: Iterable[AdminOperation]) -> dict[str, Schema]:
    return {
        _name_noun(operation.takes, operation.partly): build_noun(operation.takes, partly=operation.partly)
        for operation in operations
        if operation.takes is not None
    }


def _thaw(shape: s.Shape) -> Any:
    """A shape as plain JSON, which compares and can be written."""
    return orjson.loads(orjson.dumps(shape, default=dict))


def _name_shapes(operations: Iterable[AdminOperation], taken: set[str]) -> tuple[dict[str, str], dict[str, Schema]]:
    """The names of objects that are answered in more than one place, by what they are; and the objects by their names.

    Two are the same whatever the order of their fields.
    """
    counts: Counter[str] = Counter()
    nouns: dict[str, tuple[str, str]] = {}
    shapes: dict[str, Schema] = {}
    for operation in operations:
        words = [part for part in operation.path.split("/") if part and not _PART.fullmatch(part)]
        for noun, shape in _list_objects(_thaw(operation.answer), _camel(words[-1])):
            raw = _key(shape)
            counts[raw] += 1
            shapes.setdefault(raw, shape)
            nouns.setdefault(raw, (noun, f"New{noun}" if operation.method == "POST" else f"{noun}Record"))
    names: dict[str, str] = {}
    for raw, count in counts.items():
        if count > 1:
            names[raw] = _find_free(nouns[raw], {*taken, *names.values()})
    return names, {name: shapes[raw] for raw, name in names.items()}


def _find_free(names: tuple[str, str], taken: set[str]) -> str:
    for tried in (*names, *(f"{names[1]}{count}" for count in range(2, 100))):
        if tried not in taken:
            return tried
    raise ValueError(f"there are too many things called {names[0]}")


def _list_objects(shape: Any, noun: str) -> Iterator[tuple[str, Schema]]:
    """Objects in a shape that are worth a name, with the word for what they are."""
    if isinstance(shape, list):
        for each in shape:
            yield from _list_objects(each, noun)
    if not isinstance(shape, dict):
        return
    properties = shape.get("properties")
    if isinstance(properties, dict):
        if len(properties) >= _LEAST_SHARED:
            yield noun, shape
        for name, inner in properties.items():
            yield from _list_objects(inner, noun if name == "data" else noun + _camel(name))
    for name in ("items", "anyOf", "additionalProperties"):
        yield from _list_objects(shape.get(name), noun)


def _share(shape: Any, shared: Mapping[str, str], *, whole: bool = True) -> Any:
    """A shape with what has a name by its name; with ``whole`` false itself as it is."""
    if isinstance(shape, list):
        return [_share(each, shared) for each in shape]
    if not isinstance(shape, dict):
        return shape
    if whole and "properties" in shape and (name := shared.get(_key(shape))):
        return ref(name)
    return {name: _share(inner, shared) for name, inner in shape.items()}


def _key(shape: Schema) -> str:
    return orjson.dumps(shape, option=orjson.OPT_SORT_KEYS).decode()


def _singular(word: str) -> str:
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    return word if word.endswith("ss") else word.removesuffix("s")


def _camel(word: str) -> str:
    """``audit-trails`` -> ``AuditTrail``."""
    return "".join(part.title() for part in re.split("[-_]", _singular(word)))
