"""The language of the console: the member's choice, else the browser's; and every page in Chinese."""

import html
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from gateway.server.console.language import COOKIE
from gateway.server.console.routes import list_pages
from gateway.server.console.static_files import find_build
from tests.support.console_names import NAMES
from tests.support.console_people import Person, make_administrator, meet
from tests.support.started_gateways import StartGateway

CHINESE = "zh-CN,zh;q=0.9,en;q=0.8"
DATA = {
    "acme", "ada", "test", "demo", "connect", "playground", "local", "sk", "req", "video", "Bearer", "first", "page",
    "Cache", "Control", "max", "age",
    "system", "chat", "completions", "loopback", "sqlite", "console", "auto", "json", "en", "zh", "Hans",
    "low", "medium", "high", "standard", "hd", "flex", "fast", "priority", "nothing-of-that-name", "partners",
    "gateway nodes forget", "pip", "install", "model-gateway", "traceparent", "Prometheus",
    "X-Forwarded-For", "Retry-After", "ulimit", "true", "IPv6", "processing", "in_progress",
    "x-gateway-user", "x-gateway-tags", "x-gateway-prefer", "x-gateway-budget", "length", "user", "metadata", "false",
    "none", "errors", "sampled", "all", "phones", "ips", "secrets", "cards", "ibans", "mails",
}  # fmt: skip
"""Words of this gateway's data: names, paths, and values that are sent as they are."""
LATIN = {
    "API", "token", "Token", "Webhook", "URL", "ID", "IP", "UTC", "JSON", "CSV", "JSONL", "HTTP", "CPU", "QR", "TOTP",
    "PNG", "JPEG", "WebP", "USD", "SDK", "Python", "curl", "English", "OpenAI", "WAL", "Anthropic", "JavaScript", "RPM",
    "ms", "min", "KB", "MB", "GB", "TB", "p50", "p95", "p99", "Enter", "Shift", "VS", "Code", "JetBrains", "SIGTERM",
    "gpt", "HTTPS", "PEM", "OTLP", "trace", "multipart", "embeddings", "moderations", "rerank", "speech", "aiohttp",
    "Go", "Schema", "Slack", "Telegram", "Discord", "Google", "Gemini", "CLI", "SHA", "PIN",
}  # fmt: skip
"""Words that stay as they are: terms, units, formats, keys of a keyboard and products."""
APPS = {
    "Admin Settings → Connections → OpenAI → Manage → Add New Connection", "OpenAI API Compatible", "OpenAI compatible",
    "Custom", "Base URL", "API Host", "Endpoint", "Model gateway", "Cursor Settings → Models", "API Keys", "Codex",
    "Cursor", "Responses API", "OpenAI Chat Model", "Embeddings OpenAI",
}  # fmt: skip
"""What other apps call their settings."""
_SKIPPED = re.compile(
    r"<(code|pre|script|style|template|svg|output|textarea|datalist|time)\b.*?</\1>|<!doctype[^>]*>|<!--.*?-->",
    re.DOTALL,
)
_INERT = re.compile(r'<(\w+)[^>]*class="[^"]*(?:inert-text|mono)[^"]*"[^>]*>.*?</\1>', re.DOTALL)
_OPTION = re.compile(r'<option value="([^"]*)"[^>]*>\s*\1\s*</option>|<option(?: selected)?>[^<]*</option>')
_PROVIDERS = re.compile(r'<select id="(?:ch|p)-provider".*?</select>', re.DOTALL)
_READ = re.compile(r'\b(?:title|placeholder|aria-label|aria-valuetext|alt|data-confirm|data-label)="([^"]*)"')
_TAG = re.compile(r"<[^>]*>")
_ENGLISH = re.compile(r"(?<!\w)[A-Za-z][A-Za-z0-9]+")
_PATHLIKE = re.compile(r"\S*[/_@*\[\]=]\S*|\S+\.\S+|\S*…\S*|req_\S+")


def find_english(page: str, known: set[str]) -> set[str]:
    """Words of a page, in text and in attributes that are read, that are neither data nor a term."""
    for pattern in (_SKIPPED, _INERT, _PROVIDERS, _OPTION):
        page = pattern.sub(" ", page)
    seen = " ".join([*(html.unescape(text) for text in _READ.findall(page)), html.unescape(_TAG.sub(" ", page))])
    seen = _PATHLIKE.sub(" ", seen)
    names = sorted((name for name in known | NAMES | DATA | APPS if name in seen), key=len, reverse=True)
    seen = re.sub("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names) or "(?!)", " ", seen)
    return set(_ENGLISH.findall(seen)) - LATIN


@pytest.fixture
async def ada(gateway_with: StartGateway) -> AsyncIterator[Person]:
    """The administrator of a gateway that has answered, refused and filmed."""
    gateway = await gateway_with({})
    ada = await make_administrator(gateway)
    async with ada.session:
        await ada.call("PATCH", "/accounts/acme", {"quota_usd": 5, "quota_period": "monthly"})
        await ada.call("POST", "/accounts/acme/credits", {"amount_usd": 1, "reference": "r1"})
        await ada.call("PUT", "/groups/partners", {"price_multiplier": 0.5})
        await ada.call("PUT", "/prices/demo-chat", {"input_usd_per_million": 1, "output_usd_per_million": 2})
        await ada.call("PUT", "/settings/routing/max_attempts", {"value": 4})
        await ada.call("POST", "/links", {"account": "acme", "role": "viewer"})
        for model in ("demo-chat", "nothing-of-that-name"):
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
            async with gateway.post(body) as response:
                assert response.status in {200, 404}
        async with gateway.post({"model": "demo-video", "prompt": "x", "seconds": "4"}, "/v1/videos") as response:
            assert response.status == 200
        yield ada


async def open_page(person: Person, path: str, **headers: str) -> str:
    url = URL(f"{person.gateway.url}/console{path}", encoded=True)
    async with person.session.get(url, headers={"Sec-Fetch-Site": "none", "Accept": "text/html", **headers}) as answer:
        return await answer.text()


async def list_addresses(person: Person) -> list[str]:
    """The address of every page, with ids that there are; and of pages in another state."""
    ids = {"accounts": "acme", "channels": "demo"}
    for name in ("keys", "requests", "videos"):
        ids[name] = str((await person.call("GET", f"/{name}"))[1]["data"][0]["id"])
    paths = [page.path for page in list_pages()]
    found = [re.sub(r"\{.*\}", quote(ids.get(path.split("/")[1] if path else "", ""), safe=""), path) for path in paths]
    more = (
        "/playground?mode=images",
        "/playground?mode=video",
        "/requests?text=none",
        "/models?search=none",
        "/nothing",
    )
    return [*found, *more, "/prices?search=gpt-4o", "/account?changed=passphrase", "/?span=24h"]


async def test_every_page_is_in_chinese_for_a_browser_that_wants_that(ada: Person) -> None:
    models = {one["id"] for one in (await ada.call("GET", "/models"))[1]["data"]}
    prices = {one["model"] for one in (await ada.call("GET", "/prices"))[1]["data"]}
    providers = {one["provider"] for one in (await ada.call("GET", "/prices"))[1]["data"] if one["provider"]}
    sections = (await ada.call("GET", "/settings"))[1]["sections"].values()
    settings = {key for section in sections for key in section}
    choices = {choice for section in sections for setting in section.values() for choice in setting["choices"]}
    english = {}
    for path in await list_addresses(ada):
        page = await open_page(ada, path, **{"Accept-Language": CHINESE})
        assert '<html lang="zh-Hans">' in page, path
        if found := find_english(page, models | prices | providers | settings | choices):
            english[path] = found
    assert not english, english


async def test_the_same_pages_in_english_have_no_chinese(ada: Person) -> None:
    for path in await list_addresses(ada):
        page = await open_page(ada, path, **{"Accept-Language": "en"})
        assert '<html lang="en">' in page, path
        assert not re.search(r"[\u4e00-\u9fff]", page.replace("简体中文", "")), path
        assert "MESSAGES" not in page
        assert f"{find_build()}/zh-Hans.js" not in page


WANTED: tuple[tuple[str | None, str], ...] = (
    (None, "en"), ("", "en"), ("en-GB,en;q=0.9", "en"), ("zh", "zh-Hans"), ("zh-CN", "zh-Hans"), ("zh-SG", "zh-Hans"),
    ("ZH-hans", "zh-Hans"), ("zh-Hans-CN;q=0.8", "zh-Hans"), ("de,zh-CN;q=0.8,en;q=0.5", "zh-Hans"),
    ("zh;q=0.3,en;q=0.7", "en"), ("zh;q=0,en", "en"), ("zh;q=0", "en"), ("zh-TW,zh-Hant;q=0.9,en;q=0.8", "en"),
    ("fr,*;q=0.1", "en"), ("zh;q=x,,;;", "en"), ("z" * 4_000, "en"),
)  # fmt: skip
CHOSEN = (
    ("en", CHINESE, "en"), ("zh-Hans", "en", "zh-Hans"), ("de", CHINESE, "zh-Hans"), ("zh-Hans", "", "zh-Hans"),
    ("<x>", "en", "en"),
)  # fmt: skip


async def test_the_browser_says_which_language_it_wants(gateway_with: StartGateway) -> None:
    stranger = meet(await gateway_with({}))
    async with stranger.session:
        for wanted, language in WANTED:
            headers = {} if wanted is None else {"Accept-Language": wanted}
            assert f'<html lang="{language}">' in await open_page(stranger, "/sign-in", **headers), wanted


async def test_the_choice_goes_before_what_the_browser_wants(gateway_with: StartGateway) -> None:
    stranger = meet(await gateway_with({}))
    async with stranger.session:
        for chosen, wanted, language in CHOSEN:
            headers = {"Accept-Language": wanted, "Cookie": f"{COOKIE}={chosen}"}
            text = await open_page(stranger, "/sign-in", **headers)
            assert f'<html lang="{language}">' in text, (chosen, wanted)
            pressed = re.findall(r'data-language="([^"]*)" data-cookie="console_language" aria-pressed="true"', text)
            assert pressed == [language]


async def test_scripts_get_their_messages_once_and_no_others(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    static = f"{gateway.url}/console/static"
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{gateway.url}/console/sign-in", headers={"Accept-Language": "zh"}) as answer:
            assert f'<script src="/console/static/{find_build()}/zh-Hans.js"></script>' in await answer.text()
        async with session.get(f"{static}/{find_build()}/zh-Hans.js") as answer:
            script = await answer.text()
            assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
            assert answer.content_type == "text/javascript"
        assert '"Copied":"已复制"' in script
        assert "The channel with the highest priority is tried first" not in script
        for name in ("en.js", "zh_Hans.js", "zh-Hans", "de.js"):
            async with session.get(f"{static}/{name}") as answer:
                assert answer.status == 404, name


async def test_an_answer_of_the_admin_api_stays_in_english(ada: Person) -> None:
    status, body = await ada.call("GET", "/keys/99999", **{"Accept-Language": CHINESE, "Cookie": f"{COOKIE}=zh-Hans"})
    assert status in {401, 404}
    assert body["error"]["message"].isascii()
    page = await open_page(ada, "/keys/99999", **{"Accept-Language": CHINESE})
    assert "99999" in page
    assert '<html lang="zh-Hans">' in page
