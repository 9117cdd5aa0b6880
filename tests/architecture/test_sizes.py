"""Limits that keep the code readable: small files, small functions, no hidden state, narrow excepts."""

import ast
from collections.abc import Iterator
from statistics import median

import pytest

from tests.architecture.source import Module, find_functions, list_nodes, parse, read_modules

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 40
MAX_POSITIONAL = 5
MEDIAN_FUNCTION_LINES = 12
_LAST_WALLS = {
    "background.py", "batches/line_request.py", "server/background_responses.py", "server/middlewares.py",
    "server/internal_request.py",
    "server/shadow_requests.py",
}  # fmt: skip
_DATABASE_SESSIONS = {
    "cluster/credit/authority.py",
    "cluster/journal/request_notes.py",
    "cluster/membership/session.py",
}
"""They close a connection after whatever its driver raised, as ``storage`` does."""
_CONTAINERS = {
    "list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict", "ChainMap", "WeakSet",
    "WeakKeyDictionary", "WeakValueDictionary", "ContextVar", "Lock", "Event", "Queue", "local",
}  # fmt: skip
_CHANGERS = {
    "append", "add", "update", "pop", "popitem", "clear", "extend", "insert", "remove", "discard", "setdefault",
    "sort", "reverse", "appendleft", "popleft",
}  # fmt: skip


def find_long_files(module: Module) -> Iterator[str]:
    """Files that are too long to be read in one go."""
    lines = len(module.text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{module.where} has {lines} lines, more than {MAX_FILE_LINES}"


def find_big_functions(module: Module) -> Iterator[str]:
    """Functions that are too long, or take too much."""
    for function in find_functions(module.tree):
        lines = (function.end_lineno or 0) - function.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            yield f"{module.where}:{function.lineno} {function.name} has {lines} lines, more than {MAX_FUNCTION_LINES}"
        positional = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        count = len(positional) - (positional[:1] in (["self"], ["cls"]))
        if count > MAX_POSITIONAL:
            yield f"{module.where}:{function.lineno} {function.name} takes {count} positional parameters"


def find_globals(module: Module) -> Iterator[str]:
    """The ``global`` statement."""
    for node in list_nodes(module.tree):
        if isinstance(node, ast.Global):
            yield f"{module.where}:{node.lineno} uses 'global'; state belongs to an object that the roof builds"


def find_mutable_state(module: Module) -> Iterator[str]:
    """State of a module or a class: what can change, and is no constant that nobody changes."""
    constants = set()
    for node in _statements(module.tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not _is_mutable(node.value):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            name = ast.unparse(target)
            if name.isupper() and not isinstance(node.value, ast.Call):
                constants.add(name)
            elif name not in {"__all__", "__slots__"}:
                yield f"{module.where}:{node.lineno} {name} is mutable state of the module"
    for each in list_nodes(module.tree):
        changed = _changed_name(each)
        if changed in constants:
            yield f"{module.where}:{getattr(each, 'lineno', 0)} changes the constant {changed}"


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run at import: of the module, and of its classes."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.ClassDef):
            yield from node.body


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in _CONTAINERS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def _changed_name(node: ast.AST) -> str | None:
    """The name of the container that ``node`` changes."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGERS:
        return ast.unparse(node.func.value)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return ast.unparse(node.value)
    return ast.unparse(node.target) if isinstance(node, ast.AugAssign) else None


def find_broad_excepts(module: Module) -> Iterator[str]:
    """``except Exception`` away from the boundaries, where it swallows bugs."""
    if module.part in {"upstream", "storage"} or module.where in _LAST_WALLS | _DATABASE_SESSIONS:
        return
    for node in list_nodes(module.tree):
        if _caught(node) & {"Exception", "BaseException"}:
            yield f"{module.where}:{getattr(node, 'lineno', 0)} catches everything; a bug must reach the last wall"


def _caught(node: ast.AST) -> set[str]:
    """What an ``except`` or a ``suppress(...)`` catches."""
    if isinstance(node, ast.ExceptHandler):
        return {"BaseException"} if node.type is None else set(ast.unparse(node.type).strip("()").split(", "))
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress":
        return {ast.unparse(argument) for argument in node.args}
    return set()


CHECKS = (find_long_files, find_big_functions, find_globals, find_mutable_state, find_broad_excepts)


def find_all(module: Module) -> list[str]:
    return [found for check in CHECKS for found in check(module)]


def test_every_file_keeps_its_measure() -> None:
    found = [line for module in read_modules() for line in find_all(module)]
    assert not found, "\n".join(found)


def test_most_functions_are_short() -> None:
    lengths = [
        (function.end_lineno or 0) - function.lineno + 1
        for module in read_modules()
        for function in find_functions(module.tree)
    ]
    assert median(lengths) <= MEDIAN_FUNCTION_LINES


@pytest.mark.parametrize(
    ("where", "text", "message"),
    [
        ("flow/x.py", "x = 1\n" * 601, "601 lines"),
        ("flow/x.py", "def f():\n" + "    x = 1\n" * 40, "f has 41 lines"),
        ("flow/x.py", "class A:\n    async def f(self):\n" + "        x = 1\n" * 40, "f has 41 lines"),
        ("flow/x.py", "def f(a, b, c, d, e, f): ...", "6 positional"),
        ("flow/x.py", "class A:\n    def f(self, a, b, c, d, /, e, f): ...", "6 positional"),
        ("flow/x.py", "def f():\n    global x\n    x = 1", "'global'"),
        ("flow/x.py", "cache = {}", "mutable state"),
        ("flow/x.py", "seen: set[str] = set()", "mutable state"),
        ("flow/x.py", "QUEUE = collections.deque()", "mutable state"),
        ("flow/x.py", "_LOCK = asyncio.Lock()", "mutable state"),
        ("flow/x.py", "class A:\n    rows = []", "mutable state"),
        ("flow/x.py", "TABLE = {}\ndef f():\n    TABLE['a'] = 1", "changes the constant"),
        ("flow/x.py", "TABLE = {}\ndef f():\n    del TABLE['a']", "changes the constant"),
        ("flow/x.py", "TABLE = []\ndef f():\n    TABLE.append(1)", "changes the constant"),
        ("flow/x.py", "TABLE = [1]\nTABLE += [2]", "changes the constant"),
        ("flow/x.py", "try:\n    x = 1\nexcept Exception:\n    pass", "catches everything"),
        ("web/x.py", "try:\n    x = 1\nexcept (ValueError, BaseException) as e:\n    pass", "catches everything"),
        ("jobs/x.py", "try:\n    x = 1\nexcept:\n    pass", "catches everything"),
        ("web/x.py", "with contextlib.suppress(Exception):\n    x = 1", "catches everything"),
    ],
)
def test_what_is_too_much_is_found_and_named(where: str, text: str, message: str) -> None:
    (found,) = find_all(parse(where, text))
    assert message in found
    assert found.startswith(where)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("flow/x.py", "x = 1\n" * 600),
        ("flow/x.py", "def f(a, b, c, d, e, *, f, g):\n" + "    x = 1\n" * 39),
        ("flow/x.py", "TABLE = {'a': 1}\nNAMES = frozenset({'a'})\nitems = (1, 2)\nview = MappingProxyType({})"),
        (
            "flow/x.py",
            "class A:\n    __slots__ = ['x']\n    def f(self):\n        self.rows = []\n        self.rows.append(1)",
        ),
        ("storage/x.py", "try:\n    x = 1\nexcept Exception:\n    pass"),
        ("background.py", "try:\n    x = 1\nexcept Exception:\n    pass"),
        ("flow/x.py", "try:\n    x = 1\nexcept (ValueError, OSError):\n    pass"),
    ],
)
def test_what_is_in_order_is_left_alone(where: str, text: str) -> None:
    assert find_all(parse(where, text)) == []
