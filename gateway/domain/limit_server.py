"""A server that decides rate limits for several gateways, a batch of requests with each command.

Command and answer are JSON, so that a script in Valkey and a function in PostgreSQL read and write the same. A command:

``node``: the name of this process; ``replaces``: the beginning of the names of former processes of the same gateway,
whose requests no longer run; empty if there is none; ``token``: random, becomes the name of the server's state if that
is empty; ``prefix``: the prefix of the names; ``leaves``: 1 if the gateway stops.
``names``: ``[name, running]`` of each subject, sorted by name. ``running`` is the number of requests that run at this
gateway, -1 if it does not matter.
``limits``: ``[name, rpm, burst, tpm, places]`` of each subject of ``calls``; 0 is unlimited.
``fixes``: ``[name, what, units, limit]``: units to count, or to return, before any call is decided, at the limit under
which they were taken. ``what`` is 0 for requests and 1 for tokens.
``calls``: ``[kind, tokens, [limit, ...]]``. ``kind`` is 0 to look and take nothing, 1 to take units only, 2 to take
units and places.
``ahead``: ``[name, what, units, limit, burst]``: units to take after all calls, as far as they are left.

A name in ``limits``, ``fixes`` and ``ahead``, and a limit in ``calls``, is its position, counted from 1. The answer is
``[state, known, nodes, now, calls, ahead]``: the name of the server's state, which changes if that is lost; 1 if the
server has heard from this gateway within ``ALIVE_S``; how many gateways it has heard from; its clock; for each call 1
if it passes, then ``tat`` of requests, ``tat`` of tokens and the running requests of each subject; and the units taken
ahead. The arithmetic is that of ``rate_limit``, in the same order, so that every server decides alike.
"""

from typing import Protocol

from gateway.frozen import quick_frozen

ALIVE_S = 15.0
"""How long a server counts the running requests of a gateway that has stopped sending commands."""

EPOCH_S = 1_767_225_600
"""The start of 2026, from which servers count seconds: the fewer digits before the point, the more behind it."""


@quick_frozen
class LimitServerState:
    """The properties of a server. ``eviction`` is how it removes keys when its memory is full; empty if it does not."""

    name: str
    version: str
    latency_ms: float
    eviction: str = ""


class LimitServer(Protocol):
    """A connection to the server.

    At most one command is in progress. ``name`` is the server's address without the password.
    """

    name: str

    async def connect(self) -> None:
        """Open or reopen the connection, and prepare the server."""
        ...

    async def run(self, command: bytes) -> bytes:
        """Send a command and return the answer. Raises ``StoreUnavailable``; then ``connect`` comes next."""
        ...

    async def close(self) -> None: ...
