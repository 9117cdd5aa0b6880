"""Search the documentation: sections that contain every word of a query, the best ones first."""

from collections.abc import Sequence

from gateway.frozen import frozen
from gateway.server.help.pages import HelpPage, HelpSection

MAX_QUERY_CHARS = 100
MAX_WORDS = 8
MAX_MATCHES = 30
_EXCERPT_CHARS = 180
_BEFORE_CHARS = 60
_MAX_COUNT = 5
_PAGE_TITLE_SCORE = 12
_TITLE_SCORE = 8


@frozen
class ExcerptPart:
    """A piece of an excerpt; ``is_match`` if the piece is a word of the query."""

    text: str
    is_match: bool


@frozen
class HelpMatch:
    """A section with all words of the query."""

    page: HelpPage
    section: HelpSection
    excerpt: tuple[ExcerptPart, ...]

    @property
    def url(self) -> str:
        return f"{self.page.url}#{self.section.slug}"


def find_sections(pages: Sequence[HelpPage], query: str) -> list[HelpMatch]:
    """Return at most ``MAX_MATCHES`` sections. A word also matches inside a longer word, in any case of letters.

    A query is cut at ``MAX_QUERY_CHARS`` and ``MAX_WORDS``.
    """
    words = list(dict.fromkeys(query[:MAX_QUERY_CHARS].lower().split()))[:MAX_WORDS]
    if not words:
        return []
    scored = [
        (score, page, section) for page in pages for section in page.sections if (score := _score(page, section, words))
    ]
    scored.sort(key=lambda entry: -entry[0])  # stable: the order of the menu within one score
    return [HelpMatch(page, section, cut_excerpt(section.text, words)) for _, page, section in scored[:MAX_MATCHES]]


def _score(page: HelpPage, section: HelpSection, words: Sequence[str]) -> int:
    page_title, title, text = page.title.lower(), section.title.lower(), section.text.lower()
    score = 0
    for word in words:
        word_score = (
            min(text.count(word), _MAX_COUNT)
            + (word in title) * _TITLE_SCORE
            + (word in page_title) * _PAGE_TITLE_SCORE
        )
        if not word_score:
            return 0
        score += word_score
    return score


def cut_excerpt(text: str, words: Sequence[str]) -> tuple[ExcerptPart, ...]:
    """Return the text around the first match of the lower-case ``words``, split at their matches.

    Without a match, return the beginning of ``text``.
    """
    lower_text = text.lower()
    if len(lower_text) != len(text):  # a few capital letters become two: positions would be wrong
        lower_text = text
    first = min((position for word in words if (position := lower_text.find(word)) >= 0), default=0)
    start = first - _BEFORE_CHARS
    start = lower_text.rfind(" ", 0, start) + 1 if start > 0 else 0
    end = start + _EXCERPT_CHARS
    if end < len(text) and (space := text.rfind(" ", first, end)) > 0:
        end = space
    parts = [ExcerptPart("… ", is_match=False)] if start else []
    while start < end:
        position, negative_length = min(
            ((position, -len(word)) for word in words if (position := lower_text.find(word, start, end)) >= 0),
            default=(end, 0),
        )
        if text[start:position]:
            parts.append(ExcerptPart(text[start:position], is_match=False))
        if negative_length:
            parts.append(ExcerptPart(text[position : position - negative_length], is_match=True))
        start = position - negative_length
    return (*parts, ExcerptPart(" …", is_match=False)) if end < len(text) else tuple(parts)
