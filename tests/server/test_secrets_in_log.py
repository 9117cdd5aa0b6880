"""Canaries: recognizable secrets are planted, calls of every kind are made, and nothing gives a secret away."""

import base64
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import attrs
import orjson
import pytest

from gateway.doctor.examination import examine
from gateway.domain.account import key_digest
from gateway.parsing import parse_spec
from gateway.routing.channel_spec import ChannelSpec
from gateway.server.context import SERVICES
from gateway.storage.data_folder import DataFolder
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.gateway_process import write_toml
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.scripted_upstream import (
    COMPLETION,
    FIN,
    RST,
    SSE_HEAD,
    ScriptedUpstream,
    answer,
    chat_script,
    chunk,
    delta,
    event,
)
from tests.support.started_gateways import ReadLog, StartGateway

CALLER_KEY = "sk-CANARY-caller-9f8e7d6c5b4a39281706"
PROVIDER_KEY = "CANARY-provider-0a1b2c3d4e5f6071829384"
CHANNEL_HEADER = "CANARY-header-55aa55aa55aa55aa"
PROXY_PASSWORD = "CANARY-proxy-77bb77bb77bb"
PROMPT = "CANARY-prompt-my-diagnosis-is-private"
ECHO = f"{PROVIDER_KEY} sent with {CHANNEL_HEADER} over http://user:{PROXY_PASSWORD}@proxy and {PROXY_PASSWORD}"
LEAKY = {
    "error": {
        "message": f"Incorrect key {ECHO} to https://internal.example/{PROVIDER_KEY}",
        "type": f"type-{PROVIDER_KEY}",
        "param": PROXY_PASSWORD,
        "code": f"code_{CHANNEL_HEADER}",
    }
}
STREAMED = {1, 9, 10}
SCRIPTS: list[Any] = [
    [answer(COMPLETION, set_cookie=PROVIDER_KEY, server=PROVIDER_KEY, openai_organization="org-CANARYcanary")],
    chat_script("a", "b"),
    [answer(LEAKY, 400)],
    [answer(LEAKY, 401)],
    [answer(LEAKY, 429, retry_after="1")],
    [answer(LEAKY, 500)],
    [answer(LEAKY)],
    [answer(PROVIDER_KEY.encode(), 502, content_type="text/html")],
    [RST],
    [SSE_HEAD, chunk(event(delta("a"))), chunk(event(LEAKY)), FIN],
    [SSE_HEAD, chunk(event(LEAKY)), FIN],
    [answer(LEAKY, 407)],
]
MISPLACED = (
    ("GET", "/v1/models/{}"), ("GET", "/{}"), ("GET", "/v1/{}/models"), ("PUT", "/v1/models/{}"),
    ("GET", "/v1/models/x?key={}"), ("GET", "/v1beta/models/{}"),
    ("POST", "/v1beta/models/{}:generateContent"), ("POST", "/v1/chat/completions?key={}"), ("DELETE", "/v1/files/{}"),
    ("GET", "/v1/videos/{}"), ("GET", "/v1/responses/{}"), ("GET", "/v1/batches/{}"), ("GET", "/console/{}"),
    ("GET", "/media/{}"), ("GET", "/help/{}"), ("POST", "/v1/assistants/{}"),
)  # fmt: skip
"""Requests with the key where a path or a query has another value."""
TUNNELLED = len(SCRIPTS) - 1
"""The one whose provider is behind TLS: its proxy is asked for a tunnel, and says no."""


def channel_to(up: ScriptedUpstream, number: int) -> dict[str, Any]:
    """A channel with every kind of secret, whose proxy is the provider."""
    scheme = "https" if number == TUNNELLED else "http"
    return channel(
        f"{scheme}://provider.internal.example/v1",
        f"c{number}",
        models=[f"m{number}"],
        api_key=PROVIDER_KEY,
        headers={"X-Team": CHANNEL_HEADER},
        proxy=f"http://user:{PROXY_PASSWORD}@127.0.0.1:{up.port}",
    )


@attrs.define
class RecordingClient:
    """Asks, and keeps every answer as text."""

    gateway: RunningGateway
    session: aiohttp.ClientSession
    seen: list[str] = attrs.Factory(list)

    async def call(self, method: str, path: str, key: str = f"Bearer {CALLER_KEY}", body: Any = None) -> None:
        url, headers = self.gateway.url + path, {"Authorization": key, "X-Request-Id": "mine"}
        async with self.session.request(method, url, headers=headers, json=body) as response:
            text = (await response.read()).decode()
            self.seen.append(f"{response.status} {response.headers} {text}")

    async def manage(self, method: str, path: str, body: Any = None) -> None:
        await self.call(method, f"/admin/v1/{path}", f"Bearer {self.gateway.admin_token}", body)


async def ask_everything(ear: RecordingClient) -> None:
    """A run of good and failing calls."""
    body = {**HELLO, "max_tokens": 5, "messages": [{"role": "user", "content": PROMPT}]}
    for number in range(len(SCRIPTS)):
        for path in (CHAT, "/v1/messages"):
            await ear.call("POST", path, body={**body, "model": f"m{number}", "stream": number in STREAMED})
    await ear.call("POST", CHAT, body={**body, "temperature": PROMPT})
    await ear.call("POST", CHAT, body={**body, "model": "no-such-model"})
    await ear.call("PUT", CHAT)
    await ear.call("GET", "/v1/models", key=f"Basic {CALLER_KEY}")
    await ear.call("GET", "/v1/models", key=f"Bearer {CALLER_KEY}x")
    await ear.call("GET", "/admin/v1/keys", key=f"Bearer {CALLER_KEY}")
    await ear.call("GET", "/v1/models", key=f"Bearer {ear.gateway.admin_token}")
    for method, path in MISPLACED:
        await ear.call(method, path.format(CALLER_KEY), body=body if method == "POST" else None)
    await ear.call("POST", CHAT, body={**body, "model": CALLER_KEY})


async def manage_everything(ear: RecordingClient, some: ScriptedUpstream) -> None:
    """A run of good and failing operations; ``some`` channel is added, changed, tested, and removed."""
    for path in ("status", "accounts", "keys", "channels", "channels/c0", "models", "requests", "explain?model=m5"):
        await ear.manage("GET", path)
    await ear.manage("POST", "keys", {"name": "x", "account": "acme", "secret": CALLER_KEY})
    new = {**channel_to(some, 2), "name": "new", "models": [], "sync": True}
    for path in ("channels", "channels?check=none", "channels?check=none"):
        await ear.manage("POST", path, new)  # its provider answers the question for its models with an echo
    await ear.manage("PATCH", "channels/new", {"weight": 2, "headers": {"X-Team": f"{CHANNEL_HEADER}"}})
    for kind in ("keys", "accounts", "channels", "running", "requests", "members", "sessions"):
        for method in ("GET", "DELETE", "PATCH"):
            await ear.manage(method, f"{kind}/{CALLER_KEY}", {} if method == "PATCH" else None)
    for path in ("channels/new/sync", "channels/new/test", "channels/c3/test", f"channels/c{TUNNELLED}/test", "reload"):
        await ear.manage("POST", path)
    for wrong in (
        {"api_key": f"{PROVIDER_KEY} {PROVIDER_KEY}"},
        {"api_keys": [PROVIDER_KEY, PROVIDER_KEY]},
        {"api_keys": PROVIDER_KEY},
        {"headers": {"X-Team": f"{CHANNEL_HEADER}\n"}},
        {"headers": CHANNEL_HEADER},
        {"proxy": f"socks4://user:{PROXY_PASSWORD}@h"},
        {"proxy": f"http://user:{PROXY_PASSWORD}@[::1"},
        {"base_url": f"http://user:{PROXY_PASSWORD}@h/v1"},
    ):
        await ear.manage("PATCH", "channels/new", wrong)
        await ear.manage("POST", "channels", {**new, "name": "other", **wrong})
    await ear.manage("GET", "channels/new")
    await ear.manage("DELETE", "channels/new")


def find_leaks(haystack: bytes, folder: DataFolder) -> list[str]:
    """The names of the secrets that stand in ``haystack``, in any form they might."""
    secrets = {
        "caller key": CALLER_KEY.encode(),
        "provider key": PROVIDER_KEY.encode(),
        "channel header": CHANNEL_HEADER.encode(),
        "proxy password": PROXY_PASSWORD.encode(),
        "proxy credentials": b"user:" + PROXY_PASSWORD.encode(),
        "master key": folder.secret("master.key"),
        "admin token": folder.admin_token().encode(),
        "pepper": folder.secret("pepper"),
    }
    return [
        name
        for name, secret in secrets.items()
        if any(form in haystack for form in (secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"=")))
    ]


def read_files(path: Path) -> bytes:
    """The raw bytes of everything in a data folder but the secrets' own files."""
    own = {"pepper", "admin.token", "master.key"}
    return b"".join(file.read_bytes() for file in path.iterdir() if file.is_file() and file.name not in own)


@pytest.mark.parametrize("origin", ["file", "stored"])
async def test_no_secret_is_in_an_answer_a_log_a_span_a_metric_or_the_database(
    gateway_with: StartGateway, read_log: ReadLog, origin: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        ups = [await stack.enter_async_context(ScriptedUpstream(script)) for script in SCRIPTS]
        made = [channel_to(up, number) for number, up in enumerate(ups)]
        key = {"name": "test", "account": "acme", "secret": CALLER_KEY}
        declared = {"channel": made if origin == "file" else [], "key": [key], "routing": {"trip_failures": 2}}
        receiver = await stack.enter_async_context(OtlpReceiver())
        gateway = await gateway_with({**declared, "tracing": {"endpoint": receiver.url}})
        session = await stack.enter_async_context(aiohttp.ClientSession())
        ear = RecordingClient(gateway, session)
        for fields in made if origin == "stored" else []:
            await ear.manage("POST", "channels?check=none", fields)
        await ask_everything(ear)
        await manage_everything(ear, ups[5])
        await ear.call("GET", "/metrics", f"Bearer {gateway.admin_token}")
        await gateway.rows(2 * len(SCRIPTS) + 5)
        check_asked(ups)
        statuses = {int(text[:3]) for text in ear.seen}
        assert {200, 201, 400, 401, 404, 405, 409, 429, 502} <= statuses
        leaks = {text[:2000]: found for text in ear.seen if (found := find_leaks(text.encode(), gateway.folder))}
        assert leaks == {}

        logged = read_log()
        for line in ("request_settled", "channel_added", "channel_changed", "channel_tripped", "key_tripped"):
            assert line in logged
        assert find_leaks(logged.encode(), gateway.folder) == []
        assert PROMPT not in logged

        spans = repr(await receiver.wait(gateway, 2 * len(SCRIPTS)))
        (tmp_path / "gateway.toml").write_text(write_toml({**declared, "account": [{"name": "acme"}], "channel": made}))
        examined = str([*examine(gateway.folder.path, tmp_path / "gateway.toml", {})])
        for place, word in ((spans, "m3"), (examined, "database")):
            assert word in place
            assert find_leaks(place.encode(), gateway.folder) == []
            assert PROMPT not in place

        stored = read_files(gateway.folder.path)
        assert b"no-such-model" in stored
        assert b"provider.internal.example" in stored
        await gateway.stop()
        for content in (stored, read_files(gateway.folder.path)):
            assert find_leaks(content, gateway.folder) == []
            assert PROMPT.encode() not in content


def check_asked(ups: list[ScriptedUpstream]) -> None:
    """That every provider was told the secrets: a search is worth something only where there was something to find."""
    credentials = base64.b64encode(f"user:{PROXY_PASSWORD}".encode()).decode()
    for number, up in enumerate(ups):
        assert up.received, number
        for received in up.received:
            assert received.headers["proxy-authorization"] == f"Basic {credentials}"
            if number != TUNNELLED:
                assert received.headers["authorization"] == f"Bearer {PROVIDER_KEY}"
                assert received.headers["x-team"] == CHANNEL_HEADER


def write_echoes(secrets: dict[str, str]) -> str:
    """What a provider, or a proxy on the way to it, might repeat of a request: as it was, in a URL, in base64."""
    forms = [
        form
        for secret in secrets.values()
        for form in (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode())
    ]
    return f"not valid: {' or '.join(forms)} at https://x.example/v1beta/models?key={secrets['key']}"


def list_errors(provider: str, echo: str) -> list[list[Any]]:
    """The error of a vendor in its own shape: with a status, instead of an answer, in the place of a stream, in one."""
    shapes: dict[str, dict[str, Any]] = {
        "custom": {"error": {"message": echo, "type": echo, "param": echo, "code": echo}},
        "anthropic": {"type": "error", "error": {"type": "invalid_request_error", "message": echo}, "request_id": echo},
        "gemini": {
            "error": {
                "code": 400,
                "message": echo,
                "status": "INVALID_ARGUMENT",
                "details": [{"reason": echo, "metadata": {"url": echo}}],
            }
        },
    }
    error = shapes[provider]
    name = "event: error\n" if provider == "anthropic" else ""
    late = f"{name}data: {orjson.dumps(error).decode()}\n\n".encode()
    return [
        [answer(error, 400)],
        [answer(error, 404)],
        [answer(error, 429)],
        [answer(error, 503)],
        [answer([error], 400)],
        [answer(error)],
        [answer({"error": echo}, 400)],
        [answer({"message": echo, "detail": echo}, 422)],
        [answer(echo.encode(), 400, content_type="text/plain")],
        [answer(b"", 307, location=f"http://127.0.0.1:9/{quote(echo)}")],
        [SSE_HEAD, chunk(late), FIN],
    ]


UNSPOKEN = {("anthropic", "/v1/embeddings"), ("custom", "/v1/messages/count_tokens")}
SHORT = 12
"""The words between the echoes are shorter."""


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings"])
@pytest.mark.parametrize("provider", ["custom", "anthropic", "gemini"])
async def test_no_secret_is_in_an_error_that_was_said_in_another_language(
    gateway_with: StartGateway, read_log: ReadLog, provider: str, path: str
) -> None:
    """Whatever form a provider repeats it in, and whichever two languages the error passes between."""
    secrets = {
        "key": "CANARY/key+0a1b2c3d=&4e5f",
        "header": "CANARY+header/55aa55aa",
        "password": "CANARY-proxy/77bb77bb",
    }
    pair = f"user:{secrets['password']}"
    echo = write_echoes({**secrets, "pair": pair})
    errors = list_errors(provider, echo)
    async with ScriptedUpstream(*(error for error in errors for _ in (False, True))) as up:
        gateway = await gateway_with(
            {
                "channel": [
                    channel(
                        "http://provider.internal.example/v1",
                        provider=provider,
                        api_key=secrets["key"],
                        headers={"X-Team": f"Token {secrets['header']}"},
                        proxy=f"http://user:{quote(secrets['password'], safe='')}@127.0.0.1:{up.port}",
                    )
                ],
                "routing": {"trip_failures": 1000, "cooldown_s": 0.001, "max_attempts": 1},
            }
        )
        body = {"input": "a"} if path == "/v1/embeddings" else {"max_tokens": 5, "messages": HELLO["messages"]}
        async with aiohttp.ClientSession() as session:
            ear = RecordingClient(gateway, session)
            for _ in errors:
                for stream in (False, True):
                    await ear.call("POST", path, f"Bearer {KEY}", {**body, "model": "m", "stream": stream})
            for place in ("channels", "requests", "explain?model=m"):
                await ear.manage("GET", place)
        assert up.received or (provider, path) in UNSPOKEN
        assert ("[masked]" in "".join(ear.seen)) is bool(up.received)
        logged = read_log()
        assert ('"attempt_failed"' in logged) is bool(up.received)
        shown = "\n".join([*ear.seen, logged, read_files(gateway.folder.path).decode("latin-1")])
        assert [form for form in echo.split() if len(form) > SHORT and form.rstrip("=") in shown] == []


async def test_a_key_in_the_place_of_a_name_is_masked_in_rows_and_lines_of_answered_requests(
    gateway_with: StartGateway, read_log: ReadLog
) -> None:
    """The provider answers whatever model it is asked for: nothing fails."""
    misplaced = CALLER_KEY.replace("caller", "model")
    key = {"name": CALLER_KEY, "account": "acme", "secret": KEY}
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url, models=["*"])], "key": [key]})
        headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": misplaced}
        async with aiohttp.ClientSession(gateway.url, headers=headers) as session:
            for path in (CHAT, f"/v1beta/models/{misplaced}:generateContent"):
                body = {**HELLO, "model": misplaced, "contents": [{"parts": [{"text": "hi"}]}]}
                async with session.post(path, json=body) as response:
                    assert response.status == 200, await response.text()
        rows = await gateway.rows(2)
    assert {row.outcome for row in rows} == {"completed"}
    shown = f"{read_log()} {[(row.model, row.client_request_id) for row in rows]}"
    assert shown.count("request_settled") == 2
    assert "CANARY" not in shown


async def test_a_key_is_stored_as_its_keyed_hash_alone(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"key": [{"name": "test", "account": "acme", "secret": CALLER_KEY}]})
    path = gateway.folder.path
    await gateway.stop()
    stored = read_files(path)

    assert key_digest(gateway.folder.secret("pepper"), CALLER_KEY) in stored
    assert CALLER_KEY.encode() not in stored
    for name in ("pepper", "admin.token", "master.key"):
        assert (path / name).stat().st_mode & 0o777 == 0o600


async def test_no_object_shows_its_secrets_when_it_is_printed(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        key = {"name": "test", "account": "acme", "secret": CALLER_KEY}
        gateway = await gateway_with({"channel": [channel_to(up, 0)], "key": [key]})
        async with aiohttp.ClientSession() as session:
            await RecordingClient(gateway, session).manage("POST", "channels?check=none", channel_to(up, 1))

        services = gateway.app[SERVICES]
        lines = services.routing.load_balancer.channels.values()
        caller = services.auth.api_keys.authenticate(f"Bearer {CALLER_KEY}")
        printed = f"{services} {services.routing.catalog.channels} {list(lines)} {caller}"
        printed += f" {[line.keys for line in lines]}"
        printed += f" {parse_spec(channel_to(up, 2), ChannelSpec)}"
        assert "c0" in printed
        assert "c1" in printed
        assert find_leaks(printed.encode(), gateway.folder) == []
