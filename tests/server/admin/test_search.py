"""The search of the command palette: what is found, in which order, and that it stays within the caller's rights."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from tests.support.admin_calls import ask_office
from tests.support.console_people import invite, make_administrator
from tests.support.gateway import HELLO, KEY, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

CONFIG: Mapping[str, Any] = {
    "account": [{"name": "acme", "groups": ["blue"]}, {"name": "north"}],
    "key": [
        {"name": "test", "account": "acme", "secret": KEY, "group": "blue"},
        *(
            {"name": f"old laptop {number}", "account": "north", "secret": f"sk-{str(number) * 44}Kf7{number}"}
            for number in range(8)
        ),
        {"name": "laptop", "account": "north", "secret": "sk-" + "b" * 48},
    ],
    "group": [{"name": "blue"}],
    "channel": [
        channel("http://127.0.0.1:9/v1", name="azure", models=["alpha"]),
        channel("http://127.0.0.1:9/v1", name="blue sea", models=["beta"], groups=["blue"]),
    ],
    "route": [{"name": "quick", "step": [{"models": ["beta"]}]}],
    "billing": {"unpriced": "free"},
}


async def test_an_end_user_is_found_by_its_whole_name_within_the_callers_rights(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({**CONFIG, "channel": [channel(up.base_url, name="azure", models=["alpha"])]})
        ada = await make_administrator(gateway)
        nora = await invite(ada, "nora", "member", "north")
        for _ in range(2):
            async with gateway.post({**HELLO, "model": "alpha"}, headers={"x-gateway-user": "U-17"}) as response:
                assert response.status == 200
        _, found = await ada.call("GET", "/search?search=U-17")
        assert [(match["kind"], match["name"], match["detail"]) for match in found["data"]] == [
            ("end_user", "U-17", "2 requests in 7 days")
        ]
        for person, text in ((ada, "U-1"), (ada, "u-17"), (nora, "U-17")):
            _, found = await person.call("GET", f"/search?search={text}")
            assert found["data"] == []
        for person in (ada, nora):
            await person.session.close()


@pytest.mark.slow
async def test_objects_are_found_within_the_callers_rights(gateway_with: StartGateway) -> None:
    gateway = await gateway_with(CONFIG)
    office = partial(ask_office, gateway)
    ada = await make_administrator(gateway)
    mia, vic = await invite(ada, "mia", "member", "acme"), await invite(ada, "vic", "viewer", "acme")

    async def find(ask: Any, text: str) -> list[tuple[str, str]]:
        status, answer = await ask("GET", f"/search?search={text}")
        assert status == 200, answer
        return [(match["kind"], match["name"]) for match in answer["data"]]

    laptops = await find(office, "LAPTOP")
    assert laptops == [("key", "laptop"), *(("key", f"old laptop {number}") for number in range(5))], "at most 6"
    assert await find(office, "kf73") == await find(office, "north%20kf73") == [("key", "old laptop 3")]
    assert await find(office, "mia") == [("member", "mia")]
    assert await find(office, "quick") == [("route", "quick")]
    assert await find(office, "azure") == [("channel", "azure")]
    assert await find(office, "%25") == []
    for person in (mia, vic):
        for text in ("laptop", "kf73", "north", "azure", "sea", "mia", "vic", "acme"):
            kinds = {kind for kind, _ in await find(person.call, text)}
            assert kinds <= {"key"}, (text, kinds)
            assert {name for _, name in await find(person.call, text)} <= {"test"}
        assert await find(person.call, "beta") == [("model", "beta")]
        assert await find(person.call, "quick") == [("model", "quick")]
    for query in ("", "search=", "search=%20", f"search={'x' * 201}"):
        status, answer = await office("GET", f"/search?{query}")
        assert (status, answer["error"]["param"]) == (400, "search")
    for person in (ada, mia, vic):
        await person.session.close()
