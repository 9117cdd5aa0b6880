"""The gateway has no descriptor left: that is nobody's fault but its own, and passes."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.server.context import SERVICES
from gateway.upstream.exhaustion import ResourcesExhausted, find_exhaustion
from tests.support.gateway import channels
from tests.support.raw_client import connect, hello, post, read_answer
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """From here on nothing can be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("stream", [False, True])
async def test_no_descriptor_for_a_provider_is_a_503_and_no_failure_of_the_provider(
    gateway_with: StartGateway, stream: bool
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = {**channels([up]), "routing": {"trip_failures": 1}}
        gateway = await gateway_with(config)
        reader, writer = await connect(gateway.url)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await read_answer(reader)).status == 200
        with no_descriptor_left():
            for _ in range(3):
                writer.write(post(hello(stream=stream)))
                found = await read_answer(reader)
                assert (found.status, found.error["code"]) == (503, "overloaded")
                assert found.headers["retry-after"] == "1"
                assert found.error["type"] == "new_api_error"
        assert not up.received
        assert gateway.app[SERVICES].routing.load_balancer.any_open
        writer.write(post(hello()))
        assert (await read_answer(reader)).status == 200
        writer.close()
        rows = await gateway.rows(4)
        assert sorted(row.outcome for row in rows) == ["completed", "refused", "refused", "refused"]
        assert all(row.cost_nanos == 0 for row in rows if row.outcome == "refused")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL])
def test_what_is_ours_is_found_whatever_it_is_wrapped_in(number: int) -> None:
    error = ConnectionError("provider.test:443")
    error.__cause__ = OSError(number, os.strerror(number))
    found = find_exhaustion(error)
    assert isinstance(found, ResourcesExhausted)
    assert found.__cause__ is error


def test_what_is_a_providers_is_not_ours() -> None:
    for number in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ECONNRESET, errno.ETIMEDOUT):
        assert find_exhaustion(OSError(number, "x")) is None
    assert find_exhaustion(ValueError("x")) is None
    assert find_exhaustion(socket.gaierror(socket.EAI_NONAME, "no such name")) is None


def test_a_name_that_could_not_be_asked_for_is_ours() -> None:
    with no_descriptor_left():
        assert find_exhaustion(socket.gaierror(socket.EAI_AGAIN, "try again")) is not None
    assert find_exhaustion(socket.gaierror(socket.EAI_AGAIN, "try again")) is None
