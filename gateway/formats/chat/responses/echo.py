"""The settings of a request that its response repeats (OpenAI's OpenAPI document, ``ResponseProperties``)."""

from typing import Any

import orjson

from gateway.domain import exact_json
from gateway.errors import InvalidRequest
from gateway.formats.wire.fields import Body

_DEFAULT_SETTINGS: Body = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "store": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
_DEFAULT_TEXT: Body = {"format": {"type": "text"}}
_DEFAULT_REASONING: Body = {"effort": None, "summary": None}


def build_echo(body: Body, previous_id: str = "") -> bytes:
    """Return the settings as JSON. Raises ``InvalidRequest`` if the tools are nested too deeply.

    ``previous_id`` is the id of the previous response; "" if there is none.
    """
    request_settings = {name: body[name] for name in _DEFAULT_SETTINGS if body.get(name) is not None}
    settings: Body = {
        **_DEFAULT_SETTINGS,
        **request_settings,
        "previous_response_id": previous_id or None,
        "reasoning": _DEFAULT_REASONING | _without_nulls(body.get("reasoning")),
        "text": _DEFAULT_TEXT | _without_nulls(body.get("text")),
        "tools": [_build_tool(tool) for tool in body.get("tools") or ()],
    }
    try:
        return exact_json.dumps(settings)
    except orjson.JSONEncodeError:
        raise InvalidRequest("The tools are nested too deeply", param="tools") from None


def _without_nulls(fields: Any) -> Body:
    return {name: value for name, value in (fields or {}).items() if value is not None}


def _build_tool(tool: Body) -> Body:
    if tool.get("type") != "function":
        return tool
    return {"parameters": None, **tool, "strict": tool.get("strict") is True}
