"""Two parts of the gateway that took one number for their advisory locks would wait for each other."""

import re
from pathlib import Path

from gateway.storage.postgres import lock_numbers

_GATEWAY = Path(lock_numbers.__file__).parents[2]
_NUMBER = re.compile(r"\b7_?130_?0\d\d\b")


def test_advisory_locks_have_different_numbers() -> None:
    numbers = [value for name, value in vars(lock_numbers).items() if name.endswith("_LOCK")]
    assert len(numbers) > 1
    assert len(set(numbers)) == len(numbers)


def test_no_other_module_has_a_number_of_a_lock() -> None:
    own = Path(lock_numbers.__file__)
    others = [path.name for path in _GATEWAY.rglob("*.py") if path != own and _NUMBER.search(path.read_text())]
    assert others == []
    assert _NUMBER.search(own.read_text())
