"""The books of a test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.billing_services import BillingServices
from tests.support.repositories import close_databases


@pytest.fixture(autouse=True)
async def loop_ends_databases() -> AsyncIterator[None]:
    """A test's database is closed in the event loop of the test."""
    yield
    await close_databases()


@pytest.fixture
async def billing(tmp_path: Path) -> AsyncIterator[BillingServices]:
    made = BillingServices(tmp_path)
    yield made
    await made.accounting.close()
    made.close()
