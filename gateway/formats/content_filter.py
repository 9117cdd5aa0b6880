"""Safety blocks: how every vendor says that its filter took offence at a picture, or at what was asked for.

Where each says so:
    OpenAI      ``moderation_blocked`` and "safety system": openai/codex and LibreChat issue threads quote the answers
                (LibreChat 7291); ``content_policy_violation``: developers.openai.com, "Error codes".
    Azure       ``contentFilter``, ``content_filter``, ``content_policy_violation``, with an inner
                ``ResponsibleAIPolicyViolation``: learn.microsoft.com/azure/foundry/openai/how-to/dall-e, "API call
                rejection", and .../concepts/content-filter ("content management policy").
    xAI         "Content violates usage guidelines", "Failed check: SAFETY_CHECK_TYPE_…", with 400 or 403 (xAI's own
                command-line client says that such a 403 is no matter of keys).
    Zhipu, Z.ai code 1301: docs.bigmodel.cn/cn/api/api-code and docs.z.ai/api-reference/api-code.
    DashScope   ``DataInspectionFailed``, ``data_inspection_failed``, "inappropriate content":
                alibabacloud.com/help/en/model-studio/error-code.
    Volcengine  ``…SensitiveContentDetected``, ``…RiskDetection``, with a reason behind a dot:
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

from gateway.errors import ImageBlocked, ProviderError
from gateway.formats.openai.errors import Secrets, mask, parse_fault

_CODES = frozenset(
    {
        "moderationblocked",
        "contentpolicyviolation",
        "contentfilter",
        "responsibleaipolicyviolation",
        "1301",
        "1026",
        "1027",
        "datainspectionfailed",
        "e005",
        "contentfiltered",
        "contentmoderation",
        "requestmoderated",
        "contentmoderated",
        "safety",
        "imagesafety",
        "prohibitedcontent",
        "imageprohibitedcontent",
        "blocklist",
        "imagerecitation",
        "sensitivecontentdetected",
    },
)
"""Codes in small letters, without what stands between words."""
_DETECTED = re.compile(r"(?:in|out)put(?:text|image|video|audio)(?:sensitivecontentdetected|riskdetection)\Z")
_NO_WORD = re.compile(r"[^a-z0-9.]")
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
    """Whether a provider's error is a safety block: by its code, or what it was called, else by its words."""
    parts = _NO_WORD.sub("", (code or "").lower()).split(".")
    if any(part in _CODES or _DETECTED.match(part) for part in parts):
        return True
    said = (message or "").lower()
    return any(words in said for words in _WORDS)


def find_block(value: object, secrets: Secrets = ()) -> ImageBlocked | None:
    """A provider's parsed answer, of any status -> the block that it tells of; None where it tells of none."""
    blocked, message = find_blocked(value)
    return build_block(message, secrets) if blocked else None


def find_blocked(value: object) -> tuple[bool, str | None]:
    """Whether a parsed answer tells of a block, and in which words."""
    found = ((True, message) for code, message in _list_said(value) if is_block(code, message))
    return next(found, (False, None))


def build_block(message: str | None, secrets: Secrets = ()) -> ImageBlocked:
    """A block in the gateway's words, and behind them the provider's own that give nobody away."""
    return ImageBlocked(build_verdict(_BLOCKED, message, secrets))


def build_verdict(ours: str, message: str | None, secrets: Secrets = ()) -> str:
    """``ours``, and behind it of a provider's words what gives nobody away."""
    words = _keep_harmless(mask(message or "", secrets))
    return f"{ours}: {words}" if words else ours


def parse_image_fault(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None, path: str | None = None
) -> ProviderError:
    """A provider's answer outside 2xx to a request for pictures -> the fault it is.

    A block is one whatever its status (a key that is refused and a rate limit have statuses of their own): another
    channel is not asked, and no key is blamed. Everything else is what ``openai_error.parse_fault`` makes of it, in the
    provider's words also where they do not stand in an ``error``.
    """
    value = _parse_json(raw)
    block = None if status in NEVER_BLOCKS else find_block(value, secrets)
    return block or parse_worded_fault(status, raw, secrets, provider_retry_after_s=provider_retry_after_s, path=path)


def parse_worded_fault(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None, path: str | None = None
) -> ProviderError:
    """As ``openai_error.parse_fault``, in the provider's words also where they do not stand in an ``error``."""
    return parse_fault(
        status, _wrap(_parse_json(raw)) or raw, secrets, provider_retry_after_s=provider_retry_after_s, path=path
    )


def _parse_json(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def parse_words(value: object, secrets: Secrets = ()) -> str | None:
    """What a provider's parsed answer says went wrong, masked; None where it says nothing."""
    return next((mask(message, secrets) for _, message in _list_said(value) if message), None)


_BLOCKED = "The provider's safety filter blocked the picture, or what was asked for"
NEVER_BLOCKS = frozenset({401, 402, 429})
"""A key that is refused, and a rate limit."""
_SENTENCE_END = re.compile(r"(?<=[.!?。！])\s*")  # noqa: RUF001 - as Chinese providers write
_TELLTALE = re.compile(
    r"\[(?:address|masked)\]|\breq(?:uest)?[-_ ]?id\b|\breq_|\b[a-z0-9-]+\.(?:com|cn|ai|io|net|org)\b", re.IGNORECASE
)
_MOST_WORDS = 300


def _keep_harmless(words: str) -> str:
    """The sentences that name no address and no request of the provider's."""
    kept = [sentence for sentence in _SENTENCE_END.split(words[: 4 * _MOST_WORDS]) if not _TELLTALE.search(sentence)]
    return " ".join(kept).strip()[:_MOST_WORDS]


def _wrap(value: object) -> bytes | None:
    """An error that stands in no ``error`` object, in one; None where there is one, or none."""
    if not isinstance(value, dict) or isinstance(value.get("error"), dict):
        return None
    said = [(code, message) for code, message in _list_said(value) if message]
    if not said:
        return None
    code, message = said[0]
    return orjson.dumps({"error": {"message": message, "code": code}})


def _list_said(value: object) -> Iterator[tuple[str | None, str | None]]:
    """Codes and messages, wherever a vendor puts them; in the order in which they are believed.

    ``{"error": {...}}`` and ``{"error": "text"}``, with what the vendors put into the first of them; DashScope's,
    SiliconFlow's and xAI's ``{"code", "message" or "error"}``; Replicate's and BFL's ``{"detail"}``; Stability's
    ``{"name", "errors"}``; MiniMax's ``{"base_resp": {"status_code", "status_msg"}}``; xAI's ``{"block_reason"}``;
    Volcengine's ``{"data": [{"error": {...}}]}``.
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
    for item in _objects(value.get("detail")):
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
    """A code, which may be a number, or a text; None for everything else, and where it is empty."""
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) and value else None
