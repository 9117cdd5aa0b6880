"""Half an hour of every kind of call, with failing providers and clients that leave: nothing is lost, memory is flat.

``make soak ARGS=tests/faults/test_mixed_load.py`` runs it; ``GATEWAY_TEST_LOAD_MINUTES=5`` makes it shorter.
"""

import os

import pytest

from scripts.soak import Load, soak

MINUTES = float(os.environ.get("GATEWAY_TEST_LOAD_MINUTES") or 30)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_nothing_is_lost_and_memory_is_flat_under_a_mixed_load() -> None:
    assert await soak(Load(MINUTES * 60, callers=20, pause_s=0.1))
