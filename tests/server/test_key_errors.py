"""A key is taken wherever a client puts it, and an error says where it was and what is wrong with it."""

from typing import Any

import aiohttp
import pytest

from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
CHAT, MESSAGES, GOOGLE = "/v1/chat/completions", "/v1/messages", "/v1beta/models/m:generateContent"
WRONG = "sk-wrong-wrong-wrong"


async def call(gateway: RunningGateway, path: str, method: str = "POST", **headers: str) -> tuple[int, str, Any]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, gateway.url + path, json=ASK if method == "POST" else None, headers=sent) as response,
    ):
        body = await response.json()
        return (
            response.status,
            body.get("error", {}).get("message", ""),
            {"allow": response.headers.get("Allow"), **body},
        )


@pytest.mark.parametrize("header", ["Authorization", "x_api_key", "x_goog_api_key"])
async def test_every_path_takes_a_key_in_every_header(gateway_with: StartGateway, header: str) -> None:
    async with ScriptedUpstream(*[[answer(COMPLETION)]] * 3) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)]})
        key = f"Bearer {KEY}" if header == "Authorization" else KEY
        for path in (CHAT, MESSAGES, "/v1/models"):
            status, said, _ = await call(gateway, path, "GET" if path == "/v1/models" else "POST", **{header: key})
            assert status == 200, said
        status, said, _ = await call(gateway, CHAT, **{header: key, "x_api_key": WRONG, "x_goog_api_key": KEY})
        assert (status, "more than one API key" in said) == (400, True)


FAULTS = [
    (CHAT, {}, "No API key: send 'Authorization: Bearer sk-…'"),
    (MESSAGES, {}, "No API key: send 'x-api-key: sk-…'"),
    (GOOGLE, {}, "No API key: send 'x-goog-api-key: sk-…'"),
    (CHAT, {"Authorization": "Bearer sk-wrong"}, "The key in the header 'Authorization' is not a key of this gateway"),
    (CHAT, {"Authorization": f"Basic {WRONG}"}, "Malformed API key in the header 'Authorization'"),
    (MESSAGES, {"x_api_key": WRONG}, "The key in the header 'x-api-key' is not a key of this gateway"),
    (CHAT, {"x_goog_api_key": WRONG}, "The key in the header 'x-goog-api-key' is not a key of this gateway"),
    (f"{GOOGLE}?key={WRONG}", {}, "The key in 'key' in the query is not a key of this gateway"),
    (
        CHAT,
        {"Authorization": "Bearer sk-proj-abcdefghijklmnop"},
        "looks like an OpenAI key. Use a key of this gateway.",
    ),
    (MESSAGES, {"x_api_key": "sk-ant-api03-abcdefghijkl"}, "looks like an Anthropic key"),
    (CHAT, {"x_goog_api_key": "AIzaSyabcdefghijklmnop"}, "looks like a Google key"),
    (CHAT, {"Authorization": "Bearer gsk_abc"}, "looks like a Groq key"),
    (CHAT, {"Authorization": "Bearer xai-abc"}, "looks like an xAI key"),
]


async def test_the_error_of_a_key_names_its_header_and_its_maker(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    for path, headers, message in FAULTS:
        status, said, _ = await call(gateway, path, **headers)
        assert (status, message in said) == (401, True), (path, headers, said)


async def test_the_path_decides_the_form_of_an_error(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    for path in (CHAT, "/v1/responses", "/v1/embeddings"):
        for headers in ({"anthropic_version": "2023-06-01"}, {"x_api_key": WRONG}):
            assert "type" not in (await call(gateway, path, **headers))[2], path
    assert (await call(gateway, "/v1/models", "GET", anthropic_version="2023-06-01"))[2]["type"] == "error"


WRONG_PATHS = [
    ("GET", CHAT, 405, "Use POST", "POST"),
    ("DELETE", "/v1/models/m:generateContent", 405, "Use POST", "POST"),
    ("PUT", "/v1beta/models/m:countTokens", 405, "Use POST", "POST"),
    ("GET", "/v1/usage", 404, "/v1/dashboard/billing", None),
    ("GET", "/v1/me", 404, "/v1/dashboard/billing", None),
    ("GET", "/api/tags", 404, "ends with /v1", None),
    ("POST", "/api/chat", 404, "ends with /v1", None),
]


async def test_a_wrong_path_or_method_says_what_to_do(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    for method, path, status, words, allow in WRONG_PATHS:
        found, said, more = await call(gateway, path, method, Authorization=f"Bearer {KEY}")
        assert (found, more["allow"], words in said) == (status, allow, True), (method, path, said)
