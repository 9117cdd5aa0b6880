"""Limits over the admin API: stored, changed and removed at once, and who has spent what under them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.admin_calls import AdminApi
from tests.support.fault_scene import site
from tests.support.gateway import HELLO, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

NOWHERE = "http://127.0.0.1:9/v1"
DECLARED: dict[str, Any] = {"name": "filed", "of": "account", "usd": 100}
EACH_USER: dict[str, Any] = {"of": "user", "usd": 1.5, "window": "day", "timezone": "Europe/Berlin", "keys": ["test"]}
COST_USD = 0.000019


async def test_a_limit_is_in_force_when_its_change_returns_until_it_is_removed(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), limit=[DECLARED]))
        admin = AdminApi(gateway)
        made = await admin("PUT", "/limits/each-user", EACH_USER)
        assert {name: made[name] for name in EACH_USER} == EACH_USER
        assert (made["source"], made["ended"], made["raises"]) == ("console", False, None)
        names = [(limit["name"], limit["source"]) for limit in (await admin("GET", "/limits"))["data"]]
        assert names == [("each-user", "console"), ("filed", "file")]
        await admin("PUT", "/limits/each-user?reason=too%20much", {**EACH_USER, "usd": 0})
        async with gateway.post({**HELLO, "user": "ann"}) as response:
            value = await response.json()
            assert (response.status, value["error"]["code"]) == (429, "insufficient_quota")
            assert "each-user" in value["error"]["message"]
        assert await admin("DELETE", "/limits/each-user") == {"name": "each-user", "deleted": True}
        async with gateway.post({**HELLO, "user": "ann"}) as response:
            assert response.status == 200
        trail = await admin.list_trail("limit")
        assert [(action, subject) for action, subject, _ in trail] == [
            ("limit.changed", "each-user"),
            ("limit.changed", "each-user"),
            ("limit.removed", "each-user"),
        ]
        assert trail[1][2] == {"usd": [1.5, 0.0], "reason": [None, "too much"]}
        assert await admin.list_stored() == {}


async def test_a_limit_says_since_when_it_counts(gateway_with: StartGateway) -> None:
    noon_s = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
    now_s = [noon_s]
    gateway = await gateway_with(site(channel(NOWHERE)), clock=lambda: now_s[0])
    admin = AdminApi(gateway)
    changes: list[tuple[str, dict[str, Any], str | None]] = [
        ("each-user", EACH_USER, "2026-11-29T23:00:00Z"),
        ("each-user", {**EACH_USER, "usd": 2}, "2026-11-29T23:00:00Z"),
        ("each-user", {**EACH_USER, "window": "month"}, "2026-10-31T23:00:00Z"),
        ("each-user", {**EACH_USER, "window": "rolling:24h"}, "2026-11-29T12:00:00Z"),
        ("each-user", {**EACH_USER, "window": "week", "timezone": "UTC"}, "2026-11-30T00:00:00Z"),
        ("fair", {"raises": "each-user", "usd": 4}, None),
        ("pace", {"of": "user", "rpm": 4}, None),
        ("ever", {"of": "user", "usd": 4, "window": "lifetime"}, None),
    ]
    for name, fields, expected in changes:
        for shown in (await admin("PUT", f"/limits/{name}", fields), await admin("GET", f"/limits/{name}")):
            assert (shown.get("counts_since"), shown.get("filling")) == (expected, None), fields
    now_s[0] += 7 * 86_400
    assert "counts_since" not in await admin("GET", "/limits/each-user"), "it counts all of a later window"


async def test_subjects_are_listed_by_what_they_have_spent_and_a_raise_ends_by_itself(
    gateway_with: StartGateway,
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url)))
        admin = AdminApi(gateway)
        await admin("PUT", "/limits/each-user", {"of": "user", "usd": 1})
        assert (await admin("GET", "/limits/each-user/subjects"))["data"] == []
        for user in ("ann", "ben", "ben"):
            async with gateway.post({**HELLO, "user": user}) as response:
                assert response.status == 200
        await admin("PUT", "/limits/fair", {"raises": "each-user", "usd": 4, "until": "2100-01-01"})
        await admin("PUT", "/limits/past", {"raises": "each-user", "usd": 9, "until": "2001-01-01"})
        for path in ("/limits/each-user/subjects", "/limits/fair/subjects"):
            ben, ann = (await admin("GET", path))["data"]
            assert (ben["account"], ben["subject"], ann["subject"]) == ("acme", "ben", "ann")
            assert ben["spent_usd"] == pytest.approx(2 * COST_USD)
            assert ann["left_usd"] == pytest.approx(5 - COST_USD), "raised by the fair alone"
            assert ann["resets_at"] is not None
        assert len((await admin("GET", "/limits/each-user/subjects?limit=1"))["data"]) == 1
        assert (await admin("GET", "/limits/past"))["ended"] is True
        refused = await admin("DELETE", "/limits/each-user", status=409)
        assert "is raised by 'fair'" in refused["error"]["message"]


REFUSED: tuple[tuple[str, str, Any, int, str], ...] = (
    ("PUT", "filed", EACH_USER, 409, "The configuration file declares the limit 'filed'"),
    ("DELETE", "filed", None, 409, "The configuration file declares the limit 'filed'"),
    ("DELETE", "none", None, 404, "The limit 'none' is not set"),
    ("GET", "fild", None, 404, "did you mean 'filed'?"),
    ("GET", "fild/subjects", None, 404, "did you mean 'filed'?"),
    ("PUT", "x", {"of": "planet", "usd": 1}, 400, "key, account, user, session"),
    ("PUT", "x", {"of": "user"}, 400, "usd"),
    ("PUT", "x", {"raises": "none", "usd": 1}, 400, "expected the name of a limit"),
    ("PUT", "x", {"name": "y", "of": "user", "usd": 1}, 400, "cannot be changed"),
    ("PUT", "x?reason=%00", {"of": "user", "usd": 1}, 400, "printable"),
)


async def test_a_change_that_cannot_be_is_refused_and_changes_nothing(gateway_with: StartGateway) -> None:
    admin = AdminApi(await gateway_with({"channel": [channel(NOWHERE)], "limit": [DECLARED]}))
    for method, path, body, status, words in REFUSED:
        refused = await admin(method, f"/limits/{path}", body, status=status)
        assert words in refused["error"]["message"], (method, path, refused)
    assert await admin.list_stored() == {}
    assert await admin.list_trail("limit") == []
