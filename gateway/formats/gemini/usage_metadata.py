"""The usage of Gemini's answers (ai.google.dev/api/generate-content, ``UsageMetadata``)."""

from gateway.domain.usage import Usage, parse_count
from gateway.formats.chat import UsageReport


def parse_usage_metadata(raw: object) -> UsageReport | None:
    """Return the totals so far; None if they are not believable. Gemini leaves a count of zero out of the JSON."""
    if not isinstance(raw, dict) or raw.get("promptTokenCount") is None:
        return None
    names = ("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    counts = [parse_count(0 if raw.get(name) is None else raw[name]) for name in names]
    if None in counts:
        return None
    asked, found, answered, thought = (count or 0 for count in counts)
    cached = parse_count(raw.get("cachedContentTokenCount")) or 0
    prompt = asked + found
    usage = Usage(prompt, answered + thought, min(cached, prompt), "upstream", reasoning_tokens=thought)
    return UsageReport(usage, thought)


def has_completion(raw: object) -> bool:
    """Return whether the completion is counted. The first chunks may count only the prompt."""
    return isinstance(raw, dict) and (
        raw.get("candidatesTokenCount") is not None or raw.get("thoughtsTokenCount") is not None
    )
