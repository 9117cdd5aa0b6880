"""The walls of the house: imports go down, or stay inside their own room."""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.source import Module, find_imports, list_names, list_nodes, parse, read_modules

FLOORS = {
    "domain": 0, "dialects": 1, "providers": 2, "store": 3, "upstream": 3, "flow": 4, "web": 5, "jobs": 5, "demo": 5,
}  # fmt: skip
ROOF = 6
PURE = 3
IMPURE = {"time", "random", "secrets", "os", "socket", "asyncio"}
FORBIDDEN_NAMES = {"common", "utils", "helpers", "misc", "manager", "handler", "service", "dto", "core"}
REASONS = {
    "domain": "the nouns know nobody, so that everybody can know them",
    "dialects": "a wire language is bytes and nouns; it must be readable without a vendor or a socket",
    "providers": "a vendor is described by pure functions; whoever opens sockets comes to it, not the reverse",
    "store": "the cellar keeps nouns; who calls it, and over what, is not its business",
    "upstream": "the only way out sends plans; it must not know why",
    "flow": "the rooms a request walks through are tested without a server, so they know no door",
    "web": "doors do not lead into each other: what two doors need belongs in flow/",
    "jobs": "doors do not lead into each other: what two doors need belongs in flow/",
    "demo": "the built-in upstream stands for somebody else's server and uses nothing of ours but nouns",
}


def find_room(name: str) -> str | None:
    """The room of a module of ours; None for the package itself and for everybody else's."""
    parts = name.split(".")
    if parts[0] != "gateway" or len(parts) == 1:
        return None
    return parts[1] if parts[1] in FLOORS else ""


def find_breaches(module: Module, modules: set[str]) -> Iterator[str]:
    """Imports that go up or sideways."""
    here = FLOORS.get(module.room, ROOF)
    for name, line in find_imports(list_nodes(module.tree)):
        room = find_room(name) if name in modules else None
        if room is None or room == module.room:
            continue
        there = FLOORS.get(room, ROOF)
        if there >= here:
            way = "up" if there > here else "sideways"
            reason = REASONS.get(module.room, "nothing stands above the roof")
            yield f"{module.where}:{line} imports {way}: {name} (floor {there}) from floor {here}; {reason}"


def find_asynchronous(module: Module) -> Iterator[str]:
    """Anything asynchronous on the pure floors, but for the stubs of a Protocol."""
    if FLOORS.get(module.room, ROOF) >= PURE:
        return
    stubs = {
        function
        for node in list_nodes(module.tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases)
        for function in node.body
        if isinstance(function, ast.AsyncFunctionDef) and ast.unparse(function.body[-1]) == "..."
    }
    kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    for node in list_nodes(module.tree):
        if isinstance(node, kinds) and node not in stubs:
            yield f"{module.where}:{node.lineno} is asynchronous; below floor {PURE} nothing waits"


def find_impure(module: Module) -> Iterator[str]:
    """Clocks, dice and I/O on the pure floors."""
    if FLOORS.get(module.room, ROOF) >= PURE:
        return
    for name, line in find_imports(list_nodes(module.tree)):
        if name.partition(".")[0] in IMPURE:
            yield f"{module.where}:{line} imports {name}; below floor {PURE} there is no clock, no dice and no I/O"


def find_aiohttp(module: Module) -> Iterator[str]:
    """aiohttp where it does not belong: it is a door's and the way out's."""
    if module.room in {"domain", "dialects", "providers", "store", "flow", "jobs"}:
        for name, line in find_imports(list_nodes(module.tree)):
            if name.partition(".")[0] == "aiohttp":
                yield f"{module.where}:{line} imports {name}; {module.room}/ knows no HTTP library"


def find_environment(module: Module) -> Iterator[str]:
    """Readers of the environment; rooms are handed what they need."""
    if module.where == "cli.py":
        return
    names = {"environ", "getenv", "environb"}
    for node in list_nodes(module.tree):
        read = isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os"
        imported = isinstance(node, ast.ImportFrom) and node.module == "os" and names & {x.name for x in node.names}
        if read or imported:
            yield f"{module.where}:{node.lineno} reads the environment; only cli.py does"


def find_forbidden_names(module: Module) -> Iterator[str]:
    """Rooms and files that are named after nothing."""
    for part in module.where.removesuffix(".py").split("/"):
        if FORBIDDEN_NAMES & {part, *part.split("_"), part.removesuffix("s")}:
            yield f"{module.where} is named {part!r}, which says nothing about what is in it"


def find_unknown_rooms(module: Module) -> Iterator[str]:
    """Folders that stand on no floor."""
    if module.room and module.room not in FLOORS:
        yield f"{module.where} stands on no floor; the map of the house is in gateway/__init__.py"


def find_all(module: Module) -> list[str]:
    checks = (find_asynchronous, find_impure, find_aiohttp, find_environment, find_forbidden_names, find_unknown_rooms)
    return [
        *find_breaches(module, {*list_names(), module.name}),
        *(found for check in checks for found in check(module)),
    ]


def test_every_wall_stands() -> None:
    found = [line for module in read_modules() for line in find_all(module)]
    assert not found, "\n".join(found)


def test_every_room_of_the_house_was_looked_into() -> None:
    assert {module.room for module in read_modules()} == {*FLOORS, ""}
    assert len(read_modules()) > 70


@pytest.mark.parametrize(
    ("where", "text", "told"),
    [
        ("domain/x.py", "from gateway.dialects.sse import BOM", "imports up"),
        ("domain/x.py", "import gateway.dialects.sse", "imports up"),
        ("dialects/x.py", "from gateway.providers import base", "imports up"),
        ("providers/x.py", "def f():\n    from gateway.store.keys import SqlKeyStore", "imports up"),
        ("store/x.py", "from gateway.upstream.port import Upstream", "imports sideways"),
        ("upstream/x.py", "from gateway.store import engine", "imports sideways"),
        ("jobs/x.py", "from gateway.web.keys import ROOMS", "imports sideways"),
        ("web/admin/x.py", "from gateway.jobs.runner import JobRunner", "imports sideways"),
        ("flow/x.py", "from gateway.config import Config", "imports up"),
        ("web/x.py", "from gateway.app import build", "imports up"),
        ("domain/x.py", "async def f(): ...", "asynchronous"),
        ("domain/x.py", "class P:\n    async def f(self): ...", "asynchronous"),
        ("domain/x.py", "class P(Protocol):\n    async def f(self): return 1", "asynchronous"),
        ("dialects/x.py", "class P(Protocol):\n    async def f(self):\n        await x\n        ...", "asynchronous"),
        ("domain/x.py", "import time", "no clock"),
        ("dialects/x.py", "from os import path", "no clock"),
        ("providers/x.py", "import asyncio.queues", "no clock"),
        ("flow/x.py", "from aiohttp import web", "no HTTP library"),
        ("jobs/x.py", "import aiohttp.web", "no HTTP library"),
        ("store/x.py", "import os\nx = os.environ['X']", "environment"),
        ("config.py", "import os\nx = os.getenv('X')", "environment"),
        ("log.py", "from os import environ", "environment"),
        ("flow/utils.py", "", "says nothing"),
        ("web/error_handler.py", "", "says nothing"),
        ("services/x.py", "", "says nothing"),
        ("attic/x.py", "", "no floor"),
    ],
)
def test_a_breach_is_found_and_named(where: str, text: str, told: str) -> None:
    found = find_all(parse(where, text))
    assert any(told in breach for breach in found), found
    assert all(breach.startswith(where) for breach in found)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("domain/x.py", "from gateway.domain.fault import Fault\nfrom gateway import __version__"),
        ("domain/x.py", 'class P(Protocol):\n    async def f(self):\n        """What."""\n        ...'),
        ("store/x.py", "import asyncio, os, time\nfrom gateway.domain.fault import Fault\nasync def f(): await x"),
        ("web/admin/x.py", "from gateway.web.keys import ROOMS\nfrom gateway.flow.auth import Directory"),
        ("app.py", "from gateway.config import Config\nfrom gateway.demo.server import DemoUpstream"),
        ("cli.py", "import os\nx = os.environ"),
    ],
)
def test_what_is_allowed_is_no_breach(where: str, text: str) -> None:
    assert find_all(parse(where, text)) == []
