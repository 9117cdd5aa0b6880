"""A service gets what it needs when it is made: no code sets an attribute of another object afterwards."""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.source import Module, list_nodes, parse, read_modules

_OPENERS = ("services", "cluster")
_RECORDS = {
    "ahead", "balance", "buckets", "caller", "permit", "rate", "request", "reservation", "slot", "subject", "verdict",
}  # fmt: skip
"""Variables of values that are counted in place: balances and leases, rates and their buckets, requests that wait. They
are no services: only the code that counts changes them."""


def find_late_wires(module: Module) -> Iterator[str]:
    """Assignments to an attribute of an object other than ``self``."""
    for node in list_nodes(module.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            owner = ast.unparse(node.value)
            if owner not in {"self", "cls"} and owner.removeprefix("self.").split(".")[0] not in _RECORDS:
                yield f"{module.where}:{node.lineno} sets {owner}.{node.attr} from outside; pass it to its constructor"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"setattr", "object.__setattr__"}:
            yield f"{module.where}:{node.lineno} sets an attribute by name"


def find_unchecked_wires(module: Module) -> Iterator[str]:
    """Ways to pass a function whose other arguments mypy does not check: it accepts any ``partial`` as any callable."""
    if module.part == "services" or module.where.startswith("cluster/open"):
        for node in list_nodes(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "partial",
                "functools.partial",
                "late",
                "load",
            }:
                yield f"{module.where}:{node.lineno} hides arguments from mypy; use a function or a lambda"


def test_no_service_is_changed_after_it_is_made() -> None:
    modules = [module for module in read_modules() if module.where.split("/")[0] in _OPENERS]
    assert len(modules) > 50
    found = [line for module in modules for check in (find_late_wires, find_unchecked_wires) for line in check(module)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "bad",
    [
        "channels.listed = note",
        "self._router.settings = settings",
        "services.media, services.files = made",
        "journal.leftovers += rows",
        "node.clock: Clock = clock",
        "with opened() as services.client:\n    pass",
        "setattr(session, 'heard', wake)",
        "del services.options",
    ],
)
def test_each_way_to_set_an_attribute_is_found(bad: str) -> None:
    assert list(find_late_wires(parse("services/x.py", f"def f():\n    {bad}".replace("\n    pass", "\n        pass"))))


@pytest.mark.parametrize("bad", ["Once(partial(make, base))", "load('services.batches:open_batches')(base)"])
def test_arguments_that_mypy_does_not_check_are_found(bad: str) -> None:
    assert list(find_unchecked_wires(parse("services/x.py", bad)))


def test_own_attributes_and_counted_records_may_change() -> None:
    assert not list(find_late_wires(parse("cluster/x.py", "self.made = 1\nself._seen += 1\nbalance.refusal = None")))
