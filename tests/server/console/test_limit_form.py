"""The pages of limits: every field that a limit can have is on its form, and its subjects are found by name."""

from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import attrs

from gateway.billing.limit_spec import LimitSpec
from gateway.domain.limit import Limit
from tests.support.console_people import Person, make_administrator
from tests.support.fault_scene import PRICE
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

LIMIT: dict[str, Any] = {
    "of": "tag:team",
    "keys": ["test", "other"],
    "usd": 1.5,
    "window": "rolling:36h",
    "timezone": "Europe/Berlin",
    "rpm": 20,
    "tpm": 3_000,
    "soft": 0.7,
    "status": 403,
    "until": "2100-01-31T12:00:00Z",
    "max_subjects": 900,
}
"""A limit in which no field has its default."""
INPUTS: Mapping[str, tuple[str, str]] = {
    "name": ("", ""),  # it is in the address
    "kind": ("of", "tag:team"),
    "detail": ("of", "tag:team"),
    "keys": ("keys", "test, other"),
    "cap_nanos": ("usd", "1.5"),
    "window": ("window", "rolling:36h"),
    "rpm": ("rpm", "20"),
    "tpm": ("tpm", "3000"),
    "status": ("status", "403"),
    "until_s": ("until", "2100-01-31T12:00:00Z"),
    "raises": ("", ""),  # a limit that raises another has a form of its own
    "max_subjects": ("max_subjects", "900"),
    "timezone": ("timezone", "Europe/Berlin"),
    "soft_share": ("soft", "0.7"),
}
"""The input of each field, and its value for ``LIMIT``."""


class FormReader(HTMLParser):
    """Collects the values of the inputs in the form of a limit."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.select = ""
        self.reading = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.reading = "data-limit" in values
        if not self.reading:
            return
        if tag == "select":
            self.select = values.get("name", "kind")
        elif tag == "option" and "selected" in values:
            self.fields[self.select] = values["value"]
        elif tag == "input" and "name" in values:
            self.fields[values["name"]] = values.get("data-moment") or values.get("value", "")


async def start_with_limits(gateway_with: StartGateway, **tables: Any) -> tuple[RunningGateway, Person]:
    gateway = await gateway_with({"channel": [channel("http://127.0.0.1:9/v1", models=["m"])], **tables})
    return gateway, await make_administrator(gateway)


def test_the_form_has_every_field_that_a_limit_can_have() -> None:
    """A new field fails here until the form shows it: add it to ``INPUTS``, to ``LIMIT``, and to the form."""
    assert set(INPUTS) == {field.name for field in attrs.fields(Limit)}
    assert {"name", "raises", *LIMIT} == {field.name for field in attrs.fields(LimitSpec)}


async def test_each_field_has_an_input_with_its_value(gateway_with: StartGateway) -> None:
    _, ada = await start_with_limits(gateway_with)
    status, limit = await ada.call("PUT", "/limits/teams", LIMIT)
    assert (status, {name: limit[name] for name in LIMIT}) == (200, LIMIT)
    _, page = await ada.open("/limits/teams")
    _, listed = await ada.open("/limits")
    await ada.session.close()
    inputs = {name: value for name, value in INPUTS.values() if name}
    assert {name: FormReader(page).fields.get(name) for name in inputs} == inputs
    assert FormReader(page).fields["kind"] == "tag"
    new = FormReader(listed).fields
    defaults = {"of": "user", "kind": "user", "window": "month"}
    assert {name: value for name, value in new.items() if value} == defaults, "what is not said is not stored"


async def test_a_limit_that_raises_another_has_the_fields_of_a_raise(gateway_with: StartGateway) -> None:
    _, ada = await start_with_limits(gateway_with)
    await ada.call("PUT", "/limits/users", {"of": "user", "usd": 1})
    await ada.call("PUT", "/limits/fair", {"raises": "users", "usd": 4, "until": "2100-01-31T12:00:00Z"})
    _, page = await ada.open("/limits/fair")
    _, raised = await ada.open("/limits/users")
    await ada.session.close()
    fields = FormReader(page).fields
    assert fields == {"raises": "users", "usd": "4", "until": "2100-01-31T12:00:00Z", "reason": ""}
    assert 'href="/console/limits/fair"' in raised


async def test_a_limit_of_the_configuration_file_shows_its_fields_but_cannot_be_saved(
    gateway_with: StartGateway,
) -> None:
    limit = {"name": "teams", **{name: value for name, value in LIMIT.items() if name not in {"until", "keys"}}}
    _, ada = await start_with_limits(gateway_with, limit=[limit])
    _, page = await ada.open("/limits/teams")
    await ada.session.close()
    assert "This limit is declared in the configuration file; change it there." in page
    assert '<fieldset class="bare" disabled>' in page
    assert FormReader(page).fields["usd"] == "1.5"
    assert 'type="submit">Save' not in page
    assert "Delete limit" not in page
    assert "Raise limit temporarily" in page, "a raise is a limit of its own, which is stored"


async def test_subjects_are_found_by_name_and_linked_from_key_and_account(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway, ada = await start_with_limits(gateway_with, channel=[channel(up.base_url)], price=[PRICE])
        await ada.call("PUT", "/limits/users", {"of": "user", "usd": 1})
        await ada.call("PUT", "/limits/each-key", {"of": "key", "usd": 2})
        await ada.call("PUT", "/limits/others", {"of": "user", "usd": 2, "keys": ["nobody"]})
        for user in ("Ann", "ben", "ben", "100%_\\sure"):
            async with gateway.post(HELLO, headers={"x-gateway-user": user}) as response:
                assert response.status == 200
        _, listed = await ada.call("GET", "/limits?subjects=1")
        assert [subject["subject"] for limit in listed["data"] for subject in limit["subjects"]] == ["test", "ben"]
        expected = (
            ("", ["ben", "100%_\\sure", "Ann"]),
            ("ANN", ["Ann"]),
            ("n", ["ben", "Ann"]),
            ("%", ["100%_\\sure"]),
        )
        for text, names in (*expected, ("_\\", ["100%_\\sure"]), ("nobody", [])):
            status, subjects = await ada.call("GET", f"/limits/users/subjects?find={text.replace('%', '%25')}")
            assert (status, [row["subject"] for row in subjects["data"]]) == (200, names), text
        for query, names in (("find=TES", ["test"]), ("find=x", []), ("account=acme", ["test"])):
            _, subjects = await ada.call("GET", f"/limits/each-key/subjects?{query}")
            assert [row["subject"] for row in subjects["data"]] == names, query
        assert (await ada.call("GET", "/limits/each-key/subjects?account=nobody"))[0] == 404
        assert (await ada.call("GET", "/limits?subjects=11"))[0] == 400
        _, page = await ada.open("/limits/users?find=ann")
        _, key_page = await ada.open("/keys/1")
        _, account_page = await ada.open("/accounts/acme")
        await ada.session.close()
    assert ">Ann<" in page
    assert ">ben<" not in page
    for linking in (key_page, account_page):
        assert 'href="/console/limits/users?account=acme"' in linking
        assert "/limits/others" not in linking
