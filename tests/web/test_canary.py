"""Canaries: recognisable secrets are planted, calls of every kind are made, and nothing gives a secret away."""

import base64
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.domain.caller import key_digest
from gateway.store.folder import DataFolder
from gateway.web.keys import OFFICE, ROOMS
from tests.conftest import StartGateway
from tests.fakes.gateway import CHAT, HELLO, RunningGateway, channels
from tests.fakes.upstream import (
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

CALLER_KEY = "sk-CANARY-caller-9f8e7d6c5b4a39281706"
PROVIDER_KEY = "CANARY-provider-0a1b2c3d4e5f6071829384"
CHANNEL_HEADER = "CANARY-header-55aa55aa55aa55aa"
PROMPT = "CANARY-prompt-my-diagnosis-is-private"
LEAKY = {
    "error": {
        "message": f"Incorrect key {PROVIDER_KEY} sent with {CHANNEL_HEADER} to https://internal.example/{PROVIDER_KEY}",
        "type": f"type-{PROVIDER_KEY}",
        "param": PROVIDER_KEY,
        "code": f"code_{PROVIDER_KEY}",
    },
}
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
]


@pytest.fixture
def everything_logged() -> Iterator[list[str]]:
    """Every line any logger writes during the test, down to debug, whole."""
    lines: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    root = logging.getLogger()
    keeper, level = Keeper(logging.DEBUG), root.level
    root.addHandler(keeper)
    root.setLevel(logging.DEBUG)
    yield lines
    root.removeHandler(keeper)
    root.setLevel(level)


def config_with(up: ScriptedUpstream) -> dict[str, Any]:
    return {
        **channels([up], api_key=PROVIDER_KEY, headers={"X-Team": CHANNEL_HEADER}),
        "key": [{"name": "test", "account": "acme", "secret": CALLER_KEY}],
    }


async def collect(gateway: RunningGateway) -> list[str]:
    """Every answer, as text, to a run of good and failing calls."""
    ask = {**HELLO, "messages": [{"role": "user", "content": PROMPT}]}
    admin = f"Bearer {gateway.admin_token}"
    seen: list[str] = []

    async def call(method: str, path: str, key: str = f"Bearer {CALLER_KEY}", body: Any = None) -> None:
        url, headers = gateway.url + path, {"Authorization": key, "X-Request-Id": "mine"}
        async with session.request(method, url, headers=headers, json=body) as response:
            text = (await response.read()).decode()
            seen.append(f"{response.status} {response.headers} {text}")

    async with aiohttp.ClientSession() as session:
        for number in range(len(SCRIPTS)):
            await call("POST", CHAT, body={**ask, "stream": number in {1, 9}})
        await call("POST", CHAT, body={**ask, "temperature": PROMPT})
        await call("POST", CHAT, body={**ask, "model": "no-such-model"})
        await call("GET", CHAT)
        await call("GET", "/v1/models", key=f"Basic {CALLER_KEY}")
        await call("GET", "/v1/models", key=f"Bearer {CALLER_KEY}x")
        await call("GET", "/admin/v1/keys", key=f"Bearer {CALLER_KEY}")
        await call("GET", "/v1/models", key=admin)
        for path in ("status", "accounts", "keys", "channels", "channels/up0", "models", "requests"):
            await call("GET", f"/admin/v1/{path}", key=admin)
        await call("POST", "/admin/v1/keys", key=admin, body={"name": "x", "account": "acme", "secret": CALLER_KEY})
    return seen


def find_leaks(haystack: bytes, folder: DataFolder) -> list[str]:
    """The names of the secrets that stand in ``haystack``, in any form they might."""
    secrets = {
        "caller key": CALLER_KEY.encode(),
        "provider key": PROVIDER_KEY.encode(),
        "channel header": CHANNEL_HEADER.encode(),
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
    own = {"pepper", "admin.token"}
    return b"".join(file.read_bytes() for file in path.iterdir() if file.is_file() and file.name not in own)


async def test_no_secret_is_in_an_answer_a_log_or_the_database(
    gateway_with: StartGateway,
    everything_logged: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with ScriptedUpstream(*SCRIPTS) as up:
        gateway = await gateway_with(config_with(up))
        seen = await collect(gateway)
        await gateway.rows(len(SCRIPTS) + 2)
        # The searches are worth something only where there was something to find.
        assert all(received.headers["authorization"] == f"Bearer {PROVIDER_KEY}" for received in up.received)
        assert len(up.received) >= len(SCRIPTS)  # a reset on a connection used before is tried once more
        statuses = [int(text[:3]) for text in seen]
        assert {200, 400, 401, 404, 405, 409, 429, 502} <= set(statuses)
        leaks = {text[:2000]: found for text in seen if (found := find_leaks(text.encode(), gateway.folder))}
        assert leaks == {}

        written = capfd.readouterr()
        logged = "\n".join([written.out, written.err, *everything_logged])
        assert "request_settled" in logged
        assert find_leaks(logged.encode(), gateway.folder) == []
        assert PROMPT not in logged

        stored = read_files(gateway.folder.path)
        assert b"no-such-model" in stored
        assert find_leaks(stored, gateway.folder) == []
        assert PROMPT.encode() not in stored


async def test_a_key_is_stored_as_its_keyed_hash_alone(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config_with(up))
        path = gateway.folder.path
        await gateway.stop()
        stored = read_files(path)

        assert key_digest(gateway.folder.secret("pepper"), CALLER_KEY) in stored
        assert CALLER_KEY.encode() not in stored
        for name in ("pepper", "admin.token"):
            assert (path / name).stat().st_mode & 0o777 == 0o600


async def test_no_object_shows_its_secrets_when_it_is_printed(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config_with(up))

        rooms, office = gateway.app[ROOMS], gateway.app[OFFICE]
        printed = f"{rooms} {office} {rooms.catalog.channels} {rooms.directory.authenticate(f'Bearer {CALLER_KEY}')}"
        assert "up0" in printed
        assert find_leaks(printed.encode(), gateway.folder) == []
