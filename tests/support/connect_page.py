"""The snippets of the console's page Connect, as somebody copies them."""

import html
import re

_SNIPPET = re.compile(r'<code id="s-(\S+)">(.*?)</code>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def read_snippets(page: str, key: str = "YOUR_KEY") -> dict[str, str]:
    """Return the text of each snippet and field by its name, with ``key`` in its place."""
    return {name: html.unescape(_TAG.sub("", code)).replace("YOUR_KEY", key) for name, code in _SNIPPET.findall(page)}
