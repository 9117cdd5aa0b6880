"""What systemd does for a socket-activated service: it opens the socket, passes it, and hears what the service says."""

import os
import signal
import socket
from pathlib import Path
from typing import Self

from tests.support.forked_commands import Forked


class Systemd:
    """Holds a listening socket and a notification socket over any number of runs of ``gateway serve``."""

    def __init__(self, folder: Path, *options: str, **environ: str) -> None:
        self._folder = folder
        self._options = options
        self._environ = environ
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self.listener.getsockname()[1]
        self._path = folder / "notify"
        self._notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notes.bind(str(self._path))
        self._notes.settimeout(30)
        self._logs: list[Path] = []
        self.process: Forked | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.listener.close()
        self._notes.close()

    def start(self) -> None:
        """Start the service."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        data = str(self._folder / "data")
        environ = {"NOTIFY_SOCKET": str(self._path), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "gateway.socket"}
        self._logs.append(self._folder / f"log{len(self._logs)}")
        words = ["gateway", "serve", "--data", data, *self._options]
        env = {**kept, "GATEWAY_DISCOVER": "0", **environ, **self._environ}
        self.process = Forked(
            words, cwd=self._folder, env=env, out=self._logs[-1], err=self._logs[-1], listener=self.listener
        )

    def hear(self) -> str:
        """The next message of the service; raises ``TimeoutError`` after 30 s."""
        return self._notes.recv(4096).decode()

    def hear_until(self, state: str) -> list[str]:
        """Messages up to ``state``."""
        heard = [self.hear()]
        while heard[-1] != state:
            heard.append(self.hear())
        return heard

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def read_log(self) -> str:
        return "".join(log.read_text() for log in self._logs)
