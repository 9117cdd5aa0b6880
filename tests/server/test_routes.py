"""The paths: which exist, who may see them, and what is on every answer."""

import re

import aiohttp
import orjson
import pytest
from yarl import URL

from tests.support.gateway import CHAT, HELLO, KEY, channel, channels
from tests.support.raw_client import split, talk
from tests.support.scripted_upstream import COMPLETION, Script, ScriptedUpstream, answer, chat_script
from tests.support.started_gateways import StartGateway

REQUEST_ID = re.compile(r"req_[0-9a-f]{24}\Z")
NOWHERE = {"channel": [channel("http://127.0.0.1:9/v1")]}
UNSERVED = (
    "/v1/images/variations",
    "/v1/images/elsewhere",
    "/v1/videos/edits",
    "/v1/videos/extensions",
    "/v1/videos/characters",
    "/v1/videos/characters/char_1",
    "/v1/audio/voices",
    "/v1/audio/speech/more",
    "/v1/responses/input_tokens",
    "/v1/chat/completions/chatcmpl-1",
    "/v1/chat/completions/chatcmpl-1/messages",
)


@pytest.mark.parametrize("path", UNSERVED)
async def test_an_unserved_path_is_a_501_to_a_caller_and_a_401_to_anyone_else(
    standing_with: StartGateway, path: str
) -> None:
    gateway = await standing_with(NOWHERE)
    async with aiohttp.ClientSession() as stranger:
        async with stranger.post(gateway.url + path, json={}) as response:
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "invalid_api_key"
        for method in ("GET", "POST", "DELETE"):
            async with gateway.client.request(method, gateway.url + path) as response:
                assert response.status == 501
                assert response.headers["x-should-retry"] == "false"
                assert (await response.json())["error"]["code"] == "api_not_implemented"
    await gateway.rows(0)


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v2/models",
        "/admin",
        "/v1/dashboard/billing",
        "/chat",
        "/v1/" + "a/" * 2_000,
    ],
)
async def test_an_unknown_path_is_a_404_in_our_shape_and_never_a_redirect(
    standing_with: StartGateway, path: str
) -> None:
    gateway = await standing_with(NOWHERE)
    for method in ("GET", "POST"):
        url = gateway.url + path
        async with gateway.client.request(method, url, allow_redirects=False) as response:
            assert response.status == 404
            error = (await response.json())["error"]
        assert (error["code"], error["type"], error["param"]) == ("not_found", "new_api_error", None)
        assert error["message"].endswith(f"(request id: {response.headers['X-Request-Id']})")


SERVED = {
    "post /audio/speech", "post /audio/transcriptions", "post /audio/translations", "post /chat/completions",
    "post /completions", "post /embeddings", "post /images/edits", "post /images/generations", "get /models",
    "get /models/m", "post /moderations", "post /responses", "post /responses/compact",
    "get /videos", "post /videos", "get /videos/v",
    "delete /videos/v", "get /videos/v/content", "post /videos/v/remix", "get /files", "post /files", "get /files/f",
    "delete /files/f", "get /files/f/content", "post /uploads", "post /uploads/u/parts", "post /uploads/u/complete",
    "post /uploads/u/cancel", "get /batches", "post /batches", "get /batches/b", "post /batches/b/cancel",
    "get /responses/x", "delete /responses/x", "get /responses/x/input_items", "post /responses/x/cancel",
    "get /realtime", "post /realtime/client_secrets", "post /realtime/sessions",
    "get /messages/batches", "post /messages/batches", "get /messages/batches/b", "delete /messages/batches/b",
    "get /messages/batches/b/results", "post /messages/batches/b/cancel",
}  # fmt: skip
CONVENTION = """
audio/voice_consents audio/voice_consents/x audio/voices chat/completions/x
chat/completions/x/messages containers containers/x containers/x/files containers/x/files/y
containers/x/files/y/content conversations conversations/x conversations/x/items conversations/x/items/y evals evals/x
evals/x/runs evals/x/runs/y evals/x/runs/y/output_items evals/x/runs/y/output_items/z
fine_tuning/alpha/graders/run fine_tuning/checkpoints/x/permissions/y fine_tuning/jobs fine_tuning/jobs/x
fine_tuning/jobs/x/events images/variations assistants assistants/x organization/admin_api_keys organization/costs
organization/projects/x/api_keys/y organization/usage/completions organization/users/x projects/x/roles
projects/x/users/y/roles/z realtime/calls realtime/calls/x/accept realtime/transcription_sessions
responses/input_tokens threads threads/runs threads/x
threads/x/messages/y threads/x/runs/y/steps/z vector_stores vector_stores/x/search
content_provenance_checks videos/characters videos/characters/x videos/edits videos/extensions skills skills/x
skills/x/versions/y/content chatkit/sessions chatkit/sessions/x/cancel chatkit/threads/x/items
complete organizations/me organizations/users/x
"""
"""Paths of the convention's OpenAPI document that are not served, whatever is done with them; then Anthropic's."""


async def test_every_path_of_the_convention_is_served_or_a_501(standing_with: StartGateway) -> None:
    gateway = await standing_with(NOWHERE)
    unserved = [(method, path) for path in CONVENTION.split() for method in ("GET", "POST", "DELETE", "PUT", "PATCH")]
    for method, path in [*unserved, ("DELETE", "models/m"), ("DELETE", "models/org/m")]:
        async with gateway.client.request(method, f"{gateway.url}/v1/{path}") as response:
            assert response.status == 501, (method, path)
            assert (await response.json())["error"]["code"] == "api_not_implemented"
    for method, _, path in (each.partition(" ") for each in SERVED):
        async with gateway.client.request(method, f"{gateway.url}/v1{path}", json={}) as response:
            assert response.status not in {405, 501}, (method, path)


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        ("/v1/chat/completions/", CHAT),
        ("/v1/chat/completions//", CHAT),
        ("//v1/chat/completions", CHAT),
        ("/v1//chat/completions", CHAT),
        ("/v1/chat//completions", CHAT),
        ("/v1/v1/chat/completions", CHAT),
        ("/v1/v1/messages", "/v1/messages"),
        ("/chat/completions", CHAT),
        ("/messages/", "/v1/messages"),
        ("/v1/messages/", "/v1/messages"),
        ("/v1/models/", "/v1/models"),
        ("//v1/models", "/v1/models"),
        ("/v1/models/m/", "/v1/models/m"),
        ("/v1/responses/", "/v1/responses"),
        ("/v1/audio/speech/", "/v1/audio/speech"),
        ("/v1/images/generations//", "/v1/images/generations"),
        ("/v1/videos/", "/v1/videos"),
        ("/v1/videos/video_1/content/", "/v1/videos/video_1/content"),
        ("/v1/dashboard/billing/usage/", "/v1/dashboard/billing/usage"),
        ("/v1/chat/completion", CHAT),
        ("/v1/chat/completons/", CHAT),
        ("/v1/image/generation", "/v1/images/generations"),
        ("/embedings", "/v1/embeddings"),
    ],
)
async def test_a_misspelt_path_gets_a_hint_and_no_redirect(
    standing_with: StartGateway, message: str, meant: str
) -> None:
    gateway = await standing_with(NOWHERE)
    method = "GET" if "models" in message or "videos" in message or "usage" in message else "POST"
    raw = (
        f"{method} {message}?key=a%20b HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n\r\n"
    )
    answered = split(await talk(gateway.url, raw.encode()))
    error = orjson.loads(answered.body)["error"]
    assert (answered.status, error["code"], error["param"]) == (404, "not_found", None)
    assert f"Did you mean {meant}? (request id: " in error["message"]
    assert "location" not in answered.headers


@pytest.mark.parametrize("shown", [{"x-api-key": KEY, "anthropic-version": "2023-06-01"}, {"anthropic-version": "x"}])
async def test_anthropics_clients_are_told_in_their_form_that_a_path_is_not_served(
    standing_with: StartGateway, shown: dict[str, str]
) -> None:
    gateway = await standing_with(NOWHERE)
    shown = {"Authorization": f"Bearer {KEY}", **shown} if "x-api-key" not in shown else shown
    expected = [
        ("GET", "/v1/files", 501, "api_error"),
        ("POST", "/v1/files", 501, "api_error"),
        ("GET", "/v1/skills/s", 501, "api_error"),
        ("GET", "/v1/models/nobody", 404, "not_found_error"),
        ("GET", "/v1/nothing", 404, "not_found_error"),
        ("PUT", "/v1/models", 405, "invalid_request_error"),
    ]
    async with aiohttp.ClientSession(headers=shown) as session:
        for method, path, status, kind in expected:
            async with session.request(method, gateway.url + path) as response:
                error = await response.json()
                assert (response.status, error["type"], error["error"]["type"]) == (status, "error", kind), path
                assert response.headers["request-id"] == response.headers["X-Request-Id"] == error["request_id"]
    for bad in ({"x-api-key": "sk-nobodys"}, {"x-api-key": "sk-nobodys", "anthropic-version": "2023-06-01"}):
        async with aiohttp.ClientSession(headers=bad) as session, session.get(f"{gateway.url}/v1/files") as response:
            assert (response.status, (await response.json())["error"]["type"]) == (401, "authentication_error")


WARNING = "x-gateway-warning"


async def test_who_asks_to_store_a_completion_is_told_that_it_was_not(standing_with: StartGateway) -> None:
    scripts: list[Script] = [chat_script("a"), [answer(COMPLETION)]] * 3
    async with ScriptedUpstream(*scripts) as up:
        gateway = await standing_with(channels([up]))
        for store in (True, False, None):
            for stream in (True, False):
                async with gateway.post({**HELLO, "stream": stream, "store": store}) as response:
                    await response.read()
                    assert response.status == 200
                    warned = response.headers.get(WARNING, "")
                assert warned.startswith("store: ") == (store is True), (store, stream)


async def test_a_name_of_a_stream_is_checked_and_said_not_to_be_used(standing_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script("a"), chat_script("a")) as up:
        gateway = await standing_with(channels([up]))
        for name in ("x" * 256, "", "a\tb", "\N{LATIN SMALL LETTER E WITH ACUTE}"):
            for body in (HELLO, {**HELLO, "stream": True}):
                async with gateway.post(body, headers={"Idempotency-Key": name}) as response:
                    error = (await response.json())["error"]
                assert (response.status, error["param"]) == (400, "Idempotency-Key"), name
        assert not up.received
        for _ in range(2):
            body = {**HELLO, "stream": True, "store": True}
            async with gateway.post(body, headers={"Idempotency-Key": "x" * 255}) as response:
                await response.read()
                assert (response.status, "Idempotent-Replayed" in response.headers) == (200, False)
                store, named = response.headers[WARNING].split(", ")
            assert (store.partition(":")[0], named.partition(":")[0]) == ("store", "Idempotency-Key")
        assert len(up.received) == 2
        async with gateway.client.post(
            f"{gateway.url}/v1/embeddings", json={"model": "m"}, headers={"Idempotency-Key": "x"}
        ) as response:
            assert response.headers[WARNING].startswith("Idempotency-Key: ")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", CHAT, {"POST"}),
        ("DELETE", "/v1/embeddings", {"POST"}),
        ("GET", "/v1/messages", {"POST"}),
        ("PUT", "/v1/messages/count_tokens", {"POST"}),
        ("GET", "/v1/completions", {"POST"}),
        ("GET", "/v1/moderations", {"POST"}),
        ("PATCH", "/v1/rerank", {"POST"}),
        ("GET", "/v1/responses", {"POST"}),
        ("GET", "/v1/images/generations", {"POST"}),
        ("PUT", "/v1/audio/speech", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("PUT", "/v1/models/m", {"GET", "HEAD"}),
        ("OPTIONS", "/v1/models/org/m", {"GET", "HEAD"}),
        ("POST", "/v1/dashboard/billing/subscription", {"GET", "HEAD"}),
        ("DELETE", "/v1/dashboard/billing/usage", {"GET", "HEAD"}),
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("PROPFIND", "/", {"GET", "HEAD"}),
    ],
)
async def test_another_method_is_a_405_that_says_which_are_allowed(
    standing_with: StartGateway, method: str, path: str, allowed: set[str]
) -> None:
    gateway = await standing_with(NOWHERE)
    async with gateway.client.request(method, gateway.url + path) as response:
        assert response.status == 405
        assert set(response.headers["Allow"].replace(" ", "").split(",")) == allowed
        assert (await response.json())["error"]["code"] == "method_not_allowed"


async def test_a_listing_that_is_known_already_is_a_304(standing_with: StartGateway) -> None:
    gateway = await standing_with(NOWHERE)
    url = f"{gateway.url}/v1/models"
    async with gateway.client.get(url) as response:
        etag = response.headers["ETag"]
        assert response.headers["Cache-Control"] == "private, no-cache"
    for known in (etag, f'"other", {etag}', f"W/{etag}"):
        async with gateway.client.get(url, headers={"If-None-Match": known}) as response:
            assert (response.status, await response.read()) == (304, b"")
            assert response.headers["ETag"] == etag
            assert REQUEST_ID.match(response.headers["X-Request-Id"])
    async with gateway.client.get(url, headers={"If-None-Match": '"other"'}) as response:
        assert response.status == 200


async def test_a_listing_that_is_known_in_any_form_is_a_304(standing_with: StartGateway) -> None:
    gateway = await standing_with(NOWHERE)
    async with gateway.client.get(f"{gateway.url}/v1/models", headers={"If-None-Match": "*"}) as response:
        assert response.status == 304


async def test_every_answer_has_its_own_request_id_and_never_names_the_server(standing_with: StartGateway) -> None:
    seen = []
    async with ScriptedUpstream([answer(COMPLETION, server="theirs")], chat_script("a"), [answer({}, 500)]) as up:
        gateway = await standing_with(channels([up]))
        requests: list[tuple[str, str, object, int]] = [
            ("POST", CHAT, HELLO, 200),
            ("POST", CHAT, {**HELLO, "stream": True}, 200),
            ("POST", CHAT, HELLO, 502),
            ("POST", CHAT, {}, 400),
            ("PUT", CHAT, None, 405),
            ("GET", "/nothing", None, 404),
            ("POST", "/v1/images/variations", None, 501),
            ("GET", "/v1/models", None, 200),
            ("HEAD", "/v1/models", None, 200),
            ("GET", "/v1/models/m", None, 200),
            ("GET", "/v1/dashboard/billing/subscription", None, 200),
            ("GET", "/v1/dashboard/billing/usage", None, 200),
            ("GET", "/v1/dashboard/billing/usage?end_date=x", None, 400),
            ("GET", "/healthz", None, 200),
            ("GET", "/readyz", None, 200),
            ("GET", "/", None, 200),
            ("GET", "/admin/v1/status", None, 401),
        ]
        for method, path, body, status in requests:
            async with gateway.client.request(method, gateway.url + path, json=body) as response:
                await response.read()
                assert response.status == status, path
                assert "Server" not in response.headers, path
                assert "Set-Cookie" not in response.headers, path
                seen.append(response.headers["X-Request-Id"])
    assert all(REQUEST_ID.match(request_id) for request_id in seen)
    assert len(set(seen)) == len(requests)


async def test_the_id_of_an_answer_is_the_id_of_its_row(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], chat_script("a")) as up:
        gateway = await standing_with(channels([up]))
        ids = []
        for body in (HELLO, {**HELLO, "stream": True}, {**HELLO, "model": "unknown"}):
            async with gateway.post(body) as response:
                await response.read()
                ids.append(response.headers["X-Request-Id"])
        assert [row.id for row in await gateway.rows(3)] == ids


async def test_a_callers_own_request_id_is_kept_in_the_row_and_never_taken_for_ours(
    standing_with: StartGateway,
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        async with gateway.post(headers={"X-Request-Id": "mine-1.2_3"}) as response:
            assert REQUEST_ID.match(response.headers["X-Request-Id"])
            assert "mine-1.2_3" not in str(response.headers)
        (row,) = await gateway.rows(1)
        assert row.client_request_id == "mine-1.2_3"
        assert "x-request-id" not in up.received[0].headers


@pytest.mark.parametrize("hostile", ["a" * 65, "a b", "a/b", '"><script>', "é", "", "a\tb", "${jndi}", "a;b"])
async def test_a_hostile_request_id_is_dropped(standing_with: StartGateway, hostile: str) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        async with gateway.post(headers={"X-Request-Id": hostile}) as response:
            assert response.status == 200
        (row,) = await gateway.rows(1)
        assert row.client_request_id is None


@pytest.mark.parametrize("model", ["org/name:tag", "org%2Fname:tag", "org%2fname%3Atag"])
async def test_a_slash_in_a_model_id_may_be_encoded_or_not(standing_with: StartGateway, model: str) -> None:
    gateway = await standing_with({"channel": [channel("http://127.0.0.1:9/v1", models=["org/name:tag"])]})
    url = URL(f"{gateway.url}/v1/models/{model}", encoded=True)
    async with gateway.client.get(url) as response:
        assert (await response.json())["id"] == "org/name:tag"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR "])
async def test_the_scheme_of_the_key_may_be_written_in_any_case(standing_with: StartGateway, scheme: str) -> None:
    gateway = await standing_with(NOWHERE)
    headers = {"Authorization": f"{scheme} {KEY}"}
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.url}/v1/models", headers=headers) as response:
        assert response.status == 200


@pytest.mark.parametrize("value", ["", KEY, f"Basic {KEY}", f"Bearer{KEY}", f"Bearer {KEY}x", f"Token {KEY}"])
async def test_anything_else_than_a_bearer_of_the_key_is_a_401(standing_with: StartGateway, value: str) -> None:
    gateway = await standing_with(NOWHERE)
    async with aiohttp.ClientSession() as session:
        for path in ("/v1/models", "/v1/models/m"):
            async with session.get(gateway.url + path, headers={"Authorization": value}) as response:
                assert response.status == 401
                error = (await response.json())["error"]
                assert error["code"] == "invalid_api_key"
                assert response.headers["x-should-retry"] == "false"
                assert KEY not in error["message"]


async def test_the_root_tells_a_newcomer_where_to_go_without_a_key(standing_with: StartGateway) -> None:
    gateway = await standing_with(NOWHERE)
    async with aiohttp.ClientSession() as session, session.get(gateway.url) as response:
        page = await response.json()
    assert page["base_url"] == f"{gateway.url}/v1"
    assert page["health"] == f"{gateway.url}/healthz"
