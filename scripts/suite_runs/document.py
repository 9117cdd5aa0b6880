"""Reads an OpenAPI document: finds the operation of a request, checks the request, and makes the answer to it."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import jsonschema_rs

from scripts.suite_runs.examples import Examples

_METHODS = ("get", "post", "delete", "put", "patch")
_FORM = ("multipart/form-data", "application/x-www-form-urlencoded")
STREAM = "text/event-stream"


class Invalid(Exception):
    """A request is not what the document describes; the message says why."""


@attrs.frozen
class Operation:
    """One operation of the document.

    Attributes:
        path: with parameters in braces.
        parameters: of the query, by name.
        bodies: schemas by content type; empty if it takes no body.
        answers: schemas by content type of the answer with status 200.
    """

    method: str
    path: str
    parameters: Mapping[str, Mapping[str, Any]]
    bodies: Mapping[str, Mapping[str, Any]]
    answers: Mapping[str, Mapping[str, Any]]


class Document:
    """An OpenAPI 3.1 document.

    Args:
        content: the document as read from its file.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        # YAML reads some examples as dates; JSON has none.
        content = json.loads(json.dumps(content, default=str))
        self._content = content
        self._examples = Examples(content)
        self._validators: dict[int, jsonschema_rs.Draft202012Validator] = {}
        routes = [(_compile(one.path), one) for one in self._read_operations()]
        # A path without parameters wins over one with them: /responses/compact, /responses/{response_id}.
        self._routes = sorted(routes, key=lambda route: route[1].path.count("{"))

    @property
    def operations(self) -> list[Operation]:
        """All operations."""
        return [operation for _, operation in self._routes]

    def find(self, method: str, path: str) -> Operation | None:
        """Return the operation of a request, None if the document has none."""
        for pattern, operation in self._routes:
            if operation.method == method.lower() and pattern.fullmatch(path):
                return operation
        return None

    def check_query(self, operation: Operation, query: Mapping[str, str]) -> None:
        """Check that the document has all parameters of a query. Raises ``Invalid``."""
        names = {re.sub(r"\[.*", "", name): value for name, value in query.items()}
        for name, value in names.items():
            if name not in operation.parameters:
                raise Invalid(f"{operation.path} has no parameter {name!r}")
            if operation.parameters[name].get("type") == "integer" and not re.fullmatch(r"-?\d+", value):
                raise Invalid(f"the parameter {name!r} is not an integer: {value!r}")

    def check_json(self, operation: Operation, body: Any) -> None:
        """Check a JSON body against its schema. Raises ``Invalid``."""
        schema = operation.bodies.get("application/json")
        if schema is None:
            raise Invalid(f"{operation.path} takes no JSON")
        error = next(iter(self._validator(schema).iter_errors(body)), None)
        if error is not None:
            raise Invalid(f"{'.'.join(map(str, error.instance_path))}: {error.message[:300]}")

    def check_form(self, operation: Operation, fields: Mapping[str, Any]) -> None:
        """Check the names of a form's fields. Raises ``Invalid``."""
        schema = next((operation.bodies[kind] for kind in _FORM if kind in operation.bodies), None)
        if schema is None:
            raise Invalid(f"{operation.path} takes no form")
        names = {re.sub(r"\[.*", "", name) for name in fields}
        properties, required = self._list_properties(schema)
        if not names <= properties:
            raise Invalid(f"{operation.path} has no field {sorted(names - properties)}")
        if not required <= names:
            raise Invalid(f"{operation.path} needs the fields {sorted(required - names)}")

    def answer(self, operation: Operation, *, stream: bool) -> tuple[str, Any]:
        """Return the first content type and an example of it; None as the example of a type without JSON."""
        kinds = operation.answers
        if stream and STREAM in kinds:
            return STREAM, self._examples.make(kinds[STREAM])
        kind = next((one for one in kinds if one != STREAM), "application/octet-stream")
        return kind, self._examples.make(kinds[kind]) if kind == "application/json" else None

    def _list_properties(self, schema: Mapping[str, Any]) -> tuple[set[str], set[str]]:
        schema = self._resolve(schema)
        names, required = set(schema.get("properties", ())), set(schema.get("required", ()))
        for part in schema.get("allOf", ()):
            more, needed = self._list_properties(part)
            names |= more
            required |= needed
        return names, required

    def _validator(self, schema: Mapping[str, Any]) -> jsonschema_rs.Draft202012Validator:
        if id(schema) not in self._validators:
            whole = dict(schema) | {"components": self._content.get("components", {})}
            self._validators[id(schema)] = jsonschema_rs.Draft202012Validator(whole)
        return self._validators[id(schema)]

    def _resolve(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._examples.resolve(part["$ref"]) if "$ref" in part else part

    def _read_operations(self) -> Iterator[Operation]:
        for path, item in self._content["paths"].items():
            if "?" in path:  # the beta variants of an operation, which HTTP cannot tell from it by its path
                continue
            for method in _METHODS:
                if method in item:
                    yield self._read_operation(method, path, item[method])

    def _read_operation(self, method: str, path: str, given: Mapping[str, Any]) -> Operation:
        parameters = [self._resolve(one) for one in given.get("parameters", ())]
        good: dict[str, Any] = next((one for status, one in given["responses"].items() if status.startswith("2")), {})
        return Operation(
            method,
            path,
            {one["name"].partition("[")[0]: one.get("schema", {}) for one in parameters if one["in"] == "query"},
            _list_schemas(given.get("requestBody", {})),
            _list_schemas(good),
        )


def _list_schemas(part: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {kind.partition(";")[0]: media.get("schema", {}) for kind, media in part.get("content", {}).items()}


def _compile(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{.*?\\\}", "[^/]+", re.escape(path)))
