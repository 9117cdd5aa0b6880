"""Quirks shared by several vendors: adaptations to their deviations from the OpenAI API format.

A field that only tunes an answer (a temperature, a penalty) is dropped if the vendor rejects it. A field whose effect
the client would miss (several choices, log probabilities, a stop sequence) is dropped only if its value requests
nothing. Otherwise the field is sent, and the vendor's own error informs the client.
"""

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from gateway.formats.chat.anthropic.billing_line import drop_billing_line
from gateway.providers.base import Body, Quirk


def leave_out_billing_line(body: Body, _model: str) -> None:
    """Remove Claude Code's billing line from the prompt, because only Anthropic does so itself."""
    drop_billing_line(body)


def drop(*fields: str) -> Quirk:
    """Return a quirk that drops ``fields``."""

    def quirk(body: Body, _model: str) -> None:
        for field in fields:
            body.pop(field, None)

    return quirk


def drop_empty(*fields: str) -> Quirk:
    """Return a quirk that drops each of ``fields`` whose value is null, false, zero or empty."""

    def quirk(body: Body, _model: str) -> None:
        for field in fields:
            if not body.get(field, True):
                del body[field]

    return quirk


def rename(field: str, name: str) -> Quirk:
    """Return a quirk that renames ``field`` to ``name``, or drops it if ``name`` is set. Null counts as not set."""

    def quirk(body: Body, _model: str) -> None:
        value = body.pop(field, None)
        if value is not None and body.get(name) is None:
            body[name] = value

    return quirk


def replace(field: str, name: str) -> Quirk:
    """Return a quirk that renames ``field`` to ``name`` even if that is set: only ``field`` was checked and charged."""

    def quirk(body: Body, _model: str) -> None:
        value = body.pop(field, None)
        if value is not None:
            body[name] = value

    return quirk


def hash_user(maximum: int, *fields: str, minimum: int = 0) -> Quirk:
    """Return a quirk that hashes (SHA-256) the users' names in ``fields`` whose length the vendor does not accept.

    A name may have ``minimum`` to ``maximum`` characters. Vendors reject longer ones, but some clients send them
    (Claude Code's have 150 characters).
    """

    def quirk(body: Body, _model: str) -> None:
        for field in fields:
            name = body.get(field)
            if isinstance(name, str) and not minimum <= len(name) <= maximum:
                body[field] = sha256(name.encode(errors="surrogatepass")).hexdigest()

    return quirk


def request_timestamps(fields: Body, _model: str) -> None:
    """Request ``verbose_json`` if the client wants subtitles: the gateway writes them from the times in that answer."""
    if fields.get("response_format") in ("srt", "vtt"):
        fields["response_format"] = "verbose_json"


def drop_from_messages(*fields: str, roles: tuple[str, ...] = ()) -> Quirk:
    """Return a quirk that drops ``fields`` from all messages, or from those with one of ``roles`` if any are given."""

    def change(message: dict[str, Any]) -> dict[str, Any]:
        if (roles and message.get("role") not in roles) or message.keys().isdisjoint(fields):
            return message
        return {name: value for name, value in message.items() if name not in fields}

    return _make_message_quirk(change)


def drop_from_calls(*fields: str) -> Quirk:
    """Return a quirk that drops ``fields`` from tool calls in messages."""

    def change_call(call: Any) -> Any:
        return {name: value for name, value in call.items() if name not in fields} if isinstance(call, dict) else call

    def change(message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            return message
        new_calls = [change_call(call) for call in calls]
        return message if new_calls == calls else message | {"tool_calls": new_calls}

    return _make_message_quirk(change)


def drop_duplicate_tools(body: Body, _model: str) -> str | None:
    """Keep only the first tool with each name, in ``tools`` of the formats of OpenAI and Anthropic.

    DeepSeek rejects duplicates (liliMozi/openhanako, issue 789; decolua/9router, pull request 3333). Tools without a
    name are kept: they are the provider's built-in tools. Returns the name of the changed field, or None.
    """
    tools = body.get("tools")
    if not isinstance(tools, list):
        return None
    tools_by_key: dict[Any, Any] = {}
    for number, tool in enumerate(tools):
        tools_by_key.setdefault(_find_tool_name(tool) or number, tool)
    if len(tools_by_key) == len(tools):
        return None
    body["tools"] = list(tools_by_key.values())
    return "tools"


def _find_tool_name(tool: Any) -> str | None:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def fit_call_ids(pattern: str, length: int) -> Quirk:
    """Return a quirk that replaces the ids of tool calls that do not match ``pattern``.

    The new id has ``length`` hexadecimal digits of the old id's SHA-256.
    """
    id_pattern = re.compile(pattern, re.DOTALL)

    def fit_id(holder: dict[str, Any], field: str) -> dict[str, Any]:
        call_id = holder.get(field)
        if not isinstance(call_id, str) or id_pattern.fullmatch(call_id):
            return holder
        return holder | {field: sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:length]}

    def change(message: dict[str, Any]) -> dict[str, Any]:
        new_message = fit_id(message, "tool_call_id")
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            return new_message
        new_calls = [fit_id(call, "id") if isinstance(call, dict) else call for call in calls]
        is_unchanged = all(new_call is original for new_call, original in zip(new_calls, calls, strict=True))
        return new_message if is_unchanged else new_message | {"tool_calls": new_calls}

    return _make_message_quirk(change)


def _rename_developer(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"role": "system"} if message.get("role") == "developer" else message


def _make_message_quirk(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Quirk:
    """Return a quirk that replaces each message by ``change(message)``; ``change`` must not modify its argument."""

    def quirk(body: Body, _model: str) -> None:
        messages = body.get("messages")
        if not isinstance(messages, list):
            return
        new_messages = [change(message) if isinstance(message, dict) else message for message in messages]
        if any(new_message is not original for new_message, original in zip(new_messages, messages, strict=True)):
            body["messages"] = new_messages

    return quirk


developer_as_system = _make_message_quirk(_rename_developer)
"""Renames the role ``developer`` to ``system``, its older name: many vendors accept only that."""

limit_as_max_tokens = rename("max_completion_tokens", "max_tokens")
"""For vendors that accept only the older name of the output limit and ignore the newer one."""

limit_as_max_completion_tokens = rename("max_tokens", "max_completion_tokens")

_MAX_ID_CHARS = 40

LITELLM_FIELDS = ("provider_specific_fields", "thinking_blocks", "reasoning_items")
"""Fields that LiteLLM, as a client library, adds to messages, which applications send back. It adds the first field to
tool calls too (``litellm/types/utils.py``, ``Message``; BerriAI/litellm, issue 25595: Groq rejects it).
"""
EXTENSIONS = ("reasoning_content", "reasoning", "reasoning_details", "images", *LITELLM_FIELDS)

DROP_UNKNOWN_FIELDS: tuple[Quirk, ...] = (
    drop_from_messages("reasoning_details", "images", "annotations", *LITELLM_FIELDS, roles=("assistant",)),
    drop_from_calls("extra_content", "cache_control", "index", LITELLM_FIELDS[0]),
)
"""For vendors that reject unknown fields but accept their own models' reasoning in the history."""

DROP_EXTENSIONS: tuple[Quirk, ...] = (
    drop_from_messages(*EXTENSIONS, roles=("assistant",)),
    DROP_UNKNOWN_FIELDS[1],
    fit_call_ids(f".{{0,{_MAX_ID_CHARS}}}", _MAX_ID_CHARS),
)
"""For vendors that reject the extensions that other providers and this gateway add to assistant messages: a chat's
history may contain answers of any of them. (openai/openai-python issues: ``unknown_parameter`` for
``tool_calls[0].index``; agno-agi/agno, issue 5382: ``string_above_max_length`` for an id of more than 40 characters.)
"""
