"""What a database cannot store, or has no room for in an index, is refused at the edge: no request fails for it."""

import json
from hashlib import shake_256
from typing import Any
from urllib.parse import quote

import pytest
from yarl import URL

from gateway.server.context import SERVICES
from tests.support.database_kinds import KINDS
from tests.support.gateway import channel
from tests.support.postgres import SharedPostgres
from tests.support.started_gateways import StartGateway

VALUES = {"zero": "a\0b", "half a pair": "\ud800", "long": shake_256(b"").hexdigest(10_000)}
HELLO = {"messages": [{"role": "user", "content": "x"}]}
UPLOAD = {"filename": "a.jsonl", "purpose": "batch", "bytes": 5, "mime_type": "text/plain"}
CREDIT = {"kind": "top_up", "amount_usd": 1}


def build_posts(value: str) -> dict[str, dict[str, Any]]:
    """Bodies of which a field that is stored has the value."""
    return {
        "/v1/chat/completions": {"model": value, **HELLO},
        "/v1/embeddings": {"model": value, "input": "x"},
        "/v1/images/generations": {"model": value, "prompt": "x"},
        "/v1/videos": {"model": "m", "prompt": "x", "size": value},
        "/v1/responses": {"model": "m", "input": "x", "previous_response_id": value},
        "/v1/uploads": {**UPLOAD, "filename": value},
        "/admin/v1/accounts": {"name": value},
        "/admin/v1/accounts/1/credits": {**CREDIT, "reference": value},
    }


def list_paths(value: str) -> list[str]:
    """Paths and filters that have the value."""
    text = quote(value[:500], errors="replace")
    places = ("/v1/videos/", "/v1/files/", "/v1/batches/", "/v1/responses/", "/v1/videos?after=", "/v1/files?after=")
    admin = ("requests/", "requests?text=", "requests?model=", "usage?model=", "videos?text=", "audit-log?action=")
    return [place + text for place in (*places, *(f"/admin/v1/{one}" for one in admin))]


NUMBERS = ("accounts/", "keys/", "members/", "channels/", "requests?before=", "requests?after=", "usage?key=")
HUGE = 10**20
"""More than 64 bits."""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_value_that_cannot_be_stored_is_refused_with_400(
    gateway_with: StartGateway, shared_postgres: SharedPostgres, kind: str
) -> None:
    store = {} if kind == "sqlite" else {"store": {"url": await shared_postgres.empty()}}
    gateway = await gateway_with({"channel": [channel("http://127.0.0.1:9/v1", models=["*"])], **store})
    admin = {"Authorization": f"Bearer {gateway.admin_token}"}
    failed = []
    for name, value in VALUES.items():
        for path, body in build_posts(value).items():
            headers = {"Content-Type": "application/json", **(admin if "/admin/" in path else {})}
            data = json.dumps(body)  # which writes half a pair as a client would
            async with gateway.client.post(gateway.url + path, data=data, headers=headers) as response:
                if response.status not in (400, 404):
                    failed.append((name, path, response.status, await response.text()))
        for path in list_paths(value):
            url = URL(gateway.url + path, encoded=True)
            async with gateway.client.get(url, headers=admin if "/admin/" in path else {}) as response:
                if response.status >= 500:
                    failed.append((name, path, response.status, await response.text()))
    for path in NUMBERS:
        async with gateway.client.get(f"{gateway.url}/admin/v1/{path}{HUGE}", headers=admin) as response:
            if response.status >= 500:
                failed.append(("number", path, response.status, await response.text()))
    assert failed == []
    storage = gateway.app[SERVICES].storage
    assert await gateway.app[SERVICES].billing.flusher.flush()
    assert (storage.unstorable.count, storage.write_queue.failing) == (0, False)
    await storage.check_writable()
