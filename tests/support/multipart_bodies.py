"""Multipart bodies, and what a process has open while it reads them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

MB = 2**20


TYPE = "multipart/form-data; boundary=edge"


def part(name: str, data: bytes, *more: str, filename: str | None = None) -> bytes:
    """One part; ``more`` are further header lines."""
    disposition = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename is not None else "")
    return "\r\n".join(["--edge", f"Content-Disposition: {disposition}", *more, "", ""]).encode() + data + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--edge--\r\n"


def count_open(folder: Path, process: int | str = "self") -> int:
    """Descriptors of a process on files that have, or had, a place in ``folder``."""
    found = 0
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(descriptor.readlink()).startswith(f"{folder}/")
    return found


@contextmanager
def watch_memory(process: psutil.Process) -> Iterator[list[float]]:
    """How far the process's resident memory rises in the block at the most, in MB, as the one item of the list."""
    began = process.memory_info().rss
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # its highest mark is from now on
    risen = [0.0]
    yield risen
    status = Path(f"/proc/{process.pid}/status").read_text()
    highest = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    risen[0] = int(highest) / 1024 - began / MB
