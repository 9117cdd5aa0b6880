"""The primary of the database is lost under every kind of load, and its standby promoted: nothing is lost with it.

With a synchronous standby a spending limit stays exact. With an asynchronous one, what exceeds it is on record.
"""

import asyncio
import errno
import socket
from functools import partial
from pathlib import Path

import pytest

from tests.support.failover_scene import BACK_S, Loss, lose_primary
from tests.support.gateway_process import SERVE, eventually
from tests.support.networks import THERE, open_network

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "loss",
    [
        Loss("killed", good_first=False),
        Loss("frozen", good_first=False, away_s=14.0),
        Loss("frozen", good_first=True, sync=False),
        Loss("dropped packets", good_first=False),
        Loss("no route to host", good_first=True, sync=False, behind_s=1.0),
    ],
    ids=str,
)
async def test_a_lost_primary_costs_no_request_no_charge_and_no_limit(tmp_path: Path, loss: Loss) -> None:
    assert await lose_primary(tmp_path, loss) < BACK_S * 2  # a busy machine is slower; the figure is printed


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("fault", ["killed", "frozen", "dropped packets", "no route to host", "network unreachable"])
@pytest.mark.parametrize("good_first", [True, False], ids=["good first", "good last"])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("behind_s", [0.0, 2.0, 8.0, 80.0])
async def test_no_loss_of_a_primary_costs_a_request_a_charge_or_a_limit(
    tmp_path: Path, fault: str, behind_s: float, *, good_first: bool, sync: bool
) -> None:
    """The nodes have been without the database for longer than the fence when the standby is promoted."""
    loss = Loss(fault, good_first, sync, behind_s, away_s=11.0)
    assert await lose_primary(tmp_path, loss, per_s=100, nodes=3, before_s=4.0, command=SERVE) < BACK_S


async def test_dropped_packets_are_lost_without_a_word_and_a_way_that_is_missing_is_told() -> None:
    """What the faults of the network are, at an open connection and at new ones."""
    loop = asyncio.get_running_loop()
    async with open_network() as network:
        listeners: list[socket.socket] = []
        network.run_there(lambda: listeners.append(socket.create_server((THERE, 0))))
        with listeners[0] as listener, open_socket() as opened, open_socket() as silent, open_socket() as refused:
            listener.setblocking(False)
            address = listener.getsockname()
            await loop.sock_connect(opened, address)
            accepted, _ = await loop.sock_accept(listener)
            with accepted:
                await loop.sock_sendall(opened, b"before")
                assert await loop.sock_recv(accepted, 100) == b"before"
                network.drop()
                await loop.sock_sendall(opened, b"after")
                await eventually(partial(is_sent_again, opened), 30)
                with pytest.raises(BlockingIOError):
                    accepted.recv(100)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loop.sock_connect(silent, address), 0.3)
            for lose, number in (
                (network.refuse_network, errno.ENETUNREACH),
                (network.refuse_host, errno.EHOSTUNREACH),
            ):
                lose()
                with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is checked
                    await loop.sock_connect(refused, address)
                assert caught.value.errno == number


def open_socket() -> socket.socket:
    found = socket.socket()
    found.setblocking(False)
    return found


async def is_sent_again(connection: socket.socket) -> bool:
    """Return whether the oldest packet without an answer was sent again: the third byte of ``tcp_info`` counts that."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 3)[2] > 0
