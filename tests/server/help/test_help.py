"""The documentation that a gateway serves at ``/help``."""

import re

import aiohttp
import pytest

from gateway.server.help.pages import HELP_PATH, parse_page, read_chapters
from tests.support.documentation import DOCS, list_pages
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
            assert page.body in text
            links |= {link: page.url for link in LINK.findall(text) if not link.startswith("https://")}
        assert len(links) > len(list_pages())
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
    assert sorted(names) == sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in list_pages())


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
