"""The gateway under systemd: its socket, its messages, its restart under load, and the units in ``deploy/``."""

import asyncio
import os
import re
import socket
import subprocess
from pathlib import Path

import aiohttp
import pytest

from gateway.systemd import ServiceManager, find_manager
from tests.support.service_manager import Systemd
from tests.support.tools import find_tool

UNITS = Path(__file__).resolve().parent.parent / "deploy" / "systemd"
CALLERS = 200
MAX_EXPOSURE = 2.0
SLOW_STREAM = {"model": "demo-chat", "messages": [{"role": "user", "content": "a long story"}], "stream": True}


def test_without_systemd_there_is_no_socket_and_nobody_to_notify() -> None:
    manager = find_manager({})
    manager.notify("READY=1")
    assert manager.open_sockets() == []
    asyncio.run(manager.keep_watchdog())


def test_what_is_meant_for_another_process_is_ignored_and_not_passed_on() -> None:
    other = str(os.getpid() + 1)
    environ = {"LISTEN_PID": other, "LISTEN_FDS": "1", "WATCHDOG_PID": other, "WATCHDOG_USEC": "5", "PATH": "/bin"}
    assert find_manager(environ) == ServiceManager()
    assert environ == {"PATH": "/bin"}


def test_a_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    ServiceManager(path=str(tmp_path / "gone")).notify("READY=1")


def test_a_message_reaches_an_abstract_address() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0gateway-test-notify")
        ServiceManager(path="@gateway-test-notify").notify("STOPPING=1")
        assert listener.recv(100) == b"STOPPING=1"


def find_key(manager: Systemd) -> str:
    """The API key of the first start."""
    found = re.search(r"sk-[A-Za-z0-9_-]{20,}", manager.read_log())
    assert found is not None
    return found[0]


@pytest.mark.slow
def test_a_service_says_when_it_is_ready_that_it_lives_and_that_it_stops(tmp_path: Path) -> None:
    with Systemd(tmp_path, WATCHDOG_USEC="300000") as manager:
        manager.start()
        assert "READY=1" in manager.hear_until("READY=1")
        assert manager.hear() == manager.hear() == "WATCHDOG=1"
        assert f"http://127.0.0.1:{manager.port}" in manager.read_log()
        assert manager.stop() == 0
        assert "STOPPING=1" in manager.hear_until("STOPPING=1")


@pytest.mark.slow
def test_a_socket_that_is_not_tcp_is_refused_in_plain_words(tmp_path: Path) -> None:
    with Systemd(tmp_path) as manager, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local:
        local.bind(str(tmp_path / "local"))
        local.listen()
        manager.listener.close()
        manager.listener = local
        manager.start()
        assert manager.process is not None
        assert manager.process.wait(30) == 2
        assert "ListenStream= needs a port" in manager.read_log()
        assert "Traceback" not in manager.read_log()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_restart_refuses_no_connection_and_breaks_no_stream(tmp_path: Path) -> None:
    """Callers come all the time, each with a connection of its own, while the service is stopped and started."""
    with Systemd(tmp_path) as manager:
        manager.start()
        await asyncio.to_thread(manager.hear_until, "READY=1")
        key = find_key(manager)
        restarted = asyncio.Event()
        answers: list[str] = []

        async def call() -> None:
            url = f"http://127.0.0.1:{manager.port}/v1/chat/completions"
            connector = aiohttp.TCPConnector(force_close=True)
            async with aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {key}"}) as client:
                for _ in range(50):
                    async with client.post(url, json=SLOW_STREAM) as response:
                        body = await response.read()
                        whole = body.endswith(b"data: [DONE]\n\n")
                        answers.append(
                            "whole" if response.status == 200 and whole else f"{response.status} {body[-200:]!r}"
                        )
                    if restarted.is_set():
                        return

        async def restart() -> None:
            await asyncio.sleep(0.2)
            for _ in range(2):
                assert await asyncio.to_thread(manager.stop) == 0
                manager.start()
                await asyncio.to_thread(manager.hear_until, "READY=1")
            restarted.set()

        await asyncio.gather(restart(), *(call() for _ in range(CALLERS)))
        assert set(answers) == {"whole"}
        assert len(answers) > CALLERS, "nobody called while it was restarted"


def test_the_unit_is_hardened() -> None:
    """``systemd-analyze security`` rates what a service may do, from 0 (nothing) to 10 (everything)."""
    analyze = find_tool("systemd-analyze", "systemd")
    unit = str(UNITS / "gateway.service")
    done = subprocess.run([analyze, "security", "--offline=true", unit], capture_output=True, text=True, check=True)
    rated = re.search(r"Overall exposure level for gateway.service: ([0-9.]+)", done.stdout)
    assert rated is not None
    assert float(rated[1]) <= MAX_EXPOSURE


def test_the_units_are_well_formed() -> None:
    analyze = find_tool("systemd-analyze", "systemd")
    units = [str(UNITS / name) for name in ("gateway.service", "gateway.socket")]
    done = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, check=False)
    faults = [line for line in done.stderr.splitlines() if "/opt/gateway/bin/gateway is not executable" not in line]
    assert faults == []
