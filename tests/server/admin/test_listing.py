"""Lists of the admin API: search, order, pages and filters; a member's are of its own account."""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.admin_calls import Ask, ask_office
from tests.support.console_people import Person, invite, make_administrator
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.started_gateways import StartGateway

CONFIG: Mapping[str, Any] = {
    "account": [{"name": "acme"}, {"name": "Beta", "quota_usd": 5}, {"name": "crowd", "quota_usd": 9}],
    "key": [
        {"name": "test", "account": "acme", "secret": KEY},
        {"name": "Laptop", "account": "Beta", "secret": "sk-" + "a" * 44 + "Kf7h", "quota_usd": 3},
        {"name": "laptop", "account": "crowd", "secret": "sk-" + "b" * 44 + "zzzz", "quota_usd": 2, "group": "red"},
        {"name": "tablet", "account": "crowd", "secret": "sk-" + "c" * 44 + "yyyy", "expires_at": "2001-01-01"},
    ],
    "channel": [channel("http://127.0.0.1:9/v1", models=["alpha", "beta", "gpt-4o"])],
}
ROUTED: Mapping[str, Any] = {
    **CONFIG,
    "route": [
        {"name": "fast", "step": [{"models": ["alpha"]}, {"models": ["gpt-4o"]}]},
        {"name": "Cheap", "about": "for drafts", "step": [{"models": ["beta"]}]},
    ],
    "limit": [
        {"name": "each user", "of": "user", "usd": 5, "window": "day"},
        {"name": "Laptops", "of": "key", "keys": ["laptop"], "usd": 2, "window": "day"},
        {"name": "pace", "of": "session", "rpm": 9},
    ],
}


@pytest.fixture
async def gateway(gateway_with: StartGateway) -> RunningGateway:
    return await gateway_with(CONFIG)


@pytest.fixture
def ask(gateway: RunningGateway) -> Ask:
    return partial(ask_office, gateway)


@pytest.fixture
async def mia(gateway: RunningGateway) -> AsyncIterator[Person]:
    """A member of the account crowd."""
    ada = await make_administrator(gateway)
    member = await invite(ada, "mia", "member", "crowd")
    yield member
    for person in (ada, member):
        await person.session.close()


async def list_names(ask: Ask, path: str, field: str = "name") -> list[str]:
    status, answer = await ask("GET", path)
    assert status == 200, answer
    assert answer["total"] >= len(answer["data"])
    return [each[field] for each in answer["data"]]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["test", "Laptop", "laptop", "tablet"]),
        ("search=LAPTOP", ["Laptop", "laptop"]),
        ("search=kf7h", ["Laptop"]),
        ("search=sk-…zzzz", ["laptop"]),
        ("search=crowd lap", ["laptop"]),
        ("search=red", ["laptop"]),
        ("search=%", []),
        ("search=laptop tablet", []),
        ("status=expired", ["tablet"]),
        ("account=crowd&status=active", ["laptop"]),
        ("sort=name", ["Laptop", "laptop", "tablet", "test"]),
        ("sort=-account", ["laptop", "tablet", "Laptop", "test"]),
        ("sort=left_usd", ["laptop", "Laptop", "test", "tablet"]),
        ("sort=-expires_at", ["tablet", "test", "Laptop", "laptop"]),
        ("sort=-name&limit=2", ["test", "tablet"]),
    ],
)
async def test_keys_are_searched_filtered_and_sorted(ask: Ask, query: str, names: list[str]) -> None:
    assert await list_names(ask, f"/keys?{quote(query, safe='=&')}") == names


async def test_routes_and_limits_are_searched_and_sorted(gateway_with: StartGateway) -> None:
    ask_routed = partial(ask_office, await gateway_with(ROUTED))
    pages = {
        "/routes": ["Cheap", "fast"],
        "/routes?search=gpt": ["fast"],
        "/routes?search=drafts": ["Cheap"],
        "/routes?sort=-steps": ["fast", "Cheap"],
        "/routes?sort=name&limit=1": ["Cheap"],
        "/limits": ["Laptops", "each user", "pace"],
        "/limits?search=laptop": ["Laptops"],
        "/limits?search=session": ["pace"],
        "/limits?sort=-usd": ["each user", "Laptops", "pace"],
        "/limits?sort=-name&limit=1&after=file:pace&subjects=1": ["Laptops"],
    }
    assert {path: await list_names(ask_routed, path) for path in pages} == pages


async def test_channels_are_searched_filtered_and_sorted(gateway_with: StartGateway) -> None:
    url = "http://127.0.0.1:9/v1"
    channels = [
        channel(url, "oak", models=["alpha"], priority=2, groups=["red"]),
        channel(url, "Elm", models=["gpt-4o", "beta"], model_map={"fast": "beta"}, priority=7),
        channel(url, "ash", models=["alpha"], api_key="the-key-of-the-team-Kf7h", status="disabled"),
    ]
    ask_channels = partial(ask_office, await gateway_with({**CONFIG, "channel": channels}))
    pages = {
        "/channels": ["oak", "Elm", "ash"],
        "/channels?search=ALPHA": ["oak", "ash"],
        "/channels?search=fast": ["Elm"],
        "/channels?search=red": ["oak"],
        "/channels?search=Kf7h": ["ash"],
        "/channels?search=the-key": [],
        "/channels?health=disabled": ["ash"],
        "/channels?health=untested&sort=name": ["Elm", "oak"],
        "/channels?sort=-priority": ["Elm", "oak", "ash"],
        "/channels?sort=-offers&limit=1": ["Elm"],
        "/channels?sort=-health&limit=1": ["ash"],
    }
    assert {path: await list_names(ask_channels, path) for path in pages} == pages
    _, page = await ask_channels("GET", "/channels?sort=name&limit=1&after=ash")
    assert ([each["name"] for each in page["data"]], page["total"], page["next"]) == (["Elm"], 3, "Elm")
    for query in ("health=ill", "sort=api_key", "after=nobody", "limit=0"):
        assert (await ask_channels("GET", f"/channels?{query}"))[0] == 400


async def test_pages_lead_from_one_to_the_next_and_have_each_object_once(ask: Ask) -> None:
    names, after = [], ""
    for _ in range(4):
        _, page = await ask("GET", f"/keys?sort=-name&limit=1{after}")
        assert (len(page["data"]), page["total"]) == (1, 4)
        names += [page["data"][0]["name"]]
        after = f"&after={page['next']}"
    assert (names, page["next"]) == (["test", "tablet", "Laptop", "laptop"], None)
    _, all_keys = await ask("GET", "/keys")
    assert (len(all_keys["data"]), all_keys["total"], all_keys["next"]) == (4, 4, None)


async def test_a_page_after_a_new_object_begins_where_the_one_before_ended(ask: Ask) -> None:
    _, first = await ask("GET", "/keys?sort=name&limit=2")
    await ask("POST", "/keys", {"name": "aardvark", "account": "acme"})
    assert await list_names(ask, f"/keys?sort=name&limit=2&after={first['next']}") == ["tablet", "test"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("sort=secret", "sort"),
        ("limit=0", "limit"),
        ("limit=many", "limit"),
        ("after=999", "after"),
        ("after=", "after"),
        ("status=gone", "status"),
        (f"search={'x' * 201}", "search"),
        ("search=%00", "search"),
    ],
)
async def test_what_is_no_list_is_refused(ask: Ask, query: str, param: str) -> None:
    status, answer = await ask("GET", f"/keys?{query}")
    assert (status, answer["error"]["param"]) == (400, param)


async def test_a_member_searches_and_sorts_only_its_own_keys(mia: Person) -> None:
    for query in ("", "?search=laptop", "?sort=-name", "?limit=1", "?search=Kf7h", "?search=acme", "?search=Beta"):
        status, page = await mia.call("GET", f"/keys{query}")
        assert status == 200
        assert {key["account"] for key in page["data"]} <= {"crowd"}
        assert page["total"] <= 2
    assert (await mia.call("GET", "/keys?account=acme"))[0] == 404
    assert (await mia.call("GET", "/keys?after=1"))[0] == 400, "the cursor of another account's key leads nowhere"


async def test_accounts_have_the_numbers_of_their_keys_and_members(ask: Ask, mia: Person) -> None:
    assert mia.session is not None
    _, page = await ask("GET", "/accounts?sort=-keys")
    assert [(one["name"], one["keys"], one["members"]) for one in page["data"]] == [
        ("crowd", 2, 1),
        ("acme", 1, 1),
        ("Beta", 1, 0),
    ]
    assert await list_names(ask, "/accounts?sort=left_usd") == ["Beta", "crowd", "acme"]
    assert await list_names(ask, "/accounts?search=b") == ["Beta"]


async def test_members_are_found_by_name_account_and_role(ask: Ask, mia: Person) -> None:
    assert mia.session is not None
    assert await list_names(ask, "/members?search=crowd") == ["mia"]
    assert await list_names(ask, "/members?role=member") == ["mia"]
    assert await list_names(ask, "/members?search=acme&role=member") == []
    assert (await ask("GET", "/members?role=king"))[0] == 400


async def test_models_and_prices_are_searched_and_paged(ask: Ask) -> None:
    assert await list_names(ask, "/models?search=A&sort=-id", "id") == ["beta", "alpha"]
    assert await list_names(ask, "/models?price=set", "id") == ["gpt-4o"]
    for query in ("price=no", "kind=boat", "modality=smell", "feature=none", "context=many"):
        assert (await ask("GET", f"/models?{query}"))[0] == 400
    await ask("PUT", "/prices/alpha", {"input_usd_per_million": 1})
    assert await list_names(ask, "/prices?limit=1", "model") == ["alpha"]
    _, page = await ask("GET", "/prices?search=gpt-4o&limit=2")
    _, following = await ask("GET", f"/prices?search=gpt-4o&limit=2&after={quote(page['next'], safe='')}")
    pairs = [(price["model"], price["provider"]) for price in (*page["data"], *following["data"])]
    assert len(set(pairs)) == 4
    assert following["total"] == page["total"]
