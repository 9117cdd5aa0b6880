"""What a key may not: every restriction with its own code, on every path, and also while a call is under way."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from typing import Any

import attrs
import pytest

from gateway.billing.balances import Balances
from gateway.domain.account import Caller
from gateway.domain.balance import Reservation
from gateway.server.context import SERVICES
from gateway.server.unserved_paths import refuse_unserved
from tests.support.admin_calls import ask_office, expire_key
from tests.support.capped_calls import FIRST, RESERVE, stream_until
from tests.support.fault_scene import cost_of, site
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.image_providers import draw
from tests.support.openai_audio import make_wav
from tests.support.raw_client import RawAnswer, connect, hello, post, read_answer
from tests.support.scripted_upstream import COMPLETION, DONE, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

NOWHERE = channel("http://127.0.0.1:9/v1", models=["m", "e"])
EMBEDDINGS = "/v1/embeddings"
EMBED = {"model": "e", "input": "hi"}
ASK = {**HELLO, "max_tokens": 9}
TEXT = {"model": "m", "input": "hi"}
CONTENT = {"content": {"parts": [{"text": "hi"}]}}
BATCH = {"requests": [CONTENT]}
GENERATE = {"contents": [{"parts": [{"text": "hi"}]}]}
RANK = {"model": "m", "query": "q", "documents": ["d"]}
FORM_TYPE = "multipart/form-data; boundary=edge"


def form(file: tuple[str, bytes], **fields: str) -> bytes:
    """A form with one file."""
    name, data = file
    reported = [f'name="{field}"\r\n\r\n{value}'.encode() for field, value in fields.items()]
    reported.append(f'name="{name}"; filename="f"\r\n\r\n'.encode() + data)
    return (
        b"".join(b"--edge\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in reported) + b"--edge--\r\n"
    )


RECORDING = form(("file", make_wav()), model="m")
SUBSCRIPTION, USAGE = "/v1/dashboard/billing/subscription", "/v1/dashboard/billing/usage"
FILM = {"model": "m", "prompt": "a fox"}
OPERATIONS: tuple[tuple[str, str, Any], ...] = (
    ("POST", CHAT, HELLO),
    ("POST", CHAT, {**HELLO, "stream": True}),
    ("POST", EMBEDDINGS, EMBED),
    ("POST", "/v1/messages", ASK),
    ("POST", "/v1/messages", {**ASK, "stream": True}),
    ("POST", "/v1/messages/count_tokens", HELLO),
    ("POST", "/v1/completions", {"model": "m", "prompt": "hi"}),
    ("POST", "/v1/moderations", TEXT),
    ("POST", "/v1/rerank", RANK),
    ("POST", "/v1/responses", TEXT),
    ("POST", "/v1/responses", {**TEXT, "stream": True}),
    ("POST", "/v1/responses/compact", TEXT),
    ("POST", "/v1/images/generations", {"model": "m", "prompt": "a cat"}),
    ("POST", "/v1/images/edits", form(("image", draw()), model="m", prompt="a hat")),
    ("POST", "/v1/audio/transcriptions", RECORDING),
    ("POST", "/v1/audio/translations", RECORDING),
    ("POST", "/v1/audio/speech", {**TEXT, "voice": "alloy"}),
    ("POST", "/v1/videos", FILM),
    ("POST", "/v1/video/generations", FILM),
    ("POST", "/v1/models/m:generateContent", GENERATE),
    ("POST", "/v1/models/m:streamGenerateContent", GENERATE),
    ("POST", "/v1beta/models/m:generateContent", GENERATE),
    ("POST", "/v1beta/models/m:streamGenerateContent", GENERATE),
    *(
        ("POST", f"{root}/models/m:{method}", body)
        for root in ("/v1", "/v1beta")
        for method, body in (("countTokens", GENERATE), ("embedContent", CONTENT), ("batchEmbedContents", BATCH))
    ),
    ("GET", "/v1beta/models", None),
    ("GET", "/v1beta/models/m", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/m", None),
    ("GET", SUBSCRIPTION, None),
    ("GET", USAGE, None),
    ("GET", "/v1/videos", None),
    ("GET", "/v1/key", None),
    ("GET", "/v1/key/usage", None),
)
OF_ONE: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/v1/videos/{id}", None),
    ("GET", "/v1/video/generations/{id}", None),
    ("GET", "/v1/videos/{id}/content", None),
    ("GET", "/v1/videos/{id}/events", None),
    ("POST", "/v1/videos/{id}/remix", {"prompt": "at night"}),
    ("DELETE", "/v1/videos/{id}", None),
    ("GET", "/v1/responses/{id}", None),
    ("GET", "/v1/responses/{id}/input_items", None),
    ("DELETE", "/v1/responses/{id}", None),
    ("POST", "/v1/responses/{id}/cancel", {}),
    ("POST", "/v1/files", form(("file", b"x"), purpose="batch")),
    ("GET", "/v1/files", None),
    ("GET", "/v1/files/{id}", None),
    ("GET", "/v1/files/{id}/content", None),
    ("DELETE", "/v1/files/{id}", None),
    ("POST", "/v1/uploads", {}),
    ("POST", "/v1/uploads/{id}/parts", form(("data", b"x"))),
    ("POST", "/v1/uploads/{id}/complete", {}),
    ("POST", "/v1/uploads/{id}/cancel", {}),
    ("GET", "/v1/realtime", None),
    ("POST", "/v1/realtime/client_secrets", {"expires_after": 1}),
    ("POST", "/v1/realtime/sessions", {"type": "other"}),
    ("POST", "/v1/batches", {}),
    ("GET", "/v1/batches", None),
    ("GET", "/v1/batches/{id}", None),
    ("POST", "/v1/batches/{id}/cancel", {}),
    ("POST", "/v1/messages/batches", {}),
    ("GET", "/v1/messages/batches", None),
    ("GET", "/v1/messages/batches/{id}", None),
    ("GET", "/v1/messages/batches/{id}/results", None),
    ("POST", "/v1/messages/batches/{id}/cancel", {}),
    ("DELETE", "/v1/messages/batches/{id}", None),
    ("GET", "/v1/streams/{id}", None),
    ("POST", "/v1/streams/{id}/token", {}),
    ("DELETE", "/v1/streams/{id}", None),
)
"""They answer that there is none, to every permitted caller."""
QUOTE: tuple[str, str, Any] = ("POST", "/v1/quote", HELLO)
"""It is refused as its request is, and leaves no row: nothing was asked for."""
CALLS = tuple(operation for operation in OPERATIONS if operation[0] == "POST")
LOOKS = tuple(operation for operation in OPERATIONS if operation[0] == "GET")
UNSERVED: tuple[str, str, dict[str, Any]] = ("POST", "/v1/images/variations", {})
HERE, THERE = "127.0.0.0/8", "203.0.113.0/24"
PROXIED = {"server": {"trusted_proxies": ["127.0.0.1"]}}


def key_with(**more: Any) -> dict[str, Any]:
    return {"key": [{"name": "test", "account": "acme", "secret": KEY, **more}]}


async def ask(
    gateway: RunningGateway, operation: tuple[str, str, Any], **headers: str
) -> tuple[int, str | None, str | None]:
    """Status, error code and ``x-should-retry`` of an operation; underscores in header names are hyphens."""
    method, path, body = operation
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    sent: dict[str, Any] = {"json": body}
    if isinstance(body, bytes):
        sent, lines["Content-Type"] = {"data": body}, FORM_TYPE
    async with gateway.client.request(method, gateway.url + path, **sent, headers=lines) as response:
        value = await response.json()
        error = value.get("error", {})
        code = error["details"][0]["reason"].lower() if "details" in error else error.get("code")
        return response.status, code, response.headers.get("x-should-retry")


async def test_the_table_of_operations_names_every_path_that_is_served(standing_with: StartGateway) -> None:
    gateway = await standing_with({"channel": [NOWHERE]})
    served = set()
    for route in gateway.app.router.routes():
        path = route.resource.canonical
        if path.startswith(("/v1/", "/v1beta/")) and route.handler is not refuse_unserved and route.method != "HEAD":
            served.add((route.method, path.replace("{model}", "m")))
    assert {(method, path) for method, path, _ in (*OPERATIONS, *OF_ONE, QUOTE)} == served


@pytest.mark.parametrize(
    ("config", "refusal"),
    [
        (key_with(status="disabled"), (401, "key_disabled", "false")),
        ({"account": [{"name": "acme", "status": "disabled"}]}, (401, "key_disabled", "false")),
        (key_with(expires_at="2020-01-01"), (401, "key_expired", "false")),
        (key_with(allow_ips=[THERE]), (403, "ip_not_allowed", "false")),
        (key_with(secret="sk-another-key-than-the-callers"), (401, "invalid_api_key", "false")),
        (key_with(status="disabled", expires_at="2020-01-01", allow_ips=[THERE]), (401, "key_disabled", "false")),
        (key_with(expires_at="2020-01-01", allow_ips=[THERE]), (401, "key_expired", "false")),
    ],
    ids=["disabled", "account disabled", "expired", "address", "unknown", "disabled first", "expired second"],
)
async def test_a_key_that_may_not_be_used_is_refused_on_every_path(
    standing_with: StartGateway, config: dict[str, Any], refusal: tuple[int, str, str]
) -> None:
    gateway = await standing_with({"channel": [NOWHERE], **config})
    for operation in (*OPERATIONS, *OF_ONE, QUOTE, UNSERVED):
        assert await ask(gateway, operation) == refusal, operation
    await gateway.rows(0)


@pytest.mark.parametrize(
    "config",
    [
        key_with(expires_at="2999-01-01"),
        key_with(allow_ips=[THERE, "127.0.0.1"]),
        key_with(allow_ips=["::ffff:127.0.0.0/104"]),
        key_with(models=["m", "e"]),
        key_with(models=["[a-m]*"]),
        {"account": [{"name": "acme", "groups": ["gold"]}], **key_with(group="gold")},
        {"account": [{"name": "acme", "groups": ["gold"]}]},
    ],
    ids=["not expired", "address", "mapped network", "models", "glob", "group", "no group"],
)
async def test_a_key_whose_restrictions_are_kept_is_let_through(
    standing_with: StartGateway, config: dict[str, Any]
) -> None:
    vectors = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}], "model": "e"}
    scripts = [[answer(COMPLETION)], [answer({**vectors, "usage": {"prompt_tokens": 1, "total_tokens": 1}})]]
    async with ScriptedUpstream(*scripts) as up:
        gateway = await standing_with({"channel": [channel(up.base_url, models=["m", "e"])], **config})
        for operation in (CALLS[0], CALLS[2], *LOOKS):
            assert await ask(gateway, operation) == (200, None, None), operation
        await gateway.rows(2)


ELSEWHERE = {"account": [{"name": "acme", "groups": ["silver"]}], **key_with(group="gold")}


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (key_with(models=["other", "x*"]), "model_not_allowed"),
        (ELSEWHERE, "group_not_allowed"),
        ({"channel": [{**NOWHERE, "groups": ["silver"]}], **key_with(group="gold")}, "group_not_allowed"),
        ({"channel": [{**NOWHERE, "groups": ["silver"]}]}, "group_not_allowed"),
        ({"billing": {"unpriced": "refuse"}}, "model_not_priced"),
    ],
    ids=["model", "group of the account", "group of the channel", "no group", "no price"],
)
async def test_a_model_a_key_may_not_use_is_refused_with_a_row_and_is_not_listed(
    standing_with: StartGateway, config: dict[str, Any], code: str
) -> None:
    gateway = await standing_with({"channel": [NOWHERE], **config})
    for operation in (QUOTE, *CALLS):
        assert await ask(gateway, operation) == (403, code, "false"), operation
    rows = await gateway.rows(len(CALLS))
    assert {(row.outcome, row.status, row.error_code, row.attempts, row.channel) for row in rows} == {
        ("refused", 403, code, 0, None)
    }
    assert {row.cost_nanos + row.reserved_nanos for row in rows} == {0}
    assert await ask(gateway, ("GET", "/v1/models/m", None)) == (404, "model_not_found", "false")
    async with gateway.client.get(f"{gateway.url}/v1/models") as response:
        assert (await response.json())["data"] == []
    for path in (SUBSCRIPTION, USAGE):
        assert await ask(gateway, ("GET", path, None)) == (200, None, None)


async def test_a_model_that_nobody_serves_is_not_found_rather_than_not_allowed(standing_with: StartGateway) -> None:
    channels = [{**NOWHERE, "groups": ["silver"]}]
    gateway = await standing_with({"channel": channels, **key_with(group="silver")})
    assert await ask(gateway, ("POST", CHAT, {**HELLO, "model": "nothing"})) == (404, "model_not_found", "false")


@pytest.mark.parametrize(
    ("key", "model", "hint"),
    [
        ({}, "gpt-5-mni", "is not available; did you mean 'gpt-5-mini'?"),
        ({}, "GPT-5-MINI", "is not available; did you mean 'gpt-5-mini'?"),
        ({}, "quite-different", "is not available; GET /v1/models lists the models that are"),
        ({}, "gpt-5-secrt", "is not available; GET /v1/models lists the models that are"),
        ({"group": "gold"}, "gpt-5-secrt", "is not available; did you mean 'gpt-5-secret'?"),
        ({"models": ["gpt-5-mini"]}, "gpt-5-mni", "may not use the model 'gpt-5-mni'; did you mean 'gpt-5-mini'?"),
        ({"models": ["other"]}, "gpt-5-mni", "may not use the model 'gpt-5-mni' (request id"),
    ],
)
async def test_a_misspelt_model_gets_the_nearest_of_those_that_the_key_may_see(
    standing_with: StartGateway, key: dict[str, Any], model: str, hint: str
) -> None:
    channels = [
        {**NOWHERE, "models": ["gpt-5-mini"]},
        {**NOWHERE, "name": "gold", "models": ["gpt-5-secret"], "groups": ["gold"]},
    ]
    gateway = await standing_with({"channel": channels, **key_with(**key)})
    async with gateway.post({**HELLO, "model": model}) as response:
        assert hint in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    ("forwarded", "allowed"),
    [
        ("203.0.113.7", True),
        ("203.0.113.7:4711", True),
        ('"203.0.113.7"', True),
        ("::ffff:203.0.113.7", True),
        ("198.51.100.1, 203.0.113.7", True),
        ("203.0.113.7, 127.0.0.1", True),
        ("garbage, 203.0.113.7", True),
        ("198.51.100.1", False),
        ("203.0.113.7, 198.51.100.1", False),
        ("203.0.113.7, garbage", False),
        ("203.0.113.7,", False),
        ("203.0.113.7, 127.0.0.1, unknown, 127.0.0.1", False),
        ("127.0.0.1", False),
        ("", False),
        (None, False),
    ],
)
async def test_behind_a_trusted_proxy_the_address_that_it_saw_decides(
    standing_with: StartGateway, forwarded: str | None, allowed: bool
) -> None:
    gateway = await standing_with({"channel": [NOWHERE], **PROXIED, **key_with(allow_ips=[THERE])})
    lines = {} if forwarded is None else {"X_Forwarded_For": forwarded}
    for operation in LOOKS:
        found = await ask(gateway, operation, **lines)
        assert found == ((200, None, None) if allowed else (403, "ip_not_allowed", "false")), operation
    if not allowed:
        for operation in CALLS:
            assert (await ask(gateway, operation, **lines))[1] == "ip_not_allowed"
        await gateway.rows(0)


async def test_every_line_of_the_header_counts_and_the_last_entry_of_the_last_line_first(
    standing_with: StartGateway,
) -> None:
    gateway = await standing_with({"channel": [NOWHERE], **PROXIED, **key_with(allow_ips=[THERE])})
    reader, writer = await connect(gateway.url)
    for lines, status in (
        (["203.0.113.7", "198.51.100.1"], 403),
        (["198.51.100.1", "203.0.113.7"], 200),
        (["203.0.113.7", "127.0.0.1"], 200),
        (["198.51.100.1", "127.0.0.1"], 403),
    ):
        forwarded = "".join(f"X-Forwarded-For: {line}\r\n" for line in lines)
        writer.write(f"GET {USAGE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n{forwarded}\r\n".encode())
        assert (await read_answer(reader)).status == status, lines
    writer.close()


@pytest.mark.parametrize("trusted", [[], ["10.0.0.0/8", "203.0.113.0/24"]])
@pytest.mark.parametrize(
    "name", ["X_Forwarded_For", "Forwarded", "X_Real_IP", "CF_Connecting_IP", "True_Client_IP", "X_Client_IP"]
)
async def test_a_peer_that_is_no_trusted_proxy_cannot_claim_another_address(
    standing_with: StartGateway, trusted: list[str], name: str
) -> None:
    server = {"server": {"trusted_proxies": trusted}}
    gateway = await standing_with({"channel": [NOWHERE], **server, **key_with(allow_ips=[THERE])})
    claim = "for=203.0.113.7" if name == "Forwarded" else "203.0.113.7"
    for operation in (*OPERATIONS, *OF_ONE):
        assert (await ask(gateway, operation, **{name: claim}))[:2] == (403, "ip_not_allowed")


async def test_a_claim_of_a_peer_that_is_no_proxy_does_not_shut_it_out_either(standing_with: StartGateway) -> None:
    gateway = await standing_with({"channel": [NOWHERE], **key_with(allow_ips=[HERE])})
    assert (await ask(gateway, LOOKS[0], X_Forwarded_For="198.51.100.1"))[0] == 200


GROUPS = [{"name": "gold"}, {"name": "x"}]
Revoke = Callable[[Any, int], Awaitable[object]]
REVOCATIONS: dict[str, tuple[Revoke, str]] = {
    "key disabled": (lambda office, key: office("PATCH", f"/keys/{key}", {"status": "disabled"}), "key_disabled"),
    "key expired": (lambda office, key: expire_key(office.args[0], key), "key_expired"),
    "key deleted": (lambda office, key: office("DELETE", f"/keys/{key}"), "invalid_api_key"),
    "account disabled": (lambda office, _: office("PATCH", "/accounts/new", {"status": "disabled"}), "key_disabled"),
    "account deleted": (lambda office, _: office("DELETE", "/accounts/new"), "invalid_api_key"),
    "address": (lambda office, key: office("PATCH", f"/keys/{key}", {"allow_ips": [THERE]}), "ip_not_allowed"),
    "model": (lambda office, key: office("PATCH", f"/keys/{key}", {"models": ["other"]}), "model_not_allowed"),
    "quota": (lambda office, key: office("PATCH", f"/keys/{key}", {"quota_usd": 0}), "insufficient_quota"),
    "account's quota": (lambda office, _: office("PATCH", "/accounts/new", {"quota_usd": 0}), "insufficient_quota"),
    "account's groups": (lambda office, _: office("PATCH", "/accounts/new", {"groups": ["x"]}), "group_not_allowed"),
}


BY_OTHERS = {"address", "quota", "account's quota"}
"""Restrictions that are not checked again after a wait for credit: the address, and what the store itself judges."""
AT_THE_DOOR = {"key_disabled", "key_expired", "invalid_api_key", "ip_not_allowed"}
"""Refusals before it is known what was asked for: no row."""


@attrs.frozen
class Tenant:
    """An account and a key that were made by hand, so that they can be changed; ``office`` asks the admin API."""

    gateway: RunningGateway
    office: Callable[..., Awaitable[tuple[int, Any]]]
    key_id: int
    secret: str


async def move_in(gateway: RunningGateway) -> Tenant:
    office = partial(ask_office, gateway)
    await office("POST", "/accounts", {"name": "new"})
    _, made = await office("POST", "/keys", {"name": "k", "account": "new", "group": "gold"})
    return Tenant(gateway, office, made["id"], made["secret"])


@pytest.mark.parametrize("name", REVOCATIONS)
async def test_a_key_is_refused_from_the_next_request_on_of_the_same_connection(
    gateway_with: StartGateway, name: str
) -> None:
    revoke, code = REVOCATIONS[name]
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), group=GROUPS))
        tenant = await move_in(gateway)
        reader, writer = await connect(gateway.url)

        async def call() -> RawAnswer:
            writer.write(post(hello(), key=tenant.secret))
            return await read_answer(reader)

        assert [(await call()).status for _ in range(3)] == [200, 200, 200]
        await revoke(tenant.office, tenant.key_id)
        for _ in range(2):
            assert (await call()).error["code"] == code
        assert len(up.received) == 3
        writer.close()


@pytest.mark.parametrize("name", REVOCATIONS)
async def test_a_key_that_is_revoked_while_its_caller_still_sends_the_body_is_refused(
    gateway_with: StartGateway, name: str
) -> None:
    """A body may take a minute to arrive: what counts is what the key may do when the call can be made."""
    revoke, code = REVOCATIONS[name]
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), group=GROUPS))
        tenant = await move_in(gateway)
        reader, writer = await connect(gateway.url)
        raw = post(hello(), key=tenant.secret)
        with closing(writer):
            writer.write(raw[:-1])
            await asyncio.sleep(0.05)
            await revoke(tenant.office, tenant.key_id)
            writer.write(raw[-1:])
            found = await read_answer(reader)
        assert found.status != 200
        assert found.error["code"] == code
        assert not up.received


@pytest.mark.parametrize("name", [name for name in REVOCATIONS if name not in BY_OTHERS])
async def test_a_key_that_is_revoked_while_its_call_waits_for_credit_is_refused(
    gateway_with: StartGateway, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of a cluster asks the database for credit, and waits while that is away."""
    revoke, code = REVOCATIONS[name]
    waiting, granted = asyncio.Event(), asyncio.Event()
    reserve_now = Balances.reserve_now

    async def reserve(self: Balances, caller: Caller, nanos: int, ctx: Any = None) -> Reservation:
        waiting.set()
        await granted.wait()
        reservation = reserve_now(self, caller, nanos, ctx)
        assert reservation is not None
        return reservation

    monkeypatch.setattr(Balances, "reserve_now", lambda *_: None)
    monkeypatch.setattr(Balances, "reserve", reserve)
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), group=GROUPS))
        tenant = await move_in(gateway)
        headers = {"Authorization": f"Bearer {tenant.secret}"}
        calling = asyncio.create_task(gateway.client.post(f"{gateway.url}{CHAT}", json=HELLO, headers=headers))
        await waiting.wait()
        await revoke(tenant.office, tenant.key_id)
        granted.set()
        found = await calling
        assert (await found.json())["error"]["code"] == code
        assert not up.received
        assert gateway.app[SERVICES].billing.quota.open_reservations == 0


@pytest.mark.parametrize("name", REVOCATIONS)
async def test_a_stream_that_runs_while_its_key_is_revoked_finishes_and_is_charged(
    gateway_with: StartGateway, name: str
) -> None:
    revoke, code = REVOCATIONS[name]
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go)) as up:
        gateway = await gateway_with(site(channel(up.base_url), group=GROUPS))
        tenant = await move_in(gateway)
        headers = {"Authorization": f"Bearer {tenant.secret}"}
        async with gateway.post({**HELLO, "stream": True}, headers=headers) as response:
            assert await response.content.readany() == FIRST
            await revoke(tenant.office, tenant.key_id)
            go.set()
            assert (await response.read()).endswith(DONE)
        async with gateway.post({**HELLO, "stream": True}, headers=headers) as response:
            assert (await response.json())["error"]["code"] == code
        assert len(up.received) == 1
        row, *_ = await gateway.rows(1 if code in AT_THE_DOOR else 2)
        assert (row.outcome, row.key_id, row.cost_nanos) == ("completed", tenant.key_id, cost_of(row))
        assert row.cost_nanos == 19_000
        books = await gateway.check_books()
        assert books["charged_nanos"] == 19_000


@pytest.mark.parametrize("of", ["key", "account"])
async def test_a_quota_that_is_lowered_under_a_stream_makes_what_is_above_it_an_overrun(
    gateway_with: StartGateway, of: str
) -> None:
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go)) as up:
        gateway = await gateway_with(site(channel(up.base_url), group=GROUPS))
        tenant = await move_in(gateway)
        path = f"/keys/{tenant.key_id}" if of == "key" else "/accounts/new"
        await tenant.office("PATCH", path, {"quota_usd": 1})
        headers = {"Authorization": f"Bearer {tenant.secret}"}
        async with gateway.post({**HELLO, "stream": True}, headers=headers) as response:
            await response.content.readany()
            _, shown = await tenant.office("PATCH", path, {"quota_usd": 0.00001})
            assert shown["left_usd"] == pytest.approx(0.00001 - RESERVE / 10**9, abs=1e-12)
            go.set()
            await response.read()
        _, shown = await tenant.office("GET", path)
        assert (shown["spent_usd"], shown["held_usd"], shown["left_usd"]) == (0.000019, 0, -0.000009)
        async with gateway.post(headers=headers) as response:
            assert response.status == 403
            whose = "this API key" if of == "key" else "the account"
            assert f"quota of {whose} is used up" in (await response.json())["error"]["message"]
        await gateway.rows(2)


async def test_a_quota_that_is_changed_counts_from_the_next_call_on(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), group=GROUPS))
        tenant = await move_in(gateway)
        headers = {"Authorization": f"Bearer {tenant.secret}"}
        for change, status, has_end in (
            ({"quota_usd": 0, "quota_period": "daily"}, 429, True),
            ({"quota_period": "lifetime"}, 403, False),
            ({"quota_status": 429}, 429, False),
            ({"quota_period": "monthly", "quota_status": 403}, 403, True),
            ({"quota_usd": 1}, 200, False),
            ({"quota_usd": 0}, 403, True),
            ({"quota_usd": None, "quota_period": None, "quota_status": None}, 200, False),
        ):
            await tenant.office("PATCH", f"/keys/{tenant.key_id}", change)
            async with gateway.post(headers=headers) as response:
                assert (response.status, "Retry-After" in response.headers) == (status, has_end), change
                if status != 200:
                    assert (await response.json())["error"]["code"] == "insufficient_quota"
                    assert response.headers["x-should-retry"] == "false"
        assert len(up.received) == 2
