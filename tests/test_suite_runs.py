"""The mock that the libraries' own tests run against, and the comparison of two runs with the table of differences."""

from typing import Any

import aiohttp
import pytest

from scripts.suite_runs.corrections import correct_body, correct_form, correct_query
from scripts.suite_runs.differences import (
    Difference,
    Outcome,
    Runs,
    Table,
    compare,
    list_corrected,
    load_table,
    name_call,
)
from scripts.suite_runs.document import Document, Invalid
from scripts.suite_runs.examples import Examples
from scripts.suite_runs.mock import MockServer
from scripts.suite_runs.suites import SUITES
from tests.support.table_rows import table_rows

TEST = "tests/api_resources/chat/test_completions.py::TestCompletions::test_method_create_overload_1[loose]"
CALL = "chat/completions: create_overload_1"
PASSED, FAILED = Outcome("passed"), Outcome("failed", "400 - no")
JOB = {"$ref": "#/components/schemas/Job"}
DOCUMENT: dict[str, Any] = {
    "paths": {
        "/jobs": {
            "get": {
                "parameters": [{"name": "limit", "in": "query", "schema": {"type": "integer"}}],
                "responses": {"200": {"content": {"application/json": {"schema": JOB}}}},
            },
            "post": {
                "requestBody": {
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/NewJob"}},
                        "multipart/form-data": {"schema": {"$ref": "#/components/schemas/NewJob"}},
                    }
                },
                "responses": {
                    "200": {
                        "content": {
                            "application/json": {"schema": JOB},
                            "text/event-stream": {"schema": {"$ref": "#/components/schemas/Event"}},
                        }
                    }
                },
            },
        },
        "/jobs/last": {"get": {"responses": {"200": {"content": {"video/mp4": {}}}}}},
        "/jobs/{id}": {"get": {"responses": {"200": {"content": {"application/json": {"schema": {"const": "one"}}}}}}},
    },
    "components": {
        "schemas": {
            "NewJob": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "stream": {"type": "boolean"}},
                "required": ["name"],
                "additionalProperties": False,
            },
            "Job": {
                "type": "object",
                "properties": {
                    "status": {"enum": ["queued", "completed"]},
                    "error": {"anyOf": [{"type": "object"}, {"type": "null"}]},
                    "parent": {"$ref": "#/components/schemas/Job"},
                    "children": {"type": "array", "items": {"$ref": "#/components/schemas/Job"}},
                    "at": {"type": ["null", "integer"], "minimum": 7},
                },
                "required": ["status"],
            },
            "Event": {
                "oneOf": [
                    {"type": "object", "properties": {"type": {"const": "job.started"}}},
                    {"type": "object", "properties": {"type": {"const": "job.completed"}}},
                ]
            },
        }
    },
}


def _table(*calls: str, passes: tuple[int, int, int], corrected: bool = False) -> Table:
    difference = Difference("openai", "other", "a reason", calls, corrected)
    return Table({"other": "Other"}, {"openai": passes}, (difference,))


def test_an_example_is_finite_and_has_ended_well() -> None:
    made = Examples(DOCUMENT).make({"$ref": "#/components/schemas/Job"})
    assert made == {"status": "completed", "error": None, "children": [], "at": 7}


def test_a_path_without_parameters_wins() -> None:
    document = Document(DOCUMENT)
    found = [document.find("GET", path) for path in ("/jobs/last", "/jobs/a%2Fb", "/jobs/a/b")]
    assert [one and one.path for one in found] == ["/jobs/last", "/jobs/{id}", None]
    assert document.find("DELETE", "/jobs") is None


@table_rows(("body", "message"), [({"name": 1}, "name: "), ({}, "name"), ({"name": "a", "other": 1}, "other")])
def test_a_body_that_does_not_fit_is_invalid(body: Any, message: str) -> None:
    document = Document(DOCUMENT)
    operation = document.find("POST", "/jobs")
    assert operation is not None
    document.check_json(operation, {"name": "a"})
    document.check_form(operation, {"name": "a"})
    with pytest.raises(Invalid, match=message):
        document.check_json(operation, body)


@table_rows("query", [{"limit": "many"}, {"other": "1"}])
def test_a_query_that_does_not_fit_is_invalid(query: dict[str, str]) -> None:
    document = Document(DOCUMENT)
    operation = document.find("GET", "/jobs")
    assert operation is not None
    document.check_query(operation, {"limit": "1"})
    with pytest.raises(Invalid):
        document.check_query(operation, query)


@table_rows("fields", [{"name": "a", "other": "b"}, {"stream": "true"}])
def test_a_form_that_does_not_fit_is_invalid(fields: dict[str, str]) -> None:
    document = Document(DOCUMENT)
    operation = document.find("POST", "/jobs")
    assert operation is not None
    with pytest.raises(Invalid):
        document.check_form(operation, fields)


async def test_the_mock_answers_streams_and_refuses() -> None:
    async with MockServer([Document(DOCUMENT)], prefix="/v1") as mock, aiohttp.ClientSession() as session:
        async with session.post(f"{mock.url}/v1/jobs", json={"name": "a", "stream": True}) as response:
            assert response.content_type == "text/event-stream"
            assert await response.text() == 'event: job.completed\ndata: {"type":"job.completed"}\n\n'
        async with session.get(f"{mock.url}/v1/jobs/last") as response:
            assert (response.status, response.content_type) == (200, "video/mp4")
        async with session.post(f"{mock.url}/v1/jobs", json={"name": None}) as response:
            assert response.status == 400
        async with session.get(f"{mock.url}/v1/other") as response:
            assert response.status == 404
        assert len(mock.refusals) == 2


def test_corrections_are_of_what_the_gateway_refuses_only() -> None:
    body = {"prompt": "x", "max_tokens": 0, "md5": "md5", "stream_options": {}, "n": 0}
    correct_body("/v1/videos", body)
    assert body == {"prompt": "x", "max_tokens": 12, "n": 0, "model": "sora-2"}
    assert correct_query({"limit": "0", "after": "after", "order": "asc"}) == {"limit": "1", "order": "asc"}
    form = b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nx\r\n--b--\r\n'
    named = correct_form("/v1/videos", "multipart/form-data; boundary=b", form)
    assert named == b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsora-2\r\n' + form
    assert correct_form("/v1/videos", "multipart/form-data; boundary=b", named) == named
    assert correct_form("/v1/files", "multipart/form-data; boundary=b", form) == form


def test_all_tests_of_a_call_have_its_name() -> None:
    assert name_call(TEST) == CALL
    other = "tests/api_resources/test_files.py::TestAsyncFiles::test_raw_response_list[aiohttp]"
    assert name_call(other) == "files: list"


def test_listed_differences_are_accepted() -> None:
    assert compare("openai", Runs({TEST: PASSED}, {TEST: FAILED}, {}), _table(CALL, passes=(1, 0, 0))) == []


def test_a_difference_that_can_be_corrected_must_pass_then() -> None:
    table = _table(CALL, passes=(1, 0, 1), corrected=True)
    straight, through = {TEST: PASSED}, {TEST: FAILED}
    assert list_corrected("openai", straight, through, table) == [TEST]
    assert compare("openai", Runs(straight, through, {TEST: PASSED}), table) == []
    problems = compare("openai", Runs(straight, through, {TEST: FAILED}), table)
    assert [problem for problem in problems if "although its request is corrected" in problem]


@table_rows(
    ("through", "table", "message"),
    [
        (FAILED, _table(passes=(1, 0, 0)), "400 - no"),
        (PASSED, _table(CALL, passes=(1, 1, 1)), "no test of it differs"),
        (PASSED, _table("chat/completions: other", passes=(1, 1, 1)), "no test of it differs"),
        (FAILED, _table(CALL, CALL, passes=(1, 0, 0)), "listed twice"),
        (PASSED, _table(passes=(2, 1, 1)), "tests pass"),
    ],
)
def test_what_the_table_does_not_say_is_a_problem(through: Outcome, table: Table, message: str) -> None:
    (problem,) = compare("openai", Runs({TEST: PASSED}, {TEST: through}, {}), table)
    assert message in problem


def test_a_test_that_did_not_run_is_a_problem() -> None:
    (problem,) = compare("openai", Runs({TEST: PASSED}, {}, {}), _table(passes=(1, 0, 0)))
    assert "it was not run" in problem


def test_the_table_names_known_suites_and_groups() -> None:
    table = load_table()
    assert {one.suite for one in table.differences} == table.passes.keys() == {suite.package for suite in SUITES}
    assert {one.group for one in table.differences} == table.groups.keys()
    assert all(one.reason and one.calls for one in table.differences)
