"""The gateway's own source, read as trees; nothing of it is imported."""

import ast
import gc
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import attrs

PACKAGE = Path(__file__).parents[2] / "gateway"
_PLACE = re.compile(r"[a-z_0-9]+(\.[a-z_0-9]+)+:[A-Za-z_]+")


@attrs.frozen
class Module:
    """One file. ``name`` is dotted; ``where`` is its path inside the package."""

    name: str
    where: str
    text: str
    tree: ast.Module

    @property
    def part(self) -> str:
        """The package of the module; a module beside the packages is its own part.

        A folder of the cluster is a package of its own, beside the modules that open it.
        """
        folders = self.where.split("/")
        if folders[0] == "cluster" and len(folders) > 2:
            return ".".join(folders[:2])
        return folders[0].removesuffix(".py")


def parse(where: str, text: str) -> Module:
    """A module from its path inside the package and its source; also the way to make a bad example."""
    return Module(_name_module(where), where, text, ast.parse(text))


def _name_module(where: str) -> str:
    dotted = ["gateway", *where.removesuffix(".py").split("/")]
    return ".".join(dotted[:-1] if dotted[-1] == "__init__" else dotted)


@cache
def read_modules() -> tuple[Module, ...]:
    """Every module of the package, read once; the migrations are written by and for Alembic."""
    gc.disable()  # a million nodes that all stay: the collector would look at them again and again
    try:
        return tuple(parse(where, (PACKAGE / where).read_text()) for where in _list_files())
    finally:
        gc.enable()


def _list_files() -> list[str]:
    paths = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
    return [where for where in paths if not where.startswith("storage/migrations/versions/0")]


@cache
def list_names() -> frozenset[str]:
    """The dotted name of every module; nothing is read for it."""
    return frozenset(_name_module(where) for where in _list_files())


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
    yield from ((f"gateway.{place.partition(':')[0]}", line) for place, line in find_places(nodes))


def find_places(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Every object that ``gateway.deferred`` imports later, such as ``"formats.rerank:RERANK"``, with its line."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PLACE.fullmatch(node.value):
            yield node.value, node.lineno


def find_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method."""
    for node in list_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
