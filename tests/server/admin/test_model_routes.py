"""Routes over the admin API: stored, changed and removed at once, explained without a request, and tested with one."""

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.server.context import SERVICES
from tests.support.admin_calls import AdminApi
from tests.support.gateway import KEY, channel, furnish
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

NOWHERE = "http://127.0.0.1:9/v1"
DEAR: dict[str, Any] = {"model": "dear", "input_usd_per_million": 1000, "output_usd_per_million": 1000}
CHEAP: dict[str, Any] = {"model": "cheap", "input_usd_per_million": 1, "output_usd_per_million": 2}
DECLARED: dict[str, Any] = {"name": "filed", "about": "of the file", "step": [{"models": ["cheap"]}]}
CONFIG: dict[str, Any] = {
    "channel": [channel(NOWHERE, "one", models=["dear", "cheap"]), channel(NOWHERE, "two", models=["cheap"])],
    "price": [DEAR, CHEAP],
    "route": [DECLARED],
    "key": [{"name": "test", "account": "acme", "secret": KEY, "quota_usd": 1}],
}
STEPS: list[dict[str, Any]] = [
    {"models": ["dear"], "channels": ["on*"]},
    {"models": ["cheap", {"model": "dear", "weight": 3}], "on": ["unavailable"], "if": {"max_prompt_tokens": 1000}},
]
FAST: dict[str, Any] = {"about": "quick", "max_attempts": 8, "deadline_s": 20, "cache_ttl_s": 600, "step": STEPS}


@pytest.fixture
async def admin(gateway_with: StartGateway) -> AdminApi:
    return AdminApi(await gateway_with(CONFIG))


def list_verdicts(found: dict[str, Any]) -> list[str]:
    return [step["verdict"] for step in found["steps"]]


async def test_a_route_is_in_force_when_its_change_returns_until_it_is_removed(admin: AdminApi) -> None:
    router = admin.gateway.app[SERVICES].routing.router
    made = await admin("PUT", "/routes/fast", FAST)
    facts = {"source": "console", "overridden": False, "warnings": [], "version": made["version"]}
    assert made == {"name": "fast", **FAST, **facts}
    assert await admin("PUT", "/routes/fast", {name: made[name] for name in FAST}) == made, "which is no change"
    assert router.routes["fast"].steps[1].models[1].weight == 3
    changed = await admin("PUT", "/routes/fast", {"step": STEPS[:1], "about": None})
    assert (changed["about"], changed["max_attempts"], changed["step"]) == ("", None, STEPS[:1])
    assert len(router.routes["fast"].steps) == 1
    listed = (await admin("GET", "/routes"))["data"]
    assert [(one["name"], one["source"]) for one in listed] == [("fast", "console"), ("filed", "file")]
    assert await admin("DELETE", "/routes/fast") == {"name": "fast", "deleted": True}
    assert [*router.routes] == ["filed"]
    assert await admin.list_stored() == {}
    none: dict[str, Any] = dict.fromkeys(FAST)
    before = {**none, **FAST}
    after = {"about": "", "max_attempts": None, "deadline_s": None, "cache_ttl_s": None, "step": STEPS[:1]}
    assert await admin.list_trail("route") == [
        ("route.changed", "fast", {name: [None, value] for name, value in FAST.items()}),
        ("route.changed", "fast", {name: [before[name], after[name]] for name in FAST}),
        ("route.removed", "fast", {"about": ["", None], "step": [STEPS[:1], None]}),
    ]


async def test_a_change_names_the_version_that_it_was_made_from_and_a_newer_route_stays(admin: AdminApi) -> None:
    first = await admin("PUT", "/routes/fast", {**FAST, "version": "none"})
    refused = await admin("PUT", "/routes/fast", {**FAST, "about": "mine", "version": "none"}, 409)
    assert refused["error"]["message"].startswith("There is a route 'fast' already")
    second = await admin("PUT", "/routes/fast", {**FAST, "about": "theirs", "version": first["version"]})
    assert second["version"] not in {first["version"], "none"}
    refused = await admin("PUT", "/routes/fast", {**FAST, "about": "mine", "version": first["version"]}, 409)
    assert (refused["error"]["code"], refused["error"]["param"]) == ("conflict", "version")
    assert await admin("PUT", "/routes/fast", {**FAST, "version": 1}, 400)
    kept = await admin("GET", "/routes/fast")
    assert (kept["about"], kept["version"]) == ("theirs", second["version"])
    assert (await admin("PUT", "/routes/fast", {**FAST, "about": "any"}))["about"] == "any", "without a version"
    assert await admin.list_stored() == {"route/fast": {"name": "fast", **FAST, "about": "any"}}, "no version is stored"
    await admin("DELETE", "/routes/fast")
    await admin("PUT", "/routes/fast", {**FAST, "version": second["version"]}, 409)
    assert await admin.list_stored() == {}


async def test_a_draft_is_explained_and_changes_nothing(admin: AdminApi) -> None:
    """Of a route, of a name that is no route yet, and of the file's."""
    for name in ("fast", "new", "filed"):
        found = await admin("POST", f"/routes/{name}/explain?prompt_tokens=2000", {**FAST, "step": STEPS[::-1]})
        assert list_verdicts(found) == ["skipped", "first"]
        assert [model["model"] for model in found["steps"][1]["models"]] == ["dear"]
    wrong = {"step": [STEPS[0], {"models": [{"model": "cheap", "weight": 0}]}]}
    refused = await admin("POST", "/routes/new/explain", wrong, 400)
    assert refused["error"]["param"] == "step[1].models[0].weight"
    assert (await admin.list_stored(), await admin.list_trail("route")) == ({}, [])
    assert [*admin.gateway.app[SERVICES].routing.router.routes] == ["filed"]


REFUSED: tuple[tuple[str, str, Any, int, str], ...] = (
    ("PUT", "filed", FAST, 409, "The configuration file declares the route 'filed'; change it there"),
    ("DELETE", "filed", None, 409, "The configuration file declares the route 'filed'; change it there"),
    ("DELETE", "none", None, 404, "The route 'none' is not set"),
    ("GET", "file", None, 404, "There is no route 'file'; did you mean 'filed'?"),
    ("POST", "none/test", None, 404, "There is no route 'none'"),
    ("PUT", "fast", {}, 400, "step: expected a value"),
    ("PUT", "fast", {"step": []}, 400, "step: expected 1 to 16 steps"),
    ("PUT", "fast", {"step": [{"models": []}]}, 400, "step[0].models: expected at least one model"),
    ("PUT", "fast", {"step": [{"models": ["a"], "on": ["weather"]}]}, 400, "step[0].on"),
    ("PUT", "fast", {"step": STEPS, "name": "other"}, 400, "The name of a route cannot be changed"),
    ("PUT", "fast", {"step": STEPS, "colour": 1}, 400, "colour: unknown key"),
)


async def test_what_cannot_be_changed_changes_nothing_and_says_why(admin: AdminApi) -> None:
    for method, place, body, status, message in REFUSED:
        refused = await admin(method, f"/routes/{place}", body, status)
        assert message in refused["error"]["message"]
    assert (await admin.list_stored(), await admin.list_trail("route")) == ({}, [])


async def test_a_stored_route_that_the_file_hides_is_listed_and_can_be_removed(
    gateway_with: StartGateway, tmp_path: Path, template_path: Path
) -> None:
    path = tmp_path / "data0"
    path.mkdir()
    await furnish(path, template_path, declared=False)
    stored = {"route/filed": {**FAST, "name": "filed"}, "route/other": {**FAST, "name": "another"}}
    with contextlib.closing(sqlite3.connect(path / "gateway.db")) as database:
        rows = [(name, orjson.dumps(value).decode(), 1) for name, value in stored.items()]
        database.executemany("INSERT INTO settings VALUES (?, ?, ?)", rows)
        database.commit()
    admin = AdminApi(await gateway_with(CONFIG))
    listed = (await admin("GET", "/routes"))["data"]
    assert [(one["source"], one["overridden"]) for one in listed] == [("file", False), ("console", True)]
    assert (await admin("GET", "/routes/filed"))["about"] == "of the file"
    await admin("PUT", "/routes/filed", FAST, 409)
    await admin("DELETE", "/routes/filed")
    await admin("DELETE", "/routes/other")
    assert await admin.list_stored() == {}


async def test_a_route_shows_who_serves_its_steps_and_at_what_price(admin: AdminApi) -> None:
    await admin("PUT", "/routes/fast", FAST)
    served = (await admin("GET", "/routes/fast"))["served"]
    assert [(one["step"], one["model"], [each["channel"] for each in one["channels"]]) for one in served] == [
        (1, "dear", ["one"]),
        (2, "cheap", ["one", "two"]),
        (2, "dear", ["one"]),
    ]
    assert served[1]["channels"][0]["price"]["output_usd_per_million"] == 2


async def test_what_is_probably_wrong_with_a_route_is_told(admin: AdminApi) -> None:
    steps = [{"models": ["cheap", "gone"]}, {"models": ["dear"], "channels": ["two", "three-*"]}]
    made = await admin("PUT", "/routes/fast", {"step": steps})
    assert made["warnings"] == [
        "Step 1 of the route 'fast': no channel of the step serves the model 'gone'",
        "Step 2 of the route 'fast': no channel is called 'three-*'",
        "Step 2 of the route 'fast': no channel of the step serves the model 'dear'",
    ]
    hiding = await admin("PUT", "/routes/dear", {"step": [{"models": ["cheap"]}]})
    assert hiding["warnings"] == ["The route 'dear' hides the model of its name, which none of its steps uses"]
    own = await admin("PUT", "/routes/dear", {"step": [{"models": ["dear"]}, {"models": ["cheap"]}]})
    assert own["warnings"] == []


async def test_routes_are_listed_among_the_models_and_marked(admin: AdminApi) -> None:
    await admin("PUT", "/routes/fast", FAST)
    await admin("PUT", "/routes/cheap", {"step": [{"models": ["dear"]}]})
    await admin("PUT", "/routes/unserved", {"step": [{"models": ["gone"]}]})
    listed = {model["id"]: model for model in (await admin("GET", "/models"))["data"]}
    assert {name: model["route"] for name, model in listed.items()} == {
        "cheap": True,
        "dear": False,
        "fast": True,
        "filed": True,
    }
    assert (listed["fast"]["owned_by"], listed["fast"]["channels"]) == ("gateway", ["one", "two"])
    assert listed["fast"]["price"]["input_usd_per_million"] == 1000
    assert listed["filed"]["price"]["input_usd_per_million"] == 1


async def test_explain_walks_the_steps_and_sends_nothing(admin: AdminApi) -> None:
    await admin("PUT", "/routes/fast", FAST)
    found = await admin("GET", "/explain?model=fast")
    assert (found["served"], found["refused"], found["channels"]) == (True, None, [])
    assert list_verdicts(found) == ["first", "next"]
    assert found["steps"][0]["models"][0]["channels"][1]["reason"] == "not one of the channels of the step"
    long = await admin("GET", "/explain?model=fast&prompt_tokens=5000")
    assert list_verdicts(long) == ["first", "skipped"]
    reason = "the prompt has about 5000 tokens, but the step accepts only prompts of at most 1000"
    assert long["steps"][1]["reason"] == reason
    assert long["steps"][0]["reserved_usd"] == pytest.approx((5000 * 4 + 4096) * 1000 / 1_000_000)
    plain = await admin("GET", "/explain?model=cheap")
    assert (plain["steps"], len(plain["channels"])) == (None, 2)
    await admin.gateway.rows(0)


async def test_explain_adds_a_fallback_that_is_not_saved(admin: AdminApi) -> None:
    """To a model, to a route, and to a name that nobody serves yet."""
    found = await admin("GET", "/explain?model=dear&fallback=cheap")
    assert (found["refused"], list_verdicts(found)) == (None, ["first", "next"])
    assert [step["models"][0]["model"] for step in found["steps"]] == ["dear", "cheap"]
    await admin("PUT", "/routes/fast", FAST)
    found = await admin("GET", "/explain?model=fast&fallback=gone")
    assert list_verdicts(found) == ["first", "next", "skipped"]
    found = await admin("GET", "/explain?model=gone&fallback=cheap")
    assert (found["refused"], found["served"], list_verdicts(found)) == (None, True, ["skipped", "first"])
    assert (await admin("GET", "/explain?model=gone"))["refused"]["code"] == "model_not_found"
    assert [route["name"] for route in (await admin("GET", "/routes"))["data"]] == ["fast", "filed"]
    await admin.gateway.rows(0)


async def test_explain_says_what_the_key_cannot_afford_and_which_step_takes_that(admin: AdminApi) -> None:
    last = {"models": ["cheap"], "on": ["budget"]}
    await admin("PUT", "/routes/fast", {"step": [*STEPS, last]})
    found = await admin("GET", "/explain?model=fast&key=1")
    assert list_verdicts(found) == ["skipped", "skipped", "first"]
    assert found["steps"][0]["reason"].endswith("but only $1 is left")
    assert "budget" in found["steps"][1]["reason"], "it takes only what is unavailable"
    assert list_verdicts(await admin("GET", "/explain?model=fast")) == ["first", "next", "next"]


async def test_explain_says_that_a_step_has_no_channel_or_none_that_can_serve_now(gateway_with: StartGateway) -> None:
    steps = [{"models": ["cheap"], "channels": ["gone"]}, {"models": ["dear"], "channels": ["one"]}]
    full = {**CONFIG, "channel": [channel(NOWHERE, "one", models=["dear"], max_concurrency=1)]}
    admin = AdminApi(await gateway_with(full))
    await admin("PUT", "/routes/fast", {"step": steps})
    assert list_verdicts(await admin("GET", "/explain?model=fast")) == ["skipped", "first"]
    balancer = admin.gateway.app[SERVICES].routing.load_balancer
    slot = balancer.acquire(balancer.channels["one"], ("openai_chat", "dear"), 1, retry=False)
    found = await admin("GET", "/explain?model=fast")
    balancer.release(slot)
    assert (list_verdicts(found), found["served"]) == (["skipped", "skipped"], False)
    reasons = ["no channel of the step serves its model to this caller", "no channel can serve the request now"]
    assert [step["reason"] for step in found["steps"]] == reasons


async def test_a_test_sends_one_token_to_each_model_of_each_step(gateway_with: StartGateway) -> None:
    refusal = answer({"error": {"message": "no such model"}}, status=404)
    async with ScriptedUpstream([answer(COMPLETION)]) as up, ScriptedUpstream([refusal]) as down:
        serving = [channel(up.base_url, "up", models=["m"]), channel(down.base_url, "down", models=["n"])]
        admin = AdminApi(await gateway_with({"channel": serving}))
        await admin("PUT", "/routes/fast", {"step": [{"models": ["m", "n"]}, {"models": ["gone"]}]})
        results: Sequence[dict[str, Any]] = (await admin("POST", "/routes/fast/test"))["data"]
        assert [(one["step"], one["model"], one["channel"], one["ok"]) for one in results] == [
            (1, "m", "up", True),
            (1, "n", "down", False),
            (2, "gone", None, False),
        ]
        assert results[0]["ms"] is not None
        assert "no such model" in results[1]["error"]
        assert results[2]["error"] == "no channel of the step serves the model"
        assert [request.json["max_tokens"] for request in (*up.received, *down.received)] == [1, 1]
        await admin.gateway.rows(0)
