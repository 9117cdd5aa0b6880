"""Every kind of call, edits, faults and a kill: nothing is lost or left over.

``make soak`` runs two hours of it, ``make soak ARGS=tests/faults/test_mixed_load.py`` half a minute;
``GATEWAY_TEST_LOAD_MINUTES=30`` sets another time. ``scripts/soak.py`` says what is checked.
"""

import os

import pytest

from scripts.soak import Load, soak

MINUTES = float(os.environ.get("GATEWAY_TEST_LOAD_MINUTES") or 0.5)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_nothing_is_lost_or_left_over_under_a_hostile_load() -> None:
    assert await soak(Load(MINUTES * 60)) == []
