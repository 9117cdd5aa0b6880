"""Every kind of alert, by its real cause, to a real receiver."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from gateway.alerts.watcher import AlertWatcher
from gateway.config.certificate import ServerCertificate
from gateway.server.context import SERVICES
from gateway.storage.bodies.body_store import BodyStore
from tests.support.admin_calls import AdminApi
from tests.support.alert_receivers import Receiver, reading_mail, receiving
from tests.support.certificates import write_certificate
from tests.support.fault_scene import until
from tests.support.gateway import HELLO, KEY, RunningGateway, channel
from tests.support.gateway_process import eventually
from tests.support.media_stores import KINDS
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.segment_stores import open_place
from tests.support.started_gateways import StartGateway

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
EXPENSIVE = {"model": "m", "input_usd_per_million": 1_000, "output_usd_per_million": 1_000}
"""The scripted completion costs some cents."""
DOWN = answer({"error": {"message": "overloaded", "type": "server_error"}}, 500)
DENIED = answer({"error": {"message": "Incorrect API key provided", "type": "invalid_request_error"}}, 401)


def find_watcher(gateway: RunningGateway) -> AlertWatcher:
    watcher: AlertWatcher | None = gateway.app[SERVICES].alerts
    assert watcher is not None
    return watcher


async def look(gateway: RunningGateway, receiver: Receiver, expected: Iterable[str]) -> None:
    """Look once; exactly the ``expected`` kinds arrive, in any order."""
    wanted = sorted(expected)
    before = len(receiver.posts)
    await find_watcher(gateway).check()
    await until(lambda: len(receiver.posts) >= before + len(wanted))
    assert sorted(receiver.list_kinds()[before:]) == wanted


def reported(receiver: Receiver, kind: str) -> dict[str, Any]:
    return next(post.json for post in reversed(receiver.posts) if post.json["type"] == kind)


def declare(receiver: Receiver, **tables: Any) -> dict[str, Any]:
    return {
        "account": [{"name": "acme"}],
        "key": [{"name": "test", "account": "acme", "secret": KEY}],
        "alert": [{"name": "ops", "url": f"{receiver.url}/alerts", "secret": SECRET}],
        **tables,
    }


async def ask(gateway: RunningGateway, model: str = "m") -> int:
    async with gateway.post({**HELLO, "model": model}) as response:
        await response.read()
        found: int = response.status
        return found


async def test_a_budget_is_told_at_80_and_at_100_percent_and_again_after_it_was_raised(
    gateway_with: StartGateway,
) -> None:
    async with receiving() as receiver, ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(
            declare(
                receiver,
                price=[EXPENSIVE],
                channel=[channel(up.base_url)],
                key=[{"name": "test", "account": "acme", "secret": KEY, "quota_usd": 1000, "quota_period": "monthly"}],
            )
        )
        assert await ask(gateway) == 200
        await look(gateway, receiver, [])
        balances = gateway.app[SERVICES].billing.balances
        key_id, balance = balances.list_balances("key")[0]
        spent = balance.find_counter(balances.today).spent_nanos
        assert spent > 0
        key = await gateway.app[SERVICES].auth.accounts.get_stored_key(key_id)
        for percent, expected in ((79, []), (80, ["budget_80"]), (81, []), (100, ["budget_100"]), (101, [])):
            limit = -(-spent * 100 // percent) if percent < 100 else spent * 100 // percent
            quota = type(key.quota)(limit, "monthly")
            balance.set_quota(quota, balances.today)
            await look(gateway, receiver, expected)
        body = reported(receiver, "budget_100")
        assert body["subject"] == "key acme/test"
        assert "its monthly budget of $" in body["message"]
        balance.set_quota(type(key.quota)(spent * 10, "monthly"), balances.today)
        await look(gateway, receiver, [])


async def test_a_quota_that_burns_and_an_hour_without_like_are_told(gateway_with: StartGateway) -> None:
    now = [datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()]
    key = {"name": "test", "account": "acme", "secret": KEY, "quota_usd": 1000, "quota_period": "daily"}
    async with receiving() as receiver, ScriptedUpstream([answer(COMPLETION)]) as up:
        config = declare(receiver, price=[EXPENSIVE], channel=[channel(up.base_url)], key=[key])
        config["billing"] = {"anomaly_usd": 0.0001}
        gateway = await gateway_with(config, clock=lambda: now[0])
        assert await ask(gateway) == 200
        await gateway.rows(1)
        ask_admin = AdminApi(gateway)
        spent_usd = (await ask_admin("GET", "/keys/1"))["spent_usd"]
        await ask_admin("POST", "/keys/1/credits", {"kind": "set", "amount_usd": spent_usd}, 201)
        await look(gateway, receiver, ["budget_burning", "spending_anomaly"])
        assert reported(receiver, "budget_burning")["subject"] == "key acme/test since 2026-11-30T00:00:00Z"
        assert reported(receiver, "spending_anomaly")["subject"] == "key acme/test 2026-11-30T12:00:00Z"
        now[0] += 600
        await look(gateway, receiver, [])


async def test_a_channel_that_fails_is_told_once_and_so_is_its_recovery(gateway_with: StartGateway) -> None:
    async with receiving() as receiver, ScriptedUpstream([DOWN]) as up:
        config = declare(receiver, price=[EXPENSIVE], channel=[channel(up.base_url)])
        gateway = await gateway_with({**config, "routing": {"cooldown_s": 0.05, "warm_up_s": 0, "max_attempts": 1}})
        await look(gateway, receiver, [])
        line = gateway.app[SERVICES].routing.load_balancer.channels["up"]
        while line.state == "closed":
            assert await ask(gateway) >= 500
        await look(gateway, receiver, ["channel_failing"])
        await look(gateway, receiver, [])
        assert reported(receiver, "channel_failing")["subject"] == "up"
        assert "status 500" in reported(receiver, "channel_failing")["message"]
        up._scripts = [[answer(COMPLETION)]]

        async def is_answered() -> bool:
            return await ask(gateway) == 200

        await eventually(is_answered, 10)
        await look(gateway, receiver, ["channel_recovered"])
        await look(gateway, receiver, [])


async def test_a_key_that_its_provider_refuses_is_told(gateway_with: StartGateway) -> None:
    async with receiving() as receiver, ScriptedUpstream([DENIED]) as up:
        two: dict[str, Any] = {"api_key": None, "api_keys": ["provider-key-0000001", "provider-key-0000002"]}
        spec = {name: value for name, value in channel(up.base_url, **two).items() if value is not None}
        gateway = await gateway_with(declare(receiver, price=[EXPENSIVE], channel=[spec]))
        assert await ask(gateway) >= 500
        await look(gateway, receiver, ["channel_failing", "provider_key_refused", "provider_key_refused"])
        message = reported(receiver, "provider_key_refused")["message"]
        assert "provider-key-" not in message
        assert "ends in 000" in message


@pytest.mark.parametrize("quota", [{}, {"quota_usd": 1}])
async def test_a_model_without_a_price_is_told(gateway_with: StartGateway, quota: dict[str, Any]) -> None:
    async with receiving() as receiver, ScriptedUpstream([answer(COMPLETION)]) as up:
        key = {"name": "test", "account": "acme", "secret": KEY, **quota}
        gateway = await gateway_with(declare(receiver, channel=[channel(up.base_url)], key=[key]))
        assert await ask(gateway) == (403 if quota else 200)
        await gateway.rows(1)
        await gateway.app[SERVICES].metrics.count_all()
        await look(gateway, receiver, ["model_unpriced"])
        assert reported(receiver, "model_unpriced")["subject"] == "m"
        await look(gateway, receiver, [])


async def test_a_store_that_cannot_be_written_is_told_and_that_it_can_again(
    gateway_with: StartGateway, tmp_path: Path
) -> None:
    async with receiving() as receiver:
        gateway = await gateway_with(declare(receiver))
        await look(gateway, receiver, [])
        with contextlib.closing(sqlite3.connect(gateway.folder.path / "gateway.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await look(gateway, receiver, ["store_not_writable"])
        await look(gateway, receiver, ["store_recovered"])


async def test_bodies_that_cannot_be_kept_are_told_once(gateway_with: StartGateway) -> None:
    async with receiving() as receiver, ScriptedUpstream(*[[answer(COMPLETION)]] * 3) as up:
        requests = {"keep_bodies": "all"}
        gateway = await gateway_with(declare(receiver, channel=[channel(up.base_url)], requests=requests))
        await look(gateway, receiver, [])
        folder, store = gateway.folder.path / "bodies", gateway.app[SERVICES].open_bodies()
        folder.write_text("not a folder")
        assert await ask(gateway) == 200
        await store.write_waiting()
        await look(gateway, receiver, ["bodies_not_kept"])
        assert "gateway bodies status" in reported(receiver, "bodies_not_kept")["message"]
        assert await ask(gateway) == 200
        await store.write_waiting()
        await look(gateway, receiver, [])
        folder.unlink()
        assert await ask(gateway) == 200
        await store.write_waiting()
        assert not store.problem


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lost_store_of_bodies_is_told_once_and_requests_go_on(
    gateway_with: StartGateway, tmp_path: Path, kind: str
) -> None:
    async with (
        receiving() as receiver,
        open_place(kind, tmp_path) as place,
        ScriptedUpstream(*[[answer(COMPLETION)]] * 3) as up,
    ):
        tables = {
            "requests": {"keep_bodies": "all"},
            "store": {"bodies_url": place.url},
            "price": [{"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 1}],
        }
        gateway = await gateway_with(declare(receiver, channel=[channel(up.base_url)], **tables))
        store = gateway.app[SERVICES].open_bodies()
        store.shared.move_after_s = 0.0  # each segment at once
        assert await ask(gateway) == 200
        await eventually(lambda: _has_moved(store, 1), 60)
        place.break_down()
        for expected in (["bodies_not_kept"], []):
            assert await ask(gateway) == 200
            await eventually(lambda: _has_problem(store), 60)
            await look(gateway, receiver, expected)
        place.repair()
        await eventually(lambda: _has_moved(store, 3), 60)
        await look(gateway, receiver, [])


async def _has_problem(store: BodyStore) -> bool:
    return bool(store.problem)


async def _has_moved(store: BodyStore, requests: int) -> bool:
    described = await store.describe()
    return not store.problem and (described.requests, described.unmoved_bytes) == (requests, 0)


async def test_an_api_key_and_a_certificate_that_expire_are_told(gateway_with: StartGateway, tmp_path: Path) -> None:
    def at(days: float) -> datetime:
        return datetime.now(UTC) + timedelta(days=days)

    keys = [
        {"name": "test", "account": "acme", "secret": KEY},
        {"name": "soon", "account": "acme", "secret": f"{KEY}-2", "expires_at": at(6.9)},
        {"name": "late", "account": "acme", "secret": f"{KEY}-3", "expires_at": at(7.1)},
        {"name": "gone", "account": "acme", "secret": f"{KEY}-4", "expires_at": at(-1)},
        {"name": "long-gone", "account": "acme", "secret": f"{KEY}-5", "expires_at": at(-8)},
    ]
    async with receiving() as receiver:
        gateway = await gateway_with(declare(receiver, key=keys))
        find_watcher(gateway)._collect.__self__.certificate = ServerCertificate(  # type: ignore[attr-defined]
            *write_certificate(tmp_path, days=20.5)
        )
        await look(gateway, receiver, ["key_expiring", "key_expired", "certificate_expiring"])
        assert reported(receiver, "key_expiring")["subject"] == "acme/soon"
        assert reported(receiver, "key_expired")["subject"] == "acme/gone"
        assert "expires in 20 days" in reported(receiver, "certificate_expiring")["message"]
        await look(gateway, receiver, [])


async def test_a_webhook_is_signed_and_repeated_with_the_same_id_until_it_is_taken(gateway_with: StartGateway) -> None:
    async with receiving() as receiver, ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(declare(receiver, channel=[channel(up.base_url)]))
        waits: list[float] = []

        async def pause(seconds: float) -> None:
            waits.append(seconds)

        target = find_watcher(gateway).targets[0]
        target._pause = pause
        receiver.answers = [500, 302, 429]
        await ask(gateway)
        await gateway.rows(1)
        await gateway.app[SERVICES].metrics.count_all()
        await look(gateway, receiver, ["model_unpriced"] * 4)
        assert waits == [5, 30, 120]
        assert len({post.headers["webhook-id"] for post in receiver.posts}) == 1
        for post in receiver.posts:
            assert Webhook(SECRET).verify(post.body, {name.lower(): value for name, value in post.headers.items()})
        await until(lambda: target.status.delivered)
        assert (target.status.failed, target.status.last_error) == (0, None)
        assert target.status.address == "http://127.0.0.1"


async def test_a_target_that_does_not_answer_delays_no_other_and_its_failure_is_shown(
    gateway_with: StartGateway, unused_tcp_port_factory: Callable[[], int]
) -> None:
    async with receiving() as receiver, ScriptedUpstream([answer(COMPLETION)]) as up:
        closed = f"http://127.0.0.1:{unused_tcp_port_factory()}/"
        config = declare(receiver, channel=[channel(up.base_url)])
        config["alert"] = [{"name": "gone", "url": closed}, *config["alert"]]
        gateway = await gateway_with(config)
        await ask(gateway)
        await gateway.rows(1)
        await gateway.app[SERVICES].metrics.count_all()
        await look(gateway, receiver, ["model_unpriced"])
        gone = find_watcher(gateway).targets[0]
        await until(lambda: gone.status.last_error)
        assert gone.status.last_error is not None
        assert "cannot be reached" in gone.status.last_error


async def test_only_the_chosen_kinds_are_sent(gateway_with: StartGateway) -> None:
    async with receiving() as receiver, ScriptedUpstream([answer(COMPLETION)]) as up:
        config = declare(receiver, channel=[channel(up.base_url)])
        config["alert"][0]["kinds"] = ["budget_100", "channel_failing"]
        gateway = await gateway_with(config)
        await ask(gateway)
        await gateway.rows(1)
        await gateway.app[SERVICES].metrics.count_all()
        await look(gateway, receiver, [])
        assert [one.kind for one in find_watcher(gateway).recent] == ["model_unpriced"]


async def test_mail_and_chats_are_sent_by_apprise(gateway_with: StartGateway) -> None:
    async with receiving() as receiver, reading_mail() as (mailbox, port), ScriptedUpstream([answer(COMPLETION)]) as up:
        config = declare(receiver, channel=[channel(up.base_url)])
        address = f"127.0.0.1:{port}?from=gateway@example.com&to=ops@example.com&mode=insecure"
        config["alert"] = [
            {"name": "mail", "url": f"mailto://{address}"},
            {"name": "chat", "url": receiver.url.replace("http://", "json://") + "/chat"},
        ]
        gateway = await gateway_with(config)
        await ask(gateway)
        await gateway.rows(1)
        await gateway.app[SERVICES].metrics.count_all()
        await find_watcher(gateway).check()
        await until(lambda: mailbox.mails and receiver.posts)
        assert mailbox.mails[0]["To"] == "ops@example.com"
        assert mailbox.mails[0]["Subject"] == "Model gateway"
        assert "The model m was requested and has no price" in str(mailbox.mails[0])
        assert receiver.posts[0].json["message"].startswith("The model m was requested and has no price")
