"""Anthropic's paths: who may call them, what passes untouched, and every refusal in that language's shape."""

import io
from collections.abc import Mapping
from typing import Any

import aiohttp
import attrs
import orjson
import pytest

from tests.support import anthropic_cassettes as cassettes
from tests.support.admin_calls import ask_office
from tests.support.fault_scene import PRICE, UNHURRIED
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.raw_client import connect, read_answer
from tests.support.scripted_upstream import (
    COMPLETION,
    FIN,
    LAST_CHUNK,
    RST,
    SSE_HEAD,
    STALL,
    ScriptedUpstream,
    Step,
    answer,
    chat_script,
    chunk,
    delta,
    event,
)
from tests.support.started_gateways import StartGateway

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
ASK = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**ASK, "stream": True}
MESSAGE = {**cassettes.MESSAGE, "usage": {"input_tokens": 5, "output_tokens": 7}}
COST = 5 * 1_000 + 7 * 2_000
NOWHERE = "http://127.0.0.1:9/v1"
OPENED = cassettes.begin("msg_1") + cassettes.start(0, "text", text="") + cassettes.text(0, "good")


@attrs.frozen
class Heard:
    """One answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    def check_error(self, status: int, kind: str, code: str | None, param: str | None = None) -> str:
        """That this is Anthropic's error object and nothing else; returns what it says."""
        assert self.headers["Content-Type"].startswith("application/json")
        value = self.json
        assert value.keys() == {"type", "error", "request_id"}
        assert value["type"] == "error"
        error = value["error"]
        assert error.keys() - {"doc_url"} == {"type", "message", "param", "code"}
        assert value["request_id"] == self.headers["X-Request-Id"]
        assert error["message"].endswith(f" (request id: {value['request_id']})")
        assert (self.status, error["type"], error["code"], error["param"]) == (status, kind, code, param)
        return str(error["message"])


async def call(gateway: RunningGateway, body: Any = None, path: str = MESSAGES, **headers: str) -> Heard:
    """A call with the key as a bearer's; underscores in header names are hyphens."""
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.post(ASK if body is None else body, path=path, headers=lines) as response:
        return Heard(response.status, response.headers, await response.read())


async def call_bare(gateway: RunningGateway, path: str, headers: dict[str, str], method: str = "POST") -> Heard:
    """A call of a stranger, with ``headers`` alone."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, gateway.url + path, json=ASK, headers=headers) as response,
    ):
        return Heard(response.status, response.headers, await response.read())


def claude(up: ScriptedUpstream, name: str = "up", **more: Any) -> dict[str, Any]:
    """A channel that speaks Anthropic's language."""
    return channel(up.base_url, name, provider="anthropic", **more)


def sse(*pieces: bytes, end: Step = LAST_CHUNK) -> list[Step]:
    return [SSE_HEAD, *(chunk(piece) for piece in pieces), end]


# Who may call.


@pytest.mark.parametrize(
    "headers",
    [{"x-api-key": KEY}, {"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY, "Authorization": f"Bearer {KEY}"}],
    ids=["x-api-key", "bearer", "both"],
)
async def test_the_key_comes_in_either_header(standing_with: StartGateway, headers: dict[str, str]) -> None:
    async with ScriptedUpstream([answer(MESSAGE)], [answer({"input_tokens": 3})]) as up:
        gateway = await standing_with({"channel": [claude(up)]})
        assert (await call_bare(gateway, MESSAGES, headers)).json == MESSAGE
        assert (await call_bare(gateway, COUNT, headers)).json == {"input_tokens": 3}
        for sent in up.received:
            assert sent.headers["x-api-key"] == "provider-key"
            assert KEY not in str(sent.headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": ""},
        {"x-api-key": "sk-a-key-that-nobody-has"},
        {"x-api-key": f"Bearer {KEY}"},
        {"api-key": KEY},
        {"Authorization": KEY},
        {"Authorization": "Bearer sk-a-key-that-nobody-has", "x-api-key": "sk-a-key-that-nobody-has"},
    ],
    ids=str,
)
async def test_anything_else_is_a_401(standing_with: StartGateway, headers: dict[str, str]) -> None:
    gateway = await standing_with({"channel": [channel(NOWHERE)]})
    for path in (MESSAGES, COUNT, "/v1/messages/batches"):
        heard = await call_bare(gateway, path, headers)
        message = heard.check_error(401, "authentication_error", "invalid_api_key")
        assert KEY not in message
        assert heard.headers["x-should-retry"] == "false"
    await gateway.rows(0)


async def test_an_x_api_key_is_no_admin_token(standing_with: StartGateway) -> None:
    gateway = await standing_with({"channel": [channel(NOWHERE)]})
    heard = await call_bare(gateway, "/admin/v1/keys", {"x-api-key": gateway.admin_token}, "GET")
    assert heard.status == 401
    await gateway.rows(0)


@pytest.mark.parametrize(
    ("restriction", "status", "kind", "code"),
    [
        ({"status": "disabled"}, 401, "authentication_error", "key_disabled"),
        ({"expires_at": "2020-01-01"}, 401, "authentication_error", "key_expired"),
        ({"allow_ips": ["203.0.113.0/24"]}, 403, "permission_error", "ip_not_allowed"),
        ({"models": ["x"]}, 403, "permission_error", "model_not_allowed"),
        ({"group": "gold"}, 403, "permission_error", "group_not_allowed"),
    ],
)
async def test_what_a_key_may_not_it_may_not_here_either(
    standing_with: StartGateway, restriction: dict[str, Any], status: int, kind: str, code: str
) -> None:
    key = {"name": "test", "account": "acme", "secret": KEY, **restriction}
    async with ScriptedUpstream([answer(MESSAGE)]) as up:
        gateway = await standing_with({"channel": [claude(up, groups=["silver"])], "key": [key]})
        for headers in ({"x-api-key": KEY}, {"Authorization": f"Bearer {KEY}"}):
            for path in (MESSAGES, COUNT):
                heard = await call_bare(gateway, path, headers)
                heard.check_error(status, kind, code, "model" if "model" in code or "group" in code else None)
        assert not up.received


# The shape of errors.


REFUSALS: list[tuple[str, Any, dict[str, str], int, str, str, str | None]] = [
    (MESSAGES, b"{", {}, 400, "invalid_request_error", "invalid_request", None),
    (MESSAGES, b"", {}, 400, "invalid_request_error", "invalid_request", None),
    (MESSAGES, b"[]", {}, 400, "invalid_request_error", "invalid_request", None),
    (MESSAGES, b'{"model":"m","model":"n"}', {}, 400, "invalid_request_error", "invalid_request", "model"),
    (MESSAGES, {"max_tokens": 1}, {}, 400, "invalid_request_error", "invalid_request", "model"),
    (MESSAGES, {**ASK, "max_tokens": None}, {}, 400, "invalid_request_error", "invalid_request", "max_tokens"),
    (MESSAGES, {**ASK, "messages": []}, {}, 400, "invalid_request_error", "invalid_request", "messages"),
    (
        MESSAGES,
        {**ASK, "messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {},
        400,
        "invalid_request_error",
        "invalid_request",
        "messages[0].content[0].text",
    ),
    (COUNT, {"model": "m"}, {}, 400, "invalid_request_error", "invalid_request", "messages"),
    (COUNT, {**ASK, "system": 5}, {}, 400, "invalid_request_error", "invalid_request", "system"),
    (MESSAGES, {**ASK, "model": "no"}, {}, 404, "not_found_error", "model_not_found", "model"),
    (COUNT, {**ASK, "model": "no"}, {}, 404, "not_found_error", "model_not_found", "model"),
    ("/v1/messages/", ASK, {}, 404, "not_found_error", "not_found", None),
    ("/v1/messages/nothing", ASK, {}, 404, "not_found_error", "not_found", None),
    (MESSAGES, ASK, {"Content-Type": "text/plain"}, 415, "invalid_request_error", "unsupported_media_type", None),
    (MESSAGES, b" " * (1024 * 1024 + 1), {}, 413, "request_too_large", "request_too_large", None),
    ("/v1/messages/batches", ASK, {}, 400, "invalid_request_error", "invalid_request", "requests"),
]


async def test_a_call_that_cannot_be_made_is_refused_in_anthropics_shape(standing_with: StartGateway) -> None:
    gateway = await standing_with({"channel": [channel(NOWHERE)], "server": {"max_body_mb": 1}})
    for path, body, headers, status, kind, code, param in REFUSALS:
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        lines = {"Content-Type": "application/json", **headers}
        async with gateway.client.post(gateway.url + path, data=io.BytesIO(raw), headers=lines) as response:
            heard = Heard(response.status, response.headers, await response.read())
        heard.check_error(status, kind, code, param)


async def test_another_method_is_a_405_in_anthropics_shape(standing_with: StartGateway) -> None:
    gateway = await standing_with({"channel": [channel(NOWHERE)]})
    for path in (MESSAGES, COUNT):
        async with gateway.client.get(gateway.url + path) as response:
            heard = Heard(response.status, response.headers, await response.read())
        heard.check_error(405, "invalid_request_error", "method_not_allowed")
        assert heard.headers["Allow"] == "POST"


async def test_an_expectation_that_is_not_known_is_refused_in_anthropics_shape(standing_with: StartGateway) -> None:
    gateway = await standing_with({"channel": [channel(NOWHERE)]})
    reader, writer = await connect(gateway.url)
    writer.write(f"POST {MESSAGES} HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\nContent-Length: 0\r\n\r\n".encode())
    found = await read_answer(reader)
    value = orjson.loads(found.body)
    assert (found.status, value["type"], value["error"]["type"]) == (417, "error", "invalid_request_error")
    writer.close()


@pytest.mark.parametrize(
    ("limits", "status", "kind", "code", "waits"),
    [
        ({"rpm": 1}, 429, "rate_limit_error", "rate_limit_exceeded", True),
        ({"tpm": 1}, 429, "rate_limit_error", "rate_limit_exceeded", True),
        ({"quota_usd": COST / 10**9}, 403, "billing_error", "insufficient_quota", False),
        ({"quota_usd": 0.00005, "quota_period": "daily"}, 429, "rate_limit_error", "insufficient_quota", True),
    ],
    ids=["requests", "tokens", "quota", "daily quota"],
)
async def test_limits_and_quotas_hold_here_too(  # noqa: PLR0917 - a table
    standing_with: StartGateway, limits: dict[str, Any], status: int, kind: str, code: str, waits: bool
) -> None:
    key = {"name": "test", "account": "acme", "secret": KEY, **limits}
    async with ScriptedUpstream([answer(MESSAGE)]) as up:
        gateway = await standing_with({"channel": [claude(up)], "key": [key], "price": [PRICE]})
        if "rpm" in limits or "tpm" in limits:
            first = await call(gateway)
            assert first.status == 200
            assert any(name.lower().startswith("x-ratelimit-") for name in first.headers)
        else:
            assert (await call(gateway, {**ASK, "max_tokens": 4_096})).status == status  # more than the cap is held
        heard = await call(gateway, {**ASK, "max_tokens": 4_096})
        heard.check_error(status, kind, code)
        assert ("Retry-After" in heard.headers) == waits
        assert len(up.received) == (1 if "rpm" in limits or "tpm" in limits else 0)


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["json", "stream"])
async def test_what_is_held_for_a_message_covers_it_and_a_nano_less_is_refused(
    gateway_with: StartGateway, body: dict[str, Any]
) -> None:
    script = sse(cassettes.HELLO) if body is STREAM else [answer(MESSAGE)]
    async with ScriptedUpstream(script) as up:
        config = {"channel": [claude(up)], "price": [PRICE]}
        gateway = await gateway_with(config)
        assert (await call(gateway, body)).status == 200
        (row,) = await gateway.rows(1)
        assert (row.operation, row.channel, row.stream) == ("messages", "up", body is STREAM)
        prompt, completion = (25, 15) if body is STREAM else (5, 7)
        assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (prompt, completion, "upstream")
        assert row.cost_nanos == prompt * 1_000 + completion * 2_000
        for cap, status in ((row.reserved_nanos, 200), (row.reserved_nanos - 1, 403)):
            key = {"name": "test", "account": "acme", "secret": KEY, "quota_usd": cap / 10**9}
            other = await gateway_with({**config, "key": [key]})
            assert (await call(other, body)).status == status


async def test_a_channel_that_waits_for_a_rate_limit_is_a_429_with_a_time_to_wait(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(b"busy", 429, retry_after="30")]) as up:
        gateway = await standing_with({"channel": [claude(up)]})
        first = await call(gateway)
        assert first.status == 429
        heard = await call(gateway)
        heard.check_error(429, "rate_limit_error", "rate_limit_exceeded")
        assert 20 <= int(heard.headers["Retry-After"]) <= 30
        assert len(up.received) == 1


THEIRS = {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: too many"}}
THEIR_LIMIT = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}


CODES = {
    400: "invalid_request", 413: "request_too_large", 422: "invalid_request", 429: "rate_limit_exceeded",
    504: "upstream_timeout",
}  # fmt: skip
"""Of the provider's refusals that say none."""


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["json", "stream"])
@pytest.mark.parametrize(
    ("script", "status", "kind", "words"),
    [
        ([answer(THEIRS, 400)], 400, "invalid_request_error", "max_tokens: too many"),
        ([answer({"error": {"message": "too long"}}, 413)], 413, "request_too_large", "too long"),
        ([answer({"error": {"message": "what?"}}, 422)], 422, "invalid_request_error", "what?"),
        ([answer(THEIR_LIMIT, 429, retry_after="7")], 429, "rate_limit_error", "slow down"),
        ([answer(THEIRS, 401)], 502, "api_error", "refused the gateway's credentials"),
        ([answer(THEIRS, 403)], 502, "api_error", "refused the gateway's credentials"),
        ([answer(b"<html>", 500)], 502, "api_error", "Provider returned 500"),
        ([answer(b"<html>", 200, content_type="text/html")], 502, "api_error", ""),
        ([answer({}, 200)], 502, "api_error", ""),
        ([RST], 502, "api_error", "The provider"),
        ([STALL], 504, "timeout_error", "The provider"),
    ],
    ids=["400", "413", "422", "429", "401", "403", "500", "html", "nothing", "reset", "silence"],
)
async def test_a_providers_fault_before_the_first_byte_has_anthropics_shape(  # noqa: PLR0917 - a table
    standing_with: StartGateway, body: dict[str, Any], script: list[Step], status: int, kind: str, words: str
) -> None:
    async with ScriptedUpstream(script) as up:
        timers = {"first_byte_timeout_s": 0.1, "total_timeout_s": 0.2} if script == [STALL] else UNHURRIED
        gateway = await standing_with({"channel": [claude(up, **timers)], "price": [PRICE]})
        heard = await call(gateway, body)
        code = CODES.get(status, "upstream_error")
        assert words in heard.check_error(status, kind, code)
        assert heard.headers.get("Retry-After") == ("7" if status == 429 else None)
        (row,) = await gateway.rows(1)
        assert (row.operation, row.status, row.completion_tokens) == ("messages", status, 0)
        assert (row.cost_nanos > 0) is (script == [STALL]), "who is silent works"
        assert row.outcome == ("refused" if status < 500 else "failed")


# Failing over, and failing after the first byte.


@pytest.mark.parametrize(
    "bad",
    [
        [answer(b"busy", 529)],
        [answer(THEIR_LIMIT, 429)],
        sse(cassettes.OVERLOADED),
        sse(cassettes.begin("msg_0"), cassettes.PING, cassettes.OVERLOADED),
        sse(cassettes.begin("msg_0"), end=FIN),
        [SSE_HEAD, FIN],
    ],
    ids=["status", "limit", "error at once", "error after the beginning", "nothing but a beginning", "nothing"],
)
async def test_until_there_is_something_of_an_answer_another_channel_may_do_better(
    standing_with: StartGateway, bad: list[Step]
) -> None:
    async with ScriptedUpstream(bad) as first, ScriptedUpstream(sse(cassettes.HELLO)) as second:
        gateway = await standing_with({"channel": [claude(first, "a", priority=1), claude(second, "b")]})
        heard = await call(gateway, STREAM)
        assert (heard.status, heard.body) == (200, cassettes.HELLO)
        assert heard.headers["x-gateway-attempts"] == "2"
        assert heard.headers["x-gateway-tried"].startswith(("upstream_error;ms=", "rate_limit"))
        (row,) = await gateway.rows(1)
        assert (row.channel, row.attempts, row.outcome) == ("b", 2, "completed")


@pytest.mark.parametrize(
    ("provider", "pieces"), [("anthropic", [OPENED]), ("custom", [event(delta("good")), event(delta(" words"))])]
)
@pytest.mark.parametrize(
    "trouble",
    [[LAST_CHUNK], [FIN], [RST], [STALL], ["error"]],
    ids=["an end without its mark", "cut", "reset", "silence", "an error event"],
)
async def test_a_stream_that_fails_after_its_first_byte_ends_in_an_error_event_and_without_its_mark(
    standing_with: StartGateway, provider: str, pieces: list[bytes], trouble: list[Any]
) -> None:
    raw = cassettes.OVERLOADED if provider == "anthropic" else event({"error": {"message": "Overloaded"}})
    ends = [chunk(raw), LAST_CHUNK] if trouble == ["error"] else trouble
    async with ScriptedUpstream([SSE_HEAD, *map(chunk, pieces), 0.02, *ends]) as up:
        timers: dict[str, Any] = UNHURRIED | ({"idle_timeout_s": 0.1} if trouble == [STALL] else {})
        one = channel(up.base_url, provider=provider, **timers)
        gateway = await standing_with({"channel": [one], "price": [PRICE]})
        heard = await call(gateway, STREAM)
        assert heard.status == 200
        begun, _, last = heard.body.rpartition(b"event: error\ndata: ")
        if provider == "anthropic":
            assert begun == OPENED
        assert b"good" in begun
        assert b"message_stop" not in heard.body
        assert b"[DONE]" not in heard.body
        assert last.endswith(b"\n\n")
        value = orjson.loads(last)
        assert (value["type"], value["request_id"]) == ("error", heard.headers["X-Request-Id"])
        silent = trouble == [STALL]
        kind, code = ("timeout_error", "upstream_timeout") if silent else ("api_error", "upstream_error")
        assert (value["error"]["type"], value["error"]["code"]) == (kind, code)
        (row,) = await gateway.rows(1)
        assert (row.operation, row.status, row.outcome) == ("messages", 200, "failed")
        assert row.usage_source == "estimate"
        assert row.cost_nanos == row.prompt_tokens * 1_000 + row.completion_tokens * 2_000
        assert row.completion_tokens > 0


# What passes.


UNKNOWN = {
    "model": "m",
    "max_tokens": 64,
    "messages": [
        {"role": "user", "content": [{"type": "hologram", "light": {"b": [1, 2.5, None, True]}, "a": "é\u2028\n"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "…", "signature": "c2ln"}]},
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}, "x": 1}]},
    ],
    "of_tomorrow": {"deep": [{"er": None}]},
    "stream": False,
    "temperature": None,
    "metadata": {"user_id": "u", "more": 1},
}


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_a_body_reaches_a_provider_of_the_language_byte_for_byte_but_for_the_model(
    standing_with: StartGateway, path: str
) -> None:
    raw = orjson.dumps(UNKNOWN)
    answer_bytes = answer(MESSAGE) if path == MESSAGES else answer({"input_tokens": 9})
    async with ScriptedUpstream([answer_bytes]) as up:
        gateway = await standing_with({"channel": [claude(up, model_map={"m": "claude-of-theirs"})]})
        lines = {"Content-Type": "application/json", "User-Agent": "mine", "X-Custom": "mine", "Cookie": "a=b"}
        async with gateway.client.post(gateway.url + path, data=raw, headers=lines) as response:
            assert response.status == 200
            assert await response.read() == answer_bytes.partition(b"\r\n\r\n")[2]
        (sent,) = up.received
        assert sent.body == raw.replace(b'"model":"m"', b'"model":"claude-of-theirs"', 1)
        assert (sent.method, sent.path) == ("POST", path)
        assert sent.headers["anthropic-version"] == "2023-06-01"
        assert "mine" not in str(sent.headers)
        assert not {"cookie", "anthropic-beta", "authorization"} & sent.headers.keys()


@pytest.mark.parametrize("name", ["HELLO", "TOOL", "PARALLEL", "THINKING", "SEALED", "SEARCH", "NEWER", "TRICKY"])
@pytest.mark.parametrize("size", [0, 7], ids=["whole", "in pieces"])
async def test_a_providers_stream_reaches_the_caller_byte_for_byte(
    standing_with: StartGateway, name: str, size: int
) -> None:
    raw: bytes = getattr(cassettes, name)
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)] if size else [raw]
    async with ScriptedUpstream(sse(*pieces, cassettes.PING)) as up:
        gateway = await standing_with({"channel": [claude(up)]})
        asked = {**STREAM, "max_tokens": 1_024}  # nothing of it is longer
        heard = await call(gateway, asked)
        assert heard.body == raw
        assert heard.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert up.received[0].json == asked
        (row,) = await gateway.rows(1)
        assert (row.operation, row.outcome, row.usage_source) == ("messages", "completed", "upstream")


async def test_a_message_is_asked_of_another_language_and_answered_in_its_own(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], chat_script("good", " words")) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)], "price": [PRICE]})
        heard = await call(gateway)
        value = heard.json
        assert (value["type"], value["role"], value["model"]) == ("message", "assistant", "m")
        assert value["id"].startswith("msg_")
        assert value["content"] == [{"type": "text", "text": "hello"}]
        assert (value["usage"]["input_tokens"], value["usage"]["output_tokens"]) == (5, 7)
        assert heard.headers["x-gateway-cost-usd"] == "0.000019"
        heard = await call(gateway, STREAM)
        kinds = [line[7:].decode() for line in heard.body.splitlines() if line.startswith(b"event: ")]
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
        assert heard.body.count(b"text_delta") == 2
        assert {sent.path for sent in up.received} == {"/v1/chat/completions"}
        rows = await gateway.rows(2)
        assert [(row.operation, row.cost_nanos, row.usage_source) for row in rows] == [
            ("messages", COST, "upstream")
        ] * 2


async def test_a_chat_is_asked_of_anthropics_language_and_answered_in_its_own(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({**MESSAGE, "content": [{"type": "text", "text": "hello"}]})]) as up:
        gateway = await standing_with({"channel": [claude(up)], "price": [PRICE]})
        heard = await call(gateway, HELLO, CHAT)
        assert heard.json["object"] == "chat.completion"
        assert heard.json["choices"][0]["message"]["content"] == "hello"
        assert up.received[0].path == MESSAGES
        (row,) = await gateway.rows(1)
        assert (row.operation, row.cost_nanos) == ("chat", COST)


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_the_headers_of_the_language_go_to_those_who_speak_it(standing_with: StartGateway, path: str) -> None:
    features = "context-1m-2025-08-07,files-api-2025-04-14"
    scripts = [[answer(MESSAGE if path == MESSAGES else {"input_tokens": 9})]]
    async with ScriptedUpstream(*scripts) as up, ScriptedUpstream([answer(COMPLETION)]) as other:
        gateway = await standing_with(
            {
                "channel": [
                    claude(up, allow_fields=["anthropic-beta.files-api-*"]),
                    channel(other.base_url, "other", models=["n"]),
                ]
            }
        )
        reported = {"anthropic_beta": features, "anthropic_version": "2099-01-01"}
        assert (await call(gateway, None, path, **reported)).status == 200
        sent = up.received[0].headers
        assert (sent["anthropic-beta"], sent["anthropic-version"]) == (features, "2099-01-01")
        assert (await call(gateway, {**ASK, "model": "n"}, path, **reported)).status == 200
        for received in other.received:
            assert not [name for name in received.headers if "anthropic" in name]
        assert len(other.received) == (1 if path == MESSAGES else 0)


async def test_the_features_of_a_chat_are_not_passed_on(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(MESSAGE)]) as up:
        gateway = await standing_with({"channel": [claude(up)]})
        await call(gateway, HELLO, CHAT, anthropic_beta="x-1", anthropic_version="2099-01-01")
        assert "anthropic-beta" not in up.received[0].headers
        assert up.received[0].headers["anthropic-version"] == "2023-06-01"


HOSTILE = (
    ("anthropic-beta", "a;b"),
    ("anthropic-beta", "a\tb"),
    ("anthropic-beta", "x" * 1025),
    ("anthropic-beta", "é"),
    ("anthropic-beta", 'a"b'),
    ("anthropic-beta", "a: b"),
    ("anthropic-version", "latest"),
    ("anthropic-version", "2023-06-01; x"),
    ("anthropic-version", ""),
)


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_a_hostile_value_of_those_headers_is_refused_with_a_row(standing_with: StartGateway, path: str) -> None:
    async with ScriptedUpstream([answer(MESSAGE)]) as up:
        gateway = await standing_with({"channel": [claude(up)]})
        for name, value in HOSTILE:
            heard = await call(gateway, None, path, **{name: value})
            heard.check_error(400, "invalid_request_error", "invalid_request", name)
        assert not up.received
        rows = await gateway.rows(len(HOSTILE))
        assert {(row.outcome, row.error_code, row.attempts) for row in rows} == {("refused", "invalid_request", 0)}


async def test_several_lines_of_features_go_on_as_one(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(MESSAGE)]) as up:
        gateway = await standing_with({"channel": [claude(up, allow_fields=["anthropic-beta.*"])]})
        lines = [("anthropic-beta", "one-1"), ("anthropic-beta", "two-2, three-3")]
        async with gateway.client.post(gateway.url + MESSAGES, json=ASK, headers=lines) as response:
            assert response.status == 200
        assert up.received[0].headers["anthropic-beta"] == "one-1,two-2, three-3"


# Counting.


async def test_counting_where_nobody_counts_is_an_estimate_that_costs_nothing_and_leaves_a_row(
    gateway_with: StartGateway,
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)], "price": [PRICE]})
        body = {"model": "m", "system": "s" * 40, "messages": [{"role": "user", "content": "x" * 400}]}
        heard = await call(gateway, body, COUNT)
        assert (heard.status, heard.json) == (200, {"input_tokens": 110})
        assert heard.headers["x-gateway-cost-usd"] == "0"
        assert not up.received
        (row,) = await gateway.rows(1)
        assert (row.operation, row.status, row.outcome, row.channel) == ("count_tokens", 200, "completed", None)
        assert (row.cost_nanos, row.reserved_nanos, row.prompt_tokens, row.attempts) == (0, 0, 0, 0)
        _, usage = await ask_office(gateway, "GET", "/usage?by=model")
        assert usage["total"]["cost_nanos"] == 0


async def test_counting_is_asked_of_a_provider_that_counts_and_costs_nothing(standing_with: StartGateway) -> None:
    async with (
        ScriptedUpstream([answer({"input_tokens": 12, "more": 1})]) as counts,
        ScriptedUpstream([answer(COMPLETION)]) as plain,
        ScriptedUpstream([answer({"totalTokens": 31})]) as google,
    ):
        gateway = await standing_with(
            {
                "channel": [
                    channel(plain.base_url, "plain", priority=9),
                    claude(counts, "counts"),
                    channel(google.base_url, "google", provider="gemini", models=["g"]),
                ],
                "price": [PRICE],
            }
        )
        assert (await call(gateway, None, COUNT)).json == {"input_tokens": 12, "more": 1}
        assert (await call(gateway, {**ASK, "model": "g"}, COUNT)).json == {"input_tokens": 31}
        assert (counts.received[0].path, google.received[0].path) == (COUNT, "/v1/models/g:countTokens")
        assert not plain.received
        rows = await gateway.rows(2)
        assert [(row.operation, row.channel, row.cost_nanos, row.reserved_nanos) for row in rows] == [
            ("count_tokens", "counts", 0, 0),
            ("count_tokens", "google", 0, 0),
        ]


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_provider_that_cannot_count_is_estimated(standing_with: StartGateway, status: int) -> None:
    async with ScriptedUpstream([answer({"detail": "Not Found"}, status)]) as up:
        gateway = await standing_with({"channel": [claude(up)]})
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}]}
        heard = await call(gateway, body, COUNT)
        assert (heard.status, heard.json) == (200, {"input_tokens": 100})
        assert len(up.received) == 1


@pytest.mark.parametrize(
    ("script", "status", "kind"),
    [
        ([answer(b"down", 500)], 502, "api_error"),
        ([answer({"input_tokens": "many"})], 502, "api_error"),
        ([answer(THEIRS, 400)], 400, "invalid_request_error"),
        ([RST], 502, "api_error"),
    ],
)
async def test_a_count_that_fails_is_an_error_in_anthropics_shape(
    standing_with: StartGateway, script: list[Step], status: int, kind: str
) -> None:
    async with ScriptedUpstream(script) as up:
        gateway = await standing_with({"channel": [claude(up)]})
        heard = await call(gateway, None, COUNT)
        heard.check_error(status, kind, CODES.get(status, "upstream_error"))
        (row,) = await gateway.rows(1)
        assert (row.operation, row.status) == ("count_tokens", status)
