"""A plugin of pytest: writes what became of each test to the file that SUITE_OUTCOMES names, one JSON line each."""

import json
import os
from pathlib import Path

import pytest

_STATES: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a test that was skipped, failed in any of its phases, or passed."""
    if _STATES.get(report.nodeid) == "failed" or (report.passed and report.when != "call"):
        return
    _STATES[report.nodeid] = report.outcome
    crash = getattr(report.longrepr, "reprcrash", None)
    reason = str(crash.message if crash is not None else report.longrepr or "")
    line = json.dumps({"test": report.nodeid, "state": report.outcome, "reason": reason[:2_000]})
    with Path(os.environ["SUITE_OUTCOMES"]).open("a") as file:
        file.write(line + "\n")
