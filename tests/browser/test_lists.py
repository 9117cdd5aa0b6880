"""Lists that grow: one key among 5,000, actions on many rows, and rows with the longest names at every width."""

import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest
import pytest_asyncio
from playwright.async_api import expect
from sqlalchemy import insert

from gateway.auth.accounts import make_secret
from gateway.server.context import SERVICES
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.row_mapping import build_key_row
from gateway.storage.schema import keys
from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway, open_site
from tests.browser.hostile import NAME, TAGS
from tests.browser.user import DESK, Enter, Visitor
from tests.support.gateway import KEY

pytestmark = BROWSER

COUNT = 5_000
SECRET = "sk-" + "x" * 44 + "K_7h"
WIDTHS = (390, 1024, 1280, 1440, 1920, 2560)
LISTS = (
    "/keys", "/accounts", "/members", "/channels", "/models", "/routes", "/limits", "/prices", "/videos", "/batches",
    "/sessions", "/files", "/audit", "/end-users", "/tags",
)  # fmt: skip
CONFIG = {
    "account": [{"name": "acme"}],
    "key": [{"name": "test", "account": "acme", "secret": KEY}],
    "billing": {"unpriced": "free"},
}
_WIDER = """
() => [...document.querySelectorAll(".table")].filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => `${one.scrollWidth} of ${one.clientWidth}`)
"""

SUMS = ("Requests", "Failed", "Tokens", "Spent")
_CELLS = """
() => [...document.querySelectorAll("table.list tr")]
  .map((row) => [...row.cells].filter((cell) => cell.getBoundingClientRect().width > 1).map((cell) => ({
    label: cell.dataset.label, text: cell.innerText.replace(/[^A-Za-z ]/g, "").trim(),
    left: Math.round(cell.getBoundingClientRect().left) })))
  .reduce(([head, rows], row, index) => index ? [head, [...rows, row]] : [row, rows], [[], []])
"""
"""The visible cells of the headings and of each row, from left to right."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    async with open_site(guests, tmp_path_factory.mktemp("lists"), template_path, CONFIG) as opened:
        await opened.operate("POST", "/accounts", {"name": "crowd"})
        await opened.operate("POST", "/accounts", {"name": NAME, "groups": []})
        await add_keys(opened, "crowd", COUNT)
        await opened.operate("POST", "/keys", {"name": "leaked", "account": "crowd", "secret": SECRET})
        await opened.know("ada", "administrator", "acme")
        yield opened


async def add_keys(site: VisitedGateway, account_name: str, count: int) -> None:
    """Many keys, in one statement: 5,000 calls of the admin API take a minute."""
    services = site.gateway.app[SERVICES]
    accounts = services.auth.accounts
    account = await accounts.get_stored_account(account_name)
    rows = [
        build_key_row(attrs.evolve(accounts.make_blank_key(account, make_secret()), name=f"laptop {number}"))
        for number in range(count)
    ]

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(insert(keys), rows)

    await services.storage.database.write(work)
    await accounts.reload()


async def make_keys(site: VisitedGateway, *names: str) -> list[int]:
    """Keys of the account acme."""
    return [(await site.operate("POST", "/keys", {"name": name, "account": "acme"}))["id"] for name in names]


async def list_states(site: VisitedGateway, ids: Sequence[int]) -> list[str]:
    return [(await site.operate("GET", f"/keys/{key_id}"))["status"] for key_id in ids]


async def select_rows(visitor: Visitor, search: str) -> None:
    """Find keys and select all of them."""
    await visitor.go(f"/keys?search={search}")
    await visitor.page.get_by_label("Select all on this page").first.check()


async def test_a_key_is_found_by_its_last_four_among_five_thousand_in_two_actions(
    site: VisitedGateway, enter: Enter
) -> None:
    ada = await enter("ada")
    page = ada.page
    await ada.go("/keys")
    await expect(page.get_by_text(re.compile(r"^1\W50 of 5,0\d\d$"))).to_be_visible()
    assert await page.locator("tbody tr").count() == 50
    assert len(await page.content()) < 150_000
    await ada.write("Find", "K_7h")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile("search=K_7h"))
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator("tbody th")).to_have_text("leaked")


async def test_pages_follow_each_other_in_the_order_of_a_column(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    await ada.go("/keys?search=laptop")
    await ada.send("Name", "link")
    await expect(page.locator("th[aria-sort=ascending]")).to_have_text("Name")
    names = sorted(f"laptop {number}" for number in range(COUNT))
    assert await page.locator("tbody th").all_inner_texts() == names[:50]
    await ada.send("Next", "link")
    assert await page.locator("tbody th").all_inner_texts() == names[50:100]
    await ada.send("Previous", "link")
    assert await page.locator("tbody th").all_inner_texts() == names[:50]
    await ada.send("Name", "link")
    assert await page.locator("tbody th").all_inner_texts() == names[:-51:-1]


async def test_what_is_done_with_many_rows_is_counted_and_can_be_undone(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    ids = await make_keys(site, "spring 1", "spring 2", "spring 3")
    await site.operate("PATCH", f"/keys/{ids[2]}", {"status": "disabled"})
    await select_rows(ada, "spring")
    await expect(page.get_by_text("3 selected")).to_be_visible()
    await ada.press("Disable")
    question = page.get_by_role("dialog", name="Please confirm")
    await expect(question).to_contain_text("Disable: 3 rows")
    await expect(question).to_contain_text("spring 1, spring 2, spring 3")
    async with page.expect_navigation():
        await ada.confirm()
    assert await list_states(site, ids) == ["disabled"] * 3
    await expect(page.locator("#toasts")).to_contain_text("Disable: 3 rows done")
    await ada.send("Undo")
    assert await list_states(site, ids) == ["active", "active", "disabled"]
    await expect(page.locator("#toasts")).to_contain_text("Undone")


async def test_undo_leaves_alone_what_somebody_else_has_disabled_or_changed(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    ids = await make_keys(site, "solstice 1", "solstice 2", "solstice 3")
    await select_rows(ada, "solstice")
    await site.operate("PATCH", f"/keys/{ids[0]}", {"status": "disabled"})  # leaked, and the page shows it as active
    await ada.press("Disable")
    async with page.expect_navigation():
        await ada.confirm()
    await site.operate("PATCH", f"/keys/{ids[1]}", {"status": "active"})
    await site.operate("DELETE", f"/keys/{ids[2]}")
    ada.watch.refusals = {404}
    await ada.send("Undo")
    assert await list_states(site, ids[:2]) == ["disabled", "active"]
    await expect(page.locator("#toasts")).to_contain_text("Someone else has changed this in the meantime")


async def test_what_failed_is_told_by_name_and_the_others_are_done(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    ids = await make_keys(site, "autumn 1", "autumn 2", "autumn 3")
    await select_rows(ada, "autumn")
    await site.operate("DELETE", f"/keys/{ids[1]}")
    ada.watch.refusals = {404}
    await ada.press("Delete")
    await ada.confirm()
    report = page.get_by_role("dialog", name="Some actions failed")
    await expect(report).to_contain_text("Delete: 2 of 3 rows done")
    await expect(report).to_contain_text(f"autumn 2: No key has the id {ids[1]}")
    async with page.expect_navigation():
        await ada.press("Close", within=report)
    await expect(page.get_by_text("No key matches")).to_be_visible()


async def test_the_group_of_many_keys_is_changed_at_once(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    await site.operate("PUT", "/groups/partners", {"price_multiplier": 0.5})
    ids = await make_keys(site, "winter 1", "winter 2")
    await select_rows(ada, "winter")
    await ada.press("Change group")
    dialog = ada.page.get_by_role("dialog", name="Change group")
    await ada.choose("Group", "partners", within=dialog)
    await ada.press("Change group", within=dialog)
    async with ada.page.expect_navigation():
        await ada.confirm()
    assert [(await site.operate("GET", f"/keys/{key_id}"))["group"] for key_id in ids] == ["partners", "partners"]


async def test_channels_are_found_tested_drained_moved_and_deleted_together(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    for number in range(3):
        fields = {"name": f"spruce-{number}", "provider": "custom", "models": ["x"], "api_key": "k" * 20}
        await site.operate(
            "POST", "/channels?check=none", {**fields, "base_url": "http://127.0.0.1:9/v1", "priority": number}
        )

    async def list_fields(name: str) -> list[Any]:
        return [one[name] for one in (await site.operate("GET", "/channels?search=spruce&sort=name"))["data"]]

    async def select_channels() -> None:
        await ada.go("/channels?search=spruce")
        assert await page.locator("tbody th a").all_inner_texts() == [f"spruce-{number}" for number in (2, 1, 0)]
        await expect(page.get_by_role("button", name="move up")).to_have_count(0)
        await page.get_by_label("Select all on this page").first.check()

    await select_channels()
    tools = page.get_by_role("region", name="Selected rows")
    await ada.press("Test", within=tools)
    await ada.confirm()
    report = page.get_by_role("dialog", name="Some actions failed")
    await expect(report).to_contain_text("Test: 0 of 3 rows done")
    await expect(report.get_by_role("listitem")).to_have_count(3)
    async with page.expect_navigation():
        await ada.press("Close", within=report)
    assert await list_fields("health") == ["failing"] * 3

    await select_channels()
    await ada.press("Drain", within=tools)
    async with page.expect_navigation():
        await ada.confirm()
    assert await list_fields("status") == ["disabled"] * 3
    await ada.send("Undo")
    assert await list_fields("status") == ["active"] * 3

    await select_channels()
    await ada.press("Change priority", within=tools)
    dialog = page.get_by_role("dialog", name="Change priority")
    await ada.write("Priority", "-7", within=dialog)
    await ada.press("Change priority", within=dialog)
    async with page.expect_navigation():
        await ada.confirm()
    assert await list_fields("priority") == [-7] * 3

    await ada.go("/channels?search=spruce&sort=name")
    await page.get_by_label("Select all on this page").first.check()
    await ada.press("Delete", within=tools)
    async with page.expect_navigation():
        await ada.confirm()
    await expect(page.get_by_text("No channel matches")).to_be_visible()


async def test_a_member_finds_and_changes_only_keys_of_its_own_account(site: VisitedGateway, enter: Enter) -> None:
    ben = await enter("ben", "member", "acme")
    await make_keys(site, "summer")
    await ben.go("/keys?account=crowd")
    assert not any("laptop" in name for name in await ben.page.locator("tbody th").all_inner_texts())
    await ben.go("/keys?search=K_7h")
    await expect(ben.page.get_by_text("No key matches")).to_be_visible()
    await ben.go("/keys?search=summer")
    await expect(ben.page.locator("tbody tr")).to_have_count(1)
    assert await ben.page.get_by_role("button", name="Change group").count() == 0


async def test_an_account_of_many_is_typed_and_checked(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    for number in range(22):
        await site.operate("POST", "/accounts", {"name": f"team {number}"})
    await ada.go("/keys#new-key")
    dialog = page.get_by_role("dialog", name="New key")
    await ada.write("Name", "typed", within=dialog)
    await ada.write("Account", "team 99", within=dialog)
    ada.watch.refusals = {404}
    await ada.press("Create key", within=dialog)
    await expect(dialog.get_by_role("alert")).to_contain_text("No account is called 'team 99'")
    await ada.write("Account", "team 7", within=dialog)
    await ada.press("Create key", within=dialog)
    await expect(page.get_by_role("dialog", name="API key created")).to_be_visible()
    (key,) = (await site.operate("GET", "/keys?search=typed"))["data"]
    assert key["account"] == "team 7"
    await ada.go("/keys?account=team+7")
    await expect(page.locator("tbody th")).to_have_text("typed")


async def test_no_list_is_wider_than_its_card_with_the_longest_names(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    await site.operate("POST", "/keys", {"name": NAME, "account": NAME, "models": [NAME * 3], "quota_usd": 12345.67})
    await site.know(f"{'m' * 40}@{'example' * 3}", "member", NAME)
    for tag in (tag for tag in TAGS if "{" not in tag):
        await site.operate("PUT", f"/prices/{quote(tag, safe='')}", {"input_usd_per_million": 1})
    await site.call(
        "/v1/chat/completions",
        {"model": "demo-chat", "messages": [{"role": "user", "content": "x"}]},
        KEY,
        **{"x-gateway-budget": f"0.5; session={NAME}"},
    )
    wrong: list[str] = []
    for path in LISTS:
        await ada.go(f"{path}?sort=-name" if path in {"/keys", "/accounts"} else path)
        if await page.locator("[data-check]").count():
            await page.locator("[data-check]").first.check()
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            wrong += [f"{path} at {width}: {one}" for one in [*await page.evaluate(_WIDER), *await ada.find_slips()]]
        await page.set_viewport_size(DESK)
        wrong += [f"{path}: {one}" for one in await site.guests.scan(ada)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("width", [390, 1024, 1440])
async def test_the_sums_of_subjects_stand_under_their_headings(site: VisitedGateway, enter: Enter, width: int) -> None:
    ada = await enter("ada")
    question = {"model": "demo-chat", "user": "ann", "messages": [{"role": "user", "content": "x"}]}
    await site.call("/v1/chat/completions", question, KEY, **{"x-gateway-tags": "team=web"})
    await ada.page.set_viewport_size({"width": width, "height": 900})
    for path in ("/end-users", "/tags?tag=team"):
        await ada.go(path)
        heads, rows = await ada.page.evaluate(_CELLS)
        labels = ["Last used", *SUMS] if width == 1440 else ["Last used", "Requests", "Spent"]
        assert rows, path
        for row in rows:
            assert [cell["label"] for cell in row[1:]] == labels, (path, row)
            if width != 390:  # there a row is a card without headings
                assert [cell["left"] for cell in row] == [head["left"] for head in heads], (path, row, heads)
                assert [head["text"] for head in heads[1:]] == labels, (path, heads)


async def test_many_are_invited_and_errors_are_told_by_line(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    await ada.go("/members")
    await ada.press("Invite many")
    dialog = page.get_by_role("dialog", name="Invite many")
    lines = [
        "mail,role,account",
        "Ann@example.com, viewer, crowd",
        "ben@example.com,,acme",
        '"cat@example.com";member;crowd',
        "ann@example.com",
        "no mail",
        "dan@example.com, king, acme",
        f"eve@example.com, member, {TAGS[0]}",
        "=cmd()@example.com",
    ]
    await dialog.get_by_label("People").fill("\n".join(lines))
    await ada.press("Check", within=dialog)
    await expect(dialog.get_by_role("status")).to_have_text("3 invitations ready · 5 lines with an error")
    rows = dialog.locator("tbody tr")
    problems = [await row.locator("td").last.inner_text() for row in await rows.all()]
    assert problems[:3] == ["ready"] * 3
    assert [problem[:20] for problem in problems[3:]] == [
        "This address is alre",
        "“no mail” is not an ",
        "The role must be vie",
        "There is no account ",
        "“=cmd()@example.com”",
    ]
    before = len((await site.operate("GET", "/links"))["data"])
    await ada.press("Create 3 links", within=dialog)
    await expect(dialog.get_by_role("status")).to_have_text("3 links created · 5 lines with an error")
    links: list[dict[str, Any]] = (await site.operate("GET", "/links"))["data"]
    assert len(links) == before + 3
    assert sorted((link["account"], link["role"]) for link in links[:3]) == [
        ("acme", "member"), ("crowd", "member"), ("crowd", "viewer")
    ]  # fmt: skip
    await dialog.get_by_label("Account").press("Enter")
    await expect(dialog.get_by_role("status")).to_have_text("3 links created · 5 lines with an error")
    await expect(dialog.get_by_label("Or a CSV file")).to_be_disabled()
    async with page.expect_download() as download:
        await ada.press("Save links as CSV", within=dialog)
    text = (await (await download.value).path()).read_text()
    assert text.splitlines()[0] == '"mail","role","account","link"'
    first = re.fullmatch(r'"Ann@example.com","viewer","crowd","(.*/console/join#.*)"', text.splitlines()[1])
    assert first is not None
    visitor = await enter()
    await visitor.go(first[1])
    await expect(visitor.page.get_by_text("You are invited to the account crowd. Role: viewer")).to_be_visible()
