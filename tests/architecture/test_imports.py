"""Imports: without cycles, each module alone, and no heavier than its work."""

import ast
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import pytest

from gateway.deferred import load
from tests.architecture.source import Module, find_imports, find_places, list_nodes, parse, read_modules

ALONE = """
import gc, importlib, os, sys, traceback
import aiohttp.web, alembic.op, attrs, cattrs, click, orjson, rich.table, sqlalchemy.ext.asyncio, structlog
gc.disable()
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        assert not any(loaded.partition(".")[0] == "gateway" for loaded in sys.modules)
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(name, flush=True)
"""
"""Imports each module in a child of its own; other people's libraries are loaded once, before. Prints what failed."""

ALONE_AT_ONCE = 20

WEIGH = """
import importlib, sys
for asked in sys.argv[1:]:
    module, *heavy = asked.split()
    importlib.import_module(module)
    print(*(name for name in heavy if name in sys.modules))
"""
"""Imports one module after the other; of each a line with what of its heavy ones is loaded then."""


def find_cycle(graph: Mapping[str, Iterable[str]]) -> list[str] | None:
    """A ring of modules that import each other, or None."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def draw_graph(modules: Sequence[Module], walk: Callable[[ast.Module], Iterable[ast.AST]]) -> dict[str, set[str]]:
    """Module -> the modules that its nodes by ``walk`` import."""
    names = {module.name for module in modules}
    return {
        module.name: {name for name, _ in find_imports(walk(module.tree)) if name in names - {"gateway"}}
        for module in modules
    }


def _walk_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements of ``tree`` without what only runs when a function is called."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _walk_at_import(node)
        elif isinstance(node, ast.ExceptHandler | ast.match_case):
            yield from _walk_at_import(node)


def _walk_at_run(tree: ast.Module) -> Iterator[ast.AST]:
    """the imports of ``tree``, also those of functions, without those that only annotations need."""
    for node in tree.body:
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from (each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom))


def find_loaded(*asked: tuple[str, Iterable[str]]) -> dict[str, set[str]]:
    """Which of those libraries are loaded when a fresh interpreter has imported a module, and those before it."""
    command = [sys.executable, "-c", WEIGH, *(" ".join((module, *heavy)) for module, heavy in asked)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {module: set(line.split()) for (module, _), line in zip(asked, lines, strict=True)}


def import_alone(names: Iterable[str]) -> tuple[list[str], str]:
    """Which of ``names`` cannot be imported as the first module of the package, and why."""
    keep = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # or each child would compile what the ones before compiled
    done = subprocess.run([sys.executable, "-c", ALONE, *names], capture_output=True, text=True, check=True, env=keep)
    return done.stdout.split(), done.stderr


def test_no_modules_import_each_other_in_a_ring() -> None:
    """Neither while they are imported nor later: a module that its subclasses import does not choose among them."""
    for walk in (_walk_at_import, _walk_at_run):
        graph = draw_graph(read_modules(), walk)
        assert sum(map(len, graph.values())) > 100
        assert find_cycle(graph) is None


def test_a_ring_would_be_found() -> None:
    ring = [
        parse("proxy/a.py", "from gateway.proxy.b import x"),
        parse("proxy/b.py", "import gateway.proxy.c"),
        parse("proxy/c.py", "from gateway.proxy import a"),
    ]
    found = {"gateway.proxy.a", "gateway.proxy.b", "gateway.proxy.c"}
    assert set(find_cycle(draw_graph(ring, _walk_at_import)) or []) == found
    late = [*ring[:2], parse("proxy/c.py", "def f():\n    from gateway.proxy import a")]
    assert find_cycle(draw_graph(late, _walk_at_import)) is None
    assert set(find_cycle(draw_graph(late, _walk_at_run)) or []) == found
    named = [*ring[:2], parse("proxy/c.py", "if TYPE_CHECKING:\n    from gateway.proxy import a")]
    assert find_cycle(draw_graph(named, _walk_at_run)) is None


def test_every_deferred_object_exists() -> None:
    """What is imported when it is used would else be missed by a user."""
    places = {place for module in read_modules() for place, _ in find_places(list_nodes(module.tree))}
    assert len(places) > 60
    for place in sorted(places):
        assert load(place) is not None, place


def test_a_module_can_be_imported_first() -> None:
    """Others of them each time: that imports make no ring is shown above, and a child for each would take a while.

    One that cannot be imported is found.
    """
    names = [
        module.name for module in read_modules() if module.name != "gateway.storage.migrations.env"
    ]  # Alembic's own
    failed, why = import_alone([*random.sample(names, ALONE_AT_ONCE), "gateway.no_such_module"])
    assert failed == ["gateway.no_such_module"], why
    assert "ModuleNotFoundError" in why


@pytest.mark.parametrize(
    "asked",
    [
        [("gateway.cli.main", {"aiohttp", "sqlalchemy", "rich", "alembic", "cattrs", "structlog"})],
        [
            ("gateway.formats.chat.openai.chat", {"aiohttp", "sqlalchemy", "cattrs", "asyncio"}),
            ("gateway.proxy.failover", {"aiohttp", "sqlalchemy", "cattrs"}),
            ("gateway.config.loader", {"aiohttp", "sqlalchemy", "alembic"}),
            ("gateway.app", {"alembic", "babel", "click", "sqlalchemy.dialects.postgresql"}),
            ("gateway.serve", {"alembic", "babel", "click", "uvloop"}),
        ],
    ],
    ids=["the command", "the gateway"],
)
def test_what_is_imported_is_no_heavier_than_its_work(asked: list[tuple[str, set[str]]]) -> None:
    """In an interpreter that begins with the lightest: what the ones before do not load either is not loaded."""
    assert find_loaded(*asked) == {module: set() for module, _ in asked}


def test_what_is_loaded_would_be_found() -> None:
    heavy = ["aiohttp", "sqlalchemy", "alembic"]
    asked = ("gateway.formats.wire.sse", heavy), ("gateway.upstream.safe_fetch", heavy)
    assert find_loaded(*asked) == {"gateway.formats.wire.sse": set(), "gateway.upstream.safe_fetch": {"aiohttp"}}


def test_the_gateway_needs_no_package_of_an_extra() -> None:
    """`make run` installs none: a driver that is imported at the top of a module would end every first start."""
    extras = ("asyncpg", "valkey", "obstore", "apprise", "authlib", "webauthn", "opentelemetry.sdk")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); import gateway.serve, gateway.cli.main"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
