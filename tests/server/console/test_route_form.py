"""The form of a route: every field that a route can have is on it, with its value."""

from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import attrs
import pytest

from gateway.domain.route import ModelShare, Route, RouteStep, StepCondition, StepShadow
from gateway.routing.route_spec import ConditionSpec, ModelShareSpec, RouteSpec, ShadowSpec, StepSpec
from tests.support.console_people import make_administrator
from tests.support.gateway import channel
from tests.support.started_gateways import StartGateway

STEP: dict[str, Any] = {
    "models": [{"model": "m", "weight": 9}, "a, b"],
    "channels": ["azure-*", 'one "of" two'],
    "on": ["timeout", "content"],
    "if": {"min_prompt_tokens": 0, "max_prompt_tokens": 9_000, "images": False, "tools": True, "stream": True},
    "balance": "cost",
    "wait_s": 0.5,
    "shadow": {"models": ["copy"], "share": 0.07, "max_running": 9},
}
"""A step in which no field has its default."""
ROUTE: dict[str, Any] = {"about": "Quick", "max_attempts": 3, "deadline_s": 20, "cache_ttl_s": 600}
ROUTE["step"] = [{"models": ["m"]}, STEP]
INPUTS: Mapping[type, Mapping[str, tuple[str, str]]] = {
    Route: {
        "name": ("", ""),  # it is in the address
        "steps": ("step", "[]"),  # the rows, which a script reads
        "about": ("about", "Quick"),
        "max_attempts": ("max_attempts", "3"),
        "deadline_s": ("deadline_s", "20"),
        "cache_ttl_s": ("cache_ttl_s", "600"),
    },
    RouteStep: {
        "models": ("models", "m*9|a, b*1"),
        "channels": ("channels", 'azure-*|one "of" two'),
        "causes": ("causes", "timeout content"),
        "condition": ("", ""),
        "balance": ("balance", "cost"),
        "shadow": ("", ""),
        "wait_s": ("wait_s", "0.5"),
    },
    ModelShare: {"model": ("models", "m*9|a, b*1"), "weight": ("models", "m*9|a, b*1")},
    StepCondition: {
        "min_prompt_tokens": ("if.min_prompt_tokens", "0"),
        "max_prompt_tokens": ("if.max_prompt_tokens", "9000"),
        "images": ("if.images", "false"),
        "tools": ("if.tools", "true"),
        "stream": ("if.stream", "true"),
    },
    StepShadow: {
        "models": ("shadow", "copy"),
        "share": ("shadow.share", "0.07"),
        "max_running": ("shadow.max_running", "9"),
    },
}
"""The input of each field, and its value for ``STEP``. A field without an input of its own is a table of others."""
SPECS = ((Route, RouteSpec), (RouteStep, StepSpec), (ModelShare, ModelShareSpec), (StepCondition, ConditionSpec),
         (StepShadow, ShadowSpec))  # fmt: skip


class FormReader(HTMLParser):
    """Collects the values of the form's inputs, those of a step for each step; names of a list are joined by ``|``."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.steps: list[dict[str, str]] = []
        self.select = ""
        self.list = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "data-step" in values:
            self.steps.append({"causes": "", "others": values["data-others"]})
        self._read_entry(values)
        if tag == "option" and "selected" in values and self.select:
            self.steps[-1][self.select] = values["value"]
        elif tag == "select":
            self.select = _find_name(values)
        elif "data-field" in values:
            self.steps[-1][_find_name(values)] = values["value"]
        elif "data-cause" in values and "checked" in values:
            self.steps[-1]["causes"] = f"{self.steps[-1]['causes']} {values['data-cause']}".strip()
        elif tag == "input" and "name" in values:
            self.fields[values["name"]] = values.get("value", "")

    def _read_entry(self, values: Mapping[str, str]) -> None:
        if "data-entries" in values:
            self.list = values["data-entries"]
        elif "data-new-entry" in values:  # a template, which is no entry yet
            self.list = ""
        elif "data-name" in values and self.list:
            step = self.steps[-1]
            step[self.list] = f"{step[self.list]}|{values['value']}" if self.list in step else values["value"]
        elif "data-weight" in values and self.list:
            self.steps[-1][self.list] += f"*{values['value']}"


def _find_name(values: Mapping[str, str]) -> str:
    return ".".join(filter(None, (values.get("data-in"), values.get("data-field"))))


@pytest.mark.parametrize(("domain_class", "spec"), SPECS)
def test_the_form_has_every_field_that_a_route_can_have(domain_class: type, spec: type) -> None:
    """A new field fails here until the form shows it: add it to ``INPUTS``, to ``STEP``, and to the form."""
    assert set(INPUTS[domain_class]) == {field.name for field in attrs.fields(domain_class)}
    assert len(attrs.fields(spec)) == len(INPUTS[domain_class])


async def test_each_field_has_an_input_with_its_value(gateway_with: StartGateway) -> None:
    ada = await make_administrator(await gateway_with({"channel": [channel("http://127.0.0.1:9/v1", models=["m"])]}))
    status, route = await ada.call("PUT", "/routes/fast", ROUTE)
    assert (status, route["step"]) == (200, ROUTE["step"])
    _, page = await ada.open("/routes/fast")
    await ada.session.close()
    form = FormReader()
    form.feed(page)
    plain, full, new = form.steps
    inputs = {name: value for fields in INPUTS.values() for name, value in fields.values() if name}
    assert {name: (form.fields | full).get(name) for name in inputs} == inputs
    assert {step["others"] for step in form.steps} == {"{}"}
    for step in (plain, new):  # what the route does not say is empty, therefore it is not stored
        stated = {name for name, value in step.items() if value} - {"models", "causes", "others"}
        assert not stated
    assert (plain["models"], new["models"]) == ("m*1", "*1")


async def test_a_route_of_the_configuration_file_shows_its_fields_but_cannot_be_saved(
    gateway_with: StartGateway,
) -> None:
    settings = {"channel": [channel("http://127.0.0.1:9/v1", models=["m"])], "route": [{"name": "fast", **ROUTE}]}
    ada = await make_administrator(await gateway_with(settings))
    _, page = await ada.open("/routes/fast")
    await ada.session.close()
    assert '<fieldset class="bare" disabled>' in page
    assert 'data-field="wait_s" data-kind="number" type="number" value="0.5"' in page
    assert 'type="submit">Save' not in page
