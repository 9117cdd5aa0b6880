"""Which way imports run: each layer imports from those below it, never up and never sideways."""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.source import Module, find_imports, list_names, list_nodes, parse, read_modules

LAYERS: tuple[tuple[str, ...], ...] = (
    ("frozen",),
    (
        "answer_fields",
        "errors",
        "error_status",
        "wording",
        "parsing",
        "installation",
        "log",
        "large_work",
        "memory_budget",
        "deadlines",
        "events",
        "background",
        "deferred",
    ),
    ("domain",),
    ("formats",),
    ("providers",),
    ("storage", "upstream"),
    ("routing",),
    ("request_context",),
    ("billing",),
    ("auth",),
    ("proxy",),
    ("media",),
    ("videos",),
    ("batches",),
    (
        "allocator",
        "systemd",
        "retention_clock",
        "cleanup",
        "observability",
        "cluster.membership",
        "cluster.credit",
        "cluster.limits",
        "cluster.state",
        "cluster.journal",
        "cluster.kept",
    ),
    ("config",),
    ("alerts",),
    ("sinks",),
    ("options", "deployment"),
    ("demo",),
    ("server",),
    ("cluster",),
    ("services", "app", "serve"),
    ("doctor",),
    ("cli",),
)
"""Packages and modules of ``gateway``, lowest first. Packages of one layer do not know each other."""
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}
TOP = len(LAYERS)
PURE = {"answer_fields", "errors", "wording", "parsing", "domain", "formats", "providers"}
WITH_AIOHTTP = {"alerts", "sinks", "server", "cluster", "upstream", "demo", "services", "app", "serve", "cli"}
IMPURE = {"time", "random", "secrets", "os", "socket", "asyncio"}
KNOW_CLUSTER = {"services", "doctor"}
"""The packages that import ``gateway.cluster``, each where it is needed: a gateway that is alone never does."""
FORBIDDEN_NAMES = {"common", "utils", "helpers", "misc", "manager", "dto", "core"}
REASONS = {
    "domain": "data types know nothing above them, so that everything can use them",
    "formats": "a wire format is bytes and data types; it must be readable without a vendor or a socket",
    "providers": "a vendor is described by pure functions; the code that opens sockets calls them, not the reverse",
    "storage": "a repository stores data types; it does not know who calls it",
    "upstream": "the HTTP client sends requests; it must not know why",
    "server": "only the server knows aiohttp's server; everything below it is tested without one",
    "demo": "the built-in provider stands for somebody else's server and uses only data types of ours",
}


def find_layer(name: str) -> str | None:
    """The layer's name of a module of ours; None for the package itself and for other libraries."""
    parts = name.split(".")
    if parts[0] != "gateway" or len(parts) == 1:
        return None
    folder = ".".join(parts[1:3])
    return folder if folder in LEVELS else parts[1]


def find_typing_lines(module: Module) -> set[int]:
    """The lines below ``if TYPE_CHECKING``: what is only named in an annotation is not needed to run."""
    blocks = [
        node for node in module.tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {line for block in blocks for line in range(block.lineno, (block.end_lineno or 0) + 1)}


def find_breaches(module: Module, modules: set[str]) -> Iterator[str]:
    """Imports that go up or sideways."""
    here = LEVELS.get(module.part, TOP)
    typing_only = find_typing_lines(module)
    for name, line in find_imports(list_nodes(module.tree)):
        if line in typing_only:
            continue
        part = find_layer(name) if name in modules else None
        if part is None or part == module.part:
            continue
        there = LEVELS.get(part, TOP)
        if there > here or (there == here and module.part in {"storage", "upstream"}):
            way = "up" if there > here else "sideways"
            reason = REASONS.get(module.part, "see LAYERS")
            yield f"{module.where}:{line} imports {way}: {name}; {reason}"


def find_cluster_users(module: Module) -> Iterator[str]:
    """Imports of the cluster outside the packages that open it, or at the top of a module: every start has those."""
    if module.part.partition(".")[0] == "cluster":
        return
    typing_only = find_typing_lines(module)
    at_top = {line for _, line in find_imports(module.tree.body)}
    for name, line in find_imports(list_nodes(module.tree)):
        if line in typing_only or not f"{name}.".startswith("gateway.cluster."):
            continue
        if module.part not in KNOW_CLUSTER:
            yield f"{module.where}:{line} imports {name}; only {', '.join(sorted(KNOW_CLUSTER))} know the cluster"
        elif line in at_top:
            yield f"{module.where}:{line} imports {name} with every start; import it where it is used"


def find_asynchronous(module: Module) -> Iterator[str]:
    """Anything asynchronous in the pure packages, except the stubs of a Protocol."""
    if module.part not in PURE:
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
            yield f"{module.where}:{node.lineno} is asynchronous; {module.part} is pure"


def find_impure(module: Module) -> Iterator[str]:
    """Clocks, randomness and I/O in the pure packages."""
    if module.part not in PURE:
        return
    for name, line in find_imports(list_nodes(module.tree)):
        if name.partition(".")[0] in IMPURE:
            yield f"{module.where}:{line} imports {name}; {module.part} has no clock, no randomness and no I/O"


def find_aiohttp(module: Module) -> Iterator[str]:
    """aiohttp outside the packages that may know it."""
    if module.part not in WITH_AIOHTTP:
        for name, line in find_imports(list_nodes(module.tree)):
            if name.partition(".")[0] == "aiohttp":
                yield f"{module.where}:{line} imports {name}; {module.part} knows no HTTP library"


def find_environment(module: Module) -> Iterator[str]:
    """Readers of the environment; everything else is handed what it needs."""
    if module.where == "cli/main.py":
        return
    names = {"environ", "getenv", "environb"}
    for node in list_nodes(module.tree):
        read = isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os"
        imported = isinstance(node, ast.ImportFrom) and node.module == "os" and names & {x.name for x in node.names}
        if read or imported:
            yield f"{module.where}:{getattr(node, 'lineno', 0)} reads the environment; only cli/main.py does"


def find_forbidden_names(module: Module) -> Iterator[str]:
    """Folders and files whose names say nothing about what is in them."""
    for part in module.where.removesuffix(".py").split("/"):
        if FORBIDDEN_NAMES & {part, *part.split("_"), part.removesuffix("s")}:
            yield f"{module.where} is named {part!r}, which says nothing about what is in it"


def find_unknown_packages(module: Module) -> Iterator[str]:
    """Packages that have no layer."""
    if "/" in module.where and module.part not in LEVELS:
        yield f"{module.where} has no layer; add its package to LAYERS"


def find_all(module: Module) -> list[str]:
    checks = (
        find_cluster_users,
        find_asynchronous,
        find_impure,
        find_aiohttp,
        find_environment,
        find_forbidden_names,
        find_unknown_packages,
    )
    return [
        *find_breaches(module, {*list_names(), module.name}),
        *(found for check in checks for found in check(module)),
    ]


def test_every_module_keeps_its_layer() -> None:
    found = [line for module in read_modules() for line in find_all(module)]
    assert not found, "\n".join(found)


def test_every_package_was_looked_into() -> None:
    assert {module.part for module in read_modules()} - {"__init__", "__main__"} == LEVELS.keys()
    assert len(read_modules()) > 70


@pytest.mark.parametrize(
    ("where", "text", "message"),
    [
        ("domain/x.py", "from gateway.formats.wire.sse import BOM", "imports up"),
        ("domain/x.py", "import gateway.formats.wire.sse", "imports up"),
        ("formats/x.py", "from gateway.providers import base", "imports up"),
        ("providers/x.py", "def f():\n    from gateway.storage.journal import Journal", "imports up"),
        ("storage/x.py", "from gateway.upstream.interface import HttpResponse", "imports sideways"),
        ("upstream/x.py", "from gateway.storage import database", "imports sideways"),
        ("routing/x.py", "from gateway.proxy.stream import OpenStream", "imports up"),
        ("proxy/x.py", "from gateway.media.images import ImageService", "imports up"),
        ("videos/x.py", "from gateway.config.schema import Config", "imports up"),
        ("server/x.py", "from gateway.app import create_app", "imports up"),
        ("cluster/credit/x.py", "from gateway.cluster.open import open_node", "imports up"),
        ("cluster/state/x.py", "from gateway.server.context import Services", "imports up"),
        ("services/x.py", "from gateway.cluster.open import open_node", "with every start"),
        ("cli/x.py", "def f():\n    from gateway.cluster import open", "know the cluster"),
        ("billing/x.py", "def f():\n    load('cluster.credit.keeper:CreditKeeper')", "know the cluster"),
        ("domain/x.py", "async def f(): ...", "asynchronous"),
        ("domain/x.py", "class P:\n    async def f(self): ...", "asynchronous"),
        ("domain/x.py", "class P(Protocol):\n    async def f(self): return 1", "asynchronous"),
        ("formats/x.py", "class P(Protocol):\n    async def f(self):\n        await x\n        ...", "asynchronous"),
        ("domain/x.py", "import time", "no clock"),
        ("formats/x.py", "from os import path", "no clock"),
        ("providers/x.py", "import asyncio.queues", "no clock"),
        ("proxy/x.py", "from aiohttp import web", "no HTTP library"),
        ("videos/x.py", "import aiohttp.web", "no HTTP library"),
        ("storage/x.py", "import os\nx = os.environ['X']", "environment"),
        ("config/x.py", "import os\nx = os.getenv('X')", "environment"),
        ("log.py", "from os import environ", "environment"),
        ("proxy/utils.py", "", "says nothing"),
        ("server/quota_manager.py", "", "says nothing"),
        ("attic/x.py", "", "no layer"),
    ],
)
def test_a_breach_is_found_and_named(where: str, text: str, message: str) -> None:
    found = find_all(parse(where, text))
    assert any(message in breach for breach in found), found
    assert all(breach.startswith(where) for breach in found)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("domain/x.py", "from gateway.errors import GatewayError\nfrom gateway import __version__"),
        ("domain/x.py", 'class P(Protocol):\n    async def f(self):\n        """What."""\n        ...'),
        ("storage/x.py", "import asyncio, os, time\nfrom gateway.errors import GatewayError\nasync def f(): await x"),
        (
            "server/admin/x.py",
            "from gateway.server.context import SERVICES\nfrom gateway.auth.api_keys import ApiKeyAuthenticator",
        ),
        ("errors.py", "if TYPE_CHECKING:\n    from gateway.domain.rate_limit import RateLimitStatus"),
        ("app.py", "from gateway.config.schema import Config\nfrom gateway.demo.server import DemoUpstream"),
        ("cli/main.py", "import os\nx = os.environ"),
        ("services/x.py", "def f():\n    from gateway.cluster.credit.keeper import CreditKeeper"),
        ("server/x.py", "if TYPE_CHECKING:\n    from gateway.cluster.membership.node import ClusterNode"),
        ("cluster/open.py", "from gateway.server.context import Services\nfrom gateway.cluster.credit import keeper"),
    ],
)
def test_what_is_allowed_is_no_breach(where: str, text: str) -> None:
    assert find_all(parse(where, text)) == []
