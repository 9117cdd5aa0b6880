"""The codes of providers for a request that a content filter blocked (sources: ``formats.errors.content_filter``)."""

import re

_BLOCK_CODES = frozenset(
    {
        "sensitivewordsdetected",
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
    }
)
"""Codes in lower case, without separators."""
_DETECTION_PATTERN = re.compile(r"(?:in|out)put(?:text|image|video|audio)(?:sensitivecontentdetected|riskdetection)\Z")
_NON_WORD_PATTERN = re.compile(r"[^a-z0-9.]")


def is_block_code(code: str | None) -> bool:
    """Return whether an error's code or name says that a content filter blocked the request."""
    words = _NON_WORD_PATTERN.sub("", (code or "").lower()).split(".")
    return any(word in _BLOCK_CODES or _DETECTION_PATTERN.match(word) for word in words)
