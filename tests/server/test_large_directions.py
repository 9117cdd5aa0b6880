"""What a provider sends in one piece of megabytes is translated beside the event loop, in every direction."""

import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tests.support import anthropic_cassettes as claude
from tests.support import converse_cassettes as converse
from tests.support import gemini_cassettes as gemini
from tests.support.gateway import channels
from tests.support.loop_lag import LARGEST, MAX_HANDLE, MB, TRIES, watch_lag
from tests.support.raw_client import connect, post, read_answer
from tests.support.scripted_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedUpstream,
    answer,
    chat_events,
    chunk,
    delta,
    event,
)
from tests.support.started_gateways import StartGateway

WORD = "word "
HEADS = {
    "bedrock_converse": SSE_HEAD.replace(b"text/event-stream", converse.STREAM_TYPE.encode()),
    "json": SSE_HEAD.replace(b"text/event-stream", b"application/json"),
}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}),
    "messages": (
        "/v1/messages",
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "stream": True},
    ),
    "responses": ("/v1/responses", {"model": "m", "input": "hi", "stream": True}),
    "gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", {"contents": [{"parts": [{"text": "hi"}]}]}),
}
USED = gemini.usage(11, 3, totalTokenCount=14)
STREAMS: dict[str, Callable[[str], bytes]] = {
    "mistral": lambda text: b"".join([event(delta("a")), event(delta(text)), *chat_events("b")]),
    "anthropic": lambda text: b"".join(
        [
            claude.begin("msg_1"),
            claude.start(0, "text", text=""),
            claude.text(0, text),
            claude.stop(0),
            claude.finish("end_turn"),
            claude.STOP,
        ]
    ),
    "gemini": lambda text: gemini.stream(
        gemini.chunk({"text": "a"}, index=0),
        gemini.chunk({"text": text}, index=0),
        gemini.chunk({"text": "b"}, reason="STOP", used=USED, index=0),
    ),
    "bedrock_converse": lambda text: (
        converse.BEGIN + converse.words(text) + converse.stop() + converse.finish() + converse.metadata()
    ),
}
WHOLE: dict[str, Callable[[str], dict[str, Any]]] = {
    "mistral": lambda text: {
        "id": "c",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    },
    "anthropic": lambda text: {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 7},
    },
    "gemini": lambda text: gemini.chunk({"text": text}, reason="STOP", used=USED, index=0),
    "bedrock_converse": lambda text: {
        "output": {"message": {"role": "assistant", "content": [{"text": text}]}},
        "stopReason": "end_turn",
        "usage": converse.usage(5, 7),
        "metrics": {"latencyMs": 9},
    },
}
END_MARKS = {"chat": b"[DONE]", "messages": b"message_stop", "responses": b"response.completed", "gemini": b"STOP"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("provider", "sent"),
    [(provider, "events") for provider in STREAMS]
    + [(provider, "JSON") for provider in STREAMS if provider != "bedrock_converse"],  # it sends events alone
)
@pytest.mark.parametrize("client", CALLS)
async def test_the_loop_translates_nothing_large(
    standing_with: StartGateway, client: str, provider: str, sent: str
) -> None:
    text = WORD * (LARGEST // len(WORD))
    data = STREAMS[provider](text) if sent == "events" else orjson.dumps(WHOLE[provider](text))
    head = HEADS.get(provider if sent == "events" else "json", SSE_HEAD)
    pieces = [chunk(data[start : start + 64 * 1024]) for start in range(0, len(data), 64 * 1024)]
    path, body = CALLS[client]
    async with ScriptedUpstream([head, *pieces, LAST_CHUNK]) as up:
        gateway = await standing_with(
            channels([up], provider=provider, idle_timeout_s=30, total_timeout_s=30, model_map={"m": "amazon.nova"})
        )
        raw = post(orjson.dumps(body), "Connection: close", path=path)
        best = float("inf")
        for _ in range(TRIES):
            async with watch_lag(time.thread_time) as worst:
                size, end = await _count_to_end(gateway.url, raw)
            print(f"{client}, {provider}, {sent}: the loop worked for {worst[0]:.1f} parsings")  # noqa: T201
            assert size > len(text)
            assert END_MARKS[client] in end
            best = min(best, worst[0])
            if best < MAX_HANDLE:
                break
        assert best < MAX_HANDLE


@pytest.mark.parametrize("provider", WHOLE)
async def test_a_large_translated_response_is_answered_and_kept(standing_with: StartGateway, provider: str) -> None:
    """It is made in a thread, which has no loop to store it with."""
    text = WORD * (MB // 4)
    async with ScriptedUpstream([answer(WHOLE[provider](text))]) as up:
        gateway = await standing_with(channels([up], provider=provider, model_map={"m": "amazon.nova"}))
        reader, writer = await connect(gateway.url)
        writer.write(post(b'{"model":"m","input":"hi"}', path="/v1/responses"))
        made = await read_answer(reader)
        assert made.status == 200
        writer.write(post(b"", path=f"/v1/responses/{orjson.loads(made.body)['id']}").replace(b"POST", b"GET", 1))
        kept = await read_answer(reader)
        writer.close()
        assert (kept.status, orjson.loads(kept.body)["output"][0]["content"][0]["text"]) == (200, text)
        assert len(up.received) == 1


async def _count_to_end(url: str, raw: bytes) -> tuple[int, bytes]:
    """Return the length and the end of an answer, whose end may be one event that repeats all of it."""
    reader, writer = await connect(url)
    try:
        writer.write(raw)
        size, marks = 0, b""
        while piece := await reader.read(256 * 1024):
            size += len(piece)
            marks += b"".join(mark for mark in END_MARKS.values() if mark in piece)
        return size, marks
    finally:
        writer.close()
