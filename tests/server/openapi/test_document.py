"""The OpenAPI document: it has every route of the application and no other, and it is a valid one."""

import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from gateway import __version__
from gateway.domain.account_spec import CreditSpec
from gateway.error_status import STATUS
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.operation import AdminOperation
from gateway.server.admin.routes import list_admin_operations
from gateway.server.openapi.admin import build_admin
from gateway.server.openapi.document import build_document, get_document
from gateway.server.openapi.error_responses import map_codes
from gateway.server.openapi.schema import COUNT, FLAG, TEXT, array, listing, record
from gateway.server.unserved_paths import refuse_unserved
from tests.support.started_gateways import StartGateway

Json = dict[str, Any]
METHODS = {"get", "put", "post", "delete", "patch"}
REQUIRED = {"operationId", "tags", "summary", "responses", "security", "x-rights"}
OPTIONAL = {"description", "parameters", "requestBody"}
PAGES = ("/console", "/help", "/favicon.ico")
REFUSED = ("POST", "/v1/images/variations")
"""Of the paths of the convention that are not served, the one that the specification names."""
NAMES = re.compile(r"\{(\w+)\}")


@pytest.fixture(scope="module")
def document() -> Json:
    return get_document()


def list_operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def list_dicts(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from list_dicts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from list_dicts(inner)


def list_schemas(document: Json) -> Iterator[Json]:
    yield from document["components"]["schemas"].values()
    for each in list_dicts([document["paths"], document["components"]]):
        if isinstance(each.get("schema"), dict):
            yield each["schema"]
        if "contentSchema" in each:
            yield each["contentSchema"]


def follow(document: Json, value: Json) -> Json:
    """What a reference leads to; fails where there is nothing."""
    if "$ref" not in value:
        return value
    assert value["$ref"].startswith("#/components/"), value
    found: Any = document
    for part in value["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return dict(found)


async def test_every_route_is_described_and_nothing_else_is(gateway_with: StartGateway, document: Json) -> None:
    gateway = await gateway_with({})
    routes = {
        (route.method, re.sub(r"\{(\w+):.*?\}", r"{\1}", route.resource.canonical))
        for route in gateway.app.router.routes()
        if route.resource is not None and not route.resource.canonical.startswith(PAGES)
        if route.method == "*" or route.handler is not refuse_unserved
    }
    reported = {(method.upper(), path) for method, path, _ in list_operations(document)}
    assert reported - {REFUSED} == {(method, path) for method, path in routes if method not in {"*", "HEAD", "OPTIONS"}}
    assert all(path.startswith(("/v1/", "/v1beta/")) for method, path in routes if method == "*")
    async with gateway.client.request(REFUSED[0], gateway.url + REFUSED[1]) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (501, "api_not_implemented")


async def test_the_document_is_given_to_anyone_once_and_known_again(gateway_with: StartGateway, document: Json) -> None:
    gateway = await gateway_with({})
    url = f"{gateway.url}/openapi.json"
    async with gateway.client.get(url, headers={"Authorization": "Bearer nobody"}) as response:
        assert (response.status, response.content_type) == (200, "application/json")
        assert orjson.loads(await response.read()) == document
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        etag = response.headers["ETag"]
    async with gateway.client.get(url, headers={"If-None-Match": etag}) as response:
        assert (response.status, await response.read(), response.headers["ETag"]) == (304, b"", etag)
    async with gateway.client.get(url, headers={"If-None-Match": '"another"'}) as response:
        assert response.status == 200
    async with gateway.client.post(url, json={}) as response:
        assert response.status == 405


def test_its_head_says_what_it_is(document: Json) -> None:
    assert re.fullmatch(r"3\.1\.\d", document["openapi"])
    assert document["info"]["version"] == __version__
    assert document["info"]["title"]
    assert document["servers"] == [{"url": "/", "description": document["servers"][0]["description"]}]
    assert {*document} == {"openapi", "info", "servers", "tags", "paths", "components"}
    assert document == build_document(list_admin_operations()), "it is made of the doors alone"


def test_every_operation_has_what_openapi_asks_of_one(document: Json) -> None:
    ids = [operation["operationId"] for _, _, operation in list_operations(document)]
    assert len(ids) == len({*ids})
    schemes = document["components"]["securitySchemes"]
    for method, path, operation in list_operations(document):
        where = f"{method} {path}"
        assert method in METHODS, where
        assert {*operation} >= REQUIRED, where
        assert {*operation} <= REQUIRED | OPTIONAL, where
        assert path.startswith("/"), where
        assert re.fullmatch(r"[a-z][a-z0-9_]+", operation["operationId"]), where
        assert operation["summary"], f"{where} needs words: the first line of its handler's docstring"
        assert not operation["summary"].endswith("."), where
        assert all(name in schemes for either in operation["security"] for name in either), where
        assert (operation["x-rights"] == "anyone") == (operation["security"] == []), where


def test_parameters_are_those_of_the_path_and_each_is_named_once(document: Json) -> None:
    for method, path, operation in list_operations(document):
        parameters = [follow(document, each) for each in operation.get("parameters", ())]
        places = [(each["in"], each["name"]) for each in parameters]
        assert len(places) == len({*places}), (method, path)
        assert {name for place, name in places if place == "path"} == {*NAMES.findall(path)}, (method, path)
        for each in parameters:
            assert {"name", "in", "schema", "description"} <= {*each} <= {
                "name", "in", "schema", "description", "required",
            }  # fmt: skip
            assert each["in"] in {"path", "query", "header"}
            assert each["in"] != "path" or each["required"] is True


def test_every_answer_has_words_and_every_operation_an_answer_that_is_no_error(document: Json) -> None:
    for method, path, operation in list_operations(document):
        statuses = {int(status) for status in operation["responses"]}
        assert statuses & {101, 200, 201, 204} or (method.upper(), path) == REFUSED
        for status, reported in operation["responses"].items():
            answer = follow(document, reported)
            assert answer["description"], (path, status)
            assert {*answer} <= {"description", "headers", "content", "links"}
            for content in answer.get("content", {}).values():
                assert {*content} == {"schema"}
        for content in operation.get("requestBody", {"content": {}})["content"].values():
            assert {*content} <= {"schema", "example"}


def find_place(document: Json, schema: Json, pointer: str) -> Json | None:
    """What stands in a schema where a JSON pointer leads; None if nothing does."""
    for part in pointer.split("/")[1:]:
        shapes = [follow(document, each) for each in (schema, *follow(document, schema).get("anyOf", ()))]
        steps = (each.get("items") if part.isdigit() else each.get("properties", {}).get(part) for each in shapes)
        found = next(filter(None, steps), None)
        if found is None:
            return None
        schema = found
    return schema


def test_links_lead_from_an_answer_to_what_can_be_asked_next(document: Json) -> None:
    operations = {each["operationId"]: each for _, _, each in list_operations(document)}
    led: set[tuple[str, str]] = set()
    for name, operation in operations.items():
        for reported in operation["responses"].values():
            for link in follow(document, reported).get("links", {}).values():
                assert {*link} == {"operationId", "parameters"}
                parameters = [follow(document, each) for each in operations[link["operationId"]]["parameters"]]
                ((parameter, expression),) = link["parameters"].items()
                assert parameter in {each["name"] for each in parameters}, link
                schema = reported["content"]["application/json"]["schema"]
                assert expression.startswith("$response.body#/")
                assert find_place(document, schema, expression.removeprefix("$response.body#")), link
                led.add((name, link["operationId"]))
    videos = {"get_video", "follow_video", "get_video_content", "remix_video", "delete_video"}
    for begun in ("create_video", "create_video_generation", "remix_video", "get_video"):
        assert {to for name, to in led if name == begun} == videos
    assert {("list_videos", "list_videos"), ("list_videos", "get_video"), ("list_models", "get_model")} <= led


def test_every_reference_leads_somewhere_and_nothing_is_there_for_nobody(document: Json) -> None:
    used = {each["$ref"] for each in list_dicts(document) if "$ref" in each}
    for pointer in used:
        follow(document, {"$ref": pointer})
    there = {
        f"#/components/{place}/{name}"
        for place, things in document["components"].items()
        for name in things
        if place != "securitySchemes"
    }
    assert there == used


def test_every_tag_is_declared_used_and_has_words(document: Json) -> None:
    declared = [tag["name"] for tag in document["tags"]]
    used = {tag for _, _, operation in list_operations(document) for tag in operation["tags"]}
    assert sorted(declared) == sorted(used)
    assert [tag["name"] for tag in document["tags"] if not tag.get("description")] == []


def test_every_schema_is_one(document: Json) -> None:
    schemas = list(list_schemas(document))
    assert len(schemas) > 100
    for schema in schemas:
        Draft202012Validator.check_schema(schema)


def test_every_example_is_of_its_schema(document: Json) -> None:
    found = 0
    for _, path, operation in list_operations(document):
        for media_type, content in operation.get("requestBody", {"content": {}})["content"].items():
            if "example" in content:
                schema = {**content["schema"], "components": document["components"]}
                errors = [error.message for error in Draft202012Validator(schema).iter_errors(content["example"])]
                assert not errors, (path, media_type)
                found += 1
    assert found > 15


def test_every_code_of_a_fault_is_told_with_its_status_and_a_meaning(document: Json) -> None:
    codes = map_codes()
    assert {code: status for status, reported in codes.items() for code in reported if STATUS[code] == status} == STATUS
    assert [code for reported in codes.values() for code, meaning in reported.items() if not meaning] == []
    written = document["components"]["responses"]["Conflict"]["description"]
    assert "- `idempotency_conflict`: A request with the same `Idempotency-Key` is in progress" in written


def test_in_anthropics_language_errors_have_anthropics_form(document: Json) -> None:
    for method, path, operation in list_operations(document):
        refs = [reported["$ref"] for reported in operation["responses"].values() if "$ref" in reported]
        theirs = path.startswith("/v1/messages")
        assert all(("/Anthropic" in ref) == theirs for ref in refs), (method, path)


# ---- doors


THING = record(id=COUNT, name=TEXT, on=FLAG, words=array(TEXT))


@admin_operation(query=(Query("limit", "How many.", COUNT),), answer=listing(THING))
async def get_thing(_request: AdminRequest) -> dict[str, str]:
    """One ``thing``.

    More of it.
    """
    return {}


@admin_operation(takes=CreditSpec, partly=True, answer=THING, status=202)
async def credit_thing(_request: AdminRequest) -> dict[str, str]:
    """Add to it."""
    return {}


DOORS = (
    AdminOperation("GET", "/things", lambda: get_thing, "viewer"),
    AdminOperation("PATCH", r"/things/{name:[a-z]{1,3}}", lambda: credit_thing),
)


def test_a_door_is_told_as_it_is() -> None:
    admin = build_admin(DOORS, {"Thing"})
    listed, changed = admin.entries
    assert (listed.name, listed.summary, listed.about) == ("admin_get_thing", "One `thing`", "More of it.")
    assert listed.rights == "viewer"
    assert listed.parameters == (
        {"name": "limit", "in": "query", "description": "How many.", "schema": {"type": "integer", "minimum": 0}},
    )
    assert (changed.path, changed.parameters[0]["name"]) == ("/admin/v1/things/{name}", "name")
    assert changed.takes == {"application/json": {"$ref": "#/components/schemas/CreditChange"}}
    assert (changed.answer.status, changed.tag) == (202, "Admin: things")
    assert {400, 401, 403, 404, 409} <= {*changed.faults}


@admin_operation()
async def get_silent(_request: AdminRequest) -> dict[str, str]:
    return {}


def test_a_door_that_says_nothing_is_told_all_the_same() -> None:
    """Under ``python -OO`` they all do."""
    (entry,) = build_admin((AdminOperation("GET", "/silent", lambda: get_silent),)).entries
    assert (entry.summary, entry.about) == ("GET /admin/v1/silent", "")


def test_what_is_answered_twice_has_a_name_and_is_told_once() -> None:
    admin = build_admin(DOORS, {"Thing"})
    assert {*admin.schemas} == {"CreditChange", "ThingRecord"}
    assert list(admin.schemas["ThingRecord"]["properties"]) == ["id", "name", "on", "words"]
    for entry in admin.entries:
        assert "ThingRecord" in str(entry.answer.contents)
        assert "words" not in str(entry.answer.contents)


def test_two_operations_of_one_name_are_refused() -> None:
    twice = (*DOORS, AdminOperation("GET", "/other", lambda: get_thing))
    with pytest.raises(ValueError, match="'admin_get_thing' exists twice"):
        build_document(twice)
