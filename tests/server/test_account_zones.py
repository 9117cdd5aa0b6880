"""Time zones of accounts: what the admin API takes, when quotas and limits reset, and what a restart knows."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gateway.config.loader import ConfigError, read_config
from tests.support.admin_calls import AdminApi
from tests.support.fault_scene import site
from tests.support.gateway import HELLO, RunningGateway, channel, make_template, start_gateway
from tests.support.gateway_process import write_toml
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

NOWHERE = "http://127.0.0.1:9/v1"
BERLIN, AUCKLAND, KATHMANDU = "Europe/Berlin", "Pacific/Auckland", "Asia/Kathmandu"
EACH_USER = {"name": "each user", "of": "user", "usd": 0.03, "window": "day"}
FIXED = {"name": "fixed", "of": "user", "usd": 5, "window": "day", "timezone": "UTC"}
PRICES = [{"model": "*", "usd_per_call": 0.01}]


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


class Clock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


async def start(path: Path, template: Path, config: dict[str, Any], clock: Clock) -> RunningGateway:
    if not template.exists():
        await make_template(template)
    return await start_gateway(path, template, config, clock=clock)


async def add_key(admin: AdminApi, account: str, **fields: Any) -> str:
    made = await admin("POST", "/keys", {"name": f"of {account}", "account": account, **fields}, status=201)
    return str(made["secret"])


async def send(gateway: RunningGateway, key: str, user: str = "ann") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {key}"}
    async with gateway.post({**HELLO, "user": user}, headers=headers) as response:
        body = await response.json()
        return response.status, "" if response.status == 200 else body["error"]["message"]


async def count_answers(gateway: RunningGateway, key: str, user: str = "ann") -> int:
    count = 0
    while (await send(gateway, key, user))[0] == 200:
        count += 1
    return count


async def read_key(gateway: RunningGateway, key: str) -> dict[str, Any]:
    async with gateway.client.get(f"{gateway.url}/v1/key", headers={"Authorization": f"Bearer {key}"}) as response:
        value: dict[str, Any] = await response.json()
        return value


async def test_a_zone_is_set_shown_audited_and_cleared(gateway_with: StartGateway) -> None:
    clock = Clock(at("2027-06-15T10:00"))
    admin = AdminApi(await gateway_with(site(channel(NOWHERE)), clock=clock))
    fields = {"name": "b", "timezone": BERLIN, "quota_usd": 1, "quota_period": "daily"}
    made = await admin("POST", "/accounts", fields, status=201)
    assert (made["timezone"], made["resets_at"]) == (BERLIN, "2027-06-15T22:00:00Z")
    changed = await admin("PATCH", "/accounts/b", {"timezone": KATHMANDU})
    assert (changed["timezone"], changed["resets_at"]) == (KATHMANDU, "2027-06-15T18:15:00Z")
    cleared = await admin("PATCH", "/accounts/b", {"timezone": None})
    assert (cleared["timezone"], cleared["resets_at"]) == (None, "2027-06-16T00:00:00Z")
    changes = [detail["timezone"] for _, _, detail in await admin.list_trail("account") if "timezone" in detail]
    assert changes == [[None, BERLIN], [BERLIN, KATHMANDU], [KATHMANDU, None]]
    for name in ("Berlin", "../../etc/passwd", "right/Europe/Berlin", "", 5):
        refused = await admin("PATCH", "/accounts/b", {"timezone": name}, status=400)
        assert refused["error"]["param"] == "timezone", name
    assert (await admin("GET", "/accounts/b"))["timezone"] is None


async def test_quotas_and_limits_reset_at_the_midnight_of_each_account(tmp_path: Path, template_path: Path) -> None:
    clock = Clock(at("2027-06-15T21:59:59"))
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = site(channel(up.base_url), limit=[EACH_USER, FIXED], price=PRICES)
        gateway = await start(tmp_path / "kept", template_path, config, clock)
        admin = AdminApi(gateway)
        await admin("POST", "/accounts", {"name": "berlin", "timezone": BERLIN}, status=201)
        await admin("POST", "/accounts", {"name": "plain"}, status=201)
        berlin = await add_key(admin, "berlin", quota_usd=0.05, quota_period="daily")
        plain = await add_key(admin, "plain", quota_usd=0.05, quota_period="daily")
        assert [await count_answers(gateway, key) for key in (berlin, plain)] == [3, 3]
        status, message = await send(gateway, berlin)
        assert (status, "it resets at 2027-06-15T22:00:00Z" in message) == (429, True), message
        assert [await count_answers(gateway, key, "ben") for key in (berlin, plain)] == [2, 2]
        clock.now_s += 1
        assert [await count_answers(gateway, berlin, user) for user in ("ann", "ben")] == [3, 2]
        assert await count_answers(gateway, plain) == 0
        for key, resets_at in ((berlin, "2027-06-16T22:00:00Z"), (plain, "2027-06-16T00:00:00Z")):
            (quota,) = (await read_key(gateway, key))["limits"]
            assert (quota["spent_usd"], quota["resets_at"]) == (0.05, resets_at)
        subjects = (await admin("GET", "/limits/each%20user/subjects"))["data"]
        assert {(one["account"], one["subject"], one["spent_usd"], one["resets_at"]) for one in subjects} == {
            ("berlin", "ann", 0.03, "2027-06-16T22:00:00Z"), ("berlin", "ben", 0.02, "2027-06-16T22:00:00Z"),
            ("plain", "ann", 0.03, "2027-06-16T00:00:00Z"), ("plain", "ben", 0.02, "2027-06-16T00:00:00Z"),
        }  # fmt: skip
        fixed = (await admin("GET", "/limits/fixed/subjects"))["data"]
        assert {(one["spent_usd"], one["resets_at"]) for one in fixed} == {
            (0.06, "2027-06-16T00:00:00Z"), (0.03, "2027-06-16T00:00:00Z"), (0.04, "2027-06-16T00:00:00Z"),
            (0.02, "2027-06-16T00:00:00Z"),
        }  # fmt: skip
        await gateway.close()
        gateway = await start(tmp_path / "kept", template_path, config, clock)
        try:
            assert [await count_answers(gateway, key) for key in (berlin, plain)] == [0, 0]
            clock.now_s = at("2027-06-16T00:00")
            assert [await count_answers(gateway, key) for key in (berlin, plain)] == [0, 3]
            await gateway.check_books()
        finally:
            await gateway.close()


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restart"])
async def test_a_change_in_the_middle_of_a_window_gives_nothing_twice(
    tmp_path: Path, template_path: Path, restarts: bool
) -> None:
    clock = Clock(at("2027-06-15T10:00"))
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = site(channel(up.base_url), limit=[EACH_USER], price=PRICES)
        gateway = await start(tmp_path / "kept", template_path, config, clock)
        admin = AdminApi(gateway)
        await admin("POST", "/accounts", {"name": "moving", "quota_usd": 0.04, "quota_period": "daily"}, status=201)
        key = await add_key(admin, "moving")

        async def restart() -> None:
            nonlocal gateway, admin
            if restarts:
                await gateway.close()
                gateway = await start(tmp_path / "kept", template_path, config, clock)
                admin = AdminApi(gateway)

        async def check(expected: list[int]) -> None:
            assert [await count_answers(gateway, key, user) for user in ("ann", "ben")] == expected
            await gateway.check_books()
            await restart()

        try:
            await check([3, 1])
            await admin("PATCH", "/accounts/moving", {"timezone": "America/New_York"})  # midnight four hours later
            for moment in ("2027-06-15T10:01:59", "2027-06-15T10:02", "2027-06-16T03:59:59"):
                clock.now_s = at(moment)
                await check([0, 0])
            clock.now_s = at("2027-06-16T04:00")
            await check([3, 1])
            clock.now_s = at("2027-06-16T20:00")
            await admin("PATCH", "/accounts/moving", {"timezone": AUCKLAND})  # where it is the next day already
            clock.now_s = at("2027-06-16T20:01:59")
            await check([0, 0])
            clock.now_s = at("2027-06-16T20:02")
            await check([3, 1])
            clock.now_s = at("2027-06-17T11:59:59")
            await check([0, 0])
            clock.now_s = at("2027-06-17T12:00")
            await check([3, 1])
        finally:
            await gateway.close()


async def test_what_is_reserved_at_a_change_stays_reserved(gateway_with: StartGateway) -> None:
    clock = Clock(at("2027-01-31T20:00"))
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        limit = {**EACH_USER, "window": "month"}
        gateway = await gateway_with(site(channel(up.base_url), limit=[limit], price=PRICES), clock=clock)
        admin = AdminApi(gateway)
        await admin("POST", "/accounts", {"name": "moving", "quota_usd": 0.03, "quota_period": "monthly"}, status=201)
        key = await add_key(admin, "moving")
        headers = {"Authorization": f"Bearer {key}"}
        async with gateway.post({**HELLO, "user": "ann"}, "/v1/quote?hold_s=60", headers=headers) as response:
            quote = (await response.json())["quote_id"]
        assert await count_answers(gateway, key) == 2
        await admin("PATCH", "/accounts/moving", {"timezone": AUCKLAND})
        clock.now_s = at("2027-01-31T20:02")  # February there: the month of the quota has ended
        assert await count_answers(gateway, key) == 2, "the third part is held by the quote"
        async with gateway.post({**HELLO, "user": "ann"}, headers={**headers, "x-gateway-quote": quote}) as response:
            assert response.status == 200
        assert await count_answers(gateway, key) == 0
        await gateway.check_books()


def read_file(tmp_path: Path, config: dict[str, Any]) -> Callable[[], object]:
    file = tmp_path / "gateway.toml"
    file.write_text(write_toml(config))
    return lambda: read_config(file, {})


def test_zone_of_a_declared_account_is_checked(tmp_path: Path) -> None:
    account = {"name": "a", "timezone": "Berlin"}
    with pytest.raises(ConfigError) as refusal:
        read_file(tmp_path, {"account": [account]})()
    assert any("account[0].timezone: expected an IANA time zone" in problem for problem in refusal.value.problems)


def test_a_cluster_refuses_declared_quotas_at_local_midnight(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "store": {"url": "postgresql://gateway@db/gateway", "master_key": "a1" * 32},
        "cluster": {"enabled": True},
        "account": [{"name": "a", "timezone": BERLIN}],
        "key": [{"name": "k", "account": "a", "secret": "sk-" + "k" * 20, "quota_usd": 1, "quota_period": "daily"}],
    }
    with pytest.raises(ConfigError) as refusal:
        read_file(tmp_path, config)()
    expected = "account[0].timezone: expected no value: the key 'k' has a daily"
    assert any(expected in problem for problem in refusal.value.problems), refusal.value.problems
    config["key"][0]["quota_period"] = "lifetime"
    read_file(tmp_path, config)()
