"""After every fault: no descriptor left open; and what was seen of it is noted for the table at the end of the run."""

import gc
from collections.abc import AsyncIterator

import pytest

from tests.support.outcome_table import Notes
from tests.support.sockets import check_sockets, count_sockets


@pytest.fixture(autouse=True)
async def no_socket_is_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Set up before the gateway and looked at after it; a test with a shared gateway checks for itself."""
    stands = "standing_with" in request.fixturenames
    before = 0 if stands else count_sockets()
    yield
    if not stands:
        await check_sockets(before)
    gc.collect(1)  # what was not released says so now, in the test that is to blame


@pytest.fixture
def notes(request: pytest.FixtureRequest) -> Notes:
    return Notes(request.node)
