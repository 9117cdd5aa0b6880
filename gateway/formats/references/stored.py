"""Find ids of resources stored at a provider in a request: items, files, containers, caches, prompts, voices.

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
from typing import Any
from urllib.parse import unquote

from gateway.formats.wire.fields import DATA_NAMES, PLAIN_NAMES, Body, has_unusual_names
from gateway.frozen import frozen
from gateway.wording import fold_name

ITEM = "item_reference"
_MODEL_DATA = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Blocks whose ``input`` was written by a model."""
_HOSTED_RESULT = re.compile(r"(?!mcp_)[a-z_]+_tool_result")
"""Types of result blocks of server tools, which Anthropic runs, copied from an earlier answer."""

_IDS: Mapping[str, str] = {
    "approvalrequestid": ITEM,
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
_HOLDERS: Mapping[str, tuple[str, bool]] = {
    "audio": ("audio", False),
    "container": ("container", True),
    "conversation": ("conversation", True),
    "file": ("file_id", False),
    "prompt": ("prompt", False),
    "voice": ("voice", False),
}
"""Folded names of objects with an ``id``. Values: the field name that a channel must allow, and whether a bare id may
replace the object."""
_BARE = frozenset({"type", "id", "status", "role", "object"})
"""Fields of an item that has no content of its own: the provider fills in its stored content."""
_FILE_URI = "file_uri"
_ADDRESS = re.compile(
    r"(?!https?:|wss?:)[a-z][a-z0-9+.-]*://|(?:[a-z]+:)?/*(?:[^/]*[@.])?generativelanguage\."
    r"|(?:\.?/)?(?:v\d\w*/)?files/|[a-z]+:/+[^/]+/v\d\w*/files/",
    re.ASCII,
)
"""Addresses that the provider reads with the channel's own credentials: Google's files, objects in a bucket (``gs://``,
``s3://``, Alibaba's ``oss://``), local files of its machine."""
_MEDIA = frozenset({"audio", "audios", "file", "files", "image", "images", "inputaudio", "video", "videos"})
"""Folded names of fields that may hold such an address as a string or in a list (Alibaba's pages "Qwen-VL")."""
_ADDRESSES = ("uri", "url", "uris", "urls")
"""Suffixes of the folded names of fields that hold addresses."""
_LONGEST_ADDRESS = 2_048


@frozen
class StoredReference:
    """The id of a resource stored at a provider.

    Attributes:
        where: place of the id in the body.
        field: name of the field that a channel must allow if the resource's owner is unknown.
        given: the body also has the resource's content, so the id is rejected only if another owner is known.
    """

    id: str
    where: str
    field: str
    given: bool = False


def list_stored_references(body: Body, *, items: bool = False) -> list[StoredReference]:
    """List the ids of stored resources in ``body``. ``items``: its ``input`` has items of the Responses API."""
    found = list(_list_items(body.get("input"))) if items else []
    if not has_unusual_names(body):
        return found
    rest = {name: value for name, value in body.items() if name != "previous_response_id"}  # looked up elsewhere
    shown = _list_requests(body.get("input")) if items else frozenset()
    return [*found, *(name for name in _walk(rest) if name.id not in shown)]


def _list_requests(items: object) -> frozenset[str]:
    """Return the ids of approval requests included in the input: answers to them need no stored item."""
    return frozenset(
        str(item.get("id"))
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict) and item.get("type") == "mcp_approval_request" and item.get("server_label")
    )


def list_created_ids(answer: Mapping[str, Any], *, kept: bool) -> list[str]:
    """List the ids in a response that its client may reference later. ``kept``: the provider stores the response."""
    ids = []
    output = answer.get("output")
    for item in output if isinstance(output, list) else ():
        if isinstance(item, dict):
            again = kept or item.get("type") == "mcp_approval_request"
            again = again or (item.get("type") == "reasoning" and not item.get("encrypted_content"))
            ids += [item.get("id") if again else None, item.get("container_id")]
    return [one for one in ids if isinstance(one, str) and one]


def _list_items(items: object) -> Iterator[StoredReference]:
    """Yield the ids of input items that the request gives without their full content."""
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            continue
        folded = item if item.keys() <= PLAIN_NAMES else {fold_name(name): value for name, value in item.items()}
        item_id, kind = folded.get("id"), folded.get("type")
        if _is_item(kind) and not isinstance(item_id, str):
            yield StoredReference(repr(item_id), f"input[{index}]", ITEM)
        if not isinstance(item_id, str) or not item_id:
            continue
        kind = kind.strip().casefold() if isinstance(kind, str) else ""
        full = any(value and name not in _BARE for name, value in folded.items())
        if kind == "reasoning":
            sealed = folded.get("encryptedcontent") or folded.get("encrypted_content")
            if not sealed and not folded.get("content"):
                yield StoredReference(item_id, f"input[{index}]", ITEM, given=full)
        elif kind == "image_generation_call":
            if not folded.get("result"):
                yield StoredReference(item_id, f"input[{index}]", ITEM)
        elif kind == ITEM or not full or (not kind and "role" not in folded):
            yield StoredReference(item_id, f"input[{index}]", ITEM)


def _walk(body: Body) -> Iterator[StoredReference]:
    rest: list[tuple[str, Any]] = [("", body)]
    while rest:
        where, value = rest.pop()
        if isinstance(value, list):
            rest += [(f"{where}[{at}]", item) for at, item in enumerate(value) if isinstance(item, dict | list)]
            continue
        kind = value.get("type")
        kind = kind if isinstance(kind, str) else ""
        if _HOSTED_RESULT.fullmatch(kind):
            continue
        for name, item in value.items():
            if name in DATA_NAMES or (name == "input" and kind in _MODEL_DATA):
                continue
            place = f"{where}.{name}" if where else name
            if name not in PLAIN_NAMES:
                yield from _find_ids(fold_name(name), item, place, value)
            if isinstance(item, dict | list):
                rest.append((place, item))


def _find_ids(folded: str, value: Any, where: str, holder: Body) -> Iterator[StoredReference]:
    if folded in _MEDIA or folded.endswith(_ADDRESSES):
        some = value if isinstance(value, list) else [value]
        yield from (StoredReference(one[:_LONGEST_ADDRESS], where, _FILE_URI) for one in some if _is_kept_address(one))
    if folded in _IDS:
        given = value if isinstance(value, list) else [value]
        given = [one.get("id") if isinstance(one, dict) else one for one in given]
        ids = [str(one) for one in given if one and isinstance(one, str | int)]
        if folded == "skillid" and holder.get("type") == "anthropic":  # Anthropic's own skills are public
            return
        yield from (StoredReference(one, where, _IDS[folded]) for one in ids)
    elif folded in _HOLDERS:
        field, alone = _HOLDERS[folded]
        if isinstance(value, dict):
            value = next((item for name, item in value.items() if fold_name(name) == "id"), None)
        elif not alone:
            return
        if value and isinstance(value, str | int):
            yield StoredReference(str(value), where, field)
    elif folded == "previousresponseid" and value and isinstance(value, str):
        yield StoredReference(value, where, "previous_response_id")


def _is_item(kind: object) -> bool:
    return isinstance(kind, str) and fold_name(kind) == "itemreference"


def _is_kept_address(address: object) -> bool:
    if not isinstance(address, str):
        return False
    # Normalize as URL parsers do (url.spec.whatwg.org): drop white space, and treat a backslash as a slash.
    head = "".join(unquote(unquote(address[:_LONGEST_ADDRESS])).split()).replace("\\", "/").casefold()
    return _ADDRESS.match(head) is not None
