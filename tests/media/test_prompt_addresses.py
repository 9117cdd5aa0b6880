"""Images and files that prompts name by address, at providers that take data alone."""

import base64
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from tests.support import converse_cassettes as bedrock
from tests.support.gateway import channel
from tests.support.pixels import plain
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

PNG, PDF = plain(2, 2, b"abc"), b"%PDF-1.7\nx"
DATA = base64.b64encode(PNG).decode()
ALLOWED = {"egress": {"allow": ["127.0.0.1"]}}
CONVERSE: dict[str, Any] = {"provider": "bedrock_converse", "model_map": {"m": "us.anthropic.claude-opus-4-6-v1"}}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
GEMINI = "/v1beta/models/m:generateContent"


def converse(up: ScriptedUpstream, **more: Any) -> dict[str, Any]:
    return channel(up.base_url.removesuffix("/v1"), **CONVERSE, **more)


def show(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def say(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}


def ask(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


def find_images(value: Any) -> list[str]:
    """Return what the images and documents of a Converse body hold."""
    if isinstance(value, list):
        return [found for item in value for found in find_images(item)]
    if not isinstance(value, Mapping):
        return []
    source = value.get("source")
    here = [source["bytes"]] if isinstance(source, Mapping) and "bytes" in source else []
    return here + [found for inner in value.values() for found in find_images(inner)]


def by_format(url: str) -> dict[str, tuple[str, dict[str, Any], int]]:
    """Requests with the path, and how many images they have."""
    block = {"type": "image", "source": {"type": "url", "url": url}}
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"url": url}}]}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [block]}
    tools = {"tools": [{"type": "function", "function": FUNCTION}]}
    turns = [say(), {"role": "assistant", "tool_calls": [CALLED]}, {"role": "tool", "tool_call_id": "c1"}]
    item = {"type": "input_image", "image_url": url}
    part = {"fileData": {"fileUri": url, "mimeType": "image/png"}}
    return {
        "chat": ("/v1/chat/completions", ask(say(show(url), show(url))), 2),
        "chat, result": ("/v1/chat/completions", ask(*turns[:2], {**turns[2], "content": [show(url)]}, **tools), 1),
        "messages": ("/v1/messages", ask({"role": "user", "content": [block]}, max_tokens=9), 1),
        "messages, result": (
            "/v1/messages",
            ask(say(), called, {"role": "user", "content": [result]}, max_tokens=9),
            1,
        ),
        "responses": ("/v1/responses", {"model": "m", "input": [{"role": "user", "content": [item]}]}, 1),
        "gemini": (GEMINI, {"contents": [{"parts": [part, {"text": "?"}]}]}, 1),
    }


@pytest.mark.parametrize("name", by_format(""))
async def test_an_image_is_fetched_once_for_all_channels(name: str, standing_with: StartGateway) -> None:
    """The first channel fails, after the image was fetched."""
    async with (
        ScriptedUpstream([answer(PNG, content_type="text/plain")]) as site,
        ScriptedUpstream([answer({"message": "x"}, 500)]) as first,
        ScriptedUpstream([answer(bedrock.ANSWER)]) as second,
    ):
        rows = [converse(first, priority=1), converse(second) | {"name": "second"}]
        gateway = await standing_with({**ALLOWED, "channel": rows})
        path, body, count = by_format(f"{site.base_url}/a.png")[name]
        async with gateway.post(body, path=path) as response:
            assert response.status == 200, await response.text()
        assert [one.path for one in site.received] == ["/v1/a.png"]
        for up in (first, second):
            assert find_images(up.received[0].json) == [DATA] * count
        if name == "messages, result":  # what a model has written stays as it is
            assert f"{site.base_url}/a.png".encode() in second.received[0].body


@pytest.mark.parametrize(
    ("provider", "path", "body"),
    [
        ("ollama", "/v1/chat/completions", lambda url: ask(say(show(url)))),
        ("ollama", "/v1/responses", lambda url: by_format(url)["responses"][1]),
        ("moonshot", "/v1/chat/completions", lambda url: ask(say({"type": "image_url", "image_url": url}))),
    ],
)
async def test_a_body_that_is_passed_on_has_the_image(
    provider: str, path: str, body: Any, standing_with: StartGateway
) -> None:
    answer_fields = (
        COMPLETION if "chat" in path else {"id": "r", "object": "response", "output": [], "status": "completed"}
    )
    async with ScriptedUpstream([answer(PNG)]) as site, ScriptedUpstream([answer(answer_fields)]) as up:
        gateway = await standing_with({**ALLOWED, "channel": [channel(up.base_url, provider=provider)]})
        async with gateway.post(body(f"{site.base_url}/a.png"), path=path) as response:
            assert response.status == 200, await response.text()
        assert f"data:image/png;base64,{DATA}".encode() in up.received[0].body
        assert site.base_url.encode() not in up.received[0].body


async def test_a_document_is_fetched_too(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(PDF)]) as site, ScriptedUpstream([answer(bedrock.ANSWER)]) as up:
        gateway = await standing_with({**ALLOWED, "channel": [converse(up)]})
        url = f"{site.base_url}/a.pdf"
        document = {"type": "document", "source": {"type": "url", "url": url}}
        item = {"type": "input_file", "file_url": url}
        asked = [
            ("/v1/messages", ask({"role": "user", "content": [document]}, max_tokens=9)),
            ("/v1/responses", {"model": "m", "input": [{"role": "user", "content": [item]}]}),
        ]
        for path, body in asked:
            async with gateway.post(body, path=path) as response:
                assert response.status == 200, await response.text()
            assert find_images(up.received[-1].json) == [base64.b64encode(PDF).decode()]


WHERE = "messages[0].content[0].image_url.url"


@pytest.mark.parametrize(
    ("given", "settings", "why"),
    [
        (answer({}, 404), ALLOWED, "could not be fetched"),
        (answer(b"<html>no image</html>"), ALLOWED, "not a PNG"),
        (answer(PNG), {}, "could not be fetched"),  # a private address
        (answer(b"", content_length=str(64 * 1024 * 1024)) + PNG + bytes(11 * 1024 * 1024), ALLOWED, "larger than 10"),
    ],
)
async def test_what_cannot_be_fetched_is_refused_by_its_place(
    given: bytes, settings: dict[str, Any], why: str, standing_with: StartGateway
) -> None:
    async with ScriptedUpstream([given]) as site, ScriptedUpstream([answer(bedrock.ANSWER)]) as up:
        gateway = await standing_with({**settings, "channel": [converse(up)]})
        async with gateway.post(ask(say(show(f"{site.base_url}/a.png")))) as response:
            error = (await response.json())["error"]
        assert (response.status, error["param"]) == (400, WHERE)
        assert why in error["message"]
        assert not up.received
        assert bool(site.received) == bool(settings)


async def test_nothing_is_fetched_before_the_checks_nor_for_too_many(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(PNG)]) as site, ScriptedUpstream([answer(bedrock.ANSWER)]) as up:
        gateway = await standing_with({**ALLOWED, "channel": [converse(up)]})
        many = [show(f"{site.base_url}/{number}.png") for number in range(21)]
        refused = [
            (ask(say(show(f"{site.base_url}/a.png")), n=0), "n"),
            (ask(say(show(f"{site.base_url}/a.png"))) | {"model": "other"}, "model"),
            (ask(say(*many)), "messages[0].content[20].image_url.url"),
        ]
        for body, param in refused:
            async with gateway.post(body) as response:
                assert (await response.json())["error"]["param"] == param
                assert response.status in {400, 404}
        assert not site.received
        assert not up.received


async def test_an_image_of_an_earlier_turn_that_is_gone_ends_no_chat(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({}, 404)]) as site, ScriptedUpstream([answer(bedrock.ANSWER)]) as up:
        gateway = await standing_with({**ALLOWED, "channel": [converse(up)]})
        past = [say(show(f"{site.base_url}/a.png")), {"role": "assistant", "content": "A door."}]
        async with gateway.post(ask(*past, say())) as response:
            assert response.status == 200, await response.text()
            assert "image_url" in response.headers["x-gateway-adapted"]
        assert b"not available any more" in up.received[0].body
        assert orjson.loads(up.received[0].body)["messages"][0]["role"] == "user"
