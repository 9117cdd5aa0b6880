"""Every word that the console shows is in its message catalogues, and the catalogues are complete."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from babel.messages.catalog import Catalog, Message
from babel.messages.jslexer import tokenize
from babel.messages.pofile import read_po
from jinja2 import nodes

from gateway.server.console.language import Catalogue, parse_catalogue
from gateway.server.console.rendering import build_environment
from scripts import extract_messages
from scripts.extract_messages import CATALOGUES, CONSOLE, REFERENCE, build_template
from tests.support.console_names import NAMES
from tests.support.table_rows import table_rows

TEMPLATES = sorted(path for path in (CONSOLE / "templates").glob("*.html") if path.name not in REFERENCE)
SCRIPTS = sorted(
    path for path in (CONSOLE / "static").glob("*.js") if path.name not in {"docs.js", "reading.js", "code.js"}
)
"""Without those of the API reference and the documentation, which are in English, and what writes programs."""
READ = frozenset({"title", "placeholder", "aria-label", "aria-valuetext", "alt", "data-confirm", "data-label"})
"""Attributes that a reader sees or hears; ``data-label`` is a column's name on a phone."""
CODE = frozenset({"code", "pre", "script", "style"})
_LETTERS = re.compile(r"[A-Za-z]")
_PLACEHOLDER = re.compile(r"%\(\w+\)s|\{\w+\}|<[^>]+>|&\w+;")
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_TRANSLATED = re.compile(r"\{%-? *trans\b.*?\bendtrans *-?%\}", re.DOTALL)
_SNIPPET = re.compile(r"\{% call (?:snippet|setting)\b.*?\bendcall %\}", re.DOTALL)
_JINJA = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_SENTENCE = re.compile(r"[A-Z][a-z]|[A-Za-z,;] +[A-Za-z]")
_NOT_SHOWN = re.compile(r"(?:GET|POST|PUT|PATCH|DELETE) /|.+\.html\Z|, p\d+ \Z")
_WORDS = re.compile(r"[A-Za-z]{2,},? [a-z]{2,}")
_SELECTOR = re.compile(r"[#.\[]|.*[\[=;{<]")
_INSERTED = re.compile(r"\$\{[^}]*\}")
_SHOWN = ("textContent =", "placeholder =", "toast (", "replaceWith (", '"aria-label" ,')
"""The two tokens before a string of a script that a reader sees."""
_TRANSLATING = ("t (", "n (")


class TextFinder(HTMLParser):
    """Collects the text and the attributes that a reader sees, outside code."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.code += tag in CODE
        self.found += [value for name, value in attrs if name in READ and value]

    def handle_endtag(self, tag: str) -> None:
        self.code -= tag in CODE

    def handle_data(self, data: str) -> None:
        if not self.code:
            self.found.append(data)


def find_text(source: str) -> list[str]:
    """The text of a template that is not inside a translation."""
    for pattern in (_COMMENT, _SNIPPET, _TRANSLATED, _JINJA):
        source = pattern.sub("", source)
    finder = TextFinder()
    finder.feed(source)
    texts = [" ".join(text.split()) for text in finder.found]
    return [text for text in texts if _LETTERS.search(text) and text.strip(" ·,()…:") not in NAMES]


def find_literals(source: str) -> Iterator[str]:
    """String literals in a template's expressions that look like words to read and are not translated."""
    tree = build_environment("en").parse(source)
    translated = {
        id(argument)
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Name) and call.node.name in {"_", "gettext", "ngettext"}
        for argument in call.args
    }
    texts = [const.value for const in tree.find_all(nodes.Const) if id(const) not in translated]
    for text in texts:
        if isinstance(text, str) and text not in NAMES and _SENTENCE.search(text) and not _NOT_SHOWN.match(text):
            yield text


@table_rows("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_no_text_outside_a_translation(path: Path) -> None:
    source = path.read_text()
    assert not find_text(source)
    assert not list(find_literals(source))


def find_script_texts(source: str) -> Iterator[str]:
    """String literals of a script that a reader sees or that are sentences, outside ``t()`` and ``n()``."""
    tokens = [token for token in tokenize(source) if token.type not in {"linecomment", "multilinecomment"}]
    for index, token in enumerate(tokens):
        if token.type not in {"string", "template_string"}:
            continue
        before = [one.value.rpartition(".")[2] for one in tokens[max(index - 4, 0) : index]]
        called, text = " ".join(before[-2:]), _INSERTED.sub("", token.value[1:-1]).strip()
        is_translated = called in _TRANSLATING or " ".join(before[-4:-2]) == "n ("  # or the second form of a plural
        is_sentence = _WORDS.search(text) and not _SELECTOR.match(text) and called not in {"className =", "rel ="}
        if not is_translated and (is_sentence or (called in _SHOWN and _LETTERS.search(text) and text not in NAMES)):
            yield text


@table_rows("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_shows_no_text_outside_a_translation(path: Path) -> None:
    assert not list(find_script_texts(path.read_text()))


@table_rows(
    "source",
    [
        "<p>Save</p>", '<p title="Save {{ x }}"></p>', '{{ parts.badge("On hold") }}', '{{ "a word" if x else "" }}',
        '<p>{{ _("a") }} and more</p>',
    ],
)  # fmt: skip
def test_the_rule_finds_text_in_a_template(source: str) -> None:
    assert find_text(source) or list(find_literals(source))


@table_rows(
    "source",
    ['toast("Copied");', "a.textContent = `${b} x`;", 'const a = { b: "waiting for it" };', 'x = y ?? "Not here yet";'],
)
def test_the_rule_finds_text_in_a_script(source: str) -> None:
    assert list(find_script_texts(source))
    assert not list(find_script_texts('a.textContent = t("Not here yet"); n("{count} key", "{count} more keys", 2);'))


def read_catalogue(path: Path) -> Catalog:
    with path.open("rb") as file:
        return read_po(file)


def _list_forms(message: Message) -> list[str]:
    forms = [message.string] if isinstance(message.string, str) else list(message.string or ())
    return [form for form in forms if form]


@table_rows("path", CATALOGUES)
def test_the_gateway_reads_a_catalogue_as_babel_does(path: Path) -> None:
    babels = {
        _get_first(message.id): (_get_first(message.string), any("/static/" in file for file, _ in message.locations))
        for message in read_catalogue(path)
        if message.id and message.string
    }
    found = parse_catalogue(path.read_text("utf-8"))
    assert {english: (text, english in found.script_messages) for english, text in found.messages.items()} == babels
    assert found.script_messages.items() <= found.messages.items()


def _get_first(forms: Any) -> str:
    return forms if isinstance(forms, str) else str(forms[0])


def test_strings_that_are_divided_escaped_or_not_translated_are_read() -> None:
    text = 'msgid ""\nmsgstr ""\n"Language: zh\\n"\n\n'
    text += '#: a/static/b.js\nmsgid "a "\n"\\"b\\"\\n"\nmsgstr ""\n"甲"\n"乙"\n\n'
    text += 'msgid "day"\nmsgid_plural "days"\nmsgstr[0] "天"\n\nmsgid "later"\nmsgstr ""\n'
    assert parse_catalogue(text) == Catalogue({'a "b"\n': "甲乙", "day": "天"}, {'a "b"\n': "甲乙"})


def test_a_catalogue_has_exactly_the_messages_of_the_console() -> None:
    wanted = {message.id for message in build_template() if message.id}
    assert CATALOGUES
    for path in CATALOGUES:
        found = {message.id for message in read_catalogue(path) if message.id}
        assert (wanted - found, found - wanted) == (set(), set()), "run `make messages` and translate what is new"


@table_rows("path", CATALOGUES, ids=lambda path: path.parts[-3])
def test_every_message_is_translated_with_its_placeholders(path: Path) -> None:
    catalogue = read_catalogue(path)
    assert not catalogue.obsolete
    for message in catalogue:
        if not message.id:
            continue
        assert not message.fuzzy, message.id
        forms = _list_forms(message)
        assert len(forms) == (1 if isinstance(message.id, str) else catalogue.num_plurals), message.id
        source = message.id if isinstance(message.id, str) else message.id[-1]
        for form in forms:
            assert sorted(_PLACEHOLDER.findall(form)) == sorted(_PLACEHOLDER.findall(source)), form


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parts[-3])
def test_the_update_of_a_complete_catalogue_changes_nothing(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "console.po"
    copy.write_bytes(path.read_bytes())
    assert extract_messages.update(copy)[1] == 0
    assert copy.read_bytes() == path.read_bytes()
