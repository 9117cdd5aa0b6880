"""A double of a class of the gateway is its subclass: a method that is renamed there is an error of mypy here."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
MARK = "# type: ignore[arg-" + "type]"
_CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)


def find_look_alikes(text: str, classes: set[str]) -> Iterator[int]:
    """Lines on which mypy must not look at an argument that is of a class in ``classes``."""
    marked = {number for number, line in enumerate(text.splitlines(), 1) if MARK in line}
    tree = ast.parse(text)
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _makes_one(node.value, classes)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    doubles = {(name, 0, len(text)) for name in names} | {
        ("self", node.lineno, node.end_lineno or 0) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or call.lineno not in marked:
            continue
        for value in (*call.args, *(keyword.value for keyword in call.keywords)):
            named = isinstance(value, ast.Name) and any(
                value.id == name and first <= value.lineno <= last for name, first, last in doubles
            )
            if named or _makes_one(value, classes):
                yield call.lineno


def _makes_one(value: ast.expr, classes: set[str]) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in classes


def test_doubles_are_subclasses() -> None:
    texts = {path: path.read_text() for path in sorted(TESTS.rglob("*.py"))}
    classes = {name for text in texts.values() for name in _CLASS.findall(text)}
    found = [
        f"{path.relative_to(TESTS)}:{line} passes an object of a test's class for another; make it a subclass"
        for path, text in texts.items()
        if MARK in text
        for line in find_look_alikes(text, classes)
    ]
    assert not found, "\n".join(found)


def test_a_look_alike_is_found() -> None:
    for code in (
        f"f(Double())  {MARK}",
        f"double = Double(1)\nf(1, more=double)  {MARK}",
        f"class Double:\n    def act(self):\n        f(self)  {MARK}",
    ):
        assert list(find_look_alikes(code, {"Double"})) == [code.count("\n") + 1]
    for code in (f"f(Other())  {MARK}", "f(Double())", f"f(1)  {MARK}\nf(Double())"):
        assert not list(find_look_alikes(code, {"Double"}))
