"""The playground: its parts, and who may use it with which keys."""

import html
import re
from urllib.parse import quote

from gateway.server.console.playground import find_mode
from tests.support.admin_calls import expire_key
from tests.support.console_people import invite, make_administrator
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

DEMO_MODELS = {
    "chat": "demo-chat",
    "images": "demo-image",
    "video": "demo-video",
    "speech": "demo-speech",
    "transcription": "demo-transcribe",
}
HOSTILE = '"><img src=x onerror=alert(1)>{{7*7}}'


@table_rows(
    ("mode", "model", "expected"),
    [
        ("", "", "chat"),
        ("images", "", "images"),
        ("video", "gpt-5", "video"),
        ("", "demo-image", "images"),
        ("", "sora-2", "video"),
        ("", "whisper-1", "transcription"),
        ("", "tts-1", "speech"),
        ("", "gpt-realtime", "chat"),
        ("audio", "", "chat"),
        ("../../etc", "veo-3", "video"),
    ],
)
def test_the_part_is_the_one_that_is_asked_for_or_the_models(mode: str, model: str, expected: str) -> None:
    assert find_mode(mode, model) == expected


async def test_each_part_offers_its_models_and_the_accounts_keys(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    ada = await make_administrator(gateway)
    ben, eve = await invite(ada, "ben", "member", "acme"), await invite(ada, "eve", "viewer", "acme")
    async with ada.session, ben.session, eve.session:
        for mode, model in DEMO_MODELS.items():
            status, text = await ben.open(f"/playground?mode={mode}")
            assert status == 200
            assert f'<option value="{model}" selected>' in text
            assert f"/{mode}.js" in text
            assert f'href="/console/playground?mode={mode}" aria-current="page"' in text
            assert re.search(r'<option value="\d+">test \(sk-…[^<]{4}\)</option>', text)
            assert "Create a playground key" not in text
        _, text = await ben.open(f"/playground?model={quote(HOSTILE)}")
        assert HOSTILE not in text
        assert html.escape(HOSTILE, quote=True).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in text
        status, text = await eve.open("/playground")
        assert status == 403
        assert "a role that may do more" in text


async def test_the_demo_speaks_with_the_settings_that_the_page_begins_with(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    ada = await make_administrator(gateway)
    async with ada.session:
        _, page = await ada.open("/playground?mode=speech")
    chosen = re.search(r'name="response_format">\s*<option value="([^"]*)" selected', page)
    assert chosen is not None
    fields = {"model": "demo-speech", "input": "Good morning", "voice": "alloy"}
    body = fields | {name: value for name, value in {"response_format": chosen[1]}.items() if value}
    async with gateway.post(body, "/v1/audio/speech") as response:
        assert (response.status, response.content_type) == (200, "audio/wav")
        assert (await response.read()).startswith(b"RIFF")


async def test_an_account_without_a_key_that_can_be_used_is_offered_one(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"account": [{"name": "acme"}], "key": []})
    ada = await make_administrator(gateway)
    async with ada.session:
        key = {"name": "playground", "account": "acme"}
        status, made = await ada.call("POST", "/keys", key)
        assert status == 201
        await expire_key(gateway, made["id"])
        _, text = await ada.open("/playground")
        assert 'data-body=\'{"account": "acme", "name": "playground 2"}\'' in text
        assert re.search(r'id="send" disabled', text)
        assert (await ada.call("POST", "/keys", {"name": "playground 2", "account": "acme"}))[0] == 201
        _, text = await ada.open("/playground")
        assert "Create a playground key" not in text
