"""The page of settings: one topic, or what a search finds in all of them."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from aiohttp import web

from gateway.frozen import frozen
from gateway.server.admin.settings import SettingAnswer
from gateway.server.console.language import LANGUAGE, gettext
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.setting_topics import TITLES, TOPICS, Topic

_MAX_SEARCH_CHARS = 100


@frozen
class ShownSetting:
    """A setting of the page. ``path`` is like ``routing.max_attempts``; ``title`` is not translated."""

    path: str
    title: str
    answer: SettingAnswer


@frozen
class ShownSection:
    """A section of the page with those of its settings that are shown."""

    name: str
    title: str
    settings: tuple[ShownSetting, ...]


async def load_settings(request: web.Request) -> Data:
    """Load the alerts, and the settings that match ``?q=``, or else those of ``?topic=`` or of the first topic."""
    answer, alerts = await asyncio.gather(ask_admin_api(request, "/settings"), ask_admin_api(request, "/alerts"))
    search = request.query.get("q", "").strip()[:_MAX_SEARCH_CHARS]
    topic = next((topic for topic in TOPICS if topic.name == request.query.get("topic")), TOPICS[0])
    language = request[LANGUAGE]
    shown_sections = (
        _find_sections(answer.sections, search, language) if search else _list_sections(answer.sections, topic)
    )
    return {
        "topics": TOPICS,
        "topic": None if search else topic,
        "search": search,
        "shown": list(shown_sections),
        "targets": alerts.targets,
        "recent": alerts.recent,
    }


def _list_sections(sections: Mapping[str, Mapping[str, Any]], topic: Topic) -> Iterator[ShownSection]:
    for name, title in topic.sections.items():
        paths = ((f"{name}.{key}", answer) for key, answer in sections.get(name, {}).items())
        yield ShownSection(name, title, tuple(ShownSetting(path, TITLES[path], answer) for path, answer in paths))


def _find_sections(sections: Mapping[str, Mapping[str, Any]], search: str, language: str) -> Iterator[ShownSection]:
    """Yield the sections that have settings with every word of ``search``, each with these settings.

    A word may be in the path, the description or the title of a setting, or in the title of its section, in English or
    in ``language``.
    """
    words = search.lower().split()
    for topic in TOPICS:
        for section in _list_sections(sections, topic):
            matching_settings = tuple(
                setting for setting in section.settings if _has_words(setting, section.title, words, language)
            )
            if matching_settings:
                yield ShownSection(section.name, section.title, matching_settings)


def _has_words(setting: ShownSetting, section_title: str, words: list[str], language: str) -> bool:
    texts = (section_title, setting.title, setting.answer.about)
    searched_text = " ".join([setting.path, *texts, *(gettext(language, text) for text in texts)]).lower()
    return all(word in searched_text for word in words)
