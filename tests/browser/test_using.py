"""What a member does with the console: keys, requests, models, and a playground that calls them."""

import asyncio
import base64
import csv
import io
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, Route, expect

from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway
from tests.browser.seed import open_used_gateway
from tests.browser.user import Enter, Visitor
from tests.support.gateway import CHAT, KEY
from tests.support.openai_images import CustomImages

pytestmark = BROWSER

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PROGRAMS: Mapping[str, list[str]] = {
    "curl": ["sh"],
    "python": [sys.executable, "-"],
    "javascript": ["node", "--input-type=module", "-"],
}
"""The command that reads a program in each language, and runs it."""
TABS: Mapping[str, str] = {"python": "Python", "javascript": "JavaScript", "go": "Go"}
PLAYS = """
async (film) => {
  film.muted = true;
  await film.play();
  await new Promise((resolve) => film.addEventListener("timeupdate", () => film.currentTime > 0.2 && resolve()));
  return [film.readyState, film.videoWidth, film.currentTime];
}
"""
LASTS = """
async (audio) => {
  if (!audio.duration) await new Promise((resolve) => audio.addEventListener("loadedmetadata", resolve));
  return audio.duration;
}
"""
COMPARE = """
() => {
  const [now, before] = [...document.querySelectorAll("#pictures img")].map((picture) => {
    const ink = new OffscreenCanvas(256, 256).getContext("2d");
    ink.drawImage(picture, 0, 0);
    return new Uint32Array(ink.getImageData(0, 0, 256, 256).data.buffer);
  });
  const halves = [0, 0];
  now.forEach((pixel, at) => { if (pixel !== before[at]) halves[at >= 256 * 128 ? 1 : 0] += 1; });
  return halves;
}
"""
"""Pixels that two pictures differ in: of the upper half, and of the lower."""
COUNT = """
async (mask) => {
  const bytes = Uint8Array.from(atob(mask), (one) => one.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes], {type: "image/png"}));
  const ink = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
  ink.drawImage(picture, 0, 0);
  const pixels = [...new Uint32Array(ink.getImageData(0, 0, picture.width, picture.height).data.buffer)];
  const clear = pixels.filter((pixel) => pixel >>> 24 < 255).length;
  return [clear, pixels.length - clear];
}
"""
"""Pixels of a mask that may be painted anew, if in part, and those that may not."""
AS_DEMO = {"models": ["demo-image"], "model_map": {"demo-image": CustomImages.model}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    async with open_used_gateway(guests, tmp_path_factory.mktemp("using"), template_path) as opened:
        yield opened


async def read_secret(visitor: Visitor) -> str:
    """What the dialog shows, this once; then it is closed."""
    secret = visitor.page.locator("#secret-text")
    await expect(secret).to_contain_text("sk-")
    text = await secret.inner_text()
    async with visitor.page.expect_navigation():
        await visitor.press("Done")
    assert text not in await visitor.page.content()
    return text


async def test_a_key_is_made_changed_turned_off_and_on_renewed_and_deleted(site: VisitedGateway, enter: Enter) -> None:
    """Each of it in force at once."""
    ben = await enter("ben")
    page = ben.page

    async def tries(secret: str, model: str = "m") -> int:
        return (await site.call(CHAT, {**HELLO, "model": model}, secret)).status

    await ben.go("/keys")
    await ben.press("New key")
    form = page.locator("#new-key-form")
    await ben.write("Name", "blog", within=form)
    await ben.write("Spending limit (USD) optional", "3", within=form)
    await ben.choose("Resets", "Monthly", within=form)
    await ben.write("Models optional", "m\nbroken", within=form)
    await ben.write("IP allowlist optional", "not-an-address", within=form)
    ben.watch.refusals = {400}
    await ben.press("Create key", within=form)
    await expect(page.get_by_role("alert")).to_contain_text("addresses or networks")
    await expect(form.get_by_label("IP allowlist optional")).to_be_focused()
    await ben.write("IP allowlist optional", "127.0.0.0/8, 10.0.0.0/8", within=form)
    await form.get_by_label("Expires optional").fill("2031-05-06T14:30")
    await ben.unfold("Rate limits and webhook")
    await ben.write("Requests per minute optional", "60", within=form)
    await ben.press("Create key", within=form)
    first = await read_secret(ben)
    assert await tries(first) == 200
    assert await tries(first, "demo-chat") == 403

    await ben.press("blog", "link")
    await expect(page.get_by_role("definition").filter(has_text="2031-05-06")).to_contain_text("14:30")
    await expect(page.get_by_label("Expires optional")).to_have_value("2031-05-06T14:30")
    await ben.write("Name", "journal")
    await ben.write("Models optional", "")
    await ben.write("Requests per minute optional", "")
    await ben.press("Save")
    await expect(ben.find("heading", "journal")).to_be_visible()
    await expect(page.get_by_label("Requests per minute optional")).to_be_hidden()
    assert await tries(first, "demo-chat") == 200

    await ben.press("Disable key")
    await ben.confirm()
    await expect(ben.find("button", "Enable key")).to_be_visible()
    assert await tries(first) == 401
    await ben.press("Enable key")
    await expect(ben.find("button", "Disable key")).to_be_visible()

    await ben.press("Rotate key")
    await ben.choose("Old key keeps working for", "0 hours (revoke immediately)")
    await ben.press("Rotate key", within=page.locator("#rotate-key"))
    second = await read_secret(ben)
    assert [await tries(first), await tries(second)] == [401, 200]
    await ben.press("Delete key")
    await ben.confirm()
    await ben.arrive("/keys")
    await expect(ben.find("link", "journal")).to_have_count(0)
    assert await tries(second) == 401


async def test_requests_are_found_walked_looked_into_and_taken_away(site: VisitedGateway, enter: Enter) -> None:
    known = site.known
    before = len(await site.wait_for_rows(0))
    for _ in range(45):
        await site.call(CHAT, {"model": "nobodys", "messages": []}, known["laptop_secret"])
    await site.wait_for_rows(before + 45)
    ben = await enter("ben")
    page = ben.page
    rows = page.get_by_role("row")
    await ben.go("/requests")
    await ben.press("Older", "link")
    await expect(ben.find("link", "Newest")).to_be_visible()
    await expect(page.get_by_role("cell", name="nobodys")).to_have_count(0)
    await ben.press("Newest", "link")

    await ben.choose("HTTP status", "With an error", within=page.get_by_role("form", name="Filter requests"))
    await page.wait_for_url(re.compile(r"/requests\?status=error$"))
    await ben.write("Search by error or request ID", "on fire")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"text=on"))
    await ben.reach(rows.nth(1).get_by_role("link").first)
    await page.keyboard.press("Enter")
    await expect(ben.find("heading", "broken")).to_be_visible()
    await expect(page.get_by_text("The machine is on fire")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(rows.nth(1).get_by_role("link").first).to_be_focused()
    await ben.press("Clear", "link")
    await ben.arrive("/requests")
    await ben.write("Search by error or request ID", known["answered"])
    await page.keyboard.press("Enter")
    await expect(rows).to_have_count(2)

    await browse_requests_in_the_drawer(ben)
    await ben.go("/requests?key=" + str(known["laptop"]))
    async with page.expect_download() as coming:
        await ben.press("CSV", "link")
    text = (await (await coming.value).path()).read_text()
    table = list(csv.DictReader(io.StringIO(text)))
    assert len(table) >= 40
    assert {row["key_name"] for row in table} == {"laptop"}
    async with page.expect_download() as coming:
        await ben.press("JSONL", "link")
    lines = (await (await coming.value).path()).read_bytes().splitlines()
    assert len(lines) == len(table)
    assert {orjson.loads(line)["account"] for line in lines} == {"acme"}


async def browse_requests_in_the_drawer(ben: Visitor) -> None:
    """With the mouse and the keyboard; the list stays where it was."""
    page = ben.page
    await ben.go("/requests")
    links = page.locator("[data-drawer] tbody th a")
    ids = [(await link.get_attribute("href") or "").rsplit("/", 1)[1] for link in await links.all()]
    drawer = page.locator("#drawer")
    await page.locator("[data-drawer] tbody tr").nth(1).locator("td").first.click()
    await expect(drawer).to_contain_text(ids[1])
    await page.keyboard.press("ArrowDown")
    await expect(drawer).to_contain_text(ids[2])
    gate = asyncio.Event()

    async def hold(route: Route) -> None:
        await gate.wait()
        await route.continue_()

    await page.route("**/requests/*", hold)
    await ben.press("↑ Newer")
    await ben.press("↑ Newer")  # before the first one's page is here
    gate.set()
    await expect(drawer).to_contain_text(ids[0])
    await expect(ben.find("button", "↑ Newer")).to_be_disabled()
    await ben.shoot("requests-drawer", whole=False)
    gate.clear()
    async with page.expect_response("**/requests/*") as late:
        await ben.press("↓ Older")
        await ben.press("Close")
        gate.set()
    await (await late.value).finished()
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 50))")  # it would be shown by now
    await page.unroute("**/requests/*")
    await expect(drawer).to_be_hidden()
    await expect(links.first).to_be_focused()
    await ben.choose("Period", "Last 15 minutes")
    await page.wait_for_url(re.compile(r"/requests\?last=15m$"))
    await ben.unfold("More filters")
    await ben.write("From", "2026-01-31T12:00")
    await page.wait_for_url(re.compile(r"/requests\?since=[^&]*Z$"))
    await expect(page.get_by_label("From", exact=True)).not_to_have_value("")


async def test_two_models_are_compared_in_three_actions(site: VisitedGateway, enter: Enter) -> None:
    """Each has its own conversation; where one fails, the other's answer stays."""
    ben = await enter("ben")
    page, actions = ben.page, 0
    await ben.go("/playground?model=m")
    await ben.choose("Compare with optional", "demo-chat")
    actions += 1
    await ben.write("Message", "Hello?")
    actions += 1
    await page.keyboard.press("Enter")
    actions += 1
    assert actions <= 3
    answers = page.locator(".turn.ours .said")
    await expect(answers).to_have_count(2)
    await expect(page.get_by_text(re.compile("in total · Details$"))).to_have_count(2)
    left, right = [await answer.bounding_box() for answer in await answers.all()]
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] <= right["x"]
    assert left["y"] == right["y"]
    await ben.shoot("playground-compare")
    await page.reload()
    await expect(answers).to_have_count(2)

    await ben.choose("Compare with optional", "broken")
    ben.watch.refusals = {502, 500}
    await ben.write("Message", "And now?")
    await page.keyboard.press("Enter")
    await expect(answers.last).to_contain_text("on fire")
    await expect(answers.nth(2)).to_have_text("The sea is calm.")
    await ben.choose("Compare with optional", "demo-chat")
    await page.locator("#model-3").select_option("m")
    await expect(page.locator("#model-4")).to_be_visible()
    await ben.press("Retry")
    await expect(answers).to_have_count(5)
    await expect(page.locator(".turn.failed")).to_have_count(0)
    await ben.press("New chat")
    await expect(answers).to_have_count(0)


async def test_text_becomes_speech_and_speech_text(site: VisitedGateway, enter: Enter, tmp_path: Path) -> None:
    ben = await enter("ben")
    page = ben.page
    await ben.go("/playground?mode=speech")
    await ben.write("Text", "Good morning")
    await ben.press("Generate speech")
    audio = page.locator("#recordings audio")
    await expect(audio).to_have_count(1)
    assert await audio.evaluate(LASTS) > 0
    await expect(page.get_by_text(re.compile(r"in total · Details$"))).to_be_visible()
    await ben.shoot("playground-speech-done")
    async with page.expect_download() as coming:
        await ben.find("link", "Download").click()
    recording = tmp_path / "speech.wav"
    await (await coming.value).save_as(recording)
    await ben.press("Show as curl")
    await expect(page.get_by_label("curl", exact=True)).to_contain_text("-o speech ")
    await page.keyboard.press("Escape")

    await ben.go("/playground?mode=transcription")
    await page.get_by_label("Recording", exact=True).first.set_input_files(recording)
    await ben.find("button", "Transcribe").click()
    await expect(page.locator("#text")).not_to_be_empty()
    await expect(page.get_by_text(re.compile(r"in total · Details$"))).to_be_visible()
    await ben.shoot("playground-transcription-done")


async def test_a_chat_streams_is_stopped_and_tells_what_it_cost(site: VisitedGateway, enter: Enter) -> None:
    ben = await enter("ben")
    page, provider = ben.page, site.known["provider"]
    await ben.go("/playground?model=endless")
    await ben.choose("API key", await read_option(ben, "test"))
    await ben.write("Message", "How long is it?")
    await page.keyboard.press("Enter")
    answer = page.locator(".turn.ours .said")
    await expect(answer).to_contain_text("The sea is calm.and on and on")
    await expect(ben.find("button", "Send")).to_be_disabled()
    left = provider.left
    await ben.press("Stop")
    await expect(page.get_by_text(re.compile(r"^stopped · .*in total · Details$"))).to_be_visible()
    assert provider.left == left + 1, "the provider is told at once"
    await ben.shoot("playground-chat-stopped")

    await page.get_by_label("Model", exact=True).select_option("m")
    await ben.write("System prompt optional", "You are brief.")
    await ben.write("Message", "And now?")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("1200 tokens in, 480 out")).to_be_visible()
    await expect(answer.last).to_have_text("The sea is calm.")
    await expect(page.get_by_text(re.compile(r"^\$0\.0102 · "))).to_be_visible()
    await page.reload()
    await expect(answer.last).to_have_text("The sea is calm.")
    await ben.go("/requests")
    await page.locator("tbody tr th").first.get_by_role("link").click()
    await ben.press("Open page", "link")
    await expect(ben.find("heading", "m")).to_be_visible()
    await expect(page.get_by_role("row", name="Charged")).to_contain_text("$0.0102")

    await ben.go("/playground?model=broken")
    ben.watch.refusals = {502, 500}
    await ben.press("New chat")
    await ben.choose("API key", await read_option(ben, "test"))
    await ben.write("Message", "Are you there?")
    await page.keyboard.press("Enter")
    await expect(page.locator(".turn.failed").get_by_role("alert")).to_contain_text("on fire")
    await ben.shoot("playground-chat-failed")
    await page.reload()
    await expect(page.locator(".turn.failed")).to_contain_text("on fire")
    await page.get_by_label("Model", exact=True).select_option("m")
    await ben.press("Retry")
    await expect(answer).to_have_text(["The sea is calm."])
    await ben.press("Edit the message and ask again")
    await expect(page.get_by_label("Message", exact=True)).to_have_value("Are you there?")
    await expect(page.locator(".turn")).to_have_count(0)
    await undo_what_an_edit_removed(ben, answer)


async def undo_what_an_edit_removed(ben: Visitor, answer: Locator) -> None:
    """With the draft that was there before."""
    page = ben.page
    await ben.press("Undo")
    await expect(answer).to_have_text(["The sea is calm."])
    await expect(page.get_by_label("Message", exact=True)).to_have_value("")
    await ben.write("Message", "a draft")
    await ben.press("Edit the message and ask again")
    await ben.press("Undo")
    await expect(page.get_by_label("Message", exact=True)).to_have_value("a draft")
    await ben.press("Edit the message and ask again")
    await ben.write("Message", "written since")
    await ben.press("Undo")
    await expect(answer).to_have_text(["The sea is calm."])
    await expect(page.get_by_label("Message", exact=True)).to_have_value("written since")
    await page.reload()
    await expect(answer).to_have_text(["The sea is calm."])


async def test_a_chat_takes_files_parameters_and_what_tools_answer(
    site: VisitedGateway, enter: Enter, tmp_path: Path
) -> None:
    ben = await enter("ben")
    page = ben.page
    sent: list[dict[str, Any]] = []
    page.on("request", lambda one: sent.append(one.post_data_json or {}) if one.url.endswith(CHAT) else None)
    note = tmp_path / "note.txt"
    note.write_text("The port is 8080.")
    dot = tmp_path / "dot.png"
    dot.write_bytes(base64.b64decode(DOT))
    other = tmp_path / "program.bin"
    other.write_bytes(b"\x00\x01")
    await ben.go("/playground?model=demo-chat")
    await ben.choose("API key", await read_option(ben, "test"))
    await page.locator("#files").set_input_files([note, dot, other])
    await expect(page.locator(".toast.bad")).to_contain_text("program.bin is not an image")
    await expect(page.locator("#attached li")).to_have_count(2)
    await ben.unfold("More parameters")
    await page.get_by_label("Tools optional", exact=True).fill('[{"type": ')
    await ben.write("Message", "How is the weather?")
    await page.keyboard.press("Enter")
    await expect(page.locator("[data-error-of=tools]")).to_contain_text("This is not valid JSON")
    await expect(page.locator("#attached li")).to_have_count(2)
    assert not sent
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    await page.get_by_label("Tools optional", exact=True).fill(orjson.dumps([tool]).decode())
    await ben.write("Top p optional", "0.5")
    await ben.write("Stop sequences optional", "END\nSTOP")
    await page.get_by_label("Message", exact=True).press("Enter")
    await page.get_by_label("Result of weather", exact=True).fill("Rain at 9 degrees")
    await ben.press("Send tool results")
    await expect(page.locator(".turn.ours .said").last).to_contain_text("Rain at 9 degrees")
    first, second = sent
    assert [part["type"] for part in first["messages"][0]["content"]] == ["text", "image_url", "text"]
    assert (first["tools"], first["top_p"], first["stop"]) == ([tool], 0.5, ["END", "STOP"])
    call, result = second["messages"][1:]
    assert (call["tool_calls"][0]["function"]["name"], result["content"]) == ("weather", "Rain at 9 degrees")
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    await ben.shoot("playground-chat-tools")
    await page.reload()
    await expect(page.locator(".attached")).to_have_count(1)
    await expect(page.get_by_label("Result of weather", exact=True)).to_have_value("Rain at 9 degrees")


async def test_a_chat_is_taken_away_as_code_that_runs(site: VisitedGateway, enter: Enter, tmp_path: Path) -> None:
    """Also with a file that is longer than an argument of a command may be."""
    ben = await enter("ben")
    page = ben.page
    await ben.go("/playground?model=m")
    text = 'It\'s "quoted" at $5, `so` \\ é 🌊 \ufeff!'
    note = tmp_path / "note.txt"
    note.write_text("It's long. " * 20_000)
    await page.locator("#files").set_input_files(note)
    await expect(page.locator("#attached li")).to_have_count(1)
    await ben.write("Message", text)
    await ben.unfold("More parameters")
    await ben.write("Other fields optional", '{"metadata": {"a": "b"}, "store": null, "parallel_tool_calls": true}')
    await ben.press("Get code")
    await expect(page.locator("#code-curl")).to_contain_text("$GATEWAY_KEY")
    codes = {"curl": await page.locator("#code-curl").text_content() or ""}
    for language, tab in TABS.items():
        await page.get_by_role("tab", name=tab, exact=True).click()
        await expect(page.locator(f"#code-{language}")).to_be_visible()
        codes[language] = await page.locator(f"#code-{language}").text_content() or ""
    await ben.shoot("playground-code", whole=False)
    provider = site.known["provider"]
    for language, command in PROGRAMS.items():
        if shutil.which(command[0]) is None:
            assert language == "javascript", f"{command[0]} is missing"
            continue
        before = len(provider.heard)
        program = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, "GATEWAY_KEY": KEY, "NO_PROXY": "*"},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, error = await program.communicate(codes[language].encode())
        assert b"calm" in output, (language, output, error)
        (body,) = provider.heard[before:]
        long_part, asked_part = body["messages"][-1]["content"]
        assert (len(long_part["text"]) > 200_000, asked_part["text"]) == (True, text), language
    assert 'strings.NewReader("{' in codes["go"]
    assert "\ufeff" not in codes["go"], "which Go takes nowhere but at the start of a file"


async def read_option(visitor: Visitor, key: str) -> str:
    """The words of a key where one chooses which pays."""
    option = visitor.page.locator("#paying-key option").filter(has_text=f"{key} (")
    return await option.inner_text()


async def test_a_image_is_made_painted_over_and_changed(site: VisitedGateway, enter: Enter) -> None:
    ben = await enter("ben")
    page = ben.page
    images = page.locator("#pictures img")
    await ben.go("/playground?mode=images")
    await ben.choose("API key", await read_option(ben, "test"))
    await ben.write("Prompt", "a lighthouse at night")
    await ben.write("Size optional", "256x256")
    await ben.press("Generate image")
    await expect(images).to_have_count(1)
    assert await images.first.evaluate("(one) => one.decode().then(() => one.naturalWidth)") == 256
    await expect(page.locator("#receipt")).to_contain_text("1 image")

    await ben.press("Edit")
    mask = page.get_by_role("application", name="Mask")
    await mask.scroll_into_view_if_needed()
    box = await mask.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 60, box["y"] + 60)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 120, box["y"] + 90, steps=4)
    await page.mouse.up()
    await ben.reach(mask)
    for key in ("ArrowLeft", "Shift+ArrowDown", "Space"):
        await page.keyboard.press(key)
    await expect(page.locator("#mask-place")).to_contain_text("Painted at")
    await ben.shoot("playground-mask")
    await ben.press("Undo")
    await ben.write("Prompt", "with a red roof")
    async with CustomImages() as image_backend:
        await site.operate("POST", "/channels?check=none", image_backend.channel("painter", priority=90, **AS_DEMO))
        await ben.press("Edit image")
        await expect(images).to_have_count(2)
        await site.operate("DELETE", "/channels/painter")
    painted, rest = await page.evaluate(COMPARE)
    assert painted + rest > 50_000, "the second picture is the painter's"
    (heard,) = image_backend.heard
    assert (heard.prompt, len(heard.sources)) == ("with a red roof", 1)
    assert heard.mask is not None
    clear, black = await page.evaluate(COUNT, base64.b64encode(heard.mask).decode())
    assert clear > 100, "the stroke is left; the point was undone"
    assert clear + black == 256 * 256
    assert clear < black
    async with page.expect_download() as coming:
        await ben.press("Download", "link", within=page.locator("figure").first)
    assert (await (await coming.value).path()).read_bytes().startswith(b"\x89PNG")


async def test_a_video_is_made_plays_is_remixed_and_deleted(site: VisitedGateway, enter: Enter) -> None:
    ben = await enter("ben")
    page = ben.page
    await ben.go("/playground?mode=video")
    await ben.choose("API key", await read_option(ben, "test"))
    await ben.write("Prompt", "waves under a lighthouse")
    await ben.write("Size optional", "640x360")
    await ben.press("Generate video")
    film = page.locator("#films video")
    await expect(film).to_be_visible(timeout=20_000)
    ready, width, at = await film.evaluate(PLAYS)
    assert (ready >= 2, width) == (True, 640)
    assert at > 0.2
    await expect(page.locator("#films .receipt")).to_contain_text("$0 · 4 s · 640x360 · completed in")
    await ben.shoot("playground-video-done")

    await ben.press("Details", "link")
    await expect(page.get_by_text("waves under a lighthouse")).to_be_visible()
    first = page.url
    await ben.write("Prompt", "by night")
    await ben.choose("API key", "test")
    await ben.press("Create remix")
    await page.wait_for_url(lambda url: url != first)
    await expect(page.get_by_text("Remix of")).to_be_visible()
    await expect(page.get_by_label("Video", exact=True)).to_be_visible(timeout=20_000)
    ready, width, _ = await page.get_by_label("Video", exact=True).evaluate(PLAYS)
    assert (ready >= 2, width) == (True, 640)
    gone = page.url.rpartition("/")[2]
    ben.watch.refusals = {404}  # the player may be in the middle of it
    await ben.press("Delete video")
    await ben.press("Confirm delete")
    await ben.arrive("/videos")
    await expect(page.locator(f"[data-video='{gone}']")).to_have_count(0)


async def keep_a_typed_voice(page: Page, read_curl: Callable[[], Awaitable[str]]) -> None:
    """At models of whose voices nothing is known, and back at the one that has a list."""
    for name in ("film", "a"):
        await page.get_by_label("Model", exact=True).select_option("Other model…")
        await page.get_by_label("Model name", exact=True).fill(name)
        await page.keyboard.press("Tab")
        await expect(page.locator("#f-voice-choice")).to_be_hidden()
        assert '"voice":"my own"' in await read_curl()
        await page.get_by_label("Model", exact=True).select_option("tts-1")
        await expect(page.locator("#f-voice-choice")).to_be_visible()
        assert '"voice":"my own"' in await read_curl()


async def test_the_playground_offers_what_the_chosen_model_takes_and_says_what_it_does_not(
    site: VisitedGateway, enter: Enter, tmp_path: Path
) -> None:
    models = ["sora-2", "tts-1", "gpt-image-1", "gpt-5-mini", "gpt-3.5-turbo"]
    await site.operate(
        "POST",
        "/channels?check=none",
        site.known["provider"].channel("makers", models=models, provider="openai", sync=False),
    )
    ben = await enter("ben")
    page = ben.page

    async def read_curl() -> str:
        await ben.press("Show as curl")
        text = await page.locator("#curl-text").inner_text()
        await page.keyboard.press("Escape")
        return text

    await ben.go("/playground?mode=video&model=sora-2")
    for label, values in (("Size", ["720x1280", "1280x720"]), ("Duration (s)", ["4", "8", "12"])):
        choices = page.get_by_label(f"{label} optional").locator("option")
        await expect(choices).to_have_text(["model default", *values])
    await ben.choose("Duration (s) optional", "8")
    await ben.choose("Size optional", "1280x720")
    assert '"seconds":"8","size":"1280x720"' in await read_curl()
    await page.get_by_label("Model", exact=True).select_option("Other model…")
    await page.get_by_label("Model name", exact=True).fill("film")  # of which nothing is known
    await page.keyboard.press("Tab")
    await expect(page.locator("input[name=seconds]")).to_be_visible()
    await ben.write("Duration (s) optional", "7")
    assert '"seconds":"7"' in await read_curl()

    await ben.go("/playground?mode=speech&model=tts-1")
    voices = page.get_by_label("Voice", exact=True).first
    await expect(voices.locator("option").last).to_have_text("Other…")
    assert await voices.input_value() == "alloy"
    await voices.select_option("Other…")
    await page.locator("input[name=voice]").fill("my own")
    assert '"voice":"my own"' in await read_curl()
    await keep_a_typed_voice(page, read_curl)
    await ben.go("/playground?mode=images&model=gpt-image-1")
    await expect(page.get_by_label("Size optional").locator("option")).to_have_count(4)

    await ben.go("/playground?model=gpt-5-mini")
    temperature = page.get_by_label("Temperature optional", exact=True)
    await expect(temperature).to_be_disabled()
    await expect(page.locator(".field", has=temperature)).to_contain_text("Not used by gpt-5-mini.")
    await ben.choose("Compare with optional", "gpt-3.5-turbo")
    await expect(temperature).to_be_enabled()
    await expect(page.locator(".field", has=temperature)).to_contain_text("Not used by gpt-5-mini.")
    await page.get_by_label("Model", exact=True).select_option("gpt-3.5-turbo")
    await expect(page.get_by_text("Not used by gpt-5-mini.")).to_have_count(0)
    await ben.unfold("More parameters")
    await expect(page.get_by_label("Reasoning effort", exact=True)).to_be_disabled()
    await expect(page.get_by_text("Not sent to gpt-3.5-turbo: reasoning not supported.")).to_be_visible()
    await expect(page.locator("option[value=json_schema]")).to_be_disabled()
    dot = tmp_path / "dot.png"
    dot.write_bytes(base64.b64decode(DOT))
    await page.locator("#files").set_input_files(dot)
    await expect(page.locator(".toast.bad")).to_have_text("The chosen model cannot see images")
    await ben.shoot("playground-reasons")
    await site.operate("DELETE", "/channels/makers")


async def test_a_video_is_followed_as_it_goes_on(site: VisitedGateway, enter: Enter) -> None:
    """In the playground, in the list and on its own page, and where it ends badly that is said."""
    ben, beside = await enter("ben"), await enter("ben")
    page, films = ben.page, site.known["films"]
    films.plays["slowly"] = play = films.usual.__class__(polls=("in_progress",))
    await ben.go("/playground?mode=video&model=film")
    await ben.choose("API key", await read_option(ben, "test"))
    await ben.write("Prompt", "slowly")
    await ben.press("Generate video")
    await expect(page.locator("#films .badge")).to_have_text("in progress")
    await expect(page.locator("#films progress")).not_to_have_js_property("value", 0)
    await ben.press("Details", "link")
    await expect(page.locator("[data-percent]")).to_have_text(re.compile(r"[1-9]\d %"))
    await beside.go("/videos?status=processing")
    row = beside.page.locator(f"[data-video='{page.url.rpartition('/')[2]}']")
    await expect(row.locator("[data-status]")).to_have_text("processing")
    play.polls = ("failed",)
    await expect(page.get_by_text("The machine ran out of film")).to_be_visible(timeout=20_000)
    await expect(page.get_by_text("Nothing was charged.")).to_be_visible()
    await expect(row.locator("[data-status]")).to_have_text("failed")


async def test_models_are_found_with_what_they_cost(site: VisitedGateway, enter: Enter) -> None:
    ben = await enter("ben")
    await ben.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await ben.go("/models")
    await ben.write("Find", "demo-ch")
    await ben.page.keyboard.press("Enter")
    await ben.page.wait_for_url(re.compile("search=demo-ch"))
    await expect(ben.page.get_by_role("row", name="demo-chat")).to_contain_text("$100.00 in, $400.00 out")
    await expect(ben.page.get_by_role("row")).to_have_count(2)
    await ben.press("demo-chat", "link")
    await ben.arrive("/models/demo-chat")
    await ben.press("Copy name")
    assert await ben.page.evaluate("navigator.clipboard.readText()") == "demo-chat"


async def test_a_keys_page_begins_with_what_it_used_and_has_left_and_disables_what_is_locked(
    site: VisitedGateway, enter: Enter
) -> None:
    ben, ada = await enter("ben"), await enter("ada", "administrator")
    page, path = ben.page, f"/keys/{site.known['laptop']}"
    await ben.go(path)
    await expect(page.locator(".notice.lock")).to_have_text(
        "Set by your administrator: spending limit, reset period, models, requests per minute."
    )
    assert not re.search("quota_|rpm", await page.locator("main").inner_text()), "a field's name is shown to a member"
    headings = await page.locator("main h2").all_inner_texts()
    assert headings[:2] == ["Usage", "Limits"]
    row = page.locator("#limits tbody tr").first
    await expect(row).to_contain_text("Spending limit of this key")
    await expect(row).to_contain_text(re.compile(r"\$[\d.]+ of \$5\.00"))
    await expect(row.locator("meter")).to_be_visible()
    await expect(row.locator("time")).not_to_have_count(0)
    await expect(page.get_by_text("600 of 600 left")).to_be_visible()
    await expect(page.get_by_role("link", name="run 42 of the agent")).to_be_visible()
    await expect(page.get_by_text("not kept")).to_be_visible()
    for label in ("Spending limit (USD) optional", "Resets", "Models optional", "Requests per minute optional"):
        await expect(page.get_by_label(label, exact=True)).to_be_disabled()
    await expect(page.locator(".field .lock")).to_have_count(4)
    await expect(page.get_by_label("Tokens per minute optional", exact=True)).to_be_enabled()
    await ben.write("Tokens per minute optional", "90000")
    await ben.send("Save")
    saved = await site.operate("GET", path)
    assert (saved["tpm"], saved["rpm"], saved["quota_usd"]) == (90_000, 600, 5.0)
    await ada.go(path)
    await expect(ada.page.get_by_label("Requests per minute optional", exact=True)).to_be_enabled()
    await site.operate("PATCH", path, {"tpm": None})
