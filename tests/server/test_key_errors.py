"""A key is taken wherever a client puts it, and an error says where it was and what is wrong with it."""

from typing import Any

import aiohttp
import pytest

from gateway.error_status import STATUS
from tests.support import anthropic_cassettes as cassettes
from tests.support import gemini_cassettes as gemini
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.scripted_upstream import (
    COMPLETION,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedUpstream,
    answer,
    chunk,
    delta,
    event,
)
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
            {"allow": response.headers.get("Allow"), "link": response.headers.get("Link"), **body},
        )


@pytest.mark.parametrize("header", ["Authorization", "x_api_key", "x_goog_api_key"])
async def test_every_path_takes_a_key_in_every_header(standing_with: StartGateway, header: str) -> None:
    async with ScriptedUpstream(*[[answer(COMPLETION)]] * 3) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        key = f"Bearer {KEY}" if header == "Authorization" else KEY
        for path in (CHAT, MESSAGES, "/v1/models"):
            status, text, _ = await call(gateway, path, "GET" if path == "/v1/models" else "POST", **{header: key})
            assert status == 200, text
        status, text, _ = await call(gateway, CHAT, **{header: key, "x_api_key": WRONG, "x_goog_api_key": KEY})
        assert (status, "more than one API key" in text) == (400, True)


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
    (CHAT, {"x_api_key": "tgp_v1_abcdefgh"}, "The key in the header 'x-api-key' looks like a Together key"),
    (f"{GOOGLE}?key=AIzaSyabcdefgh", {}, "The key in 'key' in the query looks like a Google key"),
    (f"{GOOGLE}?key={WRONG}", {"Sec_WebSocket_Protocol": "realtime"}, "The key in 'key' in the query is not"),
    (CHAT, {"Authorization": "Bearer ", "x_api_key": WRONG}, "The key in the header 'x-api-key' is not"),
    (CHAT, {"Authorization": "Bearer ", "x_goog_api_key": WRONG}, "The key in the header 'x-goog-api-key' is not"),
    *(
        (
            "/v1/realtime?model=m",
            {"Sec_WebSocket_Protocol": f"realtime, openai-insecure-api-key.{secret}"},
            f"The key in the header 'Sec-WebSocket-Protocol' {words}",
        )
        for secret, words in ((WRONG, "is not a key"), ("sk-proj-abcdefghijklm", "looks like an OpenAI key"))
    ),
]


async def test_the_error_of_a_key_names_its_header_and_its_maker(standing_with: StartGateway) -> None:
    gateway = await standing_with({})
    for path, headers, message in FAULTS:
        status, text, _ = await call(gateway, path, "GET" if "realtime" in path else "POST", **headers)
        assert (status, message in text) == (401, True), (path, headers, text)


async def test_the_path_decides_the_form_of_an_error(standing_with: StartGateway) -> None:
    gateway = await standing_with({})
    for path in (CHAT, "/v1/responses", "/v1/embeddings"):
        for headers in ({"anthropic_version": "2023-06-01"}, {"x_api_key": WRONG}):
            assert "type" not in (await call(gateway, path, **headers))[2], path
    assert (await call(gateway, "/v1/models", "GET", anthropic_version="2023-06-01"))[2]["type"] == "error"


WRONG_PATHS = [
    ("GET", CHAT, 405, "Use POST", "POST"),
    ("DELETE", "/v1/models/m:generateContent", 405, "Use POST", "POST"),
    ("GET", GOOGLE, 405, "Use POST", "POST"),
    ("GET", "/v1/models/m:streamGenerateContent", 405, "Use POST", "POST"),
    ("GET", "/v1beta/models/m:batchEmbedContents", 405, "Use POST", "POST"),
    ("GET", "/v1/models/m:online", 404, "is not available", None),
    ("PUT", "/v1beta/models/m:countTokens", 405, "Use POST", "POST"),
    ("GET", "/v1/usage", 404, "/v1/key", None),
    ("GET", "/v1/me", 404, "/v1/key", None),
    ("GET", "/api/tags", 404, "ends with /v1", None),
    ("POST", "/api/chat", 404, "ends with /v1", None),
    ("POST", "/v1/v1beta/models/m:generateContent", 404, "Did you mean /v1beta/models/m:generateContent?", None),
    ("POST", "/v1beta/v1beta/models/m:countTokens", 404, "Did you mean /v1beta/models/m:countTokens?", None),
    ("POST", "/v1beta/v1/chat/completions", 404, "Did you mean /v1/chat/completions?", None),
    ("POST", "/v1beta/model/m:generateContent", 404, "Did you mean /v1beta/models/{model}:generateContent?", None),
    ("POST", "/v1beta/openai/chat/completions", 404, "Did you mean /v1/chat/completions?", None),
    ("POST", "/v1/messages/count_token", 404, "Did you mean /v1/messages/count_tokens?", None),
    ("POST", "/v1/messages/batch", 404, "Did you mean /v1/messages/batches?", None),
    ("POST", "/v1/mesages", 404, "Did you mean /v1/messages?", None),
    ("POST", "/v1/embedding", 404, "Did you mean /v1/embeddings?", None),
    ("GET", "/v1/batch", 404, "Did you mean /v1/batches?", None),
]


async def test_a_wrong_path_or_method_says_what_to_do(standing_with: StartGateway) -> None:
    gateway = await standing_with({})
    for method, path, status, words, allow in WRONG_PATHS:
        found, text, more = await call(gateway, path, method, Authorization=f"Bearer {KEY}")
        assert (found, more["allow"], words in text) == (status, allow, True), (method, path, text)


PAGE = "/help/reference/errors"
KEPT = {"model", "stream", "max_tokens"}
BASE_URLS = [
    (None, "{origin}"),
    ("https://ai.example.com", "https://ai.example.com"),
    ("https://example.com/ai/v1", "https://example.com/ai"),
]


@pytest.mark.parametrize(("base_url", "address"), BASE_URLS)
async def test_an_error_has_the_address_of_its_page(
    standing_with: StartGateway, base_url: str | None, address: str
) -> None:
    gateway = await standing_with({"server": {} if base_url is None else {"base_url": base_url}})
    page = address.format(origin=gateway.url) + PAGE
    for path, headers, code in (
        (CHAT, {}, "invalid_api_key"),
        (CHAT, {"Authorization": f"Bearer {KEY}"}, "model_not_found"),
        (MESSAGES, {"x_api_key": KEY}, "model_not_found"),
        (GOOGLE, {"x_goog_api_key": KEY}, "invalid_request"),
        ("/v1/nowhere", {"Authorization": f"Bearer {KEY}"}, "not_found"),
    ):
        _, _, more = await call(gateway, path, **headers)
        error, url = more["error"], f"{page}#{code}"
        assert more["link"] == f'<{url}>; rel="help"', path
        if path == GOOGLE:
            (help_of,) = (one for one in error["details"] if one["@type"] == "type.googleapis.com/google.rpc.Help")
            assert help_of["links"][0]["url"] == url
        else:
            assert (error["doc_url"], error["code"]) == (url, code)
    async with gateway.client.get(gateway.url + PAGE) as response:
        shown = await response.text()
    assert all(f'id="{code}"' in shown for code in STATUS)


CUT = {
    CHAT: ("openai", [event(delta("a"))]),
    MESSAGES: ("anthropic", [cassettes.begin("msg_1"), cassettes.start(0, "text", text=""), cassettes.text(0, "a")]),
    "/v1/responses": (
        "openai",
        [
            event({"type": "response.created", "response": {"id": "resp_1", "output": []}}),
            event({"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "delta": "a"}),
        ],
    ),
    "/v1beta/models/m:streamGenerateContent?alt=sse": (
        "gemini",
        [gemini.stream(gemini.chunk({"text": "a"}, index=0)).rstrip() + b"\n\n"],
    ),
}
"""How each API's stream begins, at a provider of the same API."""


@pytest.mark.parametrize("translated", [False, True])
@pytest.mark.parametrize("path", CUT)
async def test_an_error_in_a_stream_has_the_address_of_its_page(
    standing_with: StartGateway, path: str, translated: bool
) -> None:
    provider, begun = CUT[CHAT if translated and path != CHAT else MESSAGES if translated else path]
    async with ScriptedUpstream([SSE_HEAD, *map(chunk, begun), LAST_CHUNK]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url, provider=provider)]})
        body = {**ASK, "stream": True, "input": "hi", "contents": [{"parts": [{"text": "hi"}]}]}
        kept = {CHAT: "messages", MESSAGES: "messages", "/v1/responses": "input"}.get(path, "contents")
        body = {name: body[name] for name in body if name == kept or (kept != "contents" and name in KEPT)}
        async with gateway.post(body, path) as response:
            assert response.status == 200, await response.text()
            text = await response.text()
    assert f"{gateway.url}{PAGE}#upstream_error" in text


@pytest.mark.parametrize("signed", [False, True])
async def test_an_error_before_a_route_and_of_the_admin_api_has_the_address_of_its_page(
    standing_with: StartGateway, signed: bool
) -> None:
    gateway = await standing_with({"server": {"cors_origins": ["https://app.example"]}})
    page = gateway.url + PAGE
    token = {"Authorization": f"Bearer {gateway.admin_token}"} if signed else {}
    refused = {"Origin": "https://other.example", "Access_Control_Request_Method": "POST"}
    for method, path, headers, code in (
        ("OPTIONS", CHAT, refused, "forbidden"),
        ("OPTIONS", GOOGLE, refused, "forbidden"),
        ("GET", "/admin/v1/nowhere", token, "not_found" if signed else "signed_out"),
        ("DELETE", "/admin/v1/accounts", token, "method_not_allowed" if signed else "signed_out"),
        ("GET", "/admin/v1/requests?limit=x", token, "invalid_request" if signed else "signed_out"),
        ("GET", "/nowhere", {}, "not_found"),
        ("DELETE", "/healthz", {}, "method_not_allowed"),
    ):
        _, _, more = await call(gateway, path, method, **headers)
        assert more["link"] == f'<{page}#{code}>; rel="help"', (path, more)
        assert "google" in str(more) if path == GOOGLE else more["error"]["doc_url"] == f"{page}#{code}", path


async def test_a_host_that_is_none_and_a_providers_own_code_have_no_page(standing_with: StartGateway) -> None:
    theirs = {"error": {"message": "no", "type": "t", "param": None, "code": "odd"}}
    async with ScriptedUpstream([answer(theirs, 400)]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        key = f"Bearer {KEY}"
        for model, host, code in (("m", "gateway.example", "odd"), ("nope", 'a">b', "model_not_found")):
            async with gateway.client.post(
                gateway.url + CHAT, json={**ASK, "model": model}, headers={"Authorization": key, "Host": host}
            ) as response:
                error = (await response.json())["error"]
            assert (error["code"], "doc_url" in error, "Link" in response.headers) == (code, False, False)


NO_JSON = [
    (
        "<html><head><style>p {}</style></head><h1>Bad gateway</h1>nginx</html>",
        "returned HTML (200, 'Bad gateway nginx'); is the base URL right?",
    ),
    ("<!doctype html><title>Sign in, sk-abcdefghijklmnopqrst</title>", "(200, 'Sign in, [masked]')"),
    ("", "it is empty; is the base URL right?"),
    ("  \n", "it is empty; is the base URL right?"),
    ("oops", "The provider's answer is not JSON (request id"),
]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/embeddings", GOOGLE])
async def test_an_answer_that_is_no_json_is_named(standing_with: StartGateway, path: str) -> None:
    body = {**ASK, "input": "hi"} if path == "/v1/embeddings" else ASK
    body = {"contents": [{"parts": [{"text": "hi"}]}]} if path == GOOGLE else body
    async with ScriptedUpstream(*[[answer(text.encode())] for text, _ in NO_JSON]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        for text, words in NO_JSON:
            async with gateway.post(body, path) as response:
                answer_fields = (await response.json())["error"]["message"]
            assert (response.status, words in answer_fields) == (502, True), (text, answer_fields)
