"""Many connections: those that say nothing make room for those that do, and the log says so once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
from structlog.testing import capture_logs

from gateway.config.server_schema import ServerSection
from gateway.domain.ip_address import parse_networks
from gateway.server.connection_limits import (
    CROWDED_FIRST_REQUEST_TIMEOUT_S,
    FUTILE_WINDOW_S,
    LOG_EVERY_S,
    ConnectionLimiter,
    ConnectionLimits,
    compute_limits,
)
from tests.support.gateway import RunningGateway, channels
from tests.support.raw_client import connect, hello, post, read_answer, split
from tests.support.scripted_upstream import COMPLETION, STALL, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
LIMITS = ConnectionLimits(total=20, per_address=10, reserve=4)
SERVED = LIMITS.total - LIMITS.reserve
HOME, AWAY = "192.0.2.1", "198.51.100.1"


@attrs.define(eq=False)
class Fake:
    """A connection that says of itself what a test wants."""

    idle_since: float | None = 0.0
    served: bool = False
    unauthenticated_since: float | None = None
    closed: bool = False

    def force_close(self) -> None:
        self.closed = True


@attrs.define
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class ConnectionScenario:
    """A limiter, and everybody who has come."""

    def __init__(self, trusted: tuple[str, ...] = ()) -> None:
        self.clock = Clock()
        self.limiter = ConnectionLimiter(LIMITS, parse_networks(trusted), self.clock)

    def come(self, address: str = HOME, count: int = 1, **body: object) -> list[Fake]:
        came = []
        for _ in range(count):
            one = Fake(**{"idle_since": self.clock.now, **body})  # type: ignore[arg-type]
            if self.limiter.admit(one, address) != "none":
                came.append(one)
        return came


def many(count: int) -> list[str]:
    return [f"203.0.113.{number}" for number in range(count)]


@table_rows(
    ("descriptors", "total", "per_address", "expected"),
    [
        (1024, 0, 0, (448, 224)),
        (1024, 100, 0, (100, 50)),
        (1024, 100, 30, (100, 30)),
        (1024, 5_000, 9_000, (448, 448)),
        (1_000_000, 0, 0, (10_000, 5_000)),
        (1_000_000, 50_000, 0, (50_000, 25_000)),
        (64, 0, 0, (16, 8)),
    ],
)
def test_what_fits_leaves_a_descriptor_for_each_provider(
    descriptors: int, total: int, per_address: int, expected: tuple[int, int]
) -> None:
    limits = compute_limits(descriptors, total, per_address)
    assert (limits.total, limits.per_address) == expected
    assert 0 < limits.reserve < limits.total
    assert limits.total * 2 <= max(descriptors, 32)


@table_rows(
    ("section", "expected"),
    [
        (ServerSection(), 75),
        (ServerSection(host="::1"), 75),
        (ServerSection(host="0.0.0.0"), 20),  # noqa: S104 - nobody listens
        (ServerSection(host="0.0.0.0", trusted_proxies=("10.0.0.0/8",)), 75),  # noqa: S104
        (ServerSection(host="0.0.0.0", keepalive_timeout_s=33.0), 33),  # noqa: S104
    ],
)
def test_strangers_keep_a_connection_for_less_long_than_a_proxy(section: ServerSection, expected: float) -> None:
    assert section.keepalive_s == expected


def test_one_address_does_not_take_everybodys_room() -> None:
    scenario = ConnectionScenario()
    assert len(scenario.come(HOME, 50, idle_since=None)) == LIMITS.per_address
    assert len(scenario.come(AWAY, 3)) == 3
    assert scenario.limiter.refused_count == 40


def test_an_address_of_ipv6_is_its_64_bits() -> None:
    scenario = ConnectionScenario()
    came = sum(len(scenario.come(f"2001:db8:0:1::{number:x}", idle_since=None)) for number in range(1, 50))
    assert came == LIMITS.per_address
    assert scenario.come("2001:db8:0:2::1")


def test_a_trusted_proxy_speaks_for_many_and_has_no_limit_of_its_own() -> None:
    scenario = ConnectionScenario(trusted=("192.0.2.0/24",))
    assert len(scenario.come(HOME, 15, idle_since=None)) == 15


def test_who_waits_makes_room_for_who_comes() -> None:
    scenario = ConnectionScenario()
    silent = [one for address in many(SERVED) for one in scenario.come(address)]
    scenario.clock.now = 1.0
    (one,) = scenario.come(AWAY)
    assert [each.closed for each in silent].count(True) == 1
    assert silent[0].closed
    assert not one.closed
    assert len(scenario.limiter) == SERVED


def test_first_strangers_that_say_nothing_go_then_the_longest_idle_then_new_ones_and_the_busy_never() -> None:
    scenario = ConnectionScenario()
    scenario.clock.now = 100.0
    busy = [one for address in many(8) for one in scenario.come(address, idle_since=None)]
    order = [
        *scenario.come("198.51.100.2", idle_since=100 - CROWDED_FIRST_REQUEST_TIMEOUT_S - 1),
        *scenario.come("198.51.100.3", idle_since=1.0, served=True),
        *scenario.come("198.51.100.4", idle_since=2.0, served=True),
        *scenario.come("198.51.100.5", idle_since=98.0),
        *scenario.come("198.51.100.6", idle_since=97.0, served=True),
    ]
    scenario.come("198.51.100.7", 3, idle_since=None)
    assert len(scenario.limiter) == SERVED
    for index in range(len(order)):
        scenario.come("198.51.100.8", idle_since=None)
        assert [each.closed for each in order] == [True] * (index + 1) + [False] * (len(order) - index - 1)
    assert not any(each.closed for each in busy)


def test_where_all_are_busy_one_more_is_refused_and_a_stranger_that_is_slow_goes_for_it() -> None:
    scenario = ConnectionScenario()
    scenario.clock.now = 100.0
    for address in many(LIMITS.total - 1):
        scenario.come(address, idle_since=None)
    (slow,) = scenario.come("198.51.100.2", idle_since=None, unauthenticated_since=99.0)
    assert not scenario.come(AWAY, idle_since=None)
    scenario.clock.now += CROWDED_FIRST_REQUEST_TIMEOUT_S
    assert scenario.come(AWAY, idle_since=None)
    assert slow.closed


def test_a_look_that_found_nobody_is_not_made_again_at_once() -> None:
    scenario = ConnectionScenario()
    busy = [one for address in many(LIMITS.total) for one in scenario.come(address, idle_since=None)]
    assert not scenario.come(AWAY)
    busy[0].idle_since = 0.0
    assert not scenario.come(AWAY)
    scenario.clock.now += FUTILE_WINDOW_S
    assert scenario.come(AWAY)


def test_while_connections_are_many_the_first_request_has_to_come_soon() -> None:
    scenario = ConnectionScenario()
    early = [one for address in many(5) for one in scenario.come(address)]
    served = scenario.come(HOME, 2, served=True)
    crowded_early = scenario.limiter.crowded
    late = [one for address in many(12)[5:] for one in scenario.come(address)]
    later = scenario.come(AWAY, 2)
    assert (crowded_early, scenario.limiter.crowded) == (False, True)
    scenario.clock.now = CROWDED_FIRST_REQUEST_TIMEOUT_S
    later[0].idle_since = 1.0
    scenario.limiter.sweep()
    assert all(each.closed for each in [*early, *late, later[1]])
    assert not any(each.closed for each in [*served, later[0]])
    assert not scenario.limiter.crowded


def test_what_is_released_is_forgotten_whole() -> None:
    scenario = ConnectionScenario()
    came = scenario.come(HOME, 8, idle_since=None)
    for one in came:
        scenario.limiter.release(one)
        scenario.limiter.release(one)
    assert len(scenario.limiter) == 0
    assert len(scenario.come(HOME, 20, idle_since=None)) == LIMITS.per_address


def test_the_log_says_it_once_a_minute() -> None:
    scenario = ConnectionScenario()
    with capture_logs() as lines:
        scenario.come(HOME, 200)
        assert [line["event"] for line in lines] == ["connection_limit_reached"]
        scenario.clock.now = LOG_EVERY_S
        scenario.come(HOME, 200)
    assert len(lines) == 2


@asynccontextmanager
async def connections(gateway: RunningGateway, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    made = [await connect(gateway.url) for _ in range(count)]
    try:
        yield [reader for reader, _ in made]
    finally:
        for _, writer in made:
            writer.close()


Limit = Callable[[RunningGateway, ConnectionLimits], ConnectionLimiter]


@pytest.fixture
def limit() -> Limit:
    def give(gateway: RunningGateway, limits: ConnectionLimits) -> ConnectionLimiter:
        server = gateway.runner.server
        assert server is not None
        server.limiter = ConnectionLimiter(limits, (), asyncio.get_running_loop().time)  # type: ignore[attr-defined]
        return server.limiter  # type: ignore[attr-defined,no-any-return]

    return give


async def test_silent_connections_shut_nobody_out(gateway_with: StartGateway, limit: Limit) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        limiter = limit(gateway, ConnectionLimits(total=30, per_address=20, reserve=5))
        async with connections(gateway, 100):
            for raw in (HEALTH, post(hello()), HEALTH):
                reader, writer = await connect(gateway.url)
                writer.write(raw)
                assert (await read_answer(reader)).status == 200
                writer.close()
            assert len(limiter) <= 20


async def test_where_every_connection_is_busy_probes_and_the_console_are_answered_still(
    gateway_with: StartGateway, limit: Limit
) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await gateway_with(channels([up]))
        limit(gateway, ConnectionLimits(total=12, per_address=12, reserve=4))
        busy = [await connect(gateway.url) for _ in range(8)]
        for _, writer in busy:
            writer.write(post(hello()))
        async with asyncio.timeout(5):
            while gateway.running < 8:  # noqa: ASYNC110 - a provider has no event for it
                await asyncio.sleep(0.01)
        found = {}
        for path in ("/healthz", "/readyz", "/metrics", "/console/static/none", "/admin/v1/session", "/v1/models"):
            reader, writer = await connect(gateway.url)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            async with asyncio.timeout(5):
                answer = split(await reader.read())  # it is closed after its one answer
            found[path] = answer.status
            if path == "/v1/models":
                assert (answer.error["code"], answer.headers["retry-after"]) == ("overloaded", "1")
                assert answer.error["doc_url"] == "http://a/help/reference/errors#overloaded"
            writer.close()
        assert found == {
            "/healthz": 200,
            "/metrics": 200,
            "/readyz": 200,
            "/console/static/none": 404,
            "/admin/v1/session": 401,
            "/v1/models": 503,
        }
        for _, writer in busy:
            writer.close()
        async with asyncio.timeout(5):
            while gateway.running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_one_connection_too_many_is_told_so(gateway_with: StartGateway, limit: Limit) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await gateway_with(channels([up]))
        limit(gateway, ConnectionLimits(total=6, per_address=2, reserve=1))
        busy = [await connect(gateway.url) for _ in range(2)]
        for _, writer in busy:
            writer.write(post(hello()))
        async with asyncio.timeout(5):
            while gateway.running < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        reader, writer = await connect(gateway.url)
        async with asyncio.timeout(5):
            answer = split(await reader.read())
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "overloaded", "1")
        assert answer.headers["connection"] == "close"
        page = answer.error["doc_url"]
        assert (page, answer.headers["link"]) == ("/help/reference/errors#overloaded", f'<{page}>; rel="help"')
        assert answer.error["message"].endswith(f"(request id: {answer.headers['x-request-id']})")
        writer.close()
        for _, writer in busy:
            writer.close()
        async with asyncio.timeout(5):
            while gateway.running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
