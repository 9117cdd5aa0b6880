"""Normalizes model names that are written in several ways.

OpenRouter puts the maker before a name and writes versions with dots (openrouter.ai/docs, "Models"); Amazon Bedrock and
Google Vertex AI have prefixes and suffixes of their own (docs.claude.com/en/docs/about-claude/models/overview lists all
spellings of one model); vendors append the date of a release.
"""

import re

_MAKER_PATTERN = re.compile(
    r"(?:(?:us|eu|apac|jp|au|ca|in|us-gov|global)\.)?(?:anthropic|amazon|cohere|deepseek|google|meta|minimax|mistral"
    r"|moonshotai|nvidia|openai|qwen|writer|zai)\."  # Bedrock
    r"|(?:publishers/[^/*]+/)?models/"  # Google
    r"|(?:anthropic|openai|google|x-?ai|mistral(?:ai)?|deepseek(?:-ai)?|moonshot(?:ai)?|z-?ai(?:-org)?|zhipu(?:ai)?"
    r"|cohere|minimax(?:ai)?|qwen|alibaba|meta-llama|amazon)/"
)
_BEDROCK_VERSION_PATTERN = re.compile(r"-v\d+:\d+$")
_POINT_PATTERN = re.compile(r"(?<=\d)\.(?=\d)|@(?=\d)")
_CLAUDE_PATTERN = re.compile(r"^claude-(\d+(?:-\d+)?)-([a-z]+)")
_DATE_PATTERN = re.compile(r"-(20\d\d)-(\d\d)-(\d\d)$")
_RELEASE_PATTERN = re.compile(r"(?<=.)-(20\d{6})$")
_UNDATED_RELEASE = "3"


def normalize_name(name: str) -> str:
    """Normalize a name or glob: ``anthropic/claude-3.5-sonnet`` becomes ``claude-sonnet-3-5``."""
    name = name.lower()
    # A pattern is applied only where it can match: the first name without a price of its own has all spellings of the
    # price list compared.
    if "." in name or "/" in name:
        while maker := _MAKER_PATTERN.match(name):
            name = name[maker.end() :]
    if ":" in name:
        name = _BEDROCK_VERSION_PATTERN.sub("", name)
    if "." in name or "@" in name:
        name = _POINT_PATTERN.sub("-", name)
    if "-20" in name:
        name = _DATE_PATTERN.sub(r"-\1\2\3", name)
    return _CLAUDE_PATTERN.sub(r"claude-\2-\1", name) if name.startswith("claude-") else name


def split_release(normalized: str) -> tuple[str, str]:
    """Return a normalized name without its date, and a sort key for releases; names without a date come last."""
    match = _RELEASE_PATTERN.search(normalized)
    return (normalized, _UNDATED_RELEASE) if match is None else (normalized[: match.start()], match[1])


def is_glob(name: str) -> bool:
    """Return whether a name is a glob."""
    return any(character in name for character in "*?[")
