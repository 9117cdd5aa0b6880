"""The protocol between systemd and a service: inherited sockets, and messages about the state of the service.

Source: ``sd_listen_fds(3)`` and ``sd_notify(3)``. Without systemd's environment variables this module does nothing.
"""

import asyncio
import os
import socket
from collections.abc import MutableMapping

import structlog

from gateway.frozen import frozen

_FIRST_DESCRIPTOR = 3
_BEATS_PER_TIMEOUT = 3

log = structlog.stdlib.get_logger(__name__)


@frozen
class ServiceManager:
    """The manager that started this process.

    ``socket_count`` is the number of inherited sockets, one for each ``ListenStream=`` line. ``path`` is the address
    of the socket for messages; empty if the manager wants no messages. After ``timeout_us`` microseconds without a
    message the manager restarts the service; 0 means never.
    """

    socket_count: int = 0
    path: str = ""
    timeout_us: int = 0

    def open_sockets(self) -> list[socket.socket]:
        """Return the inherited sockets. Raises ``OSError`` if a descriptor is not a TCP socket."""
        sockets = []
        for descriptor in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + self.socket_count):
            os.set_inheritable(descriptor, False)
            sock = socket.socket(fileno=descriptor)
            sockets.append(sock)
            if sock.family not in {socket.AF_INET, socket.AF_INET6} or sock.type != socket.SOCK_STREAM:
                raise OSError("systemd passes a socket that is not TCP: ListenStream= needs a port")
        return sockets

    def notify(self, state: str) -> None:
        """Send the manager a message, for instance ``READY=1``. A manager that does not listen is not an error."""
        if not self.path.startswith(("/", "@")):
            return
        address = f"\0{self.path[1:]}" if self.path.startswith("@") else self.path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.connect(address)
                sock.send(state.encode())
        except OSError as error:
            log.warning("service_manager_not_notified", error=str(error))

    async def keep_watchdog(self) -> None:
        """Report, as often as ``WatchdogSec=`` requires, that the loop runs; systemd restarts a blocked service."""
        while self.timeout_us:
            self.notify("WATCHDOG=1")
            await asyncio.sleep(self.timeout_us / 1_000_000 / _BEATS_PER_TIMEOUT)


def find_manager(environ: MutableMapping[str, str]) -> ServiceManager:
    """Read the manager's variables from the environment and remove them: they are not meant for child processes."""
    own_pid = str(os.getpid())
    pid, socket_count_text, _ = (environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    path, timeout, watchdog_pid = (
        environ.pop(name, default)
        for name, default in (("NOTIFY_SOCKET", ""), ("WATCHDOG_USEC", ""), ("WATCHDOG_PID", own_pid))
    )
    return ServiceManager(
        int(socket_count_text) if pid == own_pid and socket_count_text.isdecimal() else 0,
        path,
        int(timeout) if watchdog_pid == own_pid and timeout.isdecimal() else 0,
    )
