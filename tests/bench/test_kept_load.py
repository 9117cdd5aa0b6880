"""``scripts/kept_load.py``: nothing is lost while bodies and streams are kept. Ten minutes of it are a soak."""

import pytest
import uvloop

from scripts import kept_load


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_moment_of_load_loses_no_event_and_no_body(capsys: pytest.CaptureFixture[str]) -> None:
    assert uvloop.run(kept_load.load(0.5, 400, 0.3)) == []
    printed = capsys.readouterr().out
    assert "delay, p99: " in printed
    assert "in the second half, resident memory" in printed
    assert f"{kept_load.STREAMS} streams were looked at" in printed


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_ten_minutes_of_load_lose_nothing_and_memory_stays_flat() -> None:
    """At 2,000 events a second; for the ratio of the delays run the script on a machine of its own."""
    assert uvloop.run(kept_load.load(kept_load.JUDGED_S, 2000, 10)) == []
