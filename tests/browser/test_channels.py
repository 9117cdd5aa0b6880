"""Channels at the console: added in four actions, their keys one by one, drained, and weighed against each other."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway, open_site
from tests.browser.provider import KEY, Provider
from tests.browser.user import Enter, Visitor
from tests.support.gateway import CHAT
from tests.support.gateway import KEY as CALLERS_KEY

pytestmark = BROWSER

CONFIG = {
    "account": [{"name": "acme"}],
    "key": [{"name": "test", "account": "acme", "secret": CALLERS_KEY}],
    "billing": {"unpriced": "free"},
}
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
OTHER_KEYS = ("provider-key-of-the-team-abcd", "provider-key-of-the-shop-wxyz")
MAX_ACTIONS = 4


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    folder = tmp_path_factory.mktemp("channels")
    async with Provider() as provider, open_site(guests, folder, template_path, CONFIG) as opened:
        opened.known["provider"] = provider
        await opened.operate("POST", "/channels?check=none", provider.channel("anchor", models=["m"]))
        yield opened


@pytest.fixture
def provider(site: VisitedGateway) -> Provider:
    provider: Provider = site.known["provider"]
    provider.keys, provider.pause = (), None
    return provider


@pytest_asyncio.fixture(loop_scope="session")
async def ada(enter: Enter) -> Visitor:
    return await enter("ada", "administrator")


async def paste(page: Page, label: str | re.Pattern[str], text: str) -> None:
    """As somebody who has it in the clipboard: all of it at once, and no key is pressed or left."""
    await page.get_by_label(label).evaluate(
        """(field, text) => {
          field.focus();
          const data = new DataTransfer();
          data.setData("text/plain", text);
          field.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true}));
          document.execCommand("insertText", false, text);
        }""",
        text,
    )


async def read_channel(site: VisitedGateway, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = await site.operate("GET", f"/channels/{name}")
    return answer


async def test_a_working_channel_is_added_in_four_actions(
    site: VisitedGateway, provider: Provider, ada: Visitor
) -> None:
    page, actions = ada.page, 0
    await site.operate("POST", "/channels?check=none", provider.channel("custom", models=["m"]))  # its name is taken
    await ada.go("/new-channel")
    await page.keyboard.insert_text("openai-comp")
    await page.keyboard.press("Enter")
    actions += 1
    form = page.locator("#new-channel")
    await paste(page, "Address", provider.base_url)
    actions += 1
    await expect(page.locator("#check")).to_have_text(re.compile(r"^Connected in \d+ ms\. 3 models found\.$"))
    ticked = form.locator(".ticks input")
    assert [await one.input_value() for one in await ticked.all()] == ["broken", "endless", "m"]
    await expect(form.locator(".tick small").first).to_have_text("No price")
    await paste(page, re.compile("^API key"), KEY)
    actions += 1
    await page.keyboard.press("Enter")
    actions += 1
    await ada.arrive("/channels/custom-2")
    assert actions <= MAX_ACTIONS
    made = await read_channel(site, "custom-2")
    assert (made["health"], made["sync"], made["models"], made["offered"]) == (
        "healthy", True, [], ["broken", "endless", "m"],
    )  # fmt: skip
    for name in ("custom", "custom-2"):
        await site.operate("DELETE", f"/channels/{name}")


async def test_a_key_is_tested_when_it_is_left_and_the_provider_says_what_is_wrong(
    site: VisitedGateway, provider: Provider, ada: Visitor
) -> None:
    page, (good_key, _) = ada.page, OTHER_KEYS
    provider.keys = (good_key,)
    await ada.go("/new-channel")
    await page.locator("[data-provider=custom]").click()
    before = provider.listings
    await page.get_by_label("Address").fill(provider.base_url)
    await page.keyboard.press("Tab")
    await expect(page.locator("#check")).to_contain_text("Incorrect API key provided")  # of the address, without a key
    await page.get_by_label(re.compile("^API key")).press_sequentially("half-a-key")
    assert provider.listings == before + 1, "a key was sent while it was typed"
    await page.keyboard.press("Tab")
    async with asyncio.timeout(10):
        while provider.listings < before + 2:  # noqa: ASYNC110 - the provider tells nobody
            await asyncio.sleep(0.02)
    await expect(page.locator("#check")).to_contain_text("Check that the whole key was copied")
    await expect(page.get_by_label(re.compile("^API key"))).to_have_attribute("aria-invalid", "true")
    await page.get_by_label(re.compile("^API key")).fill(good_key)
    await page.keyboard.press("Tab")
    await expect(page.locator("#check")).to_contain_text("3 models found.")
    await page.get_by_label(re.compile("^API key")).fill("another-key")
    await page.keyboard.press("Tab")
    await expect(page.locator("#check")).to_contain_text("Check that the whole key was copied")
    await expect(page.locator(".ticks input")).to_have_count(0)  # those were models of the former key
    await page.go_back()
    await page.go_forward()
    await expect(page.get_by_label(re.compile("^API key"))).to_have_value("another-key")
    await page.get_by_label(re.compile("^API key")).fill(good_key)
    await page.keyboard.press("Tab")
    await expect(page.locator("#check")).to_contain_text("3 models found.")

    await page.get_by_role("button", name="Select none", exact=True).click()
    await ada.press("Save")
    await expect(page.locator("[data-error-of=models]")).to_have_text("Select at least one model.")
    await page.locator(".ticks input[value=m]").check()
    await ada.press("Add an alias")
    await page.get_by_label("Name that clients use").fill("fast")
    await page.get_by_label("Name at the provider").fill("m")
    await ada.press("Save")
    await ada.arrive("/channels/custom")
    made = await read_channel(site, "custom")
    assert (made["models"], made["model_map"], made["keys"][0]["last4"]) == (["m"], {"fast": "m"}, "abcd")
    assert (await site.call(CHAT, {**HELLO, "model": "fast"}, CALLERS_KEY)).status == 200

    row = page.locator(".alias")
    await expect(row.get_by_label("Name that clients use")).to_have_value("fast")
    await ada.press("Remove this alias")
    await ada.send("Save")
    assert (await read_channel(site, "custom"))["model_map"] == {}
    await ada.press("Delete channel")
    await ada.confirm()
    await ada.arrive("/channels")


async def test_a_provider_without_a_list_of_models_says_so_and_offers_those_that_are_known(
    site: VisitedGateway, ada: Visitor
) -> None:
    page = ada.page
    await ada.go("/new-channel")
    await page.keyboard.press("/")
    await page.keyboard.insert_text("azure")
    await page.keyboard.press("Enter")
    await page.get_by_label("Resource").fill("contoso")
    await paste(page, "API key", OTHER_KEYS[0])
    await expect(page.locator("#check")).to_contain_text("cannot be tested for free")
    await expect(page.locator(".ticks input").first).not_to_be_checked()  # a deployment has any name
    await page.get_by_label("Other models").fill("chat-of-ours\nmini-of-ours")
    await ada.press("Save")
    await ada.arrive("/channels/azure_openai")
    made = await read_channel(site, "azure_openai")
    assert (made["base_url"], made["models"], made["sync"]) == (
        "https://contoso.openai.azure.com/openai/v1", ["chat-of-ours", "mini-of-ours"], False,
    )  # fmt: skip
    await site.operate("DELETE", "/channels/azure_openai")
    await ada.go("/new-channel?provider=runway")
    await paste(page, "API key", OTHER_KEYS[0])
    await expect(page.locator(".ticks input").first).to_be_checked()


async def test_keys_of_a_channel_are_named_turned_off_replaced_and_removed_one_by_one(
    site: VisitedGateway, provider: Provider, ada: Visitor
) -> None:
    page, (team_key, shop_key) = ada.page, OTHER_KEYS
    await site.operate("POST", "/channels?check=none", provider.channel("keyed", api_keys=[team_key]))
    provider.keys = (team_key,)
    await ada.go("/channels/keyed")
    await ada.press("Add a key")
    await page.locator("#new-key").fill(shop_key)
    await page.locator("#new-key-name").fill("the shop")
    await ada.send("Add", within=page.locator("#add-key"))
    row = page.locator("#keys tbody tr").nth(1)
    await expect(row).to_contain_text("the shop …wxyz")
    await expect(row).to_contain_text("failing")
    await expect(row).to_contain_text("Incorrect API key provided")
    await expect(row.locator("time")).to_have_count(1)
    states = {
        key["last4"]: (key["health"], key["last_error_at"] is None)
        for key in (await read_channel(site, "keyed"))["keys"]
    }
    assert states == {"abcd": ("healthy", True), "wxyz": ("failing", False)}

    await ada.send("Disable", within=row)
    await expect(row).to_contain_text("disabled")
    await expect(page.locator("#toasts")).to_contain_text("The key is disabled")
    await ada.send("Undo")
    await expect(row.get_by_role("button", name="Disable")).to_be_visible()
    await ada.send("Disable", within=row)
    ada.watch.refusals = {409}
    await ada.press("Disable", within=page.locator("#keys tbody tr").first)
    await expect(page.locator("#toasts .bad")).to_contain_text("no usable key left")

    provider.keys = (team_key, "provider-key-of-the-shop-new1")
    await ada.press("Rename or replace", within=row)
    await page.locator("#edit-key-key").fill("provider-key-of-the-shop-new1")
    await ada.send("Save", within=page.locator("#edit-key"))
    await expect(row).to_contain_text("the shop …new1")
    await ada.send("Enable", within=row)
    await expect(row).to_contain_text("healthy")
    await ada.press("Remove", within=page.locator("#keys tbody tr").first)
    async with page.expect_navigation():
        await ada.confirm()
    kept = (await read_channel(site, "keyed"))["keys"]
    assert [(key["name"], key["last4"], key["health"]) for key in kept] == [("the shop", "new1", "healthy")]
    await site.operate("DELETE", "/channels/keyed")


async def test_a_channel_drains_finishes_what_runs_and_is_back_by_undo(
    site: VisitedGateway, provider: Provider, ada: Visitor
) -> None:
    page = ada.page
    await site.operate("POST", "/channels?check=none", provider.channel("drained", models=["m"], priority=50))
    provider.pause = asyncio.Event()
    call = asyncio.create_task(site.call(CHAT, HELLO, CALLERS_KEY))
    async with asyncio.timeout(10):
        while not (await read_channel(site, "drained"))["running"]:  # noqa: ASYNC110 - nothing else tells it
            await asyncio.sleep(0.02)
    await ada.go("/channels/drained")
    await ada.send("Drain")
    await expect(page.locator("[data-draining]")).to_contain_text("Draining; requests still running: 1")
    assert (await read_channel(site, "drained"))["health"] == "draining"
    pause, provider.pause = provider.pause, None
    assert (await site.call(CHAT, HELLO, CALLERS_KEY)).status == 200  # by the anchor
    assert (await read_channel(site, "drained"))["running"] == 1
    pause.set()
    assert (await call).status == 200
    await expect(page.locator(".notice").first).to_contain_text("Drained and disabled")
    assert (await read_channel(site, "drained"))["health"] == "disabled"
    await ada.send("Enable channel")
    await ada.send("Drain")
    await ada.send("Undo")
    assert (await read_channel(site, "drained"))["health"] == "healthy"
    await site.operate("DELETE", "/channels/drained")


async def test_weights_of_a_models_channels_are_set_together_by_keyboard(
    site: VisitedGateway, provider: Provider, ada: Visitor
) -> None:
    page = ada.page
    for name in ("left", "right"):
        await site.operate("POST", "/channels?check=none", provider.channel(name, models=["m"], priority=7))
    await ada.go("/channel-weights?model=m")
    shares = page.locator("[data-tier]").first.locator("[data-share]")
    assert await shares.all_inner_texts() == ["50 %", "50 %"]
    await page.get_by_label("Weight of left", exact=True).fill("3")
    assert await shares.all_inner_texts() == ["75 %", "25 %"]
    slider = page.get_by_label("Weight of right, as a slider")
    await ada.reach(slider)
    await page.keyboard.press("ArrowRight")
    assert await shares.all_inner_texts() == ["60 %", "40 %"]
    await ada.send("Save")

    async def read_weights() -> list[int]:
        return [(await read_channel(site, name))["weight"] for name in ("left", "right")]

    assert await read_weights() == [3, 2]
    await ada.send("Undo")
    assert await read_weights() == [1, 1]
    for name in ("left", "right"):
        await site.operate("DELETE", f"/channels/{name}")
