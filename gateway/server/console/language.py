"""The language of a console page: how a request chooses it, and the messages of its catalogue.

English is in the code and the templates. Other languages are in ``locale``; the first page in one of them reads its
catalogue. What the admin API answers, error messages included, stays in English.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import orjson
from aiohttp import web

from gateway.frozen import frozen

ENGLISH, CHINESE = "en", "zh-Hans"
LANGUAGES: Mapping[str, str] = {ENGLISH: "English", CHINESE: "简体中文"}
"""The ``lang`` attribute of each language, and its own name for itself."""
COOKIE = "console_language"
"""The member's choice, which a script of the page sets. It takes precedence over the browser's ``Accept-Language``."""
_CATALOGUES: Mapping[str, str] = {CHINESE: "zh_Hans"}
_CHINESE_TAGS = frozenset({"zh", "zh-cn", "zh-sg", "zh-hans"})
_LOCALE = "locale/{}/LC_MESSAGES/console.po"
_LONGEST_HEADER = 1_000
_FIELD = re.compile(r'(msgid|msgid_plural|msgstr|msgstr\[0\]) (".*")')
_RANGE = re.compile(r"\s*([A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*)\s*(?:;\s*q=([01](?:\.\d{0,3})?)\s*)?")
LANGUAGE: web.RequestKey[str] = web.RequestKey("language", str)
"""The language of a console page, as its ``lang`` attribute has it."""


@frozen
class Catalogue:
    """The messages of a language; one with a plural is found by its singular.

    Attributes:
        messages: English -> translation.
        of_scripts: those that the console's scripts show.
    """

    messages: Mapping[str, str]
    of_scripts: Mapping[str, str]


def find_language(request: web.Request) -> str:
    """Return the member's choice, else the first language of ``Accept-Language`` that there is, else English."""
    chosen = request.cookies.get(COOKIE, "")
    if chosen in LANGUAGES:
        return chosen
    wanted = _list_wanted(request.headers.get("Accept-Language", "")[:_LONGEST_HEADER])
    return next(filter(None, map(_match, wanted)), ENGLISH)


def _list_wanted(header: str) -> Iterator[str]:
    """Yield the language tags of ``Accept-Language`` (RFC 9110, section 12.5.4), the most wanted first."""
    ranges = [found for part in header.split(",") if (found := _RANGE.fullmatch(part))]
    weights = sorted(((float(found[2] or 1), found[1].lower()) for found in ranges), key=lambda one: -one[0])
    return (tag for weight, tag in weights if weight > 0)


def _match(tag: str) -> str | None:
    if tag in _CHINESE_TAGS or tag.startswith("zh-hans-"):
        return CHINESE
    return ENGLISH if tag.split("-", maxsplit=1)[0] == ENGLISH else None


def gettext(language: str, message: str) -> str:
    """Return ``message`` in a language; in English if its catalogue does not have it."""
    return read_catalogue(language).messages.get(message, message)


def ngettext(language: str, one: str, many: str, count: float) -> str:
    """Do the same for a message with a plural. Chinese has none: its translation is that of ``one``."""
    return read_catalogue(language).messages.get(one, one if count == 1 else many)


@cache
def read_catalogue(language: str) -> Catalogue:
    """Return the catalogue of a language; English has no messages. The first call reads the file."""
    if language not in _CATALOGUES:
        return Catalogue({}, {})
    return parse_catalogue(_find_file(language).read_text("utf-8"))


def parse_catalogue(text: str) -> Catalogue:
    """Parse a catalogue as ``make messages`` writes it (GNU gettext manual, "The Format of PO Files")."""
    messages, of_scripts = dict[str, str](), dict[str, str]()
    for entry in text.split("\n\n"):
        fields, name = dict[str, str](), ""
        for line in entry.splitlines():
            if found := _FIELD.fullmatch(line):
                name = found[1]
                fields[name] = orjson.loads(found[2])  # the escapes of PO files are those of JSON
            elif line.startswith('"'):
                fields[name] += orjson.loads(line)
        english, translation = fields.get("msgid"), fields.get("msgstr") or fields.get("msgstr[0]")
        if english and translation:
            messages[english] = translation
            if re.search(r"^#:.*/static/", entry, re.MULTILINE):
                of_scripts[english] = translation
    return Catalogue(messages, of_scripts)


def _find_file(language: str) -> Traversable:
    return files("gateway.server.console") / _LOCALE.format(_CATALOGUES[language])


def read_catalogue_bytes() -> bytes:
    """Return the contents of all catalogues, for a digest."""
    return b"".join(_find_file(language).read_bytes() for language in sorted(_CATALOGUES))


def write_script(name: str) -> bytes | None:
    """Return ``zh-Hans.js``, which gives the console's scripts their messages; None for another name."""
    language = name.removesuffix(".js")
    if not name.endswith(".js") or language not in _CATALOGUES:
        return None
    return b"globalThis.MESSAGES = " + orjson.dumps(read_catalogue(language).of_scripts) + b";\n"
