"""A provider that answers a call for a stream with one whole JSON answer: the caller gets the stream that says it."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from gateway.formats.stream import MAX_WHOLE_BYTES
from gateway.formats.wire.sse import parse_data
from tests.support.fault_scene import (
    TOKENS,
    Heard,
    audit,
    call,
    check_error,
    check_row_of_failure,
    drop_own_words,
    healthy,
    hear,
    read_text,
    site,
)
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.gemini_cassettes import chunk as gemini_answer
from tests.support.gemini_cassettes import usage as gemini_usage
from tests.support.scripted_upstream import COMPLETION, LAST_CHUNK, Flood, ScriptedUpstream, answer, chat_script, chunk
from tests.support.started_gateways import StartGateway

MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 7},
}
TEXT_COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop"}],
    "usage": COMPLETION["usage"],
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "output": [
        {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": "hello", "annotations": []}]},
    ],
    "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12},
}  # fmt: skip
ANSWERED: Mapping[str, dict[str, Any]] = {
    "custom": COMPLETION,
    "anthropic": MESSAGE,
    "gemini": gemini_answer({"text": "hello"}, reason="STOP", used=gemini_usage(5, 7)),
}
"""The same answer in the language of every provider."""
ASKED: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": HELLO,
    "/v1/messages": {**HELLO, "max_tokens": 9},
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
}


async def ask(gateway: RunningGateway, path: str) -> Heard:
    async with gateway.post({**ASKED[path], "stream": True}, path=path) as response:
        return await hear(response)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("provider", list(ANSWERED))
async def test_every_language_tells_every_callers_stream(standing_with: StartGateway, provider: str, path: str) -> None:
    async with ScriptedUpstream([answer(ANSWERED[provider])]) as up:
        gateway = await standing_with(site(channel(up.base_url, provider=provider)))
        heard = await ask(gateway, path)
        row = await audit(gateway, status=200, stream=True, outcome="completed", attempts=1, usage_source="upstream")
    assert (row.prompt_tokens, row.completion_tokens) == TOKENS
    assert heard.headers["Content-Type"].startswith("text/event-stream")
    if path == "/v1/chat/completions":
        assert read_text(heard.events) == "hello"
        assert b'"finish_reason":"stop"' in heard.events[-2]
        assert heard.events[-1] == b"data: [DONE]\n\n"
    else:
        values = [orjson.loads(parse_data(event) or b"") for event in heard.events]
        assert [value["type"] for value in values] == [
            "message_start", "content_block_start", "content_block_delta", "content_block_stop",
            "message_delta", "message_stop",
        ]  # fmt: skip
        assert values[2]["delta"] == {"type": "text_delta", "text": "hello"}
        assert values[4]["delta"]["stop_reason"] == "end_turn"
        assert values[4]["usage"]["output_tokens"] == 7


@pytest.mark.parametrize(
    ("path", "body", "mark"),
    [
        ("/v1/completions", TEXT_COMPLETION, b"data: [DONE]\n\n"),
        ("/v1/responses", RESPONSE, b"event: response.completed\n"),
    ],
)
async def test_what_is_only_passed_is_told_as_well(
    standing_with: StartGateway, path: str, body: dict[str, Any], mark: bytes
) -> None:
    async with ScriptedUpstream([answer(body)]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        heard = await ask(gateway, path)
        row = await audit(gateway, status=200, stream=True, outcome="completed", usage_source="upstream")
    assert (row.prompt_tokens, row.completion_tokens) == (5, 7)
    assert heard.events[-1].startswith(mark)
    assert b"hello" in heard.body.lower()


KINDS = ["application/json; charset=utf-8", "text/event-stream", "text/plain", "text/html", "application/octet-stream"]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_an_answer_is_is_told_by_its_bytes(standing_with: StartGateway, kind: str) -> None:
    """A whole answer is one under every Content-Type, and so is a stream."""
    whole = b" \r\n" + orjson.dumps(COMPLETION)
    streamed = [step for step in chat_script("hel", "lo") if isinstance(step, bytes)]
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    async with ScriptedUpstream(
        [head, chunk(whole[:1]), 0.01, chunk(whole[1:9]), chunk(whole[9:]), LAST_CHUNK], [head, *streamed[1:]]
    ) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        for _ in range(2):
            heard = await call(gateway, stream=True)
            assert (heard.status, read_text(heard.events), heard.events[-1]) == (200, "hello", b"data: [DONE]\n\n")


async def test_a_channel_that_never_streams_stays_well(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        for stream in (True, True, True, True, False):
            assert (await call(gateway, stream=stream)).status == 200


async def test_usage_is_told_where_it_was_asked_for(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        heard = await call(gateway, stream=True, stream_options={"include_usage": True})
    assert orjson.loads(parse_data(heard.events[-2]) or b"")["usage"] == COMPLETION["usage"]


ERROR = {"error": {"message": "no GPU is free", "type": "server_error", "code": None}}


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("provider", list(ANSWERED))
async def test_an_error_with_status_200_is_an_error(
    standing_with: StartGateway, provider: str, path: str, kind: str
) -> None:
    async with ScriptedUpstream([answer(ERROR, Content_Type=kind)]) as up:
        gateway = await standing_with(site(channel(up.base_url, provider=provider)))
        heard = await ask(gateway, path)
    assert heard.status == 502
    assert b"The provider reported an error: no GPU is free" in heard.body
    assert "500" not in drop_own_words(heard.body.decode())


async def test_after_an_error_with_status_200_the_next_channel_answers(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(ERROR)]) as bad, ScriptedUpstream([answer(COMPLETION)]) as good:
        gateway = await standing_with(site(channel(bad.base_url), healthy(good)))
        heard = await call(gateway, stream=True)
        await audit(gateway, status=200, channel="healthy", attempts=2)
    assert (read_text(heard.events), heard.headers["x-gateway-attempts"]) == ("hello", "2")


@pytest.mark.parametrize("body", [b"{", b'{"choices": 5}', b"{}", b"[]", b"<html>Sign in</html>"])
async def test_what_is_no_answer_is_the_providers_failure(standing_with: StartGateway, body: bytes) -> None:
    async with ScriptedUpstream([answer(body)]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        heard = await call(gateway, stream=True)
        row = await audit(gateway, status=502)
    check_error(heard, "upstream_error")
    check_row_of_failure(row, "upstream_error", attempts=1)


async def test_a_long_answer_is_no_noise(standing_with: StartGateway) -> None:
    """Megabytes without an event are one answer, whichever way it is announced."""
    text = "word " * 600_000
    message = {"role": "assistant", "content": text}
    body = COMPLETION | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    async with ScriptedUpstream([answer(body)], [answer(body, Content_Type="text/event-stream")]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        for _ in range(2):
            assert read_text((await call(gateway, stream=True)).events) == text


@pytest.mark.slow
async def test_no_more_is_kept_of_a_whole_answer_than_of_any(standing_with: StartGateway) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    mb = 1024 * 1024
    flood = Flood(chunk(b"[" * mb), MAX_WHOLE_BYTES // mb + 2)
    async with ScriptedUpstream([head, flood, LAST_CHUNK]) as up:
        gateway = await standing_with(site(channel(up.base_url, first_byte_timeout_s=30, total_timeout_s=30)))
        heard = await call(gateway, stream=True)
        await audit(gateway, up, status=502)
    assert b"larger than" in heard.body
