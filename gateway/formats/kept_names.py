"""Ids in a request that name something kept at a provider: items, files, containers, caches, prompts, voices.

The provider knows the gateway alone, and not its accounts: every id that it has ever given is valid for every caller.
Fields: OpenAI's OpenAPI document (``ItemReferenceParam``, ``Prompt``, ``InputFileContent``, ``InputImageContent``,
``CodeInterpreterTool``, ``FileSearchTool``, ``ChatCompletionRequestAssistantMessage`` with ``audio``,
``MCPApprovalResponse``); Anthropic's pages "Files API", "Code execution tool" (``container``) and "Agent Skills";
Google's pages "Files API" and "Context caching". Servers written in Go take names in any case, Google's in two.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from gateway.formats.openai.fields import DATA_NAMES, PLAIN_NAMES, Body, has_unusual_names
from gateway.frozen import frozen
from gateway.wording import fold_name

ITEM = "item_reference"
_MODEL_DATA = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Blocks whose ``input`` is a model's."""
_HOSTED_RESULT = re.compile(r"(?!mcp_)[a-z_]+_tool_result")
"""Results of tools that Anthropic runs, as an earlier answer had them."""

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
"""Folded names whose values are ids, with what a channel must allow."""
_HOLDERS: Mapping[str, tuple[str, bool]] = {
    "audio": ("audio", False),
    "container": ("container", True),
    "conversation": ("conversation", True),
    "file": ("file_id", False),
    "prompt": ("prompt", False),
    "voice": ("voice", False),
}
"""Folded names of objects with an ``id``, with what a channel must allow, and whether the id may replace the object."""
_BARE = frozenset({"type", "id", "status", "role", "object"})
"""Fields of an item that has nothing but its name: its provider puts in what it has kept."""
_FILE_URI = "file_uri"
_ADDRESS = re.compile(
    r"(?!https?:|wss?:)[a-z][a-z0-9+.-]*://|(?:[a-z]+:)?/*(?:[^/]*[@.])?generativelanguage\."
    r"|(?:\.?/)?(?:v\d\w*/)?files/|[a-z]+:/+[^/]+/v\d\w*/files/",
    re.ASCII,
)
"""Addresses that the provider reads with the channel's own rights: Google's files, objects of a bucket (``gs://``,
``s3://``, Alibaba's ``oss://``), files of its machine."""
_MEDIA = frozenset({"audio", "audios", "file", "files", "image", "images", "inputaudio", "video", "videos"})
"""Folded names of fields that may have such an address in a string or a list (Alibaba's pages "Qwen-VL")."""
_ADDRESSES = ("uri", "url", "uris", "urls")
"""Ends of the folded names of fields that have addresses."""
_LONGEST_ADDRESS = 2_048


@frozen
class KeptName:
    """An id of something kept at a provider.

    ``where``: its place in the body. ``field``: what a channel must allow if the gateway does not know who made it.
    ``given``: what it names is also there in full, as far as a client can have it; only who else made it is checked.
    """

    id: str
    where: str
    field: str
    given: bool = False


def list_kept_names(body: Body, *, items: bool = False) -> list[KeptName]:
    """List the ids in ``body`` of what a provider keeps; ``items``: its ``input`` has items of the Responses API."""
    found = list(_list_items(body.get("input"))) if items else []
    if not has_unusual_names(body):
        return found
    rest = {name: value for name, value in body.items() if name != "previous_response_id"}  # looked up elsewhere
    shown = _list_requests(body.get("input")) if items else frozenset()
    return [*found, *(name for name in _walk(rest) if name.id not in shown)]


def _list_requests(items: object) -> frozenset[str]:
    """Return the ids of requests for approval that are in the input itself: answers to them name nothing else."""
    return frozenset(
        str(item.get("id"))
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict) and item.get("type") == "mcp_approval_request" and item.get("server_label")
    )


def list_made(answer: Mapping[str, Any], *, kept: bool) -> list[str]:
    """List the ids in a response of the Responses API that its client may name again; ``kept``: it is stored."""
    ids = []
    output = answer.get("output")
    for item in output if isinstance(output, list) else ():
        if isinstance(item, dict):
            again = kept or item.get("type") == "mcp_approval_request"
            again = again or (item.get("type") == "reasoning" and not item.get("encrypted_content"))
            ids += [item.get("id") if again else None, item.get("container_id")]
    return [one for one in ids if isinstance(one, str) and one]


def _list_items(items: object) -> Iterator[KeptName]:
    """Yield the items of which a request has hardly more than the id."""
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            continue
        folded = item if item.keys() <= PLAIN_NAMES else {fold_name(name): value for name, value in item.items()}
        item_id, kind = folded.get("id"), folded.get("type")
        if _is_item(kind) and not isinstance(item_id, str):
            yield KeptName(repr(item_id), f"input[{index}]", ITEM)
        if not isinstance(item_id, str) or not item_id:
            continue
        kind = kind.strip().casefold() if isinstance(kind, str) else ""
        full = any(value and name not in _BARE for name, value in folded.items())
        if kind == "reasoning":
            sealed = folded.get("encryptedcontent") or folded.get("encrypted_content")
            if not sealed and not folded.get("content"):
                yield KeptName(item_id, f"input[{index}]", ITEM, given=full)
        elif kind == "image_generation_call":
            if not folded.get("result"):
                yield KeptName(item_id, f"input[{index}]", ITEM)
        elif kind == ITEM or not full or (not kind and "role" not in folded):
            yield KeptName(item_id, f"input[{index}]", ITEM)


def _walk(body: Body) -> Iterator[KeptName]:
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


def _find_ids(folded: str, value: Any, where: str, holder: Body) -> Iterator[KeptName]:
    """Yield the ids that a field has; ``folded`` is its name."""
    if folded in _MEDIA or folded.endswith(_ADDRESSES):
        some = value if isinstance(value, list) else [value]
        yield from (KeptName(one[:_LONGEST_ADDRESS], where, _FILE_URI) for one in some if _is_kept_address(one))
    if folded in _IDS:
        given = value if isinstance(value, list) else [value]
        given = [one.get("id") if isinstance(one, dict) else one for one in given]
        ids = [str(one) for one in given if one and isinstance(one, str | int)]
        if folded == "skillid" and holder.get("type") == "anthropic":  # Anthropic's own skills
            return
        yield from (KeptName(one, where, _IDS[folded]) for one in ids)
    elif folded in _HOLDERS:
        field, alone = _HOLDERS[folded]
        if isinstance(value, dict):
            value = next((item for name, item in value.items() if fold_name(name) == "id"), None)
        elif not alone:
            return
        if value and isinstance(value, str | int):
            yield KeptName(str(value), where, field)
    elif folded == "previousresponseid" and value and isinstance(value, str):
        yield KeptName(value, where, "previous_response_id")


def _is_item(kind: object) -> bool:
    return isinstance(kind, str) and fold_name(kind) == "itemreference"


def _is_kept_address(address: object) -> bool:
    if not isinstance(address, str):
        return False
    # As readers of URLs do (url.spec.whatwg.org): white space is dropped, a backslash is a slash.
    head = "".join(unquote(unquote(address[:_LONGEST_ADDRESS])).split()).replace("\\", "/").casefold()
    return _ADDRESS.match(head) is not None
