"""Every operation of the admin API is called, and answers what the document says; what is refused is refused so."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pyotp
import pytest

from gateway.server.context import SERVICES
from tests.support.gateway import CHAT, KEY, RunningGateway
from tests.support.openapi_calls import Call, Caller, Memory, spoil
from tests.support.openapi_provider import MODEL, Everything
from tests.support.started_gateways import StartGateway
from tests.support.video_scene import await_job

WORDS, OTHER_WORDS = "a lamp over the kitchen table", "three boats behind the island"
CAPPED = [{"name": "acme", "quota_usd": 100}]
FREE = {"unpriced": "free"}
MINE = {"name": "mine", "provider": "custom", "api_key": "k", "sync": True}
ALL = ["up", "claude", "film", "mine"]


def keep(**names: str) -> Callable[[Any, Memory], None]:
    """Note fields of an answer, each under a name."""
    return lambda answer, memory: memory.update({name: answer[field] for name, field in names.items()})


def keep_first(name: str, field: str = "id") -> Callable[[Any, Memory], None]:
    """Note a field of the first thing in a list."""
    return lambda answer, memory: memory.update({name: answer["data"][0][field]})


def keep_code(answer: Any, memory: Memory) -> None:
    memory["code"] = pyotp.TOTP(answer["secret"]).now()


def keep_recovery(answer: Any, memory: Memory) -> None:
    memory["recovery"] = answer["recovery_codes"][0]


def keep_other_session(answer: Any, memory: Memory) -> None:
    memory["session"] = next(session["id"] for session in answer["data"] if not session["current"])


SIGN_IN = {"name": "ada", "passphrase": WORDS}
INVITE = {"account": "acme", "role": "member", "hours": 1}
PEOPLE = (
    Call("admin_get_setup"),
    Call("admin_set_up", {"token": "$setup", **SIGN_IN}, status=201, enters="ada"),
    Call("admin_sign_in", SIGN_IN, status=201, enters="again"),
    Call("admin_sign_in", {**SIGN_IN, "passphrase": "another"}, status=401),
    Call("admin_get_session", signed="ada"),
    Call("admin_get_session", status=403),
    Call("admin_list_sessions", signed="ada", keep=keep_other_session),
    Call("admin_end_session", path={"id": "$session"}, signed="ada"),
    Call("admin_list_identities", signed="ada"),
    Call("admin_link_identity", {"passphrase": WORDS}, signed="ada", path={"provider": "corp"}, status=404),
    Call("admin_unlink_identity", {"passphrase": WORDS}, signed="ada", path={"provider": "corp"}, status=404),
    Call("admin_list_passkeys", signed="ada"),
    Call("admin_start_passkey_sign_in", {}, status=409),
    Call("admin_start_passkey_registration", {"passphrase": WORDS}, signed="ada", status=409),
    Call("admin_begin_second_factor", {"passphrase": WORDS}, signed="ada", keep=keep_code),
    Call("admin_confirm_second_factor", {"code": "$code"}, signed="ada", keep=keep_recovery),
    Call("admin_sign_in", SIGN_IN, status=401),
    Call("admin_remove_second_factor", {"passphrase": WORDS, "code": "$recovery"}, signed="ada"),
    Call("admin_change_passphrase", {"current": WORDS, "passphrase": OTHER_WORDS}, signed="ada", enters="ada"),
    Call("admin_end_other_sessions", signed="ada"),
    Call("admin_add_link", INVITE, status=201, keep=keep(token="token")),
    Call("admin_open_link", {"token": "$token"}),
    Call("admin_use_link", {"token": "$token", "name": "bob", "passphrase": WORDS}, status=201, enters="bob"),
    Call("admin_use_link", {"token": "$token", "name": "eve", "passphrase": WORDS}, status=404),
    Call("admin_add_link", INVITE, status=201, keep=keep(link="id")),
    Call("admin_list_links"),
    Call("admin_delete_link", path={"id": "$link"}),
    Call("admin_get_own_account", signed="bob"),
    Call("admin_list_accounts", signed="bob", status=403),
    Call("admin_sign_out", signed="bob"),
    Call("admin_sign_out", signed="bob", status=401),
    Call(
        "admin_list_members",
        query={"account": "acme"},
        keep=lambda reported, memory: memory.update(bob_id=reported["data"][-1]["id"]),
    ),
    Call("admin_get_member", path={"id": "$bob_id"}),
    Call("admin_edit_member", {"role": "viewer"}, path={"id": "$bob_id"}),
    Call("admin_reset_member", path={"id": "$bob_id"}, status=201),
    Call("admin_delete_member", path={"id": "$bob_id"}),
)
ACCOUNT, THEIR = {"name": "new"}, {"id": "$key"}
MONEY = (
    Call("admin_add_account", {"name": "new", "quota_usd": 5, "groups": ["b"], "rpm": None}, status=201),
    Call("admin_add_account", {"name": "new"}, status=409),
    Call("admin_list_accounts"),
    Call("admin_list_forecasts"),
    Call("admin_get_account", path=ACCOUNT),
    Call("admin_edit_account", {"quota_usd": 6, "status": "active"}, path=ACCOUNT),
    Call("admin_credit_account", {"amount_usd": 1, "reference": "r", "note": "n"}, path=ACCOUNT, status=201),
    Call("admin_list_account_credits", path=ACCOUNT, query={"limit": "1"}),
    Call("admin_add_key", {"name": "k", "account": "new", "quota_usd": 1}, status=201, keep=keep(key="id")),
    Call("admin_list_keys", query={"account": "new"}),
    Call("admin_get_key", path=THEIR),
    Call("admin_get_key", path={"id": "no-number"}, status=404),
    Call("admin_edit_key", {"expires_at": "2099-01-31", "rpm": None}, path=THEIR),
    Call("admin_rotate_key", {"overlap_h": 1}, path=THEIR),
    Call("admin_rotate_key", path=THEIR),
    Call("admin_get_webhook_secret", path=THEIR),
    Call("admin_credit_key", {"amount_usd": 0.5, "kind": "set"}, path=THEIR, status=201),
    Call("admin_list_key_credits", path=THEIR),
    Call("admin_get_key_limits", path=THEIR),
    Call("admin_put_group", {"price_multiplier": 2}, path={"name": "a"}),
    Call("admin_list_groups"),
    Call("admin_delete_group", path={"name": "a"}),
    Call("admin_put_price", {"input_usd_per_million": 3, "tiers": [{"above_tokens": 9}]}, path={"model": "org/x"}),
    Call("admin_list_prices", query={"model": "org/x"}),
    Call("admin_list_prices", query={"source": "nowhere"}, status=400),
    Call("admin_delete_price", path={"model": "org/x"}),
    Call("admin_list_settings"),
    Call("admin_change_settings", {"settings": {"routing.max_attempts": 2}}),
    Call("admin_put_setting", {"value": 2}, path={"section": "routing", "key": "max_attempts"}),
    Call("admin_delete_setting", path={"section": "routing", "key": "max_attempts"}),
    Call("admin_delete_key", path=THEIR),
    Call("admin_delete_account", path=ACCOUNT),
    Call("admin_delete_account", path=ACCOUNT, status=404),
)
NAMED = {"name": "mine"}
ROUTE = {"name": "fast"}
LIMIT = {"name": "each user"}
WAYS = (
    Call("admin_add_channel", {**MINE, "base_url": "$provider"}, status=201),
    Call("admin_list_channels"),
    Call("admin_list_providers"),
    Call("admin_get_channel", path=NAMED),
    Call("admin_edit_channel", {"weight": 2, "headers": {"X-A": "b"}}, path=NAMED),
    Call("admin_edit_channel", {"weight": 2}, path={"name": "up"}, status=409),
    Call("admin_check_channel", {**MINE, "base_url": "$provider"}),
    Call("admin_weigh_channels", {"weights": {"mine": 3}}),
    Call("admin_add_channel_key", {"key": "another-key", "name": "spare"}, path=NAMED, status=201),
    Call("admin_edit_channel_key", {"status": "disabled"}, path={"name": "mine", "number": "1"}),
    Call("admin_edit_channel_key", {"status": "disabled"}, path={"name": "mine", "number": "99"}, status=404),
    Call("admin_remove_channel_key", path={"name": "mine", "number": "1"}),
    Call("admin_test_channel", path=NAMED),
    Call("admin_sync_channel", path=NAMED),
    Call("admin_order_channels", {"names": ALL}),
    Call("admin_list_models"),
    Call("admin_search", query={"search": "mine"}),
    Call("admin_explain", query={"model": MODEL, "key": "1"}),
    Call("admin_explain", query={"model": MODEL, "key": "99"}, status=404),
    Call("admin_put_limit", {"of": "user", "usd": 1}, path=LIMIT, query={"reason": "try"}),
    Call("admin_list_limits"),
    Call("admin_get_limit", path=LIMIT),
    Call("admin_list_subjects", path=LIMIT),
    Call("admin_list_subjects", path=LIMIT, query={"limit": "9999"}, status=400),
    Call("admin_delete_limit", path=LIMIT),
    Call("admin_get_limit", path=LIMIT, status=404),
    Call("admin_put_route", {"step": [{"models": [MODEL, "gone"]}]}, path=ROUTE),
    Call("admin_list_routes"),
    Call("admin_get_route", path=ROUTE),
    Call("admin_test_route", path=ROUTE),
    Call("admin_explain", query={"model": "fast", "prompt_tokens": "9", "images": "true"}),
    Call("admin_explain_route", {"step": [{"models": [MODEL]}]}, path=ROUTE),
    Call("admin_compare_shadow", path=ROUTE),
    Call("admin_compare_shadow", path={"name": "nothing"}, status=404),
    Call("admin_delete_route", path=ROUTE),
    Call("admin_delete_channel", path=NAMED),
    Call("admin_get_status"),
    Call("admin_get_health"),
    Call("admin_get_audit"),
    Call("admin_list_audit", query={"action": "key", "limit": "3"}),
    Call("admin_reload", status=409),
)
SEEN = (
    Call("admin_list_requests", query={"limit": "2", "status": "ok"}, keep=keep_first("request")),
    Call("admin_list_requests", query={"before": "9", "after": "1"}, status=400),
    Call("admin_list_requests", query={"after": "0"}),
    Call("admin_list_request_sessions", query={"limit": "2"}, keep=keep_first("session")),
    Call("admin_list_request_sessions", query={"before": "x"}, status=400),
    Call("admin_get_request_session", path={"id": "$session"}),
    Call("admin_end_request_session", path={"id": "$session"}),
    Call("admin_end_request_session", path={"id": "1:none"}, status=404),
    Call("admin_get_request", path={"id": "$request"}),
    Call("admin_get_request", path={"id": "req_none"}, status=404),
    Call("admin_export_requests"),
    Call("admin_export_requests", query={"format": "jsonl"}),
    Call("admin_export_requests", query={"format": "none"}, status=400),
    Call("admin_get_facets"),
    *(
        Call("admin_get_usage", query={"by": by})
        for by in ("day", "hour", "model", "key", "account", "status", "channel")
    ),
    Call("admin_get_usage", query={"by": "nothing"}, status=400),
    Call("admin_get_charts", query={"group": "model", "since": "2026-01-01", "until": "2026-01-03"}),
    Call("admin_get_charts", query={"group": "nothing"}, status=400),
    Call("admin_get_usage", query={"by": "user"}),
    Call("admin_export_usage", query={"by": "user"}),
    Call("admin_export_usage", query={"by": "nothing"}, status=400),
    Call("admin_list_end_users", query={"sort": "-requests", "limit": "5"}),
    Call("admin_list_end_users", query={"sort": "colour"}, status=400),
    Call("admin_list_tags"),
    Call("admin_list_tag_values", query={"tag": "team"}),
    Call("admin_list_tag_values", query={"tag": "a b"}, status=400),
    Call("admin_forget_user", {"user": "u-17"}),
    Call("admin_forget_user", {}, status=400),
    Call("admin_get_bodies", path={"id": "$request"}, status=404),
    Call("admin_get_body_status"),
    Call("admin_export_bodies", query={"format": "none"}, status=400),
    Call("admin_get_attestation"),
    Call("admin_replay_request", {"key": 999}, path={"id": "$request"}, status=404),
    Call("admin_delete_bodies", {"user": "u-17"}),
    Call("admin_delete_bodies", {}, status=400),
    Call("admin_get_cache"),
    Call("admin_clear_cache", {"user": "u-17"}),
    Call("admin_list_videos", query={"live": "true"}, keep=keep_first("video")),
    Call("admin_get_video", path={"id": "$video"}),
    Call("admin_cancel_video", path={"id": "$video"}),
    Call("admin_list_videos", query={"ids": "$video"}),
    Call("admin_list_batches", query={"live": "false", "status": "failed"}, keep=keep_first("batch")),
    Call("admin_list_batches", query={"status": "none"}, status=400),
    Call("admin_list_files", query={"purpose": "batch"}, keep=keep_first("file")),
    Call("admin_list_files", query={"purpose": "none"}, status=400),
    Call("admin_delete_file", path={"id": "$file"}),
    Call("admin_get_batch", path={"id": "$batch"}),
    Call("admin_cancel_batch", path={"id": "$batch"}, status=409),
    Call("admin_list_deliveries"),
    Call("admin_test_alerts"),
    Call("admin_test_alert", path={"name": "ops"}),
    Call("admin_test_alert", path={"name": "nobody"}, status=404),
    Call("admin_list_alerts"),
    Call("admin_test_sink", path={"name": "rows"}),
    Call("admin_test_sink", path={"name": "nobody"}, status=404),
    Call("admin_list_sinks"),
    Call("admin_list_nodes"),
    Call("admin_list_lost_changes"),
    Call("admin_forget_node", path={"id": "0" * 16}, body={"leases": "release"}, status=404),
    Call("admin_list_running", keep=keep_first("running")),
    Call("admin_get_running_events", endless=True),
    Call("admin_cancel_running", path={"id": "$running"}),
    Call("admin_cancel_running", path={"id": "$running"}, status=404),
)
NEVER_WELL: set[str] = {
    *("admin_reload", "admin_link_identity", "admin_unlink_identity", "admin_start_passkey_sign_in"),
    *("admin_sign_in_with_passkey", "admin_start_passkey_registration", "admin_register_passkey"),
    *("admin_rename_passkey", "admin_remove_passkey", "admin_cancel_batch", "admin_forget_node"),
    "admin_get_bodies",
    "admin_replay_request",
    "admin_export_bodies",
}
"""There is no file here that could be read again, no sign-in provider, no host name that passkeys need, no batch that
runs for long, no lost node, and no kept body: ``tests/config/test_reload.py``,
``tests/server/console/test_provider_sign_in.py``, ``tests/server/admin/test_passkeys.py``,
``tests/e2e/test_batches_admin.py``, ``tests/cluster/credit/test_orphans.py`` and ``tests/server/test_kept_bodies.py``
have them."""


@pytest.fixture
async def caller(gateway_with: StartGateway) -> AsyncIterator[Caller]:
    async with Everything() as up:
        channels = [{**one, "priority": 30 - 10 * at} for at, one in enumerate(up.list_channels())]
        reported = {"webhook_url": f"{up.answers_url}/told"}
        key = {"name": "test", "account": "acme", "secret": KEY, **reported}
        gateway = await gateway_with(
            {
                "channel": channels,
                "account": CAPPED,
                "billing": FREE,
                "group": [{"name": "b"}],
                "key": [key],
                "egress": {"allow": ["127.0.0.1"]},
                "alert": [{"name": "ops", "url": f"{up.answers_url}/told"}],
                "sink": [{"name": "rows", "kind": "webhook", "url": f"{up.answers_url}/told", "secret": "s" * 24}],
                "videos": {"webhook_hosts": ["127.0.0.1"]},
            }
        )
        memory = {"provider": up.answers_url, "setup": await gateway.app[SERVICES].auth.invitations.find_setup_token()}
        yield Caller(gateway, memory=memory)
        up.end.set()


async def send_batch(gateway: RunningGateway) -> None:
    """A batch whose input is wrong, until it has ended."""
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", b"{", filename="lines.jsonl")
    async with gateway.client.post(f"{gateway.url}/v1/files", data=form) as response:
        new = {"input_file_id": (await response.json())["id"], "endpoint": CHAT, "completion_window": "24h"}
    async with gateway.post(new, "/v1/batches") as response:
        assert response.status == 200
    await gateway.app[SERVICES].batches._tasks.wait()


@pytest.mark.slow
async def test_every_operation_answers_what_the_document_says(caller: Caller) -> None:
    gateway = caller.gateway
    for call in (*PEOPLE, *MONEY, *WAYS):
        await caller.make(call)
    async with gateway.post(headers={"x-gateway-session": "run1"}) as response:
        assert response.status == 200
    for prompt in ("waves", "slow"):
        async with gateway.post({"model": "film", "prompt": prompt, "seconds": "4"}, "/v1/videos") as response:
            assert response.status == 200, await response.text()
    await await_job(gateway, "waves", "completed")
    await send_batch(gateway)
    slow = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "slow"}]}
    async with gateway.post(slow, CHAT) as response:
        await response.content.readany()
        for call in SEEN:
            await caller.make(call)
        await response.read()
    assert not caller.problems, "\n".join(caller.problems)
    assert caller.reader.names(admin=True) - caller.called == NEVER_WELL


async def test_what_nobody_knows_or_is_of_the_wrong_kind_is_named(caller: Caller) -> None:
    """Of every noun that a door takes: a field too many, and each field spoiled."""
    await caller.make(Call("admin_add_account", {"name": "it"}, status=201))
    await caller.make(Call("admin_add_key", {"name": "k", "account": "it"}, status=201, keep=keep(key="id")))
    await caller.make(Call("admin_add_channel", {**MINE, "name": "it", "base_url": "$provider"}, status=201))
    asked = 0
    for name in sorted(caller.reader.names(admin=True)):
        schema = caller.reader.find_body(name)
        if schema is None:
            continue
        example = caller.reader.find_example(name)
        fields = {field: spoil(reported) for field, reported in schema["properties"].items()}
        for field, value in {**fields, "no_such_field": 1}.items():
            if value is not None:
                asked += 1
                await check_named(caller, Call(name, {**example, field: value}, path=PLACES), field)
    assert asked > 50
    assert not caller.problems, "\n".join(caller.problems)


PLACES = {
    "id": "$key",
    "name": "it",
    "provider": "corp",
    "model": "m",
    "section": "routing",
    "key": "max_attempts",
    "number": "1",
}


async def check_named(caller: Caller, call: Call, field: str) -> None:
    """A 400 whose ``param`` is the field or a part of it."""
    async with asyncio.timeout(10):
        status, media_type, raw = await caller.ask(call)
    problems = caller.reader.judge(call.operation, status, media_type, raw)
    caller.problems += [f"{call.operation}: {message}" for message in problems]
    if status != 400 or f'"param":"{field}'.encode() not in raw:
        caller.problems.append(f"{call.operation}, {field} spoiled: {status} {raw[:300]!r}")
