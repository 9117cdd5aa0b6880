"""Replaces references to items in the input of a Responses request with the kept items.

The id of an item written by the gateway contains the digits of its response: a prefix such as ``msg_``, the digits, and
the item's position. Every other id is the provider's; ``response_owners.py`` knows its owner.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gateway.domain import exact_json
from gateway.errors import NotFound

Body = dict[str, Any]
_OWN_ID_PATTERN = re.compile(r"[a-z]{1,8}_([0-9a-f]{24})_[0-9]{1,6}", re.ASCII)


def is_own(item_id: str) -> bool:
    """Return whether the gateway itself may have written the item."""
    return _OWN_ID_PATTERN.fullmatch(item_id) is not None


def find_responses(items: object) -> frozenset[str]:
    """Return the ids of the gateway's responses that ``items`` refers to."""
    matches = (
        _OWN_ID_PATTERN.fullmatch(_read_reference(item) or "") for item in (items if isinstance(items, list) else ())
    )
    return frozenset([f"resp_{match[1]}" for match in matches if match is not None])


def read_output(body: bytes) -> dict[str, Body]:
    """Return the output items of a response, by id."""
    return {item["id"]: item for item in exact_json.loads(body)["output"]}


def measure_references(items: Any, bodies_by_id: Mapping[str, Body]) -> int:
    """Return the total bytes of the items referenced in ``items``, counted once per reference."""
    reference_counts = Counter(item_id for item in items if (item_id := _read_reference(item)) in bodies_by_id)
    return sum(
        len(exact_json.dumps(bodies_by_id[item_id])) * times
        for item_id, times in reference_counts.items()
        if item_id is not None
    )


def replace_references(items: list[Any], bodies_by_id: Mapping[str, Body]) -> list[Any]:
    """Return ``items`` with references to own items replaced by those of ``bodies_by_id``; others stay.

    Raises ``NotFound`` if an own item is missing there.
    """
    new_items = []
    for index, item in enumerate(items):
        item_id = _read_reference(item)
        if item_id is None or _OWN_ID_PATTERN.fullmatch(item_id) is None:
            new_items.append(item)
        elif item_id in bodies_by_id:
            new_items.append(bodies_by_id[item_id])
        else:
            message = f"Item with id {item_id!r} not found: send the item itself, or keep its response with 'store'"
            raise NotFound(message, param=f"input[{index}]", should_retry=False)
    return new_items


def _read_reference(item: object) -> str | None:
    """Return the id in a reference (OpenAI's OpenAPI document, ``ItemReferenceParam``). None for any other item."""
    if not isinstance(item, dict) or item.get("type", "item_reference") != "item_reference" or "role" in item:
        return None
    item_id = item.get("id")
    return item_id if isinstance(item_id, str) else None
