"""``/docs``: the whole of the document on one page, which runs nothing that is not ours, and keeps no secret."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from gateway.server.console.headers import HEADERS
from gateway.server.openapi.docs_page import build_curl, build_page, build_prose
from gateway.server.openapi.document import get_document
from gateway.server.openapi.schema_table import SchemaRow, list_rows, name_kind
from tests.support.gateway import KEY
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

EXAMPLE = "https://gateway.example"
EMPTY = {"meta", "link", "input", "img", "br", "hr"}


class Seen(HTMLParser):
    """What a page is made of. Fails on what is not closed in its place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.odd: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        reported = {name: value or "" for name, value in attrs}
        self.odd += [f"{tag} {name}" for name in reported if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in reported):
            self.odd.append(tag)
        if "id" in reported:
            self.ids.append(reported["id"])
        if tag == "a":
            self.links.append(reported["href"])
        if tag in {"script", "link", "img"}:
            self.loaded.append(reported.get("src") or reported["href"])
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def source() -> str:
    return build_page(EXAMPLE).decode()


@pytest.fixture(scope="module")
def page(source: str) -> Seen:
    """The page is parsed once: its megabyte takes 0.7 s."""
    return Seen(source)


def find_address(text: str, source: str) -> str:
    """Return what stands in ``text`` for the address of ``source``. Fails if anything else differs."""
    start = source.index(EXAMPLE)
    rest = source[start + len(EXAMPLE) :][:20]
    address = text[start : text.index(rest, start)]
    assert text == source.replace(EXAMPLE, address)
    return address


def test_every_operation_of_the_document_is_on_the_page(page: Seen) -> None:
    for path, methods in get_document()["paths"].items():
        for operation in methods.values():
            assert operation["operationId"] in page.ids
            assert path in page.text
            assert operation["summary"].replace("`", "") in page.text


def test_every_link_on_the_page_leads_somewhere(page: Seen) -> None:
    assert len(page.ids) == len({*page.ids})
    inside = {link.removeprefix("#") for link in page.links if link.startswith("#")}
    assert inside <= {*page.ids}
    assert {link for link in page.links if not link.startswith("#")} == {"/openapi.json", "/help", "/console/"}


def test_nothing_on_the_page_runs_or_is_fetched_that_is_not_ours(page: Seen) -> None:
    assert page.odd == []
    assert all(place.startswith("/console/static/") for place in page.loaded)


async def test_the_page_is_open_to_anyone_with_the_consoles_headers_and_its_files(
    standing_with: StartGateway, page: Seen, source: str
) -> None:
    gateway = await standing_with({})
    async with gateway.client.get(f"{gateway.url}/docs", headers={"Authorization": ""}) as response:
        text = await response.text()
        assert (response.status, response.content_type) == (200, "text/html")
        assert {name: response.headers[name] for name in HEADERS} == dict(HEADERS)
    assert find_address(text, source) == gateway.url
    assert f"{gateway.url}/v1/chat/completions" in text
    assert not [secret for secret in (gateway.admin_token, KEY) if secret in text]
    for place in page.loaded:
        async with gateway.client.get(gateway.url + place) as response:
            assert response.status == 200, place


@pytest.mark.parametrize("host", ['"><script>alert(1)</script>', "x' onclick='y", "odd host"])
async def test_what_a_caller_calls_the_gateway_is_not_written_into_the_page_unread(
    standing_with: StartGateway, source: str, host: str
) -> None:
    gateway = await standing_with({})
    async with gateway.client.get(f"{gateway.url}/docs", headers={"Host": host}) as response:
        text = await response.text()
    assert response.status in {200, 400}
    assert host not in text
    assert response.status == 400 or re.fullmatch(r"http://[0-9.:]+", find_address(text, source))


async def test_the_address_is_the_operators_where_there_is_one(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"server": {"base_url": "https://ai.example/"}})
    async with gateway.client.get(f"{gateway.url}/docs") as response:
        text = await response.text()
    assert "https://ai.example/v1/models" in text
    assert gateway.url not in text


def test_words_are_escaped_and_code_is_marked() -> None:
    assert build_prose("a `<b>` & c\n\nmore") == "<p>a <code>&lt;b&gt;</code> &amp; c</p><p>more</p>"
    assert build_prose("") == ""
    assert build_prose("an odd ` mark") == "<p>an odd ` mark</p>"


def test_an_example_can_be_pasted_into_a_shell() -> None:
    content = {"application/json": {"example": {"name": "it's"}}}
    reported = {"x-rights": "administrator", "requestBody": {"content": content}}
    assert build_curl("POST", "/things/{name}", reported) == (
        "curl -X POST https://gateway.invalid/things/NAME \\\n"
        '  -H "Authorization: Bearer $ADMIN_TOKEN" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        "  -d '{\n  \"name\": \"it'\\''s\"\n}'"
    )
    form = {"multipart/form-data": {"example": {"image": "@a.png"}}}
    reported = {"x-rights": "key", "requestBody": {"content": form}}
    assert build_curl("POST", "/x", reported).endswith(
        "-H \"Authorization: Bearer $GATEWAY_KEY\" \\\n  -F 'image=@a.png'"
    )
    assert build_curl("GET", "/x", {"x-rights": "anyone"}) == "curl https://gateway.invalid/x"


DOCUMENT: dict[str, Any] = {
    "components": {
        "schemas": {
            "Thing": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
            "Ring": {"type": "object", "properties": {"ring": {"$ref": "#/components/schemas/Ring"}}},
        }
    }
}


@table_rows(
    ("schema", "kind"),
    [
        ({}, "anything"),
        ({"type": "string", "maxLength": 9}, "text, at most 9 characters"),
        ({"type": ["integer", "null"], "minimum": 1, "maximum": 2**31 - 1}, "whole number or null, at least 1"),
        ({"type": "number", "minimum": 0, "maximum": 2}, "number, 0 to 2"),
        ({"type": "number", "exclusiveMinimum": 0}, "number, above 0"),
        ({"type": ["string", "null"], "enum": ["a", None]}, "a | null"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 3}, "list of texts, at most 3"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Thing"}}, "list of objects"),
        ({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}, "list of a | b"),
        ({"type": "array", "items": {}}, "list"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "table"),
        ({"type": "string", "format": "binary"}, "file"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text or null"),
    ],
)
def test_what_a_value_is_is_said_in_words(schema: dict[str, Any], kind: str) -> None:
    assert name_kind(schema, DOCUMENT) == kind


def test_fields_are_found_behind_lists_references_and_choices() -> None:
    thing = {"$ref": "#/components/schemas/Thing"}
    rows = (SchemaRow("id", "text", True, "", ""),)
    for schema in (thing, {"type": "array", "items": thing}, {"anyOf": [{"type": "null"}, thing]}):
        assert list_rows(schema, DOCUMENT) == rows
    assert list_rows({"type": "string"}, DOCUMENT) == ()


def test_a_thing_that_holds_itself_comes_to_an_end() -> None:
    rows, depth = list_rows({"$ref": "#/components/schemas/Ring"}, DOCUMENT), 0
    while rows:
        rows, depth = rows[0].rows, depth + 1
    assert 1 < depth < 10


def test_no_word_of_a_template_is_left_on_the_page(page: Seen) -> None:
    assert not re.search(r"\{\{|\{%|gateway\.invalid", page.text)
