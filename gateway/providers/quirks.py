"""What the dialects of the convention differ in, as quirks that several vendors share.

A field that only tunes an answer (a temperature, a penalty) is dropped where the vendor refuses it. One that the caller
would miss in the answer (several choices, log probabilities, a stop sequence) is dropped only where it asks for
nothing: else the vendor says for itself that it cannot.
"""

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from gateway.providers.base import Body, Quirk


def drop(*fields: str) -> Quirk:
    """Without ``fields``."""

    def quirk(body: Body, _model: str) -> None:
        for field in fields:
            body.pop(field, None)

    return quirk


def drop_idle(*fields: str) -> Quirk:
    """Without those of ``fields`` that are null, false, zero or empty."""

    def quirk(body: Body, _model: str) -> None:
        for field in fields:
            if not body.get(field, True):
                del body[field]

    return quirk


def rename(field: str, name: str) -> Quirk:
    """``field`` under ``name``, unless that is said already. A null says nothing."""

    def quirk(body: Body, _model: str) -> None:
        value = body.pop(field, None)
        if value is not None and body.get(name) is None:
            body[name] = value

    return quirk


def replace(field: str, name: str) -> Quirk:
    """``field`` under ``name``, whatever that says: the former is what was checked and is paid for."""

    def quirk(body: Body, _model: str) -> None:
        value = body.pop(field, None)
        if value is not None:
            body[name] = value

    return quirk


def hash_user(most: int, *fields: str, least: int = 0) -> Quirk:
    """Each of ``fields``, names of an end user, as its SHA-256 if it has not from ``least`` to ``most`` characters.

    A vendor refuses a name that is too long, and some callers have long ones (Claude Code's has 150 characters). The
    hash is 64 characters of hexadecimal: the same name is always the same, and nobody can read it back.
    """

    def quirk(body: Body, _model: str) -> None:
        for field in fields:
            name = body.get(field)
            if isinstance(name, str) and not least <= len(name) <= most:
                body[field] = sha256(name.encode(errors="surrogatepass")).hexdigest()

    return quirk


def ask_for_times(fields: Body, _model: str) -> None:
    """An answer with times where subtitles are asked for, which the gateway writes from those."""
    if fields.get("response_format") in ("srt", "vtt"):
        fields["response_format"] = "verbose_json"


def drop_in_messages(*fields: str, roles: tuple[str, ...] = ()) -> Quirk:
    """Messages without ``fields``; only those of ``roles``, where some are given."""

    def change(message: dict[str, Any]) -> dict[str, Any]:
        if (roles and message.get("role") not in roles) or message.keys().isdisjoint(fields):
            return message
        return {name: value for name, value in message.items() if name not in fields}

    return _change_messages(change)


def drop_in_calls(*fields: str) -> Quirk:
    """Tool calls in messages without ``fields``."""

    def change_call(call: Any) -> Any:
        return {name: value for name, value in call.items() if name not in fields} if isinstance(call, dict) else call

    def change(message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            return message
        changed = [change_call(call) for call in calls]
        return message if changed == calls else message | {"tool_calls": changed}

    return _change_messages(change)


def fit_call_ids(pattern: str, length: int) -> Quirk:
    """Ids of tool calls that are no ``pattern`` as so many digits of their fingerprint: the same for the same.

    A conversation may have ids that another provider gave.
    """
    fits = re.compile(pattern, re.DOTALL)

    def fit(holder: dict[str, Any], field: str) -> dict[str, Any]:
        said = holder.get(field)
        if not isinstance(said, str) or fits.fullmatch(said):
            return holder
        return holder | {field: sha256(said.encode(errors="surrogatepass")).hexdigest()[:length]}

    def change(message: dict[str, Any]) -> dict[str, Any]:
        changed = fit(message, "tool_call_id")
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            return changed
        fitted = [fit(call, "id") if isinstance(call, dict) else call for call in calls]
        same = all(after is before for after, before in zip(fitted, calls, strict=True))
        return changed if same else changed | {"tool_calls": fitted}

    return _change_messages(change)


def _say_system(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"role": "system"} if message.get("role") == "developer" else message


def _change_messages(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Quirk:
    """New messages in a new list: those of the call are shared with its other attempts."""

    def quirk(body: Body, _model: str) -> None:
        messages = body.get("messages")
        if not isinstance(messages, list):
            return
        changed = [change(message) if isinstance(message, dict) else message for message in messages]
        if any(after is not before for after, before in zip(changed, messages, strict=True)):
            body["messages"] = changed

    return quirk


developer_as_system = _change_messages(_say_system)
"""The convention's ``developer`` is the older ``system`` under another name; many vendors know only that."""

limit_as_max_tokens = rename("max_completion_tokens", "max_tokens")
"""For vendors that only know the older name of the limit: unknown to them, the newer one would limit nothing."""

limit_as_max_completion_tokens = rename("max_tokens", "max_completion_tokens")

_LONGEST_ID = 40

KEEP_TO_THE_CONVENTION: tuple[Quirk, ...] = (
    drop_in_messages("reasoning_content", "reasoning", "reasoning_details", "images", roles=("assistant",)),
    drop_in_calls("extra_content", "cache_control", "index"),
    fit_call_ids(f".{{0,{_LONGEST_ID}}}", _LONGEST_ID),
)
"""For vendors that refuse what others, and this gateway, put into an assistant's message: a conversation may have
passed through any of them. (openai/openai-python issues: ``unknown_parameter`` for ``tool_calls[0].index``;
agno-agi/agno, issue 5382: ``string_above_max_length`` for an id of more than 40 characters.)"""
