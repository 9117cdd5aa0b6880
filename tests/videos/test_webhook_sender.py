"""The webhook of a video's end, its allowed receivers, and what becomes of an attempt, whatever a receiver does."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence

import attrs
import openai
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from typing_extensions import override

from gateway.domain.ip_address import Networks, parse_networks
from gateway.domain.video import TIMEOUT_ERROR, VideoJob
from gateway.domain.webhook import (
    GIVE_UP_AFTER_S,
    MAX_WEBHOOK_URL_CHARS,
    RETRY_AFTER_S,
    WebhookDelivery,
    build_secret,
    derive_secret,
    find_webhook_problem,
)
from gateway.errors import EgressRefused, ProviderBadResponse, ProviderTimeout
from gateway.upstream.safe_fetch import SafeFetcher, _read_url
from gateway.videos.webhook_sender import TIMEOUT_S, USER_AGENT, WebhookSender, build_delivery
from tests.support.request_records import ROW
from tests.support.scripted_upstream import FIN, RST, Script, ScriptedUpstream, answer
from tests.support.started_gateways import NO_TLS
from tests.support.table_rows import table_rows

NOW_MS = 1_800_000_000_500
HOOK = "https://hooks.example.com/videos?token=secret"
JOB = VideoJob("video_" + "0" * 32, attrs.evolve(ROW, account_id=3, key_id=7), "a cat", state="processing")
DONE = attrs.evolve(JOB, webhook_url=HOOK).move("fetching", NOW_MS).complete(NOW_MS - 1000, NOW_MS)
MASTER = b"m" * 32


def find_secret(key_id: int) -> bytes:
    return derive_secret(MASTER, key_id)


def make_delivery(url: str) -> WebhookDelivery:
    delivery = build_delivery(attrs.evolve(DONE, webhook_url=url), round(time.time() * 1000), "evt_1")
    assert delivery is not None
    return delivery


class Guarded:
    """A teller on the guarded way out, and what its operator allows."""

    def __init__(self) -> None:
        self.networks: Networks = ()
        self.fetcher = SafeFetcher(find_allowed_networks=lambda: self.networks)
        self.webhook_sender = WebhookSender(self.fetcher, find_secret, time.time)


@pytest.fixture
async def guarded() -> AsyncIterator[Guarded]:
    guarded = Guarded()
    guarded.networks = parse_networks(["127.0.0.1"])
    yield guarded
    await guarded.fetcher.close()


class Post(SafeFetcher):
    """A way out of which every attempt comes to the same."""

    def __init__(self, outcome: int | Exception) -> None:
        self.outcome = outcome
        self.timeouts: list[float] = []

    @override
    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> int:
        self.timeouts.append(timeout_s)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_a_completed_video_is_told_of_as_the_convention_has_it() -> None:
    delivery = build_delivery(DONE, NOW_MS, "evt_abc")
    assert delivery is not None
    assert orjson.loads(delivery.body) == {
        "id": "evt_abc",
        "object": "event",
        "created_at": NOW_MS // 1000 - 1,
        "type": "video.completed",
        "data": {"id": DONE.id},
    }
    assert attrs.evolve(delivery, body=b"") == WebhookDelivery(
        "evt_abc", DONE.id, 3, 7, HOOK, "video.completed", b"", NOW_MS, due_ms=NOW_MS
    )


def test_a_failed_one_is_told_of_without_its_reason() -> None:
    delivery = build_delivery(attrs.evolve(JOB, webhook_url=HOOK).fail(TIMEOUT_ERROR, NOW_MS), NOW_MS, "evt_abc")
    assert delivery is not None
    assert (delivery.event, orjson.loads(delivery.body)["type"]) == ("video.failed", "video.failed")
    assert orjson.loads(delivery.body)["data"] == {"id": JOB.id}


def test_nobody_is_told_who_has_not_asked_for_it() -> None:
    assert build_delivery(attrs.evolve(DONE, webhook_url=None), NOW_MS, "evt_abc") is None
    assert build_delivery(JOB, NOW_MS, "evt_abc") is None


def test_nothing_is_told_of_what_has_not_ended() -> None:
    with pytest.raises(ValueError, match="has not ended"):
        build_delivery(attrs.evolve(JOB, webhook_url=HOOK), NOW_MS, "evt_abc")


@table_rows(
    ("url", "hosts"),
    [
        (HOOK, ["hooks.example.com"]),
        (HOOK, ["a.test", "*.example.com"]),
        ("HTTP://Hooks.Example.COM:8080", ["hooks.EXAMPLE.com"]),
        ("http://hooks.example.com?a=@b:/c#d", ["hooks.example.com"]),
        ("https://10.0.0.5:8443/hook", ["10.0.0.*"]),
        ("http://[fd00::5]:8080/hook", ["fd00::*"]),
        ("https://anything.test/", ["*"]),
        ("https://a.test/" + "x" * (MAX_WEBHOOK_URL_CHARS - 15), ["*"]),
    ],
)
def test_a_host_that_is_allowed_is_told(url: str, hosts: Sequence[str]) -> None:
    assert find_webhook_problem(url, hosts) is None


@table_rows("hosts", [[], ["hooks.example.org"], ["example.com"], ["hooks.*.net"], ["", "https://*"]])
def test_a_host_that_is_not_allowed_is_not(hosts: Sequence[str]) -> None:
    assert find_webhook_problem(HOOK, hosts) == "The webhook's host is not one that this gateway sends to"


@table_rows(
    "url",
    [
        "", "hooks.example.com/a", "//hooks.example.com/a", "ftp://hooks.example.com/", "javascript:alert(1)",
        "https:/hooks.example.com/", "https:///hooks.example.com/", "https://", "https:// hooks.example.com/",
        "https://user@hooks.example.com/", "https://user:password@hooks.example.com/", "https://@hooks.example.com/",
        "https://evil.test\\@hooks.example.com/", "https://hooks.example.com\\.evil.test/", "https://a\tb.test/",
        "https://hooks.example.com/\n", "https://hooks.example.com/\r\nX: y", " https://hooks.example.com/",
        "https://hooks.example.com:/", "https://hooks.example.com:0/", "https://hooks.example.com:65536/",
        "https://hooks.example.com:8080x/", "https://hooks.example.com:+80/", "https://hooks..example.com/",
        "https://hooks.example.com./", "https://h\u00f6\u00f6ks.test/", "https://evil.test\u3002example.com/",
        "https://%68ooks.example.com/", "https://[::1", "https://[::1%25lo]/", "https://[v1.a]/",
        "https://hooks.example.com/\u202e", "https://a.test/" + "x" * MAX_WEBHOOK_URL_CHARS,
    ],
    ids=ascii,
)  # fmt: skip
def test_what_libraries_might_read_differently_is_no_webhook(url: str) -> None:
    problem = find_webhook_problem(url, ["*"])
    assert problem is not None
    assert "host is not one" not in problem


PIECES = [
    "good.test", "evil.test", "@", ":", "80", "/", "\\", "?", "#", "[", "]", ".", "%2e", " ", "\t", "\u3002", "::1",
]  # fmt: skip


@example(["evil.test", "#", "@", "good.test"])
@example(["good.test", ":", "80", "@", "evil.test"])
@example(["good.test", "?", "@", "evil.test"])
@given(st.lists(st.sampled_from(PIECES), max_size=8))
def test_whoever_sends_there_reads_the_same_host(pieces: list[str]) -> None:
    url = "https://" + "".join(pieces)
    if find_webhook_problem(url, ["good.test"]) is None:
        assert _read_url(url).raw_host == "good.test"


@given(st.text())
def test_any_text_is_a_webhook_or_has_a_problem(text: str) -> None:
    assert find_webhook_problem(text, ["*"]) or _read_url(text)


async def test_what_is_told_is_signed_so_that_other_peoples_libraries_take_it(guarded: Guarded) -> None:
    async with ScriptedUpstream([answer(b"", 204)]) as up:
        delivery = make_delivery(f"http://127.0.0.1:{up.port}/hook?a=%2F")
        reported = await guarded.webhook_sender.send(delivery)
        assert (reported.status, reported.attempts, reported.answer, reported.error, reported.due_ms) == (
            "delivered",
            1,
            204,
            None,
            None,
        )
        (seen,) = up.received
    assert (seen.method, seen.path, seen.body) == ("POST", "/hook?a=%2F", delivery.body)
    assert (seen.headers["content-type"], seen.headers["user-agent"]) == ("application/json", USER_AGENT)
    assert seen.headers["webhook-id"] == "evt_1"
    secret = build_secret(find_secret(7))
    assert Webhook(secret).verify(seen.body, seen.headers) == orjson.loads(delivery.body)
    with openai.OpenAI(
        api_key="k", webhook_secret=secret, http_client=openai.DefaultHttpxClient(verify=NO_TLS)
    ) as client:
        event = client.webhooks.unwrap(seen.body, seen.headers)
        assert (event.id, event.type, event.data.id) == ("evt_1", "video.completed", DONE.id)  # type: ignore[union-attr]
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.unwrap(seen.body, seen.headers, secret=build_secret(find_secret(8)))
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(seen.body.replace(b"completed", b"failed"), seen.headers)


async def test_every_attempt_has_a_time_of_its_own_and_the_same_id(guarded: Guarded) -> None:
    now_s = time.time() - 3600
    webhook_sender = WebhookSender(guarded.fetcher, find_secret, lambda: now_s)
    async with ScriptedUpstream([answer(b"no", 500)], [answer(b"")]) as up:
        delivery = await webhook_sender.send(make_delivery(up.base_url))
        assert (delivery.status, delivery.attempts, delivery.answer) == ("pending", 1, 500)
        assert (delivery.due_ms, delivery.error) == (
            round(now_s * 1000) + RETRY_AFTER_S[0] * 1000,
            "The webhook's receiver answered with status 500",
        )
        now_s += 3600
        assert (await webhook_sender.send(delivery)).status == "delivered"
        first, second = up.received
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == "evt_1"
    assert int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"]) == 3600
    verifier = Webhook(find_secret(7))
    verifier.verify(second.body, second.headers)
    with pytest.raises(WebhookVerificationError, match="too old"):
        verifier.verify(first.body, first.headers)


@pytest.mark.parametrize(
    ("script", "status", "error"),
    [
        ([answer(b"", 302, location="/elsewhere")], 302, "answered with status 302"),
        ([answer(b"", 404)], 404, "answered with status 404"),
        ([FIN], None, "broke the connection"),
        ([RST], None, "broke the connection"),
        ([b"no http\r\n\r\n", FIN], None, "does not speak valid HTTP"),
    ],
    ids=["redirect", "not found", "closed", "reset", "no http"],
)
async def test_whatever_a_receiver_does_is_an_attempt(
    guarded: Guarded, script: Script, status: int | None, error: str
) -> None:
    async with ScriptedUpstream(script) as up:
        reported = await guarded.webhook_sender.send(make_delivery(f"{up.base_url}/hook"))
        assert (reported.status, reported.attempts, reported.answer) == ("pending", 1, status)
        assert error in (reported.error or "")
        assert [seen.path for seen in up.received] == ["/v1/hook"]


async def test_whoever_says_that_it_is_gone_is_told_nothing_more(guarded: Guarded) -> None:
    async with ScriptedUpstream([answer(b"", 410)]) as up:
        reported = await guarded.webhook_sender.send(make_delivery(f"{up.base_url}/hook"))
        assert (reported.status, reported.attempts, reported.answer, reported.due_ms) == ("failed", 1, 410, None)


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", "failed"), ("localhost", "pending")])
async def test_a_private_address_is_not_told_and_tried_again_where_it_has_a_name(
    guarded: Guarded, host: str, status: str
) -> None:
    """A name may lead elsewhere tomorrow; an address does not."""
    guarded.networks = ()
    async with ScriptedUpstream([answer(b"")]) as up:
        reported = await guarded.webhook_sender.send(make_delivery(f"http://{host}:{up.port}/hook?secret"))
        assert (reported.status, reported.attempts, reported.answer, reported.due_ms is None) == (
            status,
            1,
            None,
            status == "failed",
        )
        assert reported.error == "The webhook's address is in a network that the gateway does not call"
        assert up.connections == 0


async def test_what_is_refused_for_its_url_is_not_told_again() -> None:
    webhook_sender = WebhookSender(Post(EgressRefused("no")), find_secret, lambda: NOW_MS / 1000)
    reported = await webhook_sender.send(make_delivery(HOOK))
    assert (reported.status, reported.attempts, reported.error, reported.ended_ms, reported.due_ms) == (
        "failed",
        1,
        "no",
        NOW_MS,
        None,
    )


@pytest.mark.parametrize("outcome", [500, ProviderBadResponse("no"), ProviderTimeout("too slow")])
async def test_after_a_day_nobody_is_told_any_more(outcome: int | Exception) -> None:
    """The schedule, on a clock that stands still during each attempt."""
    now_s = NOW_MS / 1000
    way = Post(outcome)
    webhook_sender = WebhookSender(way, find_secret, lambda: now_s)
    delivery, waits = attrs.evolve(make_delivery(HOOK), created_ms=NOW_MS, due_ms=NOW_MS), []
    while delivery.due_ms is not None:
        now_s = delivery.due_ms / 1000
        delivery = await webhook_sender.send(delivery)
        waits.append((delivery.due_ms or 0) / 1000 - now_s)
    assert waits[:-1] == pytest.approx(RETRY_AFTER_S)
    assert (delivery.status, delivery.attempts) == ("failed", 1 + len(RETRY_AFTER_S))
    assert 0.8 * GIVE_UP_AFTER_S < now_s - NOW_MS / 1000 < GIVE_UP_AFTER_S
    assert way.timeouts == [TIMEOUT_S] * delivery.attempts
