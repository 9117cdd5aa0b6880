"""What ``gateway serve`` asks of the interpreter: of its garbage collector, and of threads that compute."""

import os
import subprocess
import sys
from pathlib import Path

SERVE = """
import gc, os, signal, sys
from gateway.cli import serve
from gateway.cli.main import main

def show(address, info):
    print(*gc.get_threshold(), sys.getswitchinterval(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

serve.print_startup_message = show
main()
"""


def test_a_gateway_that_is_ready_collects_old_garbage_too_and_waits_little_for_threads(tmp_path: Path) -> None:
    """The thresholds of the start alone would leave old garbage for millions of requests.

    A thread that redacts bodies would hold up the events of all streams for the 5 ms of Python's own interval.
    """
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    words = ["serve", "--port", "0", "--data", str(tmp_path / "data")]
    served = subprocess.run(
        [sys.executable, "-c", SERVE, *words],
        cwd=tmp_path,
        env={**kept, "GATEWAY_DISCOVER": "0"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert served.stdout.split() == ["10000", "10", "10", "0.0005"], served.stderr
