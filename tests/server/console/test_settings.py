"""The page of settings: each setting has a topic and a title, and is found by its words in either language."""

import re

import attrs
import pytest

from gateway.config.merge import list_sections
from gateway.config.schema import Config
from gateway.server.console.filters import format_sentence
from gateway.server.console.setting_topics import TITLES, TOPICS
from tests.support.console_people import Person, make_administrator
from tests.support.gateway import channel
from tests.support.started_gateways import StartGateway

SHOWN = re.compile(r'data-error-of="([a-z_.]+)"|<output id="s-([a-z_]+)-([a-z_]+)"')


def list_paths() -> set[str]:
    return {
        f"{section}.{field.name}"
        for section, part in list_sections(Config())
        for field in attrs.fields(type(part))
        if field.repr
    }


async def open_shown(ada: Person, query: str) -> set[str]:
    """The paths of the settings that the page shows."""
    status, text = await ada.open(f"/settings{query}")
    assert status == 200
    return {match[1] or f"{match[2]}.{match[3]}" for match in SHOWN.finditer(text)}


def test_every_setting_has_a_title_that_no_other_one_of_its_section_has() -> None:
    assert list_paths() == TITLES.keys()
    titles = [(path.partition(".")[0], title) for path, title in TITLES.items()]
    assert len(set(titles)) == len(titles)


async def test_every_setting_is_on_the_page_of_one_topic(gateway_with: StartGateway) -> None:
    ada = await make_administrator(await gateway_with({"channel": [channel("http://127.0.0.1:9/v1")]}))
    async with ada.session:
        await check_topics(ada)


async def check_topics(ada: Person) -> None:
    shown = [await open_shown(ada, f"?topic={topic.name}") for topic in TOPICS]
    assert sorted(path for paths in shown for path in paths) == sorted(list_paths())
    assert await open_shown(ada, "") == await open_shown(ada, "?topic=nothing") == shown[0]
    for query, path in (
        ("max_attempts", "routing.max_attempts"),
        ("attempts%20REQUEST", "routing.max_attempts"),
        ("before%20the%20first%20byte", "routing.max_attempts"),
        ("cors", "server.cors_origins"),
    ):
        assert path in await open_shown(ada, f"?q={query}")
    assert await open_shown(ada, "?q=%3Cscript%3E") == set()
    ada.session.headers["Accept-Language"] = "zh-CN"
    assert "routing.max_attempts" in await open_shown(ada, "?q=%E5%B0%9D%E8%AF%95%E6%AC%A1%E6%95%B0")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("port to listen on; 0 picks a free one", "Port to listen on; 0 picks a free one."),
        ('networks: ["10.0.0.0/8"]', 'Networks: ["10.0.0.0/8"].'),
        ("Ends itself.", "Ends itself."),
        ("监听地址", "监听地址。"),
        ("", ""),
    ],
)
def test_a_description_is_shown_as_a_sentence(text: str, sentence: str) -> None:
    assert format_sentence(text) == sentence
