"""Helpers of tests lie in ``tests/support``: a test module can be moved or deleted without another one."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def find_borrowed(text: str) -> list[str]:
    """The test modules and conftests that a test module imports from."""
    if re.search(r"from tests[.\w]*\.(test_|conftest)", text) is None:
        return []
    modules = [node.module or "" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    last = {module: module.rpartition(".")[2] for module in modules if module.startswith("tests.")}
    return [module for module, name in last.items() if name.startswith("test_") or name == "conftest"]


def test_no_test_module_imports_from_another() -> None:
    paths = [path for path in TESTS.rglob("*.py") if path.is_relative_to(TESTS / "architecture") is False]
    found = [
        f"{path.relative_to(TESTS)} imports from {module}; helpers lie in tests/support"
        for path in sorted(paths)
        for module in find_borrowed(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_a_borrowed_helper_is_found() -> None:
    assert find_borrowed("from tests.server.test_routes import ask") == ["tests.server.test_routes"]
    assert find_borrowed("def f():\n    from tests.conftest import x") == ["tests.conftest"]
    assert find_borrowed("from tests.support.gateway import channel\nfrom gateway.app import create_app") == []


def find_patches_of_asyncio(text: str) -> list[str]:
    """What a test replaces in asyncio itself, for every task of its process."""
    return re.findall(r'setattr\(\s*(?:"[\w.]*asyncio\.\w+"|asyncio, "\w+")', text)


def test_no_test_replaces_a_function_of_asyncio_for_everybody() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {patch}; tests.support.module_sleep replaces it for one module"
        for path in sorted(TESTS.rglob("*.py"))
        for patch in find_patches_of_asyncio(path.read_text())
        if path != Path(__file__)
    ]
    assert not found, "\n".join(found)


def test_a_patch_of_asyncio_is_found() -> None:
    assert find_patches_of_asyncio('patched.setattr("gateway.cli.replays.asyncio.sleep", sleep)')
    assert find_patches_of_asyncio('monkeypatch.setattr(asyncio, "sleep", sleep)')
    assert not find_patches_of_asyncio('replace_sleep(monkeypatch, "gateway.cli.replays", sleep)')
