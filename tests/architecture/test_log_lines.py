"""Every line of the log, as the source has it: its event is a constant, and its fields are on the list."""

import ast
import re
from collections.abc import Iterator

import pytest

from gateway.log import ALLOWED_FIELDS
from tests.architecture.source import Module, find_functions, parse, read_modules

LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
EVENT = re.compile(r"[a-z]+(_[a-z]+)+")


def find_lines(tree: ast.AST) -> Iterator[ast.Call]:
    """Every call of the gateway's ``log``."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level)) if level in LEVELS:
                yield node


def find_events(line: ast.Call) -> list[str]:
    """The names of the events it may be of; one that is made up at run time is its own source text."""
    reported = line.args[0] if line.args else ast.Constant("")
    choices = [reported.body, reported.orelse] if isinstance(reported, ast.IfExp) else [reported]
    return [choice.value if isinstance(choice, ast.Constant) else ast.unparse(choice) for choice in choices]  # type: ignore[misc]


def find_fields(line: ast.Call, function: ast.AST) -> Iterator[str]:
    """The names of its fields; ``**fields`` has those that the function put into ``fields``."""
    for keyword in line.keywords:
        if keyword.arg is not None:
            yield keyword.arg
            continue
        put = [*_find_put(function, ast.unparse(keyword.value))]
        yield from put or [f"**{ast.unparse(keyword.value)}"]


def _find_put(function: ast.AST, name: str) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if ast.unparse(target) == name:
                    yield from _read_keys(node.value)
                elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == name:
                    yield _read_key(target.slice)


def _read_keys(value: ast.expr | None) -> Iterator[str]:
    if isinstance(value, ast.Dict):
        yield from (_read_key(key) if key else "**" for key in value.keys)
    elif value is not None:
        yield ast.unparse(value)


def _read_key(key: ast.expr) -> str:
    return str(key.value) if isinstance(key, ast.Constant) else ast.unparse(key)


def find_wrong_lines(module: Module) -> list[str]:
    """Lines whose event is none, or with a field that would be dropped."""
    scopes: dict[ast.Call, ast.AST] = {}
    for outer in (*find_functions(module.tree), module.tree):  # outer functions come before those inside them
        for line in find_lines(outer):
            scopes.setdefault(line, outer)
    wrong = []
    for line, scope in scopes.items():
        where = f"{module.where}:{line.lineno}"
        if len(line.args) != 1:
            wrong.append(f"{where} has no event, or words beside it")
        wrong += [f"{where} is of the event {event!r}" for event in find_events(line) if not EVENT.fullmatch(event)]
        unknown = {*find_fields(line, scope)} - ALLOWED_FIELDS
        wrong += [f"{where} has the field {field!r}, which log.ALLOWED_FIELDS has not" for field in sorted(unknown)]
    return wrong


def test_every_line_of_the_log_is_of_a_known_shape() -> None:
    found = [line for module in read_modules() for line in find_wrong_lines(module)]
    assert not found, "\n".join(found)


def test_every_line_was_looked_at() -> None:
    lines = [(module, line) for module in read_modules() for line in find_lines(module.tree)]
    events = {event for _, line in lines for event in find_events(line)}
    assert len(lines) > 30
    assert {"request_settled", "request_served", "channel_tripped", "models_synced", "job_failed"} <= events


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("log.info('x_done', secret=1)", "'secret'"),
        ("def f():\n    log.warning('x_done', status=1, api_key=2)", "'api_key'"),
        ("def f():\n    fields = {'status': 1, 'token': 2}\n    log.info('x_done', **fields)", "'token'"),
        ("def f():\n    a = {'status': 1}\n    a |= {'body': 2}\n    log.info('x_done', **a)", "'body'"),
        ("def f():\n    a = {'status': 1}\n    a['body'] = 2\n    log.info('x_done', **a)", "'body'"),
        ("def f():\n    a = {'status': 1}\n    a[name] = 2\n    log.info('x_done', **a)", "'name'"),
        ("def f(fields):\n    log.info('x_done', **fields)", "'**fields'"),
        ("def f():\n    log.info('x_done', **{**other})", "'**"),
        ("def f():\n    fields = make()\n    log.info('x_done', **fields)", "'make()'"),
        ("log.info('Something happened')", "'Something happened'"),
        ("log.info(f'x_{name}')", "is of the event"),
        ("log.info('x_done' if a else b)", "'b'"),
        ("log.info('x_done', 5)", "words beside it"),
        ("log.info()", "no event"),
    ],
)
def test_a_wrong_line_is_found_and_named(text: str, message: str) -> None:
    found = find_wrong_lines(parse("flow/x.py", text))
    assert any(message in line for line in found), found
    assert all(line.startswith("flow/x.py:") for line in found)


@pytest.mark.parametrize(
    "text",
    [
        "log.info('x_done')",
        "def f():\n    log.info('x_done', status=1, exc_info=True)",
        "def f():\n    a = {'status': 1}\n    a |= {'model': 2}\n    a['path'] = 3\n    log.info('x_done', **a)",
        "log.info('x_done' if a else 'x_failed')",
        "math.log(5)\nlogging.getLogger('x').info('Whatever %s', 5)",
    ],
)
def test_a_line_that_is_in_order_is_left_alone(text: str) -> None:
    assert find_wrong_lines(parse("flow/x.py", text)) == []
