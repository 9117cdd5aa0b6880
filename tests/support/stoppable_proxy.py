"""A TCP proxy that can stop passing bytes, as a network does that loses every packet: no end, no reset, no answer.

It can also pass them late, as a network does to a distant host.
"""

import asyncio
from contextlib import closing
from typing import Self


class StoppableProxy:
    """Passes connections on to ``port`` of the loopback while it is open; entered, it listens at ``self.port``.

    Attributes:
        target: the port of new connections; those that are open stay where they lead.
        late_s: how long each byte is under way, in each direction.
    """

    def __init__(self, port: int, late_s: float = 0.0) -> None:
        self.target = port
        self.late_s = late_s
        self._there, self._back = asyncio.Event(), asyncio.Event()
        self.go_on()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self, *, there: bool = True, back: bool = True) -> None:
        """Pass nothing from now on, one way or both; new connections are accepted, as a backlog does, and silent."""
        if there:
            self._there.clear()
        if back:
            self._back.clear()

    def go_on(self) -> None:
        """Pass what has waited, and everything from now on."""
        self._there.set()
        self._back.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with closing(writer):
            await self._there.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            with closing(back):
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._pipe(reader, back, self._there))
                        group.create_task(self._pipe(there, writer, self._back))
                except* OSError:
                    pass

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(65_536):
            await way.wait()
            if self.late_s:
                loop.call_later(self.late_s, writer.write, data)
                continue
            writer.write(data)
            await writer.drain()
        await way.wait()
        await asyncio.sleep(self.late_s)
        writer.close()
