"""Markdown that both mkdocs and the gateway's own help pages read alike."""

from collections.abc import Iterable, Sequence


def write_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(write_cell, line))} |" for line in lines)


def write_cell(text: str) -> str:
    """Return ``text`` on one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def write_code(text: str, language: str = "") -> str:
    """Return a fenced block."""
    return f"```{language}\n{text}\n```"


def write_text(text: str) -> str:
    """Return prose in which nothing but `code` is markup."""
    pieces = text.replace("``", "`").split("`")
    return "`".join(piece if number % 2 else _escape(piece) for number, piece in enumerate(pieces))


def _escape(text: str) -> str:
    for mark in ("\\", "*", "[", "]", "_"):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;")  # mkdocs knows no backslash before it


def join_blocks(blocks: Iterable[str]) -> str:
    """Return a page of blocks, with an empty line between two of them."""
    return "\n\n".join(block.strip("\n") for block in blocks if block.strip()) + "\n"
