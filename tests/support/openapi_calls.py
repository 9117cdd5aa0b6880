"""Calls of operations by their names in the document, and what the document says of their answers."""

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import attrs
import orjson
from jsonschema import Draft202012Validator
from yarl import URL

from gateway.server.openapi.document import get_document
from tests.support.gateway import RunningGateway

Json = dict[str, Any]
Memory = dict[str, Any]
"""What answers told that later calls need."""


@attrs.frozen
class Call:
    """One call of an operation. A text that begins with ``$`` is what the memory has under that name.

    Attributes:
        body: JSON.
        form: the same of a form; a value of bytes is a file.
        path, query, headers: what stands there.
        status: what is answered.
        keep: notes what of the answer later calls need.
        signed: whose session it is made with, not with a key or a token: the name that the memory has it under.
        enters: the name that the memory is to have a session under that the answer begins.
        endless: its answer has no end; its first event is enough.
    """

    operation: str
    body: Any = None
    form: Mapping[str, Any] | None = None
    path: Mapping[str, str] = attrs.field(factory=dict)
    query: Mapping[str, str] = attrs.field(factory=dict)
    headers: Mapping[str, str] = attrs.field(factory=dict)
    status: int = 200
    keep: Callable[[Any, Memory], None] | None = None
    signed: str = ""
    enters: str = ""
    endless: bool = False


class Reader:
    """The document, as a client reads it: where an operation is, and what it may be told and answer."""

    def __init__(self) -> None:
        self.document = get_document()
        self.places = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
        }

    def names(self, *, admin: bool) -> set[str]:
        """Of every operation of the one API or of the other."""
        return {name for name, (_, path, _) in self.places.items() if path.startswith("/admin/") == admin}

    def resolve(self, value: Json) -> Json:
        """What a reference leads to."""
        if "$ref" not in value:
            return value
        found: Any = self.document
        for part in value["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return dict(found)

    def find_body(self, name: str, media_type: str = "application/json") -> Json | None:
        """The schema of what an operation takes, None where that is nothing."""
        content = self.places[name][2].get("requestBody", {}).get("content", {})
        return self.resolve(content[media_type]["schema"]) if media_type in content else None

    def find_example(self, name: str) -> Json:
        """A body of JSON that an operation takes."""
        return dict(self.places[name][2]["requestBody"]["content"]["application/json"]["example"])

    def find_problems(self, schema: Json, value: Any) -> list[str]:
        """What is wrong with a value, with its place."""
        whole = {**schema, "components": self.document["components"]}
        return [f"{error.json_path}: {error.message[:200]}" for error in Draft202012Validator(whole).iter_errors(value)]

    def judge(self, name: str, status: int, media_type: str, raw: bytes) -> list[str]:
        """What of an answer is not as the document says."""
        found = self.places[name][2]["responses"].get(str(status))
        if found is None:
            return [f"status {status} is not in the document: {raw[:300]!r}"]
        contents = self.resolve(found).get("content", {})
        if not contents:
            return [] if not raw else ["an answer where the document has none"]
        kind = next((kind for kind in contents if re.fullmatch(kind.replace("*", ".*"), media_type)), None)
        if kind is None:
            return [f"{media_type} is not in the document"]
        schema = contents[kind]["schema"]
        if kind == "text/event-stream":
            return self._judge_events(schema, raw)
        if kind != "application/json":
            return [] if raw else ["nothing is answered"]
        return self.find_problems(schema, orjson.loads(raw))

    def _judge_events(self, schema: Json, raw: bytes) -> list[str]:
        lines = [line.removeprefix(b"data: ") for line in raw.split(b"\n") if line.startswith(b"data: ")]
        if not lines:
            return ["a stream without events"]
        event = schema["properties"]["data"]["contentSchema"]
        return [
            problem for line in lines if line != b"[DONE]" for problem in self.find_problems(event, orjson.loads(line))
        ]


@attrs.define
class Caller:
    """Makes calls of a gateway, one after the other.

    Attributes:
        memory: what answers told.
        problems: everything that was not as the document says, with the operation.
        called: the operations that were answered without an error.
    """

    gateway: RunningGateway
    reader: Reader = attrs.Factory(Reader)
    memory: Memory = attrs.Factory(dict)
    problems: list[str] = attrs.Factory(list)
    called: set[str] = attrs.Factory(set)

    async def make(self, call: Call) -> None:
        """Make a call and judge its answer."""
        if call.operation not in self.reader.places:
            self.problems.append(f"{call.operation}: the document has no such operation")
            return
        self._judge_body(call)
        status, media_type, raw = await self.ask(call)
        if status != call.status:
            self.problems.append(f"{call.operation}: {status} instead of {call.status}: {raw[:300]!r}")
            return
        self.problems += [
            f"{call.operation}: {found}" for found in self.reader.judge(call.operation, status, media_type, raw)
        ]
        if status < 400:
            self.called.add(call.operation)
        if call.keep is not None:
            call.keep(orjson.loads(raw) if media_type == "application/json" else raw, self.memory)

    def _judge_body(self, call: Call) -> None:
        schema = self.reader.find_body(call.operation)
        if schema is not None and call.body is not None and call.status < 400:
            found = self.reader.find_problems(schema, self._recall(call.body))
            self.problems += [f"{call.operation}, its body: {problem}" for problem in found]

    async def ask(self, call: Call) -> tuple[int, str, bytes]:
        """Status, media type and bytes of an answer."""
        method, path, operation = self.reader.places[call.operation]
        for name, value in call.path.items():
            path = path.replace(f"{{{name}}}", quote(str(self._recall(value)), safe=""))
        url = URL(self.gateway.url + path, encoded=True).update_query(self._recall(dict(call.query)))
        headers = {**self._authorize(call, operation), **self._recall(dict(call.headers))}
        data = None if call.form is None else _write_form(call.form)
        body = self._recall(call.body)
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, url, json=body, data=data, headers=headers, allow_redirects=False) as response,
        ):
            raw = await (response.content.readuntil(b"\n\n") if call.endless else response.read())
            if call.enters:
                self.memory[call.enters] = "; ".join(f"{name}={one.value}" for name, one in response.cookies.items())
            return response.status, response.content_type, raw

    def _authorize(self, call: Call, operation: Json) -> dict[str, str]:
        if call.signed:
            return {"Cookie": self.memory[call.signed], "X-Gateway-Console": "1"}
        schemes = {name for either in operation["security"] for name in either}
        if "apiKey" in schemes:
            return {"Authorization": self.gateway.client.headers["Authorization"]}
        if "adminToken" in schemes:
            return {"Authorization": f"Bearer {self.gateway.admin_token}"}
        parameters = map(self.reader.resolve, operation.get("parameters", ()))
        return {each["name"]: "1" for each in parameters if each["in"] == "header" and each.get("required")}

    def _recall(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith("$"):
            return self.memory[value[1:]]
        if isinstance(value, dict):
            return {name: self._recall(inner) for name, inner in value.items()}
        return [self._recall(inner) for inner in value] if isinstance(value, list) else value


def _write_form(fields: Mapping[str, Any]) -> aiohttp.FormData:
    form = aiohttp.FormData(default_to_multipart=True)
    for name, value in fields.items():
        if isinstance(value, bytes):
            form.add_field(name, value, filename="file", content_type="application/octet-stream")
        else:
            form.add_field(name, value)
    return form


def exceed(schema: Json) -> list[Any]:
    """Values just beyond what a schema says of numbers, lengths and words."""
    beyond: list[Any] = []
    beyond += [schema["minimum"] - 1] if "minimum" in schema else []
    beyond += [schema["maximum"] + 1] if "maximum" in schema else []
    beyond += ["x" * (schema["maxLength"] + 1)] if "maxLength" in schema else []
    beyond += ["no such word"] if "enum" in schema else []
    beyond += [[]] if schema.get("minItems") else []
    return beyond


def spoil(schema: Json) -> Any:
    """A value that a schema has no place for; None where everything is welcome."""
    kinds = schema.get("type", [each.get("type") for each in schema.get("anyOf", ())])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "object" not in kinds and kinds != []:
        return {"spoiled": ["yes"]}
    return 7 if kinds else None
