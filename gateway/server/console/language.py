"""The language of a console page: its choice by a request, and its message catalogue.

English texts are in the code and the templates. Other languages are in ``locale``; a catalogue is read for the first
page in its language. Answers of the admin API, including error messages, stay in English.
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
"""The ``lang`` attribute of each language, and the language's own name."""
COOKIE = "console_language"
"""The cookie with the reader's choice, set by a script. It takes precedence over ``Accept-Language``."""
_CATALOGUES: Mapping[str, str] = {CHINESE: "zh_Hans"}
_CHINESE_TAGS = frozenset({"zh", "zh-cn", "zh-sg", "zh-hans"})
_LOCALE_PATH = "locale/{}/LC_MESSAGES/console.po"
_MAX_HEADER_CHARS = 1_000
_FIELD_PATTERN = re.compile(r'(msgid|msgid_plural|msgstr|msgstr\[0\]) (".*")')
_RANGE_PATTERN = re.compile(r"\s*([A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*)\s*(?:;\s*q=([01](?:\.\d{0,3})?)\s*)?")
LANGUAGE: web.RequestKey[str] = web.RequestKey("language", str)
"""The language of a console page, as a ``lang`` attribute."""


@frozen
class Catalogue:
    """The messages of a language. A message with a plural is found by its singular.

    ``script_messages`` are the messages that the console's scripts use.
    """

    messages: Mapping[str, str]
    script_messages: Mapping[str, str]


def find_language(request: web.Request) -> str:
    """Return the reader's choice, else the first available language of ``Accept-Language``, else English."""
    cookie = request.cookies.get(COOKIE, "")
    if cookie in LANGUAGES:
        return cookie
    ranges = _list_requested_tags(request.headers.get("Accept-Language", "")[:_MAX_HEADER_CHARS])
    return next(filter(None, map(_match_tag, ranges)), ENGLISH)


def _list_requested_tags(header: str) -> Iterator[str]:
    """Yield the language tags of ``Accept-Language``, lower-case, by preference (RFC 9110, section 12.5.4)."""
    ranges = [match for item in header.split(",") if (match := _RANGE_PATTERN.fullmatch(item))]
    weights = sorted(((float(match[2] or 1), match[1].lower()) for match in ranges), key=lambda pair: -pair[0])
    return (tag for weight, tag in weights if weight > 0)


def _match_tag(tag: str) -> str | None:
    if tag in _CHINESE_TAGS or tag.startswith("zh-hans-"):
        return CHINESE
    return ENGLISH if tag.split("-", maxsplit=1)[0] == ENGLISH else None


def gettext(language: str, message: str) -> str:
    """Return ``message`` in a language; in English if the catalogue lacks the message."""
    return read_catalogue(language).messages.get(message, message)


def ngettext(language: str, singular: str, plural: str, count: float) -> str:
    """Return the singular or plural of a message in a language. Chinese has one form: that of ``singular``."""
    return read_catalogue(language).messages.get(singular, singular if count == 1 else plural)


@cache
def read_catalogue(language: str) -> Catalogue:
    """Return the catalogue of a language, which is empty for English. The first call reads the file."""
    if language not in _CATALOGUES:
        return Catalogue({}, {})
    return parse_catalogue(_find_file(language).read_text("utf-8"))


def parse_catalogue(text: str) -> Catalogue:
    """Parse a catalogue written by ``make messages`` (GNU gettext manual, "The Format of PO Files")."""
    messages, script_messages = dict[str, str](), dict[str, str]()
    for entry in text.split("\n\n"):
        fields, name = dict[str, str](), ""
        for line in entry.splitlines():
            if field := _FIELD_PATTERN.fullmatch(line):
                name = field[1]
                fields[name] = orjson.loads(field[2])  # PO files use the same escapes as JSON
            elif line.startswith('"'):
                fields[name] += orjson.loads(line)
        english, translation = fields.get("msgid"), fields.get("msgstr") or fields.get("msgstr[0]")
        if english and translation:
            messages[english] = translation
            if re.search(r"^#:.*/static/", entry, re.MULTILINE):
                script_messages[english] = translation
    return Catalogue(messages, script_messages)


def _find_file(language: str) -> Traversable:
    return files("gateway.server.console") / _LOCALE_PATH.format(_CATALOGUES[language])


def read_catalogue_bytes() -> bytes:
    """Return the bytes of all catalogues, for a digest."""
    return b"".join(_find_file(language).read_bytes() for language in sorted(_CATALOGUES))


def write_script(name: str) -> bytes | None:
    """Return the script ``zh-Hans.js`` with the messages of the console's scripts; None for other names."""
    language = name.removesuffix(".js")
    if not name.endswith(".js") or language not in _CATALOGUES:
        return None
    return b"globalThis.MESSAGES = " + orjson.dumps(read_catalogue(language).script_messages) + b";\n"
