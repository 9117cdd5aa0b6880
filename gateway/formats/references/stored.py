"""Find ids of resources stored at a provider: items, files, containers, caches, prompts and voices.

``list_stored_references`` finds those that a request names, ``list_created_ids`` those that an answer has created.

The provider knows only the gateway's key, not the gateway's accounts, and accepts every id it has issued. The gateway
must therefore check who owns the resource.

Fields: OpenAI's OpenAPI document (``ItemReferenceParam``, ``Prompt``, ``InputFileContent``, ``InputImageContent``,
``CodeInterpreterTool``, ``FileSearchTool``, ``ChatCompletionRequestAssistantMessage`` with ``audio``,
``MCPApprovalResponse``); Anthropic's pages "Files API", "Code execution tool" (``container``) and "Agent Skills";
Google's pages "Files API" and "Context caching". Names are compared folded: servers written in Go accept field names in
any case, and Google's in two spellings.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from gateway.formats.wire.fields import DATA_NAMES, PLAIN_NAMES, Body, has_unusual_names
from gateway.frozen import frozen
from gateway.wording import MAX_NAME_CHARS, fold_name

ITEM_REFERENCE = "item_reference"
_MODEL_CALL_KINDS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Blocks whose ``input`` was written by a model."""
_HOSTED_RESULT_PATTERN = re.compile(r"(?!mcp_)[a-z_]+_tool_result")
"""Types of the result blocks of server tools, which Anthropic runs. Clients copy these blocks from earlier answers."""

_FIELDS_BY_FOLDED_NAME: Mapping[str, str] = {
    "approvalrequestid": ITEM_REFERENCE,
    "cachedcontent": "cachedContent",
    "containerid": "container",
    "conversationid": "conversation",
    "fileid": "file_id",
    "fileids": "file_id",
    "skillid": "skill_id",
    "threadid": "conversation",
    "vectorstoreid": "vector_store_ids",
    "vectorstoreids": "vector_store_ids",
}
"""Folded names of fields whose values are ids, with the field name that a channel must allow."""
_HOLDER_FIELDS: Mapping[str, tuple[str, bool]] = {
    "audio": ("audio", False),
    "container": ("container", True),
    "conversation": ("conversation", True),
    "file": ("file_id", False),
    "prompt": ("prompt", False),
    "voice": ("voice", False),
}
"""Folded names of objects with an ``id``. Values: the field name that a channel must allow, and whether a bare id may
replace the object."""
_REFERENCE_NAMES = {"previousresponseid", *_FIELDS_BY_FOLDED_NAME, *_HOLDER_FIELDS}
_REFERENCE_FIELDS = frozenset({"type", "id", "status", "role", "object"})
"""Fields of an item that has no content of its own: the provider fills in its stored content."""
_FILE_URI = "file_uri"
_ADDRESS_PATTERN = re.compile(
    r"(?!https?:|wss?:)[a-z][a-z0-9+.-]*://|(?:[a-z]+:)?/*(?:[^/]*[@.])?generativelanguage\."
    r"|(?:\.?/)?(?:v\d\w*/)?files/|[a-z]+:/+[^/]+/v\d\w*/files/",
    re.ASCII,
)
"""Addresses that the provider reads with the channel's own credentials: Google's files, objects in a bucket (``gs://``,
``s3://``, Alibaba's ``oss://``), local files of its machine."""
_MEDIA_FIELDS = frozenset({"audio", "audios", "file", "files", "image", "images", "inputaudio", "video", "videos"})
"""Folded names of fields that may hold such an address as a string or in a list (Alibaba's pages "Qwen-VL")."""
_ADDRESS_SUFFIXES = ("uri", "url", "uris", "urls")
"""Suffixes of the folded names of fields that hold addresses."""
_MAX_ADDRESS_CHARS = 2_048
_Path = tuple[Any, str | int]
"""The path of the containing value (None for the body), and a name or index in it: few paths are ever formatted."""


@frozen
class StoredReference:
    """The id of a resource stored at a provider.

    Attributes:
        param: path of the id in the body.
        field: name of the field that a channel must allow if the resource's owner is unknown.
        has_content: whether the body also has the resource's content. Such an id is rejected only if another owner is
            known.
    """

    id: str
    param: str
    field: str
    has_content: bool = False


def list_stored_references(body: Body, *, items: bool = False) -> list[StoredReference]:
    """List the ids of stored resources in ``body``. The body's ``previous_response_id`` is looked up elsewhere.

    ``items`` says whether ``input`` has items of the Responses API.
    """
    references = list(_list_items(body.get("input"))) if items else []
    if not has_unusual_names(body):
        return references
    other_fields = {
        name: value for name, value in body.items() if name != "previous_response_id"
    }  # looked up elsewhere
    request_ids = _find_approval_request_ids(body.get("input")) if items else frozenset()
    return [*references, *(reference for reference in _list_in_body(other_fields) if reference.id not in request_ids)]


def _find_approval_request_ids(items: object) -> frozenset[str]:
    """Return the ids of approval requests included in the input: answers to them need no stored item."""
    return frozenset(
        str(item.get("id"))
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict) and item.get("type") == "mcp_approval_request" and item.get("server_label")
    )


def list_created_ids(answer: Mapping[str, Any], *, keeps_answer: bool) -> list[str]:
    """List the ids in a response that its client may reference later.

    ``keeps_answer`` says whether the provider stores the response.
    """
    ids = []
    output = answer.get("output")
    for item in output if isinstance(output, list) else ():
        if isinstance(item, dict):
            is_kept = keeps_answer or item.get("type") == "mcp_approval_request"
            is_kept = is_kept or (item.get("type") == "reasoning" and not item.get("encrypted_content"))
            ids += [item.get("id") if is_kept else None, item.get("container_id")]
    return [item_id for item_id in ids if isinstance(item_id, str) and item_id]


def _list_items(items: object) -> Iterator[StoredReference]:
    """Yield the ids of input items whose full content is not in the request."""
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            continue
        folded_item = item if item.keys() <= PLAIN_NAMES else {fold_name(name): value for name, value in item.items()}
        item_id, kind = folded_item.get("id"), folded_item.get("type")
        if _is_item_reference(kind) and not isinstance(item_id, str):
            yield StoredReference(repr(item_id), f"input[{index}]", ITEM_REFERENCE)
        if not isinstance(item_id, str) or not item_id:
            continue
        kind = kind.strip().casefold() if isinstance(kind, str) else ""
        has_content = any(value and name not in _REFERENCE_FIELDS for name, value in folded_item.items())
        if kind == "reasoning":
            encrypted_content = folded_item.get("encryptedcontent") or folded_item.get("encrypted_content")
            if not encrypted_content and not folded_item.get("content"):
                yield StoredReference(item_id, f"input[{index}]", ITEM_REFERENCE, has_content=has_content)
        elif kind == "image_generation_call":
            if not folded_item.get("result"):
                yield StoredReference(item_id, f"input[{index}]", ITEM_REFERENCE)
        elif kind == ITEM_REFERENCE or not has_content or (not kind and "role" not in folded_item):
            yield StoredReference(item_id, f"input[{index}]", ITEM_REFERENCE)


def _list_in_body(body: Body) -> Iterator[StoredReference]:
    pending_values: list[tuple[_Path | None, Any]] = [(None, body)]
    while pending_values:
        path, value = pending_values.pop()
        if isinstance(value, list):
            pending_values += [
                ((path, index), member) for index, member in enumerate(value) if isinstance(member, dict | list)
            ]
            continue
        kind = value.get("type")
        kind = kind if isinstance(kind, str) else ""
        if kind and _HOSTED_RESULT_PATTERN.fullmatch(kind):
            continue
        for name, member in value.items():
            if name in DATA_NAMES or (name == "input" and kind in _MODEL_CALL_KINDS):
                continue
            if name not in PLAIN_NAMES and (folded_name := _fold_reference_name(name[:MAX_NAME_CHARS])):
                yield from _find_ids(folded_name, member, _format_path((path, name)), value)
            if isinstance(member, dict | list):
                pending_values.append(((path, name), member))


def _format_path(path: _Path | None) -> str:
    parts: list[str] = []
    while path is not None:
        path, step = path
        parts.append(f"[{step}]" if isinstance(step, int) else f".{step}")
    return "".join(reversed(parts)).removeprefix(".")


@lru_cache(maxsize=4_096)
def _fold_reference_name(name: str) -> str:
    """Return the folded ``name`` of a field that may refer to a stored resource; "" for other fields."""
    folded_name = fold_name(name)
    is_address = folded_name in _MEDIA_FIELDS or folded_name.endswith(_ADDRESS_SUFFIXES)
    return folded_name if is_address or folded_name in _REFERENCE_NAMES else ""


def _find_ids(folded_name: str, value: Any, param: str, holder: Body) -> Iterator[StoredReference]:
    if folded_name in _MEDIA_FIELDS or folded_name.endswith(_ADDRESS_SUFFIXES):
        values = value if isinstance(value, list) else [value]
        yield from (
            StoredReference(address[:_MAX_ADDRESS_CHARS], param, _FILE_URI)
            for address in values
            if _is_stored_address(address)
        )
    if folded_name in _FIELDS_BY_FOLDED_NAME:
        members = value if isinstance(value, list) else [value]
        members = [member.get("id") if isinstance(member, dict) else member for member in members]
        item_ids = [str(item_id) for item_id in members if item_id and isinstance(item_id, str | int)]
        if folded_name == "skillid" and holder.get("type") == "anthropic":  # Anthropic's own skills are public
            return
        yield from (StoredReference(item_id, param, _FIELDS_BY_FOLDED_NAME[folded_name]) for item_id in item_ids)
    elif folded_name in _HOLDER_FIELDS:
        field, may_be_plain = _HOLDER_FIELDS[folded_name]
        if isinstance(value, dict):
            value = next((item for name, item in value.items() if fold_name(name) == "id"), None)
        elif not may_be_plain:
            return
        if value and isinstance(value, str | int):
            yield StoredReference(str(value), param, field)
    elif folded_name == "previousresponseid" and value and isinstance(value, str):
        yield StoredReference(value, param, "previous_response_id")


def _is_item_reference(kind: object) -> bool:
    return isinstance(kind, str) and fold_name(kind) == "itemreference"


def _is_stored_address(address: object) -> bool:
    if not isinstance(address, str):
        return False
    # Normalize as URL parsers do (url.spec.whatwg.org): drop white space, and treat a backslash as a slash.
    normalized_address = "".join(unquote(unquote(address[:_MAX_ADDRESS_CHARS])).split()).replace("\\", "/").casefold()
    return _ADDRESS_PATTERN.match(normalized_address) is not None
