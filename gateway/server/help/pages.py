"""Render the pages of ``docs/`` in the order of ``mkdocs.yml``. Raw HTML in a page is shown as text."""

import itertools
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from gateway import __version__
from gateway.frozen import frozen
from gateway.server.console.routes import ROOT
from gateway.server.console.static_files import find_static

HELP_PATH = "/help"
DOCUMENTED_ADDRESS = "http://127.0.0.1:8080"
"""The gateway's address in the examples. Readers see the address of their own gateway instead."""
_INDEX_NAME = "index"
_SUFFIX = ".md"
_NON_WORD_PATTERN = re.compile(r"[^\w\s-]")
_SCROLLABLE_TAGS = (
    ("pre", '<div class="code"><pre tabindex="0">', "</pre></div>"),
    ("table", '<div class="table" tabindex="0"><table>', "</table></div>"),
)
"""Elements that may be wider than the page. They get the keyboard focus, for scrolling."""
_GAP_PATTERN = re.compile(r"[-\s]+")


@frozen
class HelpSection:
    """The plain text below one heading, without the text below the headings that follow."""

    slug: str
    title: str
    text: str


@frozen
class HelpPage:
    """A documentation page. ``headings`` are id and text of each second-level heading; ``sections`` are searched."""

    name: str
    title: str
    body: str
    headings: tuple[tuple[str, str], ...]
    sections: tuple[HelpSection, ...]

    @property
    def url(self) -> str:
        return build_url(self.name)


@frozen
class HelpChapter:
    """A chapter of the menu with its pages."""

    title: str
    pages: tuple[HelpPage, ...]


def find_docs() -> tuple[Path, Path]:
    """Return the folder of the pages and ``mkdocs.yml``: inside the package in a wheel, else next to the package."""
    package = Path(str(files("gateway")))
    packaged_folder = package / "_docs"
    return (
        (packaged_folder, packaged_folder / "mkdocs.yml")
        if packaged_folder.exists()
        else (package.parent / "docs", package.parent / "mkdocs.yml")
    )


@cache
def read_chapters() -> tuple[HelpChapter, ...]:
    """Read the chapters of the menu with their pages. Later calls return the same objects."""
    folder, settings = find_docs()
    nav: Sequence[Mapping[str, Sequence[str]]] = yaml.safe_load(settings.read_bytes())["nav"]
    return tuple(
        HelpChapter(title, tuple(_read_page(folder, name.removesuffix(_SUFFIX)) for name in names))
        for entry in nav
        for title, names in entry.items()
    )


def list_pages() -> list[HelpPage]:
    """Return all pages in the order of the menu."""
    return [page for chapter in read_chapters() for page in chapter.pages]


@cache
def build_pages() -> Mapping[str, bytes]:
    """Return every page as HTML, by its name. ``DOCUMENTED_ADDRESS`` stands for the gateway's address."""
    template, pages = load_template("help_page.html"), list_pages()
    neighbors = zip(pages, [None, *pages], [*pages[1:], None], strict=False)
    return {
        page.name: template.render(
            page=page,
            before=before,
            after=after,
            body=Markup(page.body),  # noqa: S704 - markdown-it escapes HTML
        ).encode()
        for page, before, after in neighbors
    }


@cache
def load_template(name: str) -> Template:
    """Return a template of the documentation; the version, the chapters and other values of all pages are set."""
    env = Environment(
        loader=PackageLoader("gateway.server.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals.update(root=ROOT, static=find_static, version=__version__, chapters=read_chapters())
    return env.get_template(name)


def build_url(name: str) -> str:
    """Return the address of a page."""
    return HELP_PATH if name == _INDEX_NAME else f"{HELP_PATH}/{name}"


def _read_page(folder: Path, name: str) -> HelpPage:
    return parse_page(name, (folder / f"{name}{_SUFFIX}").read_text())


def parse_page(name: str, text: str) -> HelpPage:
    """Render a page. Its headings get the same ids as in mkdocs."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    headings = list(_name_headings(tokens))
    _label_cells(tokens)
    for token in tokens:
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", _resolve_link(str(child.attrGet("href")), name))
    title = next((heading_text for level, _, heading_text in headings if level == "h1"), name)
    second_level = tuple((slug, heading_text) for level, slug, heading_text in headings if level == "h2")
    body = parser.renderer.render(tokens, parser.options, {})
    for tag, opening, closing in _SCROLLABLE_TAGS:
        body = body.replace(f"<{tag}>", opening).replace(f"</{tag}>", closing)  # "<" in text is escaped
    return HelpPage(name, title, body, second_level, tuple(_split_sections(tokens)))


def _name_headings(tokens: Sequence[Token]) -> Iterator[tuple[str, str, str]]:
    used_slugs: set[str] = set()
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            heading_text = _read_text(inline)
            slug = _slugify(heading_text, used_slugs)
            opening.attrSet("id", slug)
            yield opening.tag, slug, heading_text


def _split_sections(tokens: Sequence[Token]) -> Iterator[HelpSection]:
    slug = title = ""
    texts: list[str] = []
    is_heading = False
    for token in tokens:
        if token.type == "heading_open":
            if slug:
                yield HelpSection(slug, title, " ".join(texts))
            slug, texts, is_heading = str(token.attrGet("id")), [], True
        elif token.type == "inline" and is_heading:
            title, is_heading = _read_text(token), False
        elif token.type == "inline":
            texts.append(_read_text(token))
        elif token.type in ("fence", "code_block"):
            texts.append(" ".join(token.content.split()))
    if slug:
        yield HelpSection(slug, title, " ".join(texts))


def _read_text(inline: Token) -> str:
    return "".join(" " if child.type == "softbreak" else child.content for child in inline.children or ())


def _label_cells(tokens: Sequence[Token]) -> None:
    """Label each table cell with its column, for phones, where the table's header is hidden."""
    labels: list[str] = []
    column = 0
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "thead_open":
            labels = []
        elif opening.type == "tr_open":
            column = 0
        elif opening.type == "th_open":
            labels.append(inline.content)
        elif opening.type == "td_open":
            opening.attrSet("data-label", labels[column])
            column += 1


def _slugify(heading_text: str, used_slugs: set[str]) -> str:
    """Return the id of a heading, as Python-Markdown's extension ``toc`` computes it, and add it to ``used_slugs``."""
    ascii_words = unicodedata.normalize("NFKD", heading_text).encode("ascii", "ignore").decode()
    slug = base_slug = _GAP_PATTERN.sub("-", _NON_WORD_PATTERN.sub("", ascii_words).strip().lower())
    number = 0
    while slug in used_slugs or not slug:
        number += 1
        slug = f"{base_slug}_{number}"
    used_slugs.add(slug)
    return slug


def _resolve_link(link: str, name: str) -> str:
    path, hash_sign, anchor = link.partition("#")
    if not path.endswith(_SUFFIX) or ":" in path:
        return link
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path.removesuffix(_SUFFIX)))
    return f"{build_url(target)}{hash_sign}{anchor}"
