"""A database of each test's own, of every kind."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.database import Database
from gateway.storage.open import open_database
from tests.support.database_kinds import KINDS
from tests.support.postgres import SharedPostgres
from tests.support.stores import copy_template


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    """What database the test has (``tests/support/database_kinds.py``)."""
    return request.param


@pytest.fixture
async def database(
    kind: str, tmp_path: Path, template_path: Path, shared_postgres: SharedPostgres
) -> AsyncIterator[Database]:
    if kind == "sqlite":
        url = f"sqlite:///{await copy_template(template_path, tmp_path)}"
    else:
        url = await shared_postgres.empty()
    opened = await open_database(url)
    yield opened
    await opened.close()
