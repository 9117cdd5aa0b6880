"""Tools that a vendor runs: found wherever they are declared, and left out of a body unless they must be called."""

from typing import Any

from gateway.providers.hosted_tools import must_call, remove_tools
from gateway.providers.priced_fields import COMMON_FIELDS, list_priced_fields
from tests.support.table_rows import table_rows

F = {"type": "function", "name": "f"}
SEARCH = {"type": "web_search"}
CLAUDES = {"type": "web_search_20250305", "name": "web_search"}
NAMES = ("tools.web_search", "tools.web_search_20250305", "tools.googleSearch")
ADDED = {"type": "additional_tools", "tools": [SEARCH, F]}
ANSWER = {"role": "user", "content": "Hi"}


@table_rows(
    ("body", "left"),
    [
        ({"tools": [F, SEARCH], "tool_choice": "auto"}, {"tools": [F], "tool_choice": "auto"}),
        ({"tools": [SEARCH], "tool_choice": "auto"}, {}),
        ({"tools": [CLAUDES], "tool_choice": {"type": "auto"}}, {}),
        ({"tools": [{"googleSearch": {}, "codeExecution": {}}]}, {"tools": [{"codeExecution": {}}]}),
        ({"tools": [{"googleSearch": {}}]}, {}),
        ({"input": [ADDED, ANSWER]}, {"input": [{"type": "additional_tools", "tools": [F]}, ANSWER]}),
        (
            {"tools": [F, SEARCH], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH, F]}},
            {"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [F]}},
        ),
    ],
)
def test_a_tool_that_is_only_offered_is_left_out(body: dict[str, Any], left: dict[str, Any]) -> None:
    before = repr(body)
    assert set(list_priced_fields(body, COMMON_FIELDS)) <= set(NAMES)
    assert list_priced_fields(body, COMMON_FIELDS)
    assert not must_call(body, NAMES)
    assert remove_tools(body, NAMES) == left
    assert list_priced_fields(left, COMMON_FIELDS) == []
    assert repr(body) == before


@table_rows(
    "body",
    [
        {"tools": [SEARCH], "tool_choice": "required"},
        {"tools": [CLAUDES], "tool_choice": {"type": "any"}},
        {"tools": [F, SEARCH], "tool_choice": SEARCH},
        {"tools": [F, CLAUDES], "tool_choice": {"type": "tool", "name": "web_search"}},
        {"tools": [F, SEARCH], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}},
    ],
)
def test_a_tool_that_must_be_called_is_not(body: dict[str, Any]) -> None:
    assert must_call(body, NAMES)
    assert not must_call(body | {"tool_choice": "auto"}, NAMES)
