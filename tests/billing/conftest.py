"""The books of a test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.billing_services import Books


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(tmp_path)
    yield made
    made.close()
