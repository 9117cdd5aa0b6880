"""An answer from the cache says the same as the one that was bought, as JSON and as a stream, in every operation."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from gateway.formats.redaction.event_texts import parse_event, split_events
from gateway.formats.transcript.answers import ShownAnswers, read_answers
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.text_provider import open_text_provider

ASKED = [{"role": "user", "content": "say hello"}]
GEMINI = "/v1beta/models/m:"
STREAM = {"stream": True}
USAGE = {"stream_options": {"include_usage": True}}
CONTENTS = {"contents": [{"parts": [{"text": "say hello"}]}]}
FORMS: dict[str, tuple[tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "chat": (
        ("/v1/chat/completions", {"model": "m", "messages": ASKED}),
        ("/v1/chat/completions", {"model": "m", "messages": ASKED, **STREAM, **USAGE}),
    ),
    "completions": (
        ("/v1/completions", {"model": "m", "prompt": "say hello"}),
        ("/v1/completions", {"model": "m", "prompt": "say hello", **STREAM, **USAGE}),
    ),
    "messages": (
        ("/v1/messages", {"model": "m", "messages": ASKED, "max_tokens": 99}),
        ("/v1/messages", {"model": "m", "messages": ASKED, "max_tokens": 99, **STREAM}),
    ),
    "responses": (
        ("/v1/responses", {"model": "m", "input": "say hello", "store": False}),
        ("/v1/responses", {"model": "m", "input": "say hello", "store": False, **STREAM}),
    ),
    "generate_content": ((f"{GEMINI}generateContent", CONTENTS), (f"{GEMINI}streamGenerateContent?alt=sse", CONTENTS)),
    "generate_content_list": ((f"{GEMINI}generateContent", CONTENTS), (f"{GEMINI}streamGenerateContent", CONTENTS)),
}
"""Of each operation that streams, the request for JSON and the one for a stream."""
WHOLE: list[tuple[str, dict[str, Any]]] = [
    (f"{GEMINI}embedContent", {"content": {"parts": [{"text": "say hello"}]}}),
    ("/v1/embeddings", {"model": "m", "input": "say hello"}),
    ("/v1/moderations", {"model": "m", "input": "say hello"}),
    ("/v1/rerank", {"model": "m", "query": "say hello", "documents": ["hello"]}),
]


@pytest.fixture
async def site(gateway_with: StartGateway) -> AsyncIterator[tuple[RunningGateway, list[Any]]]:
    received: list[tuple[str, dict[str, Any]]] = []
    async with open_text_provider(received) as base_url:
        yield await gateway_with({"channel": [channel(base_url)], "cache": {"ttl_s": 600}}), received


async def ask(gateway: RunningGateway, path: str, body: Any) -> tuple[str, bytes]:
    """Where an answer came from, and the answer."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with gateway.client.post(gateway.url + path, json=body, headers=headers) as response:
        content = await response.read()
        assert response.status == 200, content
        return response.headers.get("x-gateway-cache", ""), content


def read(content: bytes) -> ShownAnswers:
    """What an answer says, with its tokens."""
    is_stream = not content.startswith((b"{", b"["))
    values = [parse_event(raw).data for raw in split_events(content)] if is_stream else [orjson.loads(content)]
    return read_answers(values)


@pytest.mark.parametrize("streams_first", [False, True])
@pytest.mark.parametrize("name", FORMS)
async def test_a_hit_says_the_same_as_the_other_form(
    site: tuple[RunningGateway, list[Any]], name: str, streams_first: bool
) -> None:
    gateway, received = site
    first, second = reversed(FORMS[name]) if streams_first else FORMS[name]
    results = [await ask(gateway, *form) for form in (first, second, first, second)]
    assert [result for result, _ in results] == ["miss", "hit", "hit", "hit"]
    assert len(received) == 1
    bought, *given = [read(content) for _, content in results]
    assert bought.answers[0].text.strip() == "m says hello"
    assert (bought.prompt_tokens, bought.completion_tokens) == (5, 7)
    assert given == [bought] * 3
    rows = await gateway.rows(4)
    assert {(row.prompt_tokens, row.completion_tokens) for row in rows} == {(5, 7)}


@pytest.mark.parametrize(("path", "body"), WHOLE)
async def test_what_has_no_stream_is_given_byte_by_byte(
    site: tuple[RunningGateway, list[Any]], path: str, body: dict[str, Any]
) -> None:
    gateway, received = site
    bought, given = await ask(gateway, path, body), await ask(gateway, path, body)
    assert (bought[0], given[0], given[1], len(received)) == ("miss", "hit", bought[1], 1)


async def test_sound_is_given_byte_by_byte(gateway_with: StartGateway) -> None:
    sound = bytes(range(256)) * 9
    head = b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nContent-Length: %d\r\n\r\n" % len(sound)
    async with ScriptedUpstream([head + sound], [answer({})]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)], "cache": {"ttl_s": 600}})
        body = {"model": "m", "input": "say hello", "voice": "alloy"}
        bought, given = await ask(gateway, "/v1/audio/speech", body), await ask(gateway, "/v1/audio/speech", body)
        assert (bought, given) == (("miss", sound), ("hit", sound))
