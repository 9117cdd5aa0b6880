"""Databases of tests are closed in the event loops of the tests."""

from collections.abc import AsyncIterator

import pytest

from tests.support.repositories import close_databases


@pytest.fixture(autouse=True)
async def loop_ends_databases() -> AsyncIterator[None]:
    yield
    await close_databases()
