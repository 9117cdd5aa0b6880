"""Print sentences that users read, chosen at random: material for a check of the wording.

    python scripts/user_sentences.py --seed 7 --count 200

Sources: help and output of the commands, error and log messages, pages of the console, comments of the configuration
template, descriptions of the API. A line is the source and the sentence; ``…`` stands for a value.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

import click

from gateway.cli.main import main as command

ROOT = Path(__file__).parent.parent
CONSOLE = ROOT / "gateway" / "server" / "console"
MIN_WORDS = 3
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z'])")
_MARKUP = re.compile(r"<(script|style|svg|code)\b.*?</\1>|{#.*?#}|{%.*?%}|<[^>]*>", re.DOTALL)
_ATTRIBUTE = re.compile(r'\b(?:aria-label|placeholder|title|data-confirm)="([^"{}]+)"')
_QUOTED = re.compile(r"""(?<![\w])(["'`])((?:(?!\1)[^\\\n]|\\.)*)\1""")
_NOT_PROSE = re.compile(r"[{}<>=|\\]|^[/.#]|SELECT |\w\(|^\W")


def split(text: str) -> Iterator[str]:
    """Yield the sentences of ``text`` that have enough words to be judged."""
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in _SENTENCE.split(" ".join(paragraph.replace("\b", "").split())):
            if len(re.findall(r"[A-Za-z]{2,}", sentence)) >= MIN_WORDS:
                yield sentence


def list_help(group: click.Command, path: str = "gateway") -> Iterator[str]:
    """Yield the help of a command, its options and its commands, without the examples."""
    yield from split((group.help or "").partition("Examples:")[0])
    for one in group.params:
        if isinstance(one, click.Option) and one.help:
            yield from split(one.help)
    if isinstance(group, click.Group):
        for name, child in group.commands.items():
            yield from list_help(child, f"{path} {name}")


def list_literals(path: Path) -> Iterator[str]:
    """Yield the texts of a module except docstrings; values inside are ``…``."""
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare | inside:
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        if " " in text and not _NOT_PROSE.search(text):
            yield from split(text)


def list_page(path: Path) -> Iterator[str]:
    """Yield the texts and labels of a template."""
    page = path.read_text()
    shown = _MARKUP.sub("\n\n", re.sub(r"{{.*?}}", "…", page))
    for text in (*_ATTRIBUTE.findall(page), *shown.splitlines()):
        yield from split(text)


def list_script(path: Path) -> Iterator[str]:
    """Yield the quoted texts of a script of the console."""
    for line in path.read_text().splitlines():
        for _, text in _QUOTED.findall(line.partition(" // ")[0]):
            if " " in text and text[:1].isupper():
                yield from split(re.sub(r"\$?{[^}]*}", "…", text))


def list_comments(path: Path) -> Iterator[str]:
    """Yield the comments of a configuration file; an example of a setting is none."""
    for line in path.read_text().splitlines():
        comment = line.partition("#")[2]
        while comment.startswith("#"):
            comment = comment[1:]
        comment = comment.partition("  # ")[2] or comment
        if comment and not re.match(r"\s*\[|\s*\w+ = ", comment):
            yield from split(comment)


def list_operations(path: Path) -> Iterator[str]:
    """Yield the descriptions of admin API operations: the docstrings of their handlers."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield from split(ast.get_docstring(node) or "")


def collect() -> list[tuple[str, str]]:
    """Return every sentence once, with its source."""
    found: dict[str, str] = {}

    def add(source: str, sentences: Iterator[str]) -> None:
        for sentence in sentences:
            found.setdefault(sentence, source)

    add("help", list_help(command))
    for path in sorted((ROOT / "gateway" / "server" / "admin").glob("*.py")):
        add(str(path.relative_to(ROOT)), list_operations(path))
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        add(str(path.relative_to(ROOT)), list_literals(path))
    for path in sorted((CONSOLE / "templates").glob("*.html")):
        add(str(path.relative_to(ROOT)), list_page(path))
    for path in sorted((CONSOLE / "static").glob("*.js")):
        add(str(path.relative_to(ROOT)), list_script(path))
    for path in sorted((ROOT / "config").glob("gateway*.toml")):
        add(str(path.relative_to(ROOT)), list_comments(path))
    return sorted((source, sentence) for sentence, source in found.items())


def main() -> None:
    """Print the sample."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    sentences = collect()
    for source, sentence in random.Random(options.seed).sample(sentences, min(options.count, len(sentences))):
        print(f"{source}: {sentence}")


if __name__ == "__main__":
    main()
