"""The house's own source, read as trees; nothing of it is imported."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import attrs

PACKAGE = Path(__file__).parents[2] / "gateway"


@attrs.frozen
class Module:
    """One file. ``name`` is dotted; ``where`` is its path inside the package."""

    name: str
    where: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder under ``gateway/``; empty for what stands on the roof."""
        return self.where.partition("/")[0] if "/" in self.where else ""


def parse(where: str, text: str) -> Module:
    """A module from its path inside the package and its source; also the way to make a bad example."""
    dotted = ["gateway", *where.removesuffix(".py").split("/")]
    name = ".".join(dotted[:-1] if dotted[-1] == "__init__" else dotted)
    return Module(name, where, text, ast.parse(text))


@cache
def read_modules() -> tuple[Module, ...]:
    """Every module of the house, read once; the migrations are written by and for Alembic."""
    paths = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
    return tuple(
        parse(where, (PACKAGE / where).read_text())
        for where in paths
        if not where.startswith("store/migrations/versions/0")
    )


@cache
def list_nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Every node of ``tree``, walked once: there are a million, and many who look at them."""
    return tuple(ast.walk(tree))


def find_imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Every name imported by one of ``nodes``, with its line; ``from a import b`` is both ``a`` and ``a.b``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or "", node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def find_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method."""
    for node in list_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
