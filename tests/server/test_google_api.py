"""Google's API as a client without a library sees it: keys, streams as arrays, errors, pages of models."""

from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
import pytest

from tests.support.fault_scene import PRICE
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.gemini_provider import GeminiProvider
from tests.support.openai_provider import OpenAIProvider
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.providers import Fails, Says
from tests.support.scripted_upstream import FIN, SSE_HEAD, ScriptedUpstream, Step, chunk, delta, event
from tests.support.started_gateways import ReadLog, StartGateway

ROOT = "/v1beta/models"
ASK = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
NOWHERE = {"channel": [channel("http://127.0.0.1:9/v1")]}
GOOGLE_KEY = {"x-goog-api-key": KEY}
OTHER_KEY = "sk-nobodys-key-at-all"


async def ask(
    gateway: RunningGateway,
    path: str = f"{ROOT}/m:generateContent",
    body: Any = ASK,
    method: str = "POST",
    **headers: str,
) -> tuple[int, Any]:
    """Status and JSON of a request with the headers alone; underscores in their names are hyphens."""
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession(headers=lines) as session,
        session.request(method, gateway.url + path, json=body if method == "POST" else None) as response,
    ):
        return response.status, orjson.loads(await response.read())


def find_detail(error: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((one for one in error["details"] if one["@type"].endswith(f".{kind}")), {})


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {"x_goog_api_key": KEY}),
        ("", {"Authorization": f"Bearer {KEY}"}),
        (f"?key={KEY}", {}),
        (f"?key={KEY}", {"x_goog_api_key": KEY, "Authorization": f"Bearer {KEY}"}),
    ],
)
@pytest.mark.parametrize("root", ["/v1", "/v1beta"])
async def test_the_key_may_be_in_three_places(
    standing_with: StartGateway, root: str, query: str, headers: dict[str, str]
) -> None:
    async with GeminiProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        status, answer = await ask(gateway, f"{root}/models/m:generateContent{query}", **headers)
        assert (status, answer["candidates"][0]["content"]["parts"][0]["text"]) == (200, "Hello")
        status, answer = await ask(gateway, f"{root}/models{query}", method="GET", **headers)
        if "x_goog_api_key" in headers or "Authorization" not in headers or root == "/v1beta":
            assert (status, answer["models"][0]["name"]) == (200, "models/m")
        else:  # a client of OpenAI's API
            assert (status, answer["data"][0]["id"]) == (200, "m")


@pytest.mark.parametrize(
    ("query", "headers", "expected"),
    [
        ("", {}, (401, "UNAUTHENTICATED")),
        ("", {"x_goog_api_key": OTHER_KEY}, (401, "UNAUTHENTICATED")),
        (f"?key={OTHER_KEY}", {}, (401, "UNAUTHENTICATED")),
        (f"?key={OTHER_KEY}", {"x_goog_api_key": KEY}, (400, "INVALID_ARGUMENT")),
        (f"?key={OTHER_KEY}&key={KEY}", {}, (400, "INVALID_ARGUMENT")),
        (f"?key={OTHER_KEY}", {"Authorization": f"Bearer {KEY}"}, (400, "INVALID_ARGUMENT")),
        ("", {"x_goog_api_key": OTHER_KEY, "Authorization": f"Bearer {KEY}"}, (400, "INVALID_ARGUMENT")),
    ],
)
@pytest.mark.parametrize("root", ["/v1", "/v1beta"])
async def test_no_key_a_wrong_key_and_two_keys_are_refused(
    standing_with: StartGateway, root: str, query: str, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    gateway = await standing_with(NOWHERE)
    reported, answer = await ask(gateway, f"{root}/models/m:generateContent{query}", **headers)
    assert (reported, answer["error"]["status"]) == expected
    assert OTHER_KEY not in orjson.dumps(answer).decode()


async def test_a_key_in_the_query_opens_no_other_path(standing_with: StartGateway) -> None:
    gateway = await standing_with(NOWHERE)
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/embeddings"):
        status, _ = await ask(gateway, path, {}, x_goog_api_key=KEY)
        assert status == 400, "the header is taken, and the body is empty"
        status, _ = await ask(gateway, f"{path}?key={KEY}", {})
        assert status == 401


SEEN = (
    f"{ROOT}/m:generateContent",
    f"{ROOT}/m:generateContent",
    f"{ROOT}/m:streamGenerateContent",
    f"{ROOT}/none:generateContent",
    f"{ROOT}/m:predict",
    "/v1beta/nothing",
    "/v1/models/m:generateContent",
)
"""Answered well, by an error of the provider, and by every kind of the gateway's own."""


async def test_a_key_in_the_query_is_nowhere_to_be_read(gateway_with: StartGateway, read_log: ReadLog) -> None:
    canary, wrong = "sk-canary-key-in-a-query-0123456789", "sk-wrong-canary-key-9876543210"
    account = {"account": [{"name": "acme"}], "key": [{"name": "k", "account": "acme", "secret": canary}]}
    async with OtlpReceiver() as receiver, GeminiProvider(Says("Hello"), Fails(500, "oops")) as up:
        tracing = {"endpoint": receiver.url}
        gateway = await gateway_with({"channel": [up.channel()], "price": [PRICE], "tracing": tracing, **account})
        reported = [repr(await ask(gateway, f"{path}?key={key}")) for key in (canary, wrong) for path in SEEN]
        async with gateway.client.get(f"{gateway.url}/metrics") as response:
            reported.append(await response.text())
        await receiver.wait(gateway, 2 * len(SEEN))
        reported += [f"{received.path} {dict(received.headers)} {received.json}" for received in up.received]
        reported += [repr(span) for span in receiver.spans]
        await gateway.stop()
    logged = read_log()
    stored = b"".join(file.read_bytes() for file in gateway.folder.path.rglob("*") if file.is_file())
    assert "generate_content" in logged + "".join(reported)
    assert b"generate_content" in stored
    for key in (canary, wrong):
        assert key not in "".join([*reported, logged])
        assert key.encode() not in stored


@pytest.mark.parametrize("kind", [OpenAIProvider, GeminiProvider])
async def test_a_stream_without_alt_is_one_array(standing_with: StartGateway, kind: type[OpenAIProvider]) -> None:
    async with kind(Says("One two three")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        path = f"{gateway.url}{ROOT}/m:streamGenerateContent"
        async with gateway.client.post(path, json=ASK) as response:
            assert response.content_type == "application/json"
            chunks = orjson.loads(await response.read())
        async with gateway.client.post(f"{path}?alt=sse", json=ASK) as response:
            assert response.content_type == "text/event-stream"
            events = (await response.read()).replace(b"\r\n", b"\n").split(b"\n\n")[:-1]
    assert [orjson.loads(one.removeprefix(b"data: ")).keys() for one in events] == [one.keys() for one in chunks]
    text = [part["text"] for one in chunks for part in one["candidates"][0]["content"]["parts"]]
    assert "".join(text) == "One two three"
    assert len(chunks) > 2
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"


async def test_an_array_that_breaks_off_ends_with_the_error(standing_with: StartGateway) -> None:
    script: list[Step] = [SSE_HEAD, chunk(event(delta("one"))), chunk(event(delta(" two"))), FIN]
    async with ScriptedUpstream(script) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        async with gateway.client.post(f"{gateway.url}{ROOT}/m:streamGenerateContent", json=ASK) as response:
            *chunks, last = orjson.loads(await response.read())
    assert len(chunks) == 2
    assert (last["error"]["code"], last["error"]["status"]) == (502, "UNAVAILABLE")


@pytest.mark.parametrize(
    ("method", "path", "status", "word"),
    [
        ("GET", "/v1beta", 404, "NOT_FOUND"),
        ("GET", "/v1beta/nothing", 404, "NOT_FOUND"),
        ("POST", "/v1beta/chat/completions", 404, "NOT_FOUND"),
        ("PUT", f"{ROOT}/m", 405, "INVALID_ARGUMENT"),
        ("POST", f"{ROOT}/m:predict", 501, "UNIMPLEMENTED"),
        ("POST", "/v1/models/m:predict", 501, "UNIMPLEMENTED"),
        ("POST", "/v1beta/files", 501, "UNIMPLEMENTED"),
        ("GET", "/v1beta/cachedContents/x", 501, "UNIMPLEMENTED"),
        ("GET", f"{ROOT}/none", 404, "NOT_FOUND"),
        ("POST", f"{ROOT}/none:generateContent", 404, "NOT_FOUND"),
    ],
)
async def test_what_is_not_served_is_said_in_googles_shape(
    standing_with: StartGateway, method: str, path: str, status: int, word: str
) -> None:
    gateway = await standing_with(NOWHERE)
    reported, answer = await ask(gateway, path, method=method, x_goog_api_key=KEY)
    assert (reported, answer["error"]["code"], answer["error"]["status"]) == (status, status, word)
    assert find_detail(answer["error"], "RequestInfo")["requestId"].startswith("req_")


async def test_a_rate_limit_says_when_to_try_again(gateway_with: StartGateway) -> None:
    limited = {"account": [{"name": "a"}], "key": [{"name": "k", "account": "a", "secret": KEY, "rpm": 1}]}
    async with GeminiProvider() as up:
        gateway = await gateway_with({"channel": [up.channel()], **limited})
        assert (await ask(gateway, x_goog_api_key=KEY))[0] == 200
        status, answer = await ask(gateway, x_goog_api_key=KEY)
    assert (status, answer["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert find_detail(answer["error"], "RetryInfo")["retryDelay"].endswith("s")


async def test_a_spent_quota_is_an_exhausted_resource_and_names_the_limit_that_fits(gateway_with: StartGateway) -> None:
    poor = {"account": [{"name": "a"}], "key": [{"name": "k", "account": "a", "secret": KEY, "quota_usd": 0.0005}]}
    price = {"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 1}
    async with GeminiProvider() as up:
        gateway = await gateway_with({"channel": [up.channel()], "price": [price], **poor})
        status, answer = await ask(gateway, x_goog_api_key=KEY)
        assert (status, answer["error"]["status"]) == (403, "RESOURCE_EXHAUSTED")
        assert "it fits with maxOutputTokens of at most " in answer["error"]["message"]
        fitting = {**ASK, "generation_config": {"max_output_tokens": 100}}
        assert (await ask(gateway, body=fitting, x_goog_api_key=KEY))[0] == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "contents"),
        ({**ASK, "generationConfig": {"topK": 1, "top_k": 1}}, "generationConfig.topK"),
        ({**ASK, "generationConfig": {"MaxOutputTokens": 1}}, "generationConfig.MaxOutputTokens"),
        ({**ASK, "maxOutputTokens": 1}, "maxOutputTokens"),
        ({**ASK, "generation_config": {"max_output_tokens": "many"}}, "generationConfig.maxOutputTokens"),
        ({**ASK, "generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens"),
        ({"contents": [{"role": "system", "parts": [{"text": "x"}]}]}, "contents[0].role"),
        ({"contents": [{"parts": [{"inline_data": {"data": "AA=="}}]}]}, "contents[0].parts[0].inlineData.mimeType"),
        ({**ASK, "tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
        ({**ASK, "systemInstruction": "be kind"}, "systemInstruction"),
    ],
)
async def test_a_bad_field_is_named(standing_with: StartGateway, body: Any, field: str) -> None:
    async with OpenAIProvider() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        status, answer = await ask(gateway, body=body, x_goog_api_key=KEY)
        assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
        assert find_detail(answer["error"], "BadRequest")["fieldViolations"][0]["field"] == field
        assert not up.received


async def test_models_have_any_name(standing_with: StartGateway) -> None:
    names = ["owner/m", "m:free", "a:b/c d"]
    async with GeminiProvider() as up:
        there: dict[str, Any] = {"models": names, "model_map": dict.fromkeys(names, up.model)}
        gateway = await standing_with({"channel": [up.channel(**there)]})
        for name in names:
            for written in (quote(name), quote(name, safe="")):
                assert (await ask(gateway, f"{ROOT}/{written}:generateContent", x_goog_api_key=KEY))[0] == 200
                status, model = await ask(gateway, f"{ROOT}/{written}", method="GET", x_goog_api_key=KEY)
                assert (status, model["name"]) == (200, f"models/{name}")


async def test_the_list_of_models_has_pages(standing_with: StartGateway) -> None:
    names = [f"m{number:02}" for number in range(60)]
    gateway = await standing_with({"channel": [channel("http://127.0.0.1:9/v1", models=names)]})
    found, token, sizes = [], "", []
    while True:
        _, page = await ask(gateway, f"{ROOT}?pageToken={quote(token)}", method="GET", x_goog_api_key=KEY)
        sizes.append(len(page["models"]))
        found += [model["name"] for model in page["models"]]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert sizes == [50, 10]
    assert found == [f"models/{name}" for name in names]
    _, page = await ask(gateway, f"{ROOT}?pageSize=5000", method="GET", x_goog_api_key=KEY)
    assert len(page["models"]) == 60
    for query in ("pageSize=x", "pageToken=%25"):
        status, answer = await ask(gateway, f"{ROOT}?{query}", method="GET", x_goog_api_key=KEY)
        assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")


async def test_an_idempotency_key_replays_an_answer(standing_with: StartGateway) -> None:
    async with OpenAIProvider(Says("One"), Says("Two")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        headers = {"x_goog_api_key": KEY, "Idempotency_Key": "once"}
        first, again = await ask(gateway, **headers), await ask(gateway, **headers)
        assert first == again
        assert len(up.received) == 1
