"""The OpenAPI 3.1 document: the public API as ``public.py`` tells it, the admin API as its doors are.

It is the same in every process of one version, and made when it is first asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import orjson

from gateway import __version__
from gateway.web.admin.doors import Door
from gateway.web.admin.routes import list_doors
from gateway.web.entrance import CONSOLE_HEADER, COOKIE, KEY_HEADER
from gateway.web.middleware import ANTHROPIC_PATHS
from gateway.web.openapi.admin import PREFIX, write_admin
from gateway.web.openapi.entry import Answer, Entry, Language, ref
from gateway.web.openapi.faults import name_fault, write_faults
from gateway.web.openapi.nouns import Schema
from gateway.web.openapi.public import HEADERS, PARAMETERS, PUBLIC_ENTRIES, PUBLIC_SCHEMAS

TITLE = "model-gateway"
RIGHTS = "x-rights"
"""Beside an operation: who may call it."""
_ABOUT = """\
One gateway for AI models: one account, one key, one streaming-first API in front of many providers.

Client libraries of OpenAI's and of Anthropic's work with it when their base address is set to this gateway and their \
key to one of its own. Names of models are decided while it runs: `GET /v1/models` lists them.

Everything that goes wrong before the first byte of an answer is one error object, whatever the path; its message ends \
with the request's id, which is also the header `X-Request-Id`. Fields that this document does not name are passed on \
to providers in the public API, and refused in the admin API."""
_TAGS: Mapping[str, str] = MappingProxyType(
    {
        "Chat": "Conversations and texts, in OpenAI's languages.",
        "Anthropic's language": "Conversations in Anthropic's; its client libraries' `x-api-key` is taken too.",
        "Embeddings and ranking": "Texts as numbers, in order, and judged.",
        "Models": "What there is.",
        "Images": "Pictures, painted and changed.",
        "Audio": "Speech and recordings.",
        "Videos": "Jobs that take a while: submit, follow, fetch.",
        "What was spent": "The convention's old pages of it, which chat apps still ask for.",
        "About this gateway": "For supervisors and for the curious.",
        f"{PREFIX}signing in": "Sessions of members; for pages of the console.",
        f"{PREFIX}members": "Who may sign in, and links that let people in.",
        f"{PREFIX}accounts": "Who pays.",
        f"{PREFIX}keys": "What calls are made with.",
        f"{PREFIX}channels": "The ways to providers.",
        f"{PREFIX}models and prices": "What is served, by whom, and for how much.",
        f"{PREFIX}requests and usage": "What was asked, and what it came to.",
        f"{PREFIX}running calls": "What goes on at this moment.",
        f"{PREFIX}videos": "Jobs of every account, and the telling of their ends.",
        f"{PREFIX}books and audit trail": "Whether the books agree, and who changed what.",
        f"{PREFIX}settings": "How the gateway works.",
        f"{PREFIX}health": "How the process is.",
    },
)
_SECURITY_SCHEMES: Mapping[str, Schema] = MappingProxyType(
    {
        "apiKey": {
            "type": "http",
            "scheme": "bearer",
            "description": "A key of this gateway's: `Authorization: Bearer sk-…`.",
        },
        "anthropicKey": {
            "type": "apiKey",
            "in": "header",
            "name": "x-api-key",
            "description": "The same key, as Anthropic's client libraries send it.",
        },
        "adminToken": {
            "type": "http",
            "scheme": "bearer",
            "description": "What is in the file `admin.token` of the data folder: an administrator's rights.",
        },
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": COOKIE,
            "description": (
                "Of a member who is signed in, on pages of the console alone; over TLS its name begins with `__Host-`. "
                f"A change needs the header `{CONSOLE_HEADER}` too, and a call of the public API the header "
                f"`{KEY_HEADER}` with the id of the key that it is made with."
            ),
        },
    },
)


def build_document(doors: Sequence[Door]) -> dict[str, Any]:
    """The document. Raises ``ValueError`` where two operations have one name or one place."""
    admin = write_admin(doors, PUBLIC_SCHEMAS)
    entries = (*PUBLIC_ENTRIES, *admin.entries)
    _check_names(entries)
    paths: dict[str, dict[str, Any]] = {}
    for entry in entries:
        paths.setdefault(entry.path, {})[entry.method.lower()] = write_operation(entry)
    document = {
        "openapi": "3.1.1",
        "info": {
            "title": TITLE,
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The gateway that this document comes from."}],
        "tags": [_write_tag(name) for name in dict.fromkeys(entry.tag for entry in entries)],
        "paths": paths,
        "components": {
            "schemas": PUBLIC_SCHEMAS | dict(admin.schemas),
            "parameters": PARAMETERS,
            "headers": HEADERS,
            "responses": write_faults({(status, entry.language) for entry in entries for status in entry.faults}),
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }
    made: dict[str, Any] = orjson.loads(orjson.dumps(document, default=dict))  # plain JSON, all through
    return made


def _check_names(entries: Iterable[Entry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        for what in (entry.name, f"{entry.method} {entry.path}"):
            if what in seen:
                raise ValueError(f"{what!r} is there twice")
            seen.add(what)


def _write_tag(name: str) -> Schema:
    return {"name": name} | ({"description": _TAGS[name]} if name in _TAGS else {})


def write_operation(entry: Entry) -> dict[str, Any]:
    """One operation of a path."""
    written: dict[str, Any] = {
        "operationId": entry.name,
        "tags": [entry.tag],
        "summary": entry.summary,
        "description": entry.about,
        "parameters": list(entry.parameters),
        "requestBody": _write_body(entry),
        "responses": {
            **{str(answer.status): _write_answer(answer) for answer in entry.answers},
            **{str(status): _write_fault(status, entry.language) for status in sorted(set(entry.faults))},
        },
        "security": _list_keys(entry),
        RIGHTS: entry.rights,
    }
    return {name: value for name, value in written.items() if value or name == "security"}


def _write_body(entry: Entry) -> Schema | None:
    if not entry.takes:
        return None
    content: dict[str, Schema] = {media_type: {"schema": dict(shape)} for media_type, shape in entry.takes.items()}
    if entry.example is not None:
        next(iter(content.values()))["example"] = entry.example
    return {"required": not entry.optional, "content": content}


def _write_answer(answer: Answer) -> Schema:
    written: Schema = {
        "description": answer.about,
        "headers": {name: ref(name, "headers") for name in ("X-Request-Id", *answer.headers)},
    }
    if answer.contents:
        written["content"] = {media_type: {"schema": dict(shape)} for media_type, shape in answer.contents.items()}
    if answer.links:
        written["links"] = {
            name: {"operationId": name, "parameters": {parameter: place}}
            for name, (parameter, place) in answer.links.items()
        }
    return written


def _write_fault(status: int, language: Language) -> Schema:
    return ref(name_fault(status, language), "responses")


def _list_keys(entry: Entry) -> list[dict[str, list[str]]]:
    """Any of these opens the door."""
    if entry.rights == "anyone":
        return []
    if entry.rights != "key":
        return [{"adminToken": []}, {"session": []}]
    theirs: list[dict[str, list[str]]] = [{"anthropicKey": []}] if entry.path.startswith(ANTHROPIC_PATHS) else []
    return [{"apiKey": []}, *theirs, {"session": []}]


@cache
def get_document() -> dict[str, Any]:
    """The document of this version; nobody changes it."""
    return build_document(list_doors())
