"""A provider's prompt cache: which part of a prompt a provider has read before."""

from collections.abc import Iterable

CHARS_PER_TOKEN = 4


class PrefixCache:
    """Remembers every prompt that begins as an earlier one does, up to the end of a message."""

    def __init__(self) -> None:
        self._prefixes: set[int] = set()

    def read(self, texts: Iterable[str]) -> tuple[int, int]:
        """Read a prompt, and return its tokens and the cached ones among them."""
        prefix = chars = cached_chars = 0
        for text in texts:
            prefix = hash((prefix, text))
            chars += len(text)
            if prefix in self._prefixes:
                cached_chars = chars
            self._prefixes.add(prefix)
        return chars // CHARS_PER_TOKEN, cached_chars // CHARS_PER_TOKEN
