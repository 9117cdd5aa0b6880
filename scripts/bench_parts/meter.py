"""What a process used of the machine, by the machine's own accounting; and what machine that is."""

import contextlib
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
import psutil

SOURCE = "the process's CPU clock (every thread, ns)"
_SCHEDULED = 2
_AUTOGROUP = Path("/proc/self/autogroup")
_PACKAGES = ("aiohttp", "uvloop", "httptools", "orjson")


def read_cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process, by the scheduler's account of it; finer than the ticks of /proc/PID/stat.

    The clock's number is how Linux names the clock of a process: clock_getcpuclockid(3).
    """
    return time.clock_gettime_ns(~pid << 3 | _SCHEDULED)


def read_resident_kb(pid: int) -> int:
    """Resident memory of a process; the kernel's buffers of its sockets are not in it."""
    found: int = psutil.Process(pid).memory_info().rss // 1024
    return found


def read_peak_kb(pid: int) -> int:
    """The most resident memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


@attrs.frozen
class Reading:
    """The processes of a bench at one moment: CPU in ns, and the moment itself (s)."""

    relay_ns: int
    upstream_ns: int
    client_ns: int
    at_s: float

    @classmethod
    def take(cls, relay: int | None, upstream: int) -> "Reading":
        """Now; ``relay`` is None where there is none."""
        return cls(read_cpu_ns(relay) if relay else 0, read_cpu_ns(upstream), time.process_time_ns(), time.monotonic())

    def since(self, before: "Reading") -> dict[str, float]:
        """What was used between two: the relay's CPU in ns, and how busy each was, 1 being a core."""
        wall_ns = (self.at_s - before.at_s) * 1e9
        relay, upstream = self.relay_ns - before.relay_ns, self.upstream_ns - before.upstream_ns
        client = self.client_ns - before.client_ns
        return {
            "relay_cpu_ns": relay,
            "relay_busy": relay / wall_ns,
            "upstream_busy": upstream / wall_ns,
            "client_busy": client / wall_ns,
        }


def check_clock(pid: int) -> float:
    """The CPU clock of a process over what its ticks of /proc say: 1 where both agree."""
    times = psutil.Process(pid).cpu_times()
    found: float = read_cpu_ns(pid) / 1e9 / max(times.user + times.system, 1e-9)
    return found


def pin(core: int | None) -> None:
    """This process, and those it starts from now on, on one core; None: wherever the system likes."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def unpin(cores: set[int]) -> None:
    """This process where it was."""
    if cores:
        os.sched_setaffinity(0, cores)


def find_pins() -> set[int]:
    """Where this process may run; empty where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def find_cores() -> tuple[int, int] | None:
    """A core for the relay and one for all others; None where there are not two, or pinning is not allowed."""
    cores = sorted(find_pins())
    if len(cores) < 2:
        return None
    try:
        os.sched_setaffinity(0, set(cores))
    except OSError:
        return None
    return cores[0], cores[1]


def raise_limits(files: int) -> int:
    """Let this process, and those it starts, have so many open files. How many they may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < files:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, max(files, hard)))
        except (OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@contextlib.contextmanager
def go_before(nice: int) -> Iterator[None]:
    """This process and those it starts before others, by so much niceness. Raises ``PermissionError``.

    Where the system makes a group of each session, niceness counts inside of it only, and the group has one of its own:
    sched(7), "The autogroup feature".
    """
    grouped = nice and _AUTOGROUP.exists()
    was = _AUTOGROUP.read_text().split()[-1] if grouped else ""
    if nice:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    if grouped:
        _AUTOGROUP.write_text(str(nice))
    try:
        yield
    finally:
        if grouped:
            _AUTOGROUP.write_text(was)


def describe_machine(nginx: str) -> dict[str, Any]:
    """What a run's figures belong to. ``nginx``: what it says of its version."""
    return {
        "cores": os.cpu_count(),
        "processor": _find_processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "nginx": nginx,
        "commit": _find_commit(),
        "load": os.getloadavg()[0],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        **{name: found for name in _PACKAGES if (found := _find_version(name))},
    }


def _find_processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _find_commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    except FileNotFoundError:
        return "unknown"
    return answer.stdout.strip() or "unknown"


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
