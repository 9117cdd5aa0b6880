"""The documentation that a gateway serves at ``/help``."""

import re

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.help.pages import DOCUMENTED_ADDRESS, HELP_PATH, list_pages, parse_page, read_chapters
from gateway.server.help.search import MAX_MATCHES, cut_excerpt, find_sections
from tests.support.documentation import DOCS
from tests.support.documentation import list_pages as list_files
from tests.support.gateway import channel
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

NOWHERE = {"channel": [channel("http://127.0.0.1:9/v1")]}
LINK = re.compile(r'(?:href|src)="([^"#]+)')


async def test_every_page_is_served_to_anyone_and_every_link_of_it_leads_somewhere(standing_with: StartGateway) -> None:
    gateway = await standing_with(NOWHERE)
    links: dict[str, str] = {}
    async with aiohttp.ClientSession(gateway.url) as stranger:
        for page in (page for chapter in read_chapters() for page in chapter.pages):
            async with stranger.get(page.url) as response:
                assert response.status == 200, page.url
                assert response.content_type == "text/html"
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                text = await response.text()
            assert f"<title>{page.title} " in text
            assert page.body.replace(DOCUMENTED_ADDRESS, gateway.url) in text
            links |= {link: page.url for link in LINK.findall(text) if not link.startswith("https://")}
        assert len(links) > len(list_files())
        for link, page_url in links.items():
            async with stranger.get(link, allow_redirects=False) as response:
                assert response.status in {200, 303, 302}, (page_url, link)


@pytest.mark.parametrize("path", [f"{HELP_PATH}/", f"{HELP_PATH}/index", f"{HELP_PATH}/clients/"])
async def test_a_slash_at_the_end_does_not_matter(standing_with: StartGateway, path: str) -> None:
    gateway = await standing_with(NOWHERE)
    async with gateway.client.get(gateway.url + path) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    "path", [f"{HELP_PATH}/nothing", f"{HELP_PATH}/../docs/index.md", f"{HELP_PATH}/%2e%2e/pyproject", "/helper"]
)
async def test_another_page_is_not_found(standing_with: StartGateway, path: str) -> None:
    gateway = await standing_with(NOWHERE)
    async with gateway.client.get(gateway.url + path) as response:
        assert response.status == 404


def test_the_menu_has_every_page() -> None:
    names = [page.name for chapter in read_chapters() for page in chapter.pages]
    assert sorted(names) == sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in list_files())


def test_html_in_a_page_is_text() -> None:
    page = parse_page("x", "# A <b>\n\n<script>alert(1)</script>\n\n[x](javascript:alert(1)) <i>y</i>")
    assert "<script" not in page.body
    assert "<i>" not in page.body
    assert 'href="javascript' not in page.body
    assert "&lt;script&gt;" in page.body


@table_rows(
    ("link", "url"),
    [
        ("errors.md", "/help/reference/errors"),
        ("../index.md#start-it", "/help#start-it"),
        ("../operating/tls.md", "/help/operating/tls"),
        ("#server", "#server"),
        ("https://example.com/a.md", "https://example.com/a.md"),
    ],
)
def test_a_link_between_pages_becomes_an_address(link: str, url: str) -> None:
    assert f'href="{url}"' in parse_page("reference/settings", f"[x]({link})").body


def test_headings_have_ids_of_their_own() -> None:
    body = parse_page("x", "# A\n\n## `[server]`\n\n## POST /v1/x_y\n\n## A\n\n## …").body
    assert re.findall(r'<h\d id="([^"]+)"', body) == ["a", "server", "post-v1x_y", "a_1", "_1"]


async def test_examples_have_the_address_by_which_the_reader_came(standing_with: StartGateway) -> None:
    gateway = await standing_with({**NOWHERE, "server": {"trusted_proxies": ["127.0.0.1"]}})
    headers = {"Host": "ai.example.com", "X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"}
    async with gateway.client.get(f"{gateway.url}{HELP_PATH}/clients", headers=headers) as response:
        text = await response.text()
    assert "https://ai.example.com/v1/chat/completions" in text
    assert DOCUMENTED_ADDRESS not in text
    async with gateway.client.get(f"{gateway.url}{HELP_PATH}/clients", headers={"Host": '"><script>x'}) as response:
        assert b"<script>x" not in await response.read()


@pytest.mark.parametrize(
    ("query", "url"),
    [
        ("claude code", "/help/clients#claude-code"),
        ("rotate master key", "/help/operating/"),
        ("bodies keep_days", "/help/reference/settings#bodies"),
        ("RESUMABLE", "/help/resume"),
    ],
)
def test_a_search_finds_the_section(query: str, url: str) -> None:
    assert any(match.url.startswith(url) for match in find_sections(list_pages(), query)[:5])


async def test_results_are_a_page_without_a_script(standing_with: StartGateway) -> None:
    gateway = await standing_with(NOWHERE)
    results: dict[str, str] = {}
    for query in ("claude code", "zzznothing", '<script>alert("x")</script>', ""):
        async with gateway.client.get(gateway.url + HELP_PATH, params={"q": query}) as response:
            assert response.status == 200
            results[query] = await response.text()
    assert 'href="/help/clients#claude-code"' in results["claude code"]
    assert "<mark>" in results["claude code"]
    for query in list(results)[1:]:
        assert "Try fewer or other words." in results[query]
        assert "<script>alert" not in results[query]


WORDS = st.lists(st.sampled_from(["a", "key", "kéy", "İ", "x-gateway", "ß", "s"]), min_size=1, max_size=8)


@given(st.text(alphabet="akeyéİßx- gwst", max_size=600), WORDS)
def test_an_excerpt_is_a_piece_of_the_text_with_its_matches_marked(text: str, words: list[str]) -> None:
    parts = cut_excerpt(text, [word.lower() for word in words])
    excerpt = "".join(part.text for part in parts)
    assert excerpt.removeprefix("… ").removesuffix(" …") in text
    for part in parts:
        if part.is_match:
            assert part.text.lower() in {word.lower() for word in words}


@given(st.text(max_size=300))
def test_any_query_finds_a_bounded_number_of_sections_with_all_its_words(query: str) -> None:
    matches = find_sections(list_pages()[:3], query)
    assert len(matches) <= MAX_MATCHES
    for match in matches:
        everything = f"{match.page.title} {match.section.title} {match.section.text}".lower()
        assert all(word in everything for word in query[:100].lower().split()[:8])
