"""Access tokens: one fetch for many requests, renewal before expiry, and errors that name the cause."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import parse_qs

import attrs
import pytest

from gateway.domain.http_request import HttpRequest, TokenGrant
from gateway.errors import ProviderAuthError, ProviderBadResponse, ProviderError
from gateway.upstream.access_tokens import AuthorizedHttpClient, parse_token
from gateway.upstream.client import PooledHttpClient
from tests.support.scripted_upstream import Received, ScriptedUpstream, answer
from tests.support.table_rows import table_rows
from tests.support.upstream_requests import LIMIT, build_request, until

HELLO = answer(b"hello")
SECRET = "the-secret~of~the~client"


@attrs.define
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def upstream(upstream: PooledHttpClient, clock: Clock) -> AsyncIterator[AuthorizedHttpClient]:
    client = AuthorizedHttpClient(upstream, clock)
    yield client
    await client.stop()


def token(name: str, **extra: object) -> bytes:
    return answer({"token_type": "Bearer", "expires_in": 3_600, "access_token": name, **extra})


def grant(server: ScriptedUpstream, **changes: str) -> TokenGrant:
    return attrs.evolve(TokenGrant(f"{server.base_url}/token", "client", SECRET, "scope"), **changes)


async def ask(upstream: AuthorizedHttpClient, up: ScriptedUpstream, wanted: TokenGrant) -> str:
    """Send one request. Return the Authorization header that the provider saw of its latest request."""
    response = await upstream.send(attrs.evolve(build_request(up), grant=wanted))
    await response.read(LIMIT)
    response.close()
    return up.received[-1].headers.get("authorization", "")


async def test_a_request_without_a_grant_is_sent_as_it_is(upstream: AuthorizedHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        response = await upstream.send(HttpRequest("GET", up.base_url, {}))
        assert await response.read(LIMIT) == b"hello"
        response.close()
        assert "authorization" not in up.received[0].headers


async def test_many_requests_share_one_fetch(upstream: AuthorizedHttpClient) -> None:
    async with ScriptedUpstream([0.02, token("t1")]) as server, ScriptedUpstream([HELLO]) as up:
        await asyncio.gather(*(ask(upstream, up, grant(server)) for _ in range(8)))
        await ask(upstream, up, grant(server))
        assert len(server.received) == 1
        assert {sent.headers["authorization"] for sent in up.received} == {"Bearer t1"}
        (sent,) = server.received
        assert sent.headers["content-type"] == "application/x-www-form-urlencoded"
        assert {name: values[0] for name, values in parse_qs(sent.body.decode()).items()} == {
            "grant_type": "client_credentials", "client_id": "client", "client_secret": SECRET, "scope": "scope",
        }  # fmt: skip
        assert SECRET not in str([one.headers for one in up.received])


async def test_a_token_is_renewed_while_it_is_still_valid(upstream: AuthorizedHttpClient, clock: Clock) -> None:
    async with ScriptedUpstream([token("t1")], [token("t2")]) as server, ScriptedUpstream([HELLO]) as up:
        assert await ask(upstream, up, grant(server)) == "Bearer t1"
        clock.now += 3_600 - 301
        assert await ask(upstream, up, grant(server)) == "Bearer t1"
        assert len(server.received) == 1
        clock.now += 2
        assert await ask(upstream, up, grant(server)) == "Bearer t1"  # it does not wait for the other
        await until(lambda: not upstream._fetches)
        assert await ask(upstream, up, grant(server)) == "Bearer t2"
        assert len(server.received) == 2


async def test_a_token_that_has_expired_is_not_sent(upstream: AuthorizedHttpClient, clock: Clock) -> None:
    async with ScriptedUpstream([token("t1")], [token("t2")]) as server, ScriptedUpstream([HELLO]) as up:
        await ask(upstream, up, grant(server))
        clock.now += 3_600
        assert await ask(upstream, up, grant(server)) == "Bearer t2"


async def test_a_failed_renewal_leaves_the_valid_token_and_is_retried_after_a_pause(
    upstream: AuthorizedHttpClient, clock: Clock
) -> None:
    async with (
        ScriptedUpstream([token("t1")], [answer({}, 503)], [token("t2")]) as server,
        ScriptedUpstream([HELLO]) as up,
    ):
        await ask(upstream, up, grant(server))
        clock.now += 3_600 - 200
        for _ in range(3):
            assert await ask(upstream, up, grant(server)) == "Bearer t1"
            await until(lambda: not upstream._fetches)
        assert len(server.received) == 2
        clock.now += 11
        assert await ask(upstream, up, grant(server)) == "Bearer t1"
        await until(lambda: not upstream._fetches)
        assert await ask(upstream, up, grant(server)) == "Bearer t2"
        assert len(server.received) == 3


async def test_a_token_that_the_provider_refuses_is_not_used_again(upstream: AuthorizedHttpClient) -> None:
    async with (
        ScriptedUpstream([token("t1")], [token("t2")]) as server,
        ScriptedUpstream([answer({}, 401)], [HELLO]) as up,
    ):
        assert await ask(upstream, up, grant(server)) == "Bearer t1"
        assert await ask(upstream, up, grant(server)) == "Bearer t2"


async def test_each_grant_has_its_own_token(upstream: AuthorizedHttpClient) -> None:
    async with ScriptedUpstream([token("t1")], [token("t2")]) as server, ScriptedUpstream([HELLO]) as up:
        assert await ask(upstream, up, grant(server)) == "Bearer t1"
        assert await ask(upstream, up, grant(server, client_secret="another")) == "Bearer t2"
        assert await ask(upstream, up, grant(server)) == "Bearer t1"


async def test_a_request_that_is_cancelled_does_not_end_the_fetch_of_others(upstream: AuthorizedHttpClient) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def wait(_received: Received) -> None:
        asked.set()
        await go.wait()

    async with ScriptedUpstream([wait, token("t1")]) as server, ScriptedUpstream([HELLO]) as up:
        first = asyncio.create_task(ask(upstream, up, grant(server)))
        second = asyncio.create_task(ask(upstream, up, grant(server)))
        await asked.wait()
        first.cancel()
        go.set()
        assert await second == "Bearer t1"
        assert len(server.received) == 1


REFUSED = {
    "error": "invalid_client",
    "error_description": f"AADSTS7000215: Wrong secret: {SECRET}.\r\nTrace ID: 1\r\nTimestamp: 2",
}


@pytest.mark.parametrize(
    ("answered", "kind", "words"),
    [
        (answer(REFUSED, 401), ProviderAuthError, "credentials: AADSTS7000215: Wrong secret: [masked]"),
        (answer({"error": "unauthorized_client"}, 400), ProviderAuthError, "credentials: unauthorized_client"),
        (answer(b"<html>", 404), ProviderAuthError, "credentials: The provider gave no reason"),
        (answer({"error": "temporarily_unavailable"}, 503), ProviderBadResponse, "status 503: temporarily_unavailable"),
        (answer({}, 429), ProviderBadResponse, "status 429"),
        (answer(b"{", 200), ProviderBadResponse, "sent no access token"),
        (answer({"access_token": ""}), ProviderBadResponse, "sent an empty access token"),
        (answer({"access_token": "a\nb"}), ProviderBadResponse, "sent no access token"),
        (answer({"access_token": 5}), ProviderBadResponse, "sent no access token"),
    ],
)
async def test_an_error_names_the_cause_and_no_request_is_sent(
    upstream: AuthorizedHttpClient, answered: bytes, kind: type[ProviderError], words: str
) -> None:
    async with ScriptedUpstream([answered]) as server, ScriptedUpstream([HELLO]) as up:
        with pytest.raises(kind) as caught:
            await ask(upstream, up, grant(server))
        assert type(caught.value) is kind
        assert words in caught.value.message
        assert SECRET not in caught.value.message
        assert "Trace ID" not in caught.value.message
        assert not up.received


async def test_after_a_failure_the_next_request_asks_again(upstream: AuthorizedHttpClient) -> None:
    async with ScriptedUpstream([answer({}, 500)], [token("t1")]) as server, ScriptedUpstream([HELLO]) as up:
        with pytest.raises(ProviderBadResponse):
            await ask(upstream, up, grant(server))
        assert await ask(upstream, up, grant(server)) == "Bearer t1"


@table_rows(
    ("given", "lifetime_s"),
    [("3599", 3_599.0), ('"3599"', 3_599.0), ("null", 600.0), ('"soon"', 600.0), ("-1", 600.0), ('"inf"', 600.0)],
)
def test_a_lifetime_is_a_number_or_text(given: str, lifetime_s: float) -> None:
    assert parse_token(b'{"access_token":"t","expires_in":%b}' % given.encode()) == ("t", lifetime_s)
