"""Recognize content filter errors: each vendor reports differently that it blocked a prompt, an image or a video.

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

from gateway.domain.content_filter import is_block_code
from gateway.errors import ImageBlocked, ProviderError
from gateway.formats.errors.openai import Secrets, mask
from gateway.formats.errors.vendor import list_errors, parse_worded_error
from gateway.formats.wire.json_values import loads_or_none

_FILTER_PHRASES = (
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
    """Return whether a provider's error is a safety block, judged by the code or name, else by the message."""
    if is_block_code(code):
        return True
    lower_text = (message or "").lower()
    return any(phrase in lower_text for phrase in _FILTER_PHRASES)


def find_block(value: object, secrets: Secrets = ()) -> ImageBlocked | None:
    """Return the error for a block that a provider's parsed answer reports; None if the answer reports no block."""
    is_blocked, message = find_block_message(value)
    return build_block(message, secrets) if is_blocked else None


def find_block_message(value: object) -> tuple[bool, str | None]:
    """Return whether a parsed answer reports a block, and the provider's message or None."""
    blocks = ((True, message) for code, message in list_errors(value) if is_block(code, message))
    return next(blocks, (False, None))


def build_block(message: str | None, secrets: Secrets = ()) -> ImageBlocked:
    """Build the error for a block: the gateway's message and the harmless part of the provider's message."""
    return ImageBlocked(build_verdict(_BLOCKED_IMAGE_TEXT, message, secrets))


def build_verdict(gateway_text: str, message: str | None, secrets: Secrets = ()) -> str:
    """Return ``gateway_text`` with the part of the provider's message that does not identify the provider."""
    quoted_text = _drop_identifying_sentences(mask(message or "", secrets))
    return f"{gateway_text}: {quoted_text}" if quoted_text else gateway_text


def parse_image_error(
    status: int, raw: bytes, secrets: Secrets, *, provider_retry_after_s: float | None = None, path: str | None = None
) -> ProviderError:
    """Convert an unsuccessful answer (not 2xx) to an image request into an error.

    A reported block counts with any status outside ``NON_FILTER_STATUSES``. The gateway then tries no other channel and
    does not count a failure of the key.
    """
    value = loads_or_none(raw)
    block = None if status in NON_FILTER_STATUSES else find_block(value, secrets)
    return block or parse_worded_error(status, raw, secrets, provider_retry_after_s=provider_retry_after_s, path=path)


_BLOCKED_IMAGE_TEXT = "The provider's safety filter blocked the image or its prompt"
NON_FILTER_STATUSES = frozenset({401, 402, 429})
"""Statuses of a rejected key, missing credit and a rate limit."""
_SENTENCE_END_PATTERN = re.compile(r"(?<=[.!?。！])\s*")  # noqa: RUF001 - punctuation of Chinese providers
_IDENTIFYING_PATTERN = re.compile(
    r"\[(?:address|masked)\]|\breq(?:uest)?[-_ ]?id\b|\breq_|\b[a-z0-9-]+\.(?:com|cn|ai|io|net|org)\b", re.IGNORECASE
)
_MAX_QUOTED_CHARS = 300


def _drop_identifying_sentences(text: str) -> str:
    kept_sentences = [
        sentence
        for sentence in _SENTENCE_END_PATTERN.split(text[: 4 * _MAX_QUOTED_CHARS])
        if not _IDENTIFYING_PATTERN.search(sentence)
    ]
    return " ".join(kept_sentences).strip()[:_MAX_QUOTED_CHARS]
