"""Bring the console's message catalogues up to date: ``make messages``.

    python scripts/extract_messages.py

Finds the messages in the console's templates, its Python and its scripts, and the descriptions of settings. Adds the
new ones to each catalogue, without a translation, and removes those that are gone.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_file
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent
CONSOLE = ROOT / "gateway" / "server" / "console"
CATALOGUES = sorted((CONSOLE / "locale").glob("*/LC_MESSAGES/console.po"))
REFERENCE = frozenset({"docs.html", "help.html", "help_page.html", "help_results.html"})
"""The API reference and the documentation: they are in English, as what they show."""
_PLURAL = (1, 2)
_SOURCES: tuple[tuple[Path, str, str, Mapping[str, Any], Mapping[str, Any]], ...] = (
    (CONSOLE, "*.py", "python", {"gettext": None, "ngettext": _PLURAL, "mark": None}, {}),
    (CONSOLE / "templates", "*.html", "jinja2", {"_": None, "gettext": None, "ngettext": _PLURAL},
     {"trimmed": "true", "silent": "false"}),
    (CONSOLE / "static", "*.js", "javascript", {"t": None, "n": _PLURAL}, {"parse_template_string": "true"}),
    (ROOT / "gateway" / "config", "*.py", "python", {"about": None}, {}),
)  # fmt: skip
"""Folder, files, Babel's extractor, the functions that take messages, and the extractor's options."""


def list_messages() -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """Yield the file and the message of every place; singular and plural for one with a plural."""
    for folder, glob, method, keywords, options in _SOURCES:
        for path in sorted(folder.glob(glob)):
            if path.name in REFERENCE:
                continue
            for _, message, _, _ in extract_from_file(method, path, keywords=keywords, options=dict(options)):
                if message:
                    yield str(path.relative_to(ROOT)), message


def build_template() -> Catalog:
    """Return all messages without translations."""
    template = Catalog(charset="utf-8")
    for place, message in list_messages():
        flags = () if "/static/" in place or "%(" not in str(message) else ("python-format",)
        template.add(message, locations=[(place, 0)], flags=flags)
    return template


def update(path: Path) -> tuple[int, int]:
    """Update a catalogue; return how many messages it has, and how many of them have no translation."""
    with path.open("rb") as file:
        catalogue = read_po(file)
    catalogue.update(build_template(), no_fuzzy_matching=True, update_creation_date=False)
    catalogue.obsolete.clear()
    with path.open("wb") as file:
        write_po(file, catalogue, width=0, sort_by_file=True, include_lineno=False, ignore_obsolete=True)
    strings = [message.string for message in catalogue if message.id]
    return len(strings), sum(not string or not all(string) for string in strings)


def main() -> int:
    """Update every catalogue."""
    for path in CATALOGUES:
        total, missing = update(path)
        print(f"{path.relative_to(ROOT)}: {total} messages, {missing} without a translation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
