"""A gateway behind a reverse proxy that serves it under a path, and strips that path from requests."""

import re

import pytest

from gateway.server.path_prefix import find_path_prefix
from tests.support.console_people import make_administrator
from tests.support.started_gateways import StartGateway

_LINK = re.compile(r'\s(?:href|src|action|data-then)="(/[^"]*)"')


@pytest.mark.unit
@pytest.mark.parametrize(
    ("base_url", "prefix"),
    [
        ("", ""),
        ("https://ai.example.com", ""),
        ("https://ai.example.com/", ""),
        ("https://ai.example.com/v1", ""),
        ("https://example.com/ai", "/ai"),
        ("https://example.com/ai/", "/ai"),
        ("https://example.com/team/ai/v1", "/team/ai"),
        ('https://example.com/a"><script>\\1', "/a%22%3E%3Cscript%3E%5C1"),
    ],
)
def test_the_prefix_is_the_path_of_the_public_url(base_url: str, prefix: str) -> None:
    assert find_path_prefix(base_url) == prefix


async def test_every_link_of_a_page_and_every_redirect_begins_with_the_path(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"server": {"base_url": "https://example.com/ai"}})
    ada = await make_administrator(gateway)
    async with ada.session:
        for path in ("/console/", "/console/keys", "/console/settings", "/console/playground", "/docs", "/help"):
            async with ada.session.get(f"{gateway.url}{path}") as response:
                page = await response.text()
            assert response.status == 200, path
            links = _LINK.findall(page)
            assert len(links) > 5, path
            assert {link.split("/")[1] for link in links} == {"ai"}, path
            assert not any(link.startswith("/ai/ai/") for link in links), path
            assert page.count('data-prefix="/ai"') == 1, path
    for path, accepted, place in (
        ("/", "text/html", "/ai/console/"),
        ("/console/keys", "text/html", "/ai/console/sign-in?next=/console/keys"),
    ):
        ask = gateway.client.get(f"{gateway.url}{path}", headers={"Accept": accepted}, allow_redirects=False)
        async with ask as response:
            assert (response.status, response.headers["Location"]) == (303, place)


async def test_without_a_path_pages_are_as_they_are(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"server": {"base_url": "https://ai.example.com"}})
    async with gateway.client.get(f"{gateway.url}/console/sign-in") as response:
        assert "data-prefix" not in await response.text()
