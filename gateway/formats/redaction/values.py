"""Redaction of JSON value by value, also of JSON in its texts, such as the arguments of tools."""

import re
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.domain import exact_json
from gateway.formats.redaction.media import MIN_MEDIA_CHARS, replace_media
from gateway.formats.redaction.pieces import redact_pieces
from gateway.formats.redaction.redactor import Redactor
from gateway.formats.redaction.secret_shapes import PRIVATE_KEY
from gateway.frozen import frozen

LOGPROBS_NOTE = "[logprobs left out]"
"""Replaces the probabilities of tokens, which repeat the answer token by token, also as bytes."""
_LOGPROBS = frozenset({"logprobs", "logprobsResult"})
_JSON_START = re.compile(r"\s{0,64}[\[{\"]")
_MAX_DEPTH = 4
"""How many levels of JSON in texts of JSON are redacted value by value."""


def redact_values(root: list[Any], redactor: Redactor, *, keeps_media: bool) -> bool:
    """Redact the JSON value in the list ``root``: its texts, its numbers, its names. Return whether any changed.

    Raises ``TooMuchWorkError``.
    """
    return _ValueRedactor(redactor, keeps_media).redact(root)


def redact_nested(text: str, redactor: Redactor, *, keeps_media: bool) -> str:
    """Return ``text`` with its values redacted if it is JSON, else ``text`` itself. Raises ``TooMuchWorkError``."""
    return _ValueRedactor(redactor, keeps_media).redact_nested(text)


@frozen
class _ValueRedactor:
    """Redacts the values of JSON, in place. ``depth`` is the number of JSON texts that the JSON is nested in."""

    redactor: Redactor
    keeps_media: bool
    depth: int = 0

    def redact(self, root: list[Any]) -> bool:
        changed = False
        stack: list[Any] = [root]
        while stack:
            holder = stack.pop()
            changed = self._redact_lines(holder) or changed
            changed = self._redact_items(holder, stack) or changed
            changed = self._redact_names(holder) or changed
        return changed

    def redact_nested(self, text: str) -> str:
        if self.depth >= _MAX_DEPTH or _JSON_START.match(text) is None:
            return text
        self.redactor.work.add(len(text))
        try:
            root = [exact_json.loads(text.encode(errors="replace"))]
        except orjson.JSONDecodeError:
            return text
        changed = _ValueRedactor(self.redactor, self.keeps_media, self.depth + 1).redact(root)
        return exact_json.dumps(root[0]).decode() if changed else text

    def _redact_lines(self, holder: Any) -> bool:
        """Redact a private key that is a list of its lines; return whether any text changed."""
        if not isinstance(holder, list):
            return False
        places = [number for number, value in enumerate(holder) if isinstance(value, str)]
        if not any(PRIVATE_KEY in holder[number] for number in places):
            return False
        lines = [f"{holder[number]}\n" for number in places]
        redacted = redact_pieces(lines, self.redactor)
        for number, line in zip(places, redacted, strict=True):
            holder[number] = line.removesuffix("\n")
        return redacted != lines

    def _redact_items(self, holder: Any, stack: list[Any]) -> bool:
        changed = False
        items: Sequence[tuple[Any, Any]] = list(holder.items() if isinstance(holder, dict) else enumerate(holder))
        for key, value in items:
            if isinstance(value, dict | list) and not self._is_logprobs(key, value):
                stack.append(value)
                continue
            new_value = self._redact_value(_get_name(holder, key), value)
            if new_value is not value:
                holder[key] = new_value
                changed = True
        return changed

    def _redact_names(self, holder: Any) -> bool:
        if not isinstance(holder, dict):
            return False
        names = [self.redactor.redact(name) for name in holder]
        if names == list(holder):
            return False
        fields = dict(zip(names, holder.values(), strict=True))
        holder.clear()
        holder.update(fields)
        return True

    def _is_logprobs(self, key: Any, value: Any) -> bool:
        return key in _LOGPROBS and bool(value) and self.redactor.is_active

    def _redact_value(self, name: str, value: Any) -> Any:
        if isinstance(value, str):
            redacted = self._redact_text(name, value)
            return value if redacted == value else redacted
        if isinstance(value, dict | list):
            return LOGPROBS_NOTE
        if isinstance(value, int | exact_json.ExactNumber) and not isinstance(value, bool):
            digits = value.text if isinstance(value, exact_json.ExactNumber) else str(value)
            return self.redactor.redact_number(name, digits) or value
        return value

    def _redact_text(self, name: str, text: str) -> str:
        if not self.keeps_media and len(text) >= MIN_MEDIA_CHARS:
            text = replace_media(text)
        if not self.redactor.is_secret_field(name, text):
            text = self.redact_nested(text)
        return self.redactor.redact_field(name, text)


def _get_name(holder: Any, key: Any) -> str:
    """Return the name of a value: its field, or the text beside it, as in ``{"name": "API_KEY", "value": "…"}``.

    The name is empty for a value in a list.
    """
    if key == "value":
        for field in ("name", "key"):
            if isinstance(holder.get(field), str):
                return str(holder[field])
    return key if isinstance(key, str) else ""
