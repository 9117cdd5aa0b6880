"""Content filter: how each vendor reports that its filter blocked an image or a prompt.

Sources:
    OpenAI      ``moderation_blocked`` and "safety system": openai/codex and LibreChat issue threads quote the answers
        (LibreChat 7291); ``content_policy_violation``: developers.openai.com, "Error codes".
    Azure       ``contentFilter``, ``content_filter``, ``content_policy_violation``, with an inner
        ``ResponsibleAIPolicyViolation``: learn.microsoft.com/azure/foundry/openai/how-to/dall-e, "API call rejection",
        and .../concepts/content-filter ("content management policy").
    xAI         "Content violates usage guidelines", "Failed check: SAFETY_CHECK_TYPE_…", with 400 or 403 (xAI's
        command-line client treats such a 403 as unrelated to the key).
    Zhipu, Z.ai code 1301: docs.bigmodel.cn/cn/api/api-code and docs.z.ai/api-reference/api-code.
    DashScope   ``DataInspectionFailed``, ``data_inspection_failed``, "inappropriate content":
        alibabacloud.com/help/en/model-studio/error-code.
    Volcengine  ``…SensitiveContentDetected``, ``…RiskDetection``, with a reason after a dot:
        volcengine.com/docs/82379/1299023.
    MiniMax     codes 1026 and 1027: platform.minimax.io/docs/api-reference/errorcode.
    Replicate   "flagged as sensitive … (E005)", "NSFW content detected": the ``error`` of failed predictions.
    Stability   ``CONTENT_FILTERED``, ``content_moderation``: platform.stability.ai/docs/api-reference.
    BFL         "Request Moderated", "Content Moderated": docs.bfl.ai/api_integration/errors.
    OpenRouter  403 with ``metadata.flagged_input``: openrouter.ai/docs/api/reference/errors-and-debugging.
    Gemini      block and finish reasons: docs.cloud.google.com, "gemini-image-responsible-ai"; ai.google.dev/api.
"""

import re
from collections.abc import Iterator
from typing import Any

import orjson

from gateway.domain.content_filter import is_block_code
from gateway.errors import ImageBlocked, ProviderError
from gateway.formats.openai.errors import Secrets, describe_status, mask, parse_fault, write_reason

_WORDS = (
    "safety system",
    "content management policy",
    "violates usage guidelines",
    "safety_check_type",
    "may contain inappropriate content",
    "flagged as sensitive",
    "(e005)",
    "nsfw content",
    "flagged by our content moderation",
    "requires moderation and your input was flagged",
    "不安全或敏感内容",
)


def is_block(code: str | None, message: str | None) -> bool:
    """Return whether a provider's error is a safety block, by its code or name, else by its message."""
    if is_block_code(code):
        return True
    lowered = (message or "").lower()
    return any(words in lowered for words in _WORDS)


def find_block(value: object, secrets: Secrets = ()) -> ImageBlocked | None:
    """Return the block that a provider's parsed answer, of any status, reports; None if it reports none."""
    blocked, message = find_blocked(value)
    return build_block(message, secrets) if blocked else None


def find_blocked(value: object) -> tuple[bool, str | None]:
    """Return whether a parsed answer reports a block, and its message."""
    found = ((True, message) for code, message in _list_errors(value) if is_block(code, message))
    return next(found, (False, None))


def build_block(message: str | None, secrets: Secrets = ()) -> ImageBlocked:
    """Build the error for a block: the gateway's message with the harmless part of the provider's."""
    return ImageBlocked(build_verdict(_BLOCKED, message, secrets))


def build_verdict(ours: str, message: str | None, secrets: Secrets = ()) -> str:
    """Return ``ours`` with the part of a provider's message that reveals nothing about it."""
    words = _keep_harmless(mask(message or "", secrets))
    return f"{ours}: {words}" if words else ours


def parse_image_fault(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None, path: str | None = None
) -> ProviderError:
    """Convert an unsuccessful answer (not 2xx) to an image request into an error.

    A block is one with any status except those of a rejected key or a rate limit: no other channel is tried, and the
    key is not at fault. Everything else goes through ``parse_worded_fault``.
    """
    value = _parse_json(raw)
    block = None if status in NEVER_BLOCKS else find_block(value, secrets)
    return block or parse_worded_fault(status, raw, secrets, provider_retry_after_s=provider_retry_after_s, path=path)


def parse_worded_fault(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None, path: str | None = None
) -> ProviderError:
    """Like ``openai.errors.parse_fault``, but finds the provider's message also outside an ``error`` object."""
    return parse_fault(
        status,
        _wrap(_parse_json(raw), status) or raw,
        secrets,
        provider_retry_after_s=provider_retry_after_s,
        path=path,
    )


def _parse_json(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def parse_words(value: object, secrets: Secrets = ()) -> str | None:
    """Return the masked error message of a provider's parsed answer; None if there is none."""
    return next((mask(message, secrets) for _, message in _list_errors(value) if message), None)


def parse_reason(value: object, secrets: Secrets = ()) -> str:
    """Return the masked error message of a provider's parsed answer, with its code, as far as it gives them."""
    found = [(code, message) for code, message in _list_errors(value) if code or message]
    code, message = next((pair for pair in found if pair[1]), found[0] if found else (None, None))
    return write_reason(message, code, secrets)


_BLOCKED = "The provider's safety filter blocked the image or its prompt"
NEVER_BLOCKS = frozenset({401, 402, 429})
"""A rejected key, missing credit, a rate limit."""
_SENTENCE_END = re.compile(r"(?<=[.!?。！])\s*")  # noqa: RUF001 - as Chinese providers write
_TELLTALE = re.compile(
    r"\[(?:address|masked)\]|\breq(?:uest)?[-_ ]?id\b|\breq_|\b[a-z0-9-]+\.(?:com|cn|ai|io|net|org)\b", re.IGNORECASE
)
_MOST_WORDS = 300


def _keep_harmless(words: str) -> str:
    """Keep the sentences that name no address and no request id of the provider."""
    kept = [sentence for sentence in _SENTENCE_END.split(words[: 4 * _MOST_WORDS]) if not _TELLTALE.search(sentence)]
    return " ".join(kept).strip()[:_MOST_WORDS]


def _wrap(value: object, status: int) -> bytes | None:
    """Wrap an error outside an ``error`` object in one; None if there is such an object, or no error.

    A message that is only the phrase of the status is none: the path says more.
    """
    if not isinstance(value, dict) or isinstance(value.get("error"), dict):
        return None
    found = next(((code, message) for code, message in _list_errors(value) if message), None)
    if found is None:
        return None
    code, message = found
    if message in describe_status(status):
        return None
    return orjson.dumps({"error": {"message": message, "code": code}})


def _list_errors(value: object) -> Iterator[tuple[str | None, str | None]]:
    """List codes and messages wherever vendors put them, the most trusted first.

    ``{"error": {...}}`` and ``{"error": "text"}``, with vendors' additions to the first; DashScope's, SiliconFlow's and
    xAI's ``{"code", "message" or "error"}``; Replicate's and BFL's ``{"detail"}``; Stability's ``{"name", "errors"}``;
    MiniMax's ``{"base_resp": {"status_code", "status_msg"}}``; xAI's ``{"block_reason"}``; Volcengine's ``{"data":
    [{"error": {...}}]}``; ElevenLabs' ``{"detail": {"status", "message"}}``; Deepgram's ``{"err_code", "err_msg"}``;
    fal's ``{"detail": [{"type", "msg"}]}``, and that list alone.
    """
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return
    yield from _list_of_error(value.get("error"))
    yield _text(value.get("code")) or _text(value.get("name")), _find_message(value)
    base: Any = value.get("base_resp")
    if isinstance(base, dict):
        yield _text(base.get("status_code")), _text(base.get("status_msg"))
    if _text(value.get("block_reason")):
        yield "content_filter", _text(value.get("block_reason"))
    detail = value.get("detail")
    if isinstance(detail, dict):
        yield _text(detail.get("status")), _text(detail.get("message"))
    yield _text(value.get("err_code")), _text(value.get("err_msg"))
    for item in (*_objects(detail), *([value] if _text(value.get("msg")) else ())):
        yield _text(item.get("type")), _text(item.get("msg"))
    for item in _objects(value.get("data")):
        yield from _list_of_error(item.get("error"))


def _list_of_error(error: object) -> Iterator[tuple[str | None, str | None]]:
    if not isinstance(error, dict):
        return
    message = _text(error.get("message"))
    for name in ("code", "type", "status"):
        if _text(error.get(name)):
            yield _text(error.get(name)), message
    if message:
        yield None, message
    for name in ("inner_error", "innererror"):
        inner = error.get(name)
        if isinstance(inner, dict):
            yield _text(inner.get("code")), message
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and _text(metadata.get("flagged_input")):
        yield "content_filter", message


def _find_message(value: dict[str, Any]) -> str | None:
    errors = value.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else None
    places = (value.get("message"), value.get("error"), value.get("detail"), first)
    return next((place for place in places if isinstance(place, str) and place), None)


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    """Return a text, or a number as text; None for anything else and if it is empty."""
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) and value else None
