"""Pages of other origins: which may call the public API, what they may send and read, and what stays out of reach."""

import asyncio
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

import gateway as gateway_package
from gateway.server.cors import CORS
from gateway.server.openapi.document import get_document
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel, channels
from tests.support.raw_client import connect, split, talk
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer, chat_script
from tests.support.started_gateways import StartGateway

APP, OTHER = "https://app.example.com", "http://localhost:5173"
NOWHERE = {"channel": [channel("http://127.0.0.1:9/v1")]}
ALLOW = "Access-Control-Allow-Origin"
Headers = Mapping[str, str]


def site(*origins: str, **more: Any) -> dict[str, Any]:
    return {**NOWHERE, "server": {"cors_origins": list(origins), **more}}


async def ask(
    gateway: RunningGateway, method: str, path: str, headers: Headers, body: Any = None
) -> tuple[int, Any, bytes]:
    """As a browser does: with nothing but these headers."""
    data = None if body is None else io.BytesIO(orjson.dumps(body))
    headers = {"Content-Type": "application/json", **headers} if data else headers
    async with (
        aiohttp.ClientSession() as page,
        page.request(method, gateway.url + path, headers=headers, data=data, allow_redirects=False) as response,
    ):
        return response.status, response.headers, await response.read()


async def preflight(
    gateway: RunningGateway, path: str, *names: str, origin: str = APP, method: str = "POST"
) -> tuple[int, Any]:
    reported = {"Origin": origin, "Access-Control-Request-Method": method}
    if names:
        reported["Access-Control-Request-Headers"] = ",".join(names)
    status, headers, body = await ask(gateway, "OPTIONS", path, reported)
    assert (status == 204) == (not body)
    return status, headers


OPENAI = (
    "authorization", "content-type", "openai-organization", "openai-project", "user-agent", "x-stainless-arch",
    "x-stainless-helper-method", "x-stainless-lang", "x-stainless-os", "x-stainless-package-version",
    "x-stainless-poll-helper", "x-stainless-retry-count", "x-stainless-runtime", "x-stainless-runtime-version",
    "x-stainless-timeout", "idempotency-key", "x-request-id",
)  # fmt: skip
ANTHROPIC = (
    "anthropic-beta", "anthropic-dangerous-direct-browser-access", "anthropic-version", "content-type", "x-api-key",
    "x-stainless-helper",
)  # fmt: skip
"""What the client libraries send from a page."""


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (CHAT, OPENAI),
        ("/v1/messages", ANTHROPIC),
        ("/v1beta/models/m:generateContent", ("x-goog-api-key", "x-goog-api-client", "content-type")),
        ("/v1/nothing", ("authorization",)),
        ("/media/x.png", ("range",)),
    ],
)
async def test_a_preflight_is_answered_without_a_key_and_reaches_no_provider(
    standing_with: StartGateway, path: str, names: tuple[str, ...]
) -> None:
    gateway = await standing_with(site(APP, OTHER))
    for origin in (APP, OTHER):
        status, headers = await preflight(gateway, path, *names, origin=origin)
        assert (status, headers[ALLOW]) == (204, origin)
        assert headers["Access-Control-Allow-Headers"].split(", ") == list(names)
        assert {"GET", "POST", "DELETE"} <= set(headers["Access-Control-Allow-Methods"].split(", "))
        assert int(headers["Access-Control-Max-Age"]) > 0
        assert "Origin" in headers["Vary"].split(", ")
        assert "Access-Control-Allow-Credentials" not in headers
        assert "X-Request-Id" in headers
    await gateway.rows(0)


async def test_only_headers_of_client_libraries_may_be_sent(standing_with: StartGateway) -> None:
    gateway = await standing_with(site(APP))
    bad = (
        "cookie",
        "x-gateway-console",
        "x-gateway-key",
        "x-forwarded-for",
        "host",
        "anthropic-é",
        "openai-a;b",
        "*",
        "",
    )
    _, headers = await preflight(gateway, CHAT, *bad, "Authorization", "authorization")
    assert headers["Access-Control-Allow-Headers"] == "authorization"
    _, headers = await preflight(gateway, CHAT, *bad)
    assert "Access-Control-Allow-Headers" not in headers
    _, headers = await preflight(gateway, CHAT, *(f"x-stainless-{number}" for number in range(500)))
    assert len(headers["Access-Control-Allow-Headers"]) < 2_000


@pytest.mark.parametrize(
    "origin",
    [
        "null", "https://app.example.com.evil.test", "https://app.example.com:8443", "http://app.example.com",
        "https://APP.example.com", "https://app.example.com/", "https://evil.test", "https://sub.app.example.com", "*",
        "https://app.example.com, https://evil.test", "",
    ],
)  # fmt: skip
async def test_another_origin_is_allowed_nothing(standing_with: StartGateway, origin: str) -> None:
    gateway = await standing_with(site(APP))
    status, headers = await preflight(gateway, CHAT, "authorization", origin=origin)
    assert (status, headers["Vary"]) == (403, "Origin")
    assert not [name for name in headers if name.startswith("Access-Control")]
    status, headers, _ = await ask(gateway, "GET", "/v1/models", {"Origin": origin, "Authorization": f"Bearer {KEY}"})
    assert (status, headers["Vary"]) == (200, "anthropic-version, x-goog-api-key, Origin")
    assert not [name for name in headers if name.startswith("Access-Control")]


async def test_two_origins_are_none(standing_with: StartGateway) -> None:
    gateway = await standing_with(site("*"))
    raw = f"GET /v1/models HTTP/1.1\r\nHost: a\r\nOrigin: {APP}\r\nOrigin: {APP}\r\nConnection: close\r\n\r\n"
    assert "access-control-allow-origin" not in split(await talk(gateway.url, raw.encode())).headers


async def check_readable(gateway: RunningGateway, method: str, path: str, status: int, **more: Any) -> None:
    """An answer that a page may read, whatever it is."""
    headers = {"Origin": APP, "Authorization": f"Bearer {KEY}", **more.pop("headers", {})}
    found, reported, _ = await ask(gateway, method, path, headers, **more)
    assert (found, reported.getall(ALLOW)) == (status, [APP]), (path, reported)
    assert "Access-Control-Allow-Credentials" not in reported
    assert "Origin" in reported["Vary"].split(", ")
    exposed = set(reported["Access-Control-Expose-Headers"].lower().split(", "))
    assert {"x-request-id", "retry-after", "x-should-retry", "x-ratelimit-reset-requests"} <= exposed


async def test_answers_and_errors_can_be_read_by_the_page(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], chat_script("a"), [answer({}, 500)]) as up:
        gateway = await standing_with({**channels([up]), "server": {"cors_origins": [APP], "max_body_mb": 1}})
        await check_readable(gateway, "POST", CHAT, 200, body=HELLO)
        await check_readable(gateway, "POST", CHAT, 200, body={**HELLO, "stream": True, "store": True})
        await check_readable(gateway, "POST", CHAT, 502, body=HELLO)
        await check_readable(gateway, "POST", CHAT, 400, body=[])
        await check_readable(gateway, "POST", CHAT, 400, body={**HELLO, "n": -1})
        await check_readable(gateway, "POST", CHAT, 401, headers={"Authorization": "Bearer sk-nobodys"})
        await check_readable(gateway, "POST", CHAT, 413, body={"x": "x" * 1024 * 1024})
        await check_readable(gateway, "POST", CHAT, 415, headers={"Content-Type": "text/plain"})
        await check_readable(gateway, "GET", "/v1/models", 200)
        await check_readable(gateway, "GET", "/v1/models/nobody", 404)
        await check_readable(gateway, "GET", "/v1/nothing", 404)
        await check_readable(gateway, "GET", "/v1/assistants", 501)
        await check_readable(gateway, "PUT", CHAT, 405)
        await check_readable(gateway, "POST", CHAT, 417, headers={"Expect": "miracles"})
        await check_readable(gateway, "GET", "/v1beta/models", 200)
        await check_readable(gateway, "GET", "/v1beta/nothing", 404)
        await check_readable(gateway, "GET", "/media/nothing.png", 404)
        await check_readable(gateway, "GET", "/v1/videos/video_x/content", 404)


async def test_a_refusal_for_a_while_can_be_read_by_the_page(standing_with: StartGateway) -> None:
    limited = {"account": [{"name": "a"}], "key": [{"name": "k", "account": "a", "secret": KEY, "rpm": 1}]}
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with({**channels([up]), **limited, "server": {"cors_origins": [APP]}})
        await check_readable(gateway, "POST", CHAT, 200, body=HELLO)
        await check_readable(gateway, "POST", CHAT, 429, body=HELLO)


@pytest.mark.parametrize(("origins", "allowed"), [([APP], APP), (["*"], "*"), ([APP, OTHER], None), ([], None)])
async def test_what_is_no_http_can_be_read_if_it_is_clear_by_whom(
    standing_with: StartGateway, origins: list[str], allowed: str | None
) -> None:
    gateway = await standing_with(site(*origins))
    raw = f"GET /v1/models HTTP/1.1\r\nHost: a\r\nOrigin: {APP}\r\nX: {'x' * 20_000}\r\n\r\n"
    found = split(await talk(gateway.url, raw.encode()))
    assert (found.status, found.headers.get(ALLOW.lower())) == (400, allowed)


async def test_a_star_is_every_page_and_no_cookie(standing_with: StartGateway) -> None:
    gateway = await standing_with(site("*"))
    for origin in (APP, "https://anything.test", "null"):
        status, headers = await preflight(gateway, CHAT, "authorization", origin=origin)
        assert (status, headers[ALLOW]) == (204, "*")
        reported = {"Origin": origin, "Authorization": f"Bearer {KEY}"}
        status, headers, _ = await ask(gateway, "GET", "/v1/models", reported)
        assert (status, headers[ALLOW], headers["Vary"]) == (200, "*", "anthropic-version, x-goog-api-key")
        assert "Access-Control-Allow-Credentials" not in headers


async def test_the_console_and_the_admin_api_are_for_no_page(standing_with: StartGateway) -> None:
    gateway = await standing_with(site("*"))
    token = {"Origin": APP, "Authorization": f"Bearer {gateway.admin_token}"}
    for path in (
        "/admin/v1/keys", "/console/", "/console/sign-in", "/console/static/console.css", "/", "/healthz", "/metrics",
        "/v1", "//v1/models", "/v1x/models", "/admin/v1/../../v1/models",
    ):  # fmt: skip
        for method in ("GET", "OPTIONS"):
            reported = {**token, "Access-Control-Request-Method": "POST"} if method == "OPTIONS" else token
            raw = "".join(f"{name}: {value}\r\n" for name, value in reported.items())
            head = f"{method} {path} HTTP/1.1\r\nHost: a\r\n{raw}Connection: close\r\n\r\n"
            found = split(await talk(gateway.url, head.encode()))
            assert not [name for name in found.headers if name.startswith("access-control")], (method, path)


async def test_without_the_setting_nothing_is_said_of_origins(standing_with: StartGateway) -> None:
    gateway = await standing_with(NOWHERE)
    assert CORS not in gateway.app
    for method, path in (("OPTIONS", CHAT), ("GET", "/v1/models")):
        reported = {"Origin": APP, "Access-Control-Request-Method": "POST", "Authorization": f"Bearer {KEY}"}
        status, headers, _ = await ask(gateway, method, path, reported)
        assert status == (405 if method == "OPTIONS" else 200)
        assert not [name for name in headers if name.startswith("Access-Control")]
        assert "Origin" not in headers.get("Vary", "")


async def test_options_that_are_no_preflight_are_a_405(standing_with: StartGateway) -> None:
    gateway = await standing_with(site(APP))
    status, headers, body = await ask(gateway, "OPTIONS", CHAT, {"Origin": APP, "Authorization": f"Bearer {KEY}"})
    assert (status, orjson.loads(body)["error"]["code"], headers[ALLOW]) == (405, "method_not_allowed", APP)


async def test_every_header_that_is_documented_can_be_read(standing_with: StartGateway) -> None:
    gateway = await standing_with(site(APP))
    _, headers, _ = await ask(gateway, "GET", "/v1/models", {"Origin": APP})
    exposed = set(headers["Access-Control-Expose-Headers"].lower().split(", "))
    assert {name.lower() for name in get_document()["components"]["headers"]} <= exposed


async def test_every_header_of_ours_can_be_read(standing_with: StartGateway) -> None:
    """Those that the code names: what is left of a limit or a budget is of no use to a page that cannot read it."""
    gateway = await standing_with(site(APP))
    _, headers, _ = await ask(gateway, "GET", "/v1/models", {"Origin": APP})
    exposed = set(headers["Access-Control-Expose-Headers"].lower().split(", "))
    sources = [path.read_text() for path in Path(gateway_package.__file__).parent.rglob("*.py")]
    ours = {name for source in sources for name in re.findall(r'"(x-gateway-[a-z-]+)"', source)}
    assert ours - exposed == {
        "x-gateway-budget", "x-gateway-keep", "x-gateway-prefer", "x-gateway-quote", "x-gateway-resumable",
        "x-gateway-session", "x-gateway-tags", "x-gateway-user",
    }, "headers of requests"  # fmt: skip


async def test_a_page_may_say_who_asks_and_what_it_may_cost(standing_with: StartGateway) -> None:
    gateway = await standing_with(site(APP))
    names = {
        "x-gateway-budget", "x-gateway-keep", "x-gateway-prefer", "x-gateway-quote", "x-gateway-session",
        "x-gateway-tags", "x-gateway-user", "x-conversation-id", "session_id",
    }  # fmt: skip
    status, headers = await preflight(gateway, CHAT, *sorted(names), "x-gateway-anything")
    assert status == 204
    assert set(headers["Access-Control-Allow-Headers"].split(", ")) == names


async def test_each_answer_of_a_connection_is_for_its_own_page(standing_with: StartGateway) -> None:

    async with ScriptedUpstream([answer(COMPLETION)], [answer(COMPLETION)]) as up:
        gateway = await standing_with({**channels([up]), "server": {"cors_origins": [APP, OTHER]}})
        reader, writer = await connect(gateway.url)
        body = orjson.dumps(HELLO)
        for origin in (APP, OTHER):
            head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nOrigin: {origin}\r\n"
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            async with asyncio.timeout(3):
                message = (await reader.readuntil(b"\r\n\r\n")).decode()
            assert f"{ALLOW}: {origin}\r\n" in message
            size = int(message.lower().partition("content-length: ")[2].partition("\r\n")[0])
            await reader.readexactly(size)
        writer.close()
