"""The pages of docs/ with what tests check in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import attrs
import click
from markdown_it import MarkdownIt

from gateway.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_ASSIGNMENT = re.compile(r"[A-Z_]+=\S*\Z")
_SEPARATORS = frozenset({"&&", "||", "|", ";", "<", ">"})
"""Words between commands, and before files: a file is no command of ours."""
_PARSER = MarkdownIt("commonmark").enable("table")


@attrs.frozen
class CodeBlock:
    """A fenced block; ``where`` is its page and line."""

    where: str
    language: str
    text: str


def list_pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def list_blocks() -> Iterator[CodeBlock]:
    for path in list_pages():
        for token in _PARSER.parse(path.read_text()):
            if token.type == "fence":
                line = token.map[0] + 1 if token.map else 0
                yield CodeBlock(f"{path.relative_to(ROOT)}:{line}", token.info.strip(), token.content)


def list_code_spans() -> Iterator[tuple[str, str]]:
    """Every `code` in running text, with its page."""
    for path in list_pages():
        for token in _PARSER.parse(path.read_text()):
            for child in token.children or ():
                if child.type == "code_inline":
                    yield str(path.relative_to(ROOT)), child.content


def list_links() -> Iterator[tuple[Path, str]]:
    """Every link with its page."""
    for path in list_pages():
        for token in _PARSER.parse(path.read_text()):
            for child in token.children or ():
                if child.type == "link_open":
                    yield path, str(child.attrGet("href"))


def list_commands(script: str) -> Iterator[list[str]]:
    """The arguments of every ``gateway`` command of a shell script."""
    for line in script.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in _split(line):
            if word in _SEPARATORS:
                yield from _find_arguments(words)
                words = []
            else:
                words.append(word)
        yield from _find_arguments(words)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quoted text of several lines
        return []


def _find_arguments(words: list[str]) -> Iterator[list[str]]:
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    if words and words[0].rpartition("/")[2] == "gateway":
        yield words[1:]


def find_command_problem(arguments: list[str], *, whole: bool = True) -> str:
    """What click says of a command that is only parsed; empty if it is valid. Not ``whole``: values may be missing."""
    try:
        _parse_command(arguments)
    except click.exceptions.Exit:  # --help and --version
        return ""
    except click.MissingParameter as error:
        return error.format_message() if whole else ""
    except click.BadParameter as error:  # a file of an example need not exist
        return "" if error.param is not None and isinstance(error.param.type, click.Path) else error.format_message()
    except click.UsageError as error:
        return error.format_message()
    return ""


def _parse_command(arguments: list[str]) -> None:
    command: click.Command = main
    context, name = None, "gateway"
    while True:
        with command.make_context(name, list(arguments), parent=context) as inner:
            context = inner
            rest = [*context._protected_args, *context.args]
            if not isinstance(command, click.Group) or not rest:
                return
            found, chosen, arguments = command.resolve_command(context, rest)
        assert chosen is not None
        name, command = found or "", chosen
