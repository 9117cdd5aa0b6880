"""Asks the process that has collected the tests for a worker; started by pytest-xdist in place of Python.

It hands over its standard files and ends when the worker has ended. Where no such process answers it becomes the
Python that was asked for. It imports no more than it needs: there is one of these beside each worker.
"""

import os
import signal
import socket
import sys


def launch(address: str, words: list[str]) -> None:
    """Wait for a worker's end, or become ``python WORDS``."""
    with socket.socket(socket.AF_UNIX) as asked:
        try:
            asked.connect(address)
            socket.send_fds(asked, [b"?"], [0, 1, 2])
            is_taken = asked.recv(1) == b"!"
        except OSError:
            is_taken = False
        if not is_taken:
            os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - no shell is wanted
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker receives it, too, and ends
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):  # or pytest-xdist would not see that a worker has died
            os.dup2(nothing, number)
        asked.recv(1)


if __name__ == "__main__":
    launch(sys.argv[1], sys.argv[2:])
