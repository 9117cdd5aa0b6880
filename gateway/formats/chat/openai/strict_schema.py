"""OpenAI's rules for the schema of a strict tool: every object requires all of its properties and allows no others.

Source: developers.openai.com/api/docs/guides/structured-outputs, "Supported schemas".
"""

from collections.abc import Mapping
from typing import Any

_MAX_DEPTH = 100


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Return whether ``schema`` is allowed for a strict tool; False also if it is nested too deeply to be checked."""
    nodes: list[Any] = [schema]
    for _ in range(_MAX_DEPTH):
        if not all(_is_closed(node) for node in nodes if isinstance(node, dict)):
            return False
        nodes = [member for node in nodes for member in (node.values() if isinstance(node, dict) else node)
                 if isinstance(member, dict | list)]  # fmt: skip
        if not nodes:
            return True
    return False


def _is_closed(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return True
    properties, required_names = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required_names, list):
        return False
    return schema.get("additionalProperties") is False and properties.keys() <= {str(name) for name in required_names}
