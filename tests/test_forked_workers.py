"""Forked workers run what one process has collected; a worker that dies is replaced; failures are reported as usual."""

import re
import subprocess
import sys
from pathlib import Path

CONFTEST = """
from tests.support.forked_workers import Collector, can_fork

def pytest_configure(config):
    if can_fork(config):
        config.pluginmanager.register(Collector(config))
"""

TESTS = """
import os
import warnings
import pytest

COLLECTED_BY = os.getpid()

@pytest.mark.parametrize("number", range(8))
def test_forked(number, tmp_path, capfd):
    assert os.getpid() != COLLECTED_BY == os.getppid()
    assert os.environ["PYTEST_XDIST_WORKER"] in str(tmp_path)
    os.write(1, b"out of %d" % number)
    assert capfd.readouterr().out == f"out of {number}"

def test_fails(tmp_path):
    os.write(1, b"what was written")
    assert "left" == "right"

def test_dies():
    os._exit(3)

def test_warns():
    warnings.warn("a warning", stacklevel=1)
"""


def test_workers_run_what_one_process_has_collected(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {Path(__file__).parents[1]}\n")
    words = ["-p", "no:schemathesis", "-p", "no:cacheprovider", "-p", "no:randomly", "-n", "2", "-c", "pytest.ini"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    printed = done.stdout
    assert "2 failed, 9 passed, 1 warning, 1 error" in printed, printed
    assert re.search(r"Captured stdout call -+\nwhat was written", printed), printed
    assert re.search(r"worker 'gw\d' crashed while running 'test_some.py::test_dies'", printed), printed
    assert "ERROR test_broken.py - ImportError" in printed
