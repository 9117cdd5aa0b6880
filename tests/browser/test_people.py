"""People come in, prove who they are, and go: every way in and out of the console, by the keyboard alone."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pyotp
import pytest
import pytest_asyncio
from playwright.async_api import Route, expect

from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway, open_site
from tests.browser.user import Enter, Visitor
from tests.support.console import FROGS

pytestmark = BROWSER

NEW = "a lamp beside nine rivers"
STEP_S = 30


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    async with open_site(guests, tmp_path_factory.mktemp("people"), template_path, {}) as opened:
        await opened.know("ada", "administrator", "acme")
        yield opened


async def sign_in(visitor: Visitor, name: str, passphrase: str = FROGS, then: str = "/") -> None:
    if "/sign-in" not in visitor.page.url:
        await visitor.go("/sign-in")
    await visitor.write("Name", name)
    await visitor.write("Passphrase", passphrase)
    await visitor.page.keyboard.press("Enter")
    if then:
        await visitor.arrive(then)


async def read_link(visitor: Visitor) -> str:
    """What the dialog says that shows a new link."""
    text = visitor.page.locator("#link-text")
    await expect(text).to_contain_text("/console/join#")
    return await text.inner_text()


async def test_whoever_is_invited_comes_in_and_sees_what_a_member_sees(site: VisitedGateway, enter: Enter) -> None:
    ada, ben, late = await enter("ada"), await enter(), await enter()
    await ada.go("/accounts/acme")
    await ada.press("Invite member")
    dialog = ada.page.get_by_role("dialog", name="Invite member")
    await ada.choose("Role", "member", within=dialog)
    await ada.press("Create link")
    link = await read_link(ada)
    await ada.shoot("invite-link", whole=False)
    await ada.press("Done")
    await expect(ada.page.get_by_text("Invitation (member)")).to_be_visible()

    await ben.go(link)
    await expect(ben.page.get_by_text("You are invited to the account acme. Role: member")).to_be_visible()
    await expect(ben.page.get_by_label("Name")).to_be_focused()
    await ben.page.keyboard.insert_text("Ben@Example.com")
    await ben.write("Passphrase", "aaaaaaaaaaaaaa")
    ben.watch.refusals = {400}
    await ben.page.keyboard.press("Enter")
    await expect(ben.page.get_by_role("alert")).to_contain_text("at least 5 different characters")
    await ben.write("Passphrase", NEW)
    await ben.page.keyboard.press("Enter")
    await ben.arrive("/connect")
    await expect(ben.page.get_by_text("ben@example.com")).to_be_visible()
    await expect(ben.find("link", "Channels")).to_have_count(0)

    late.watch.refusals = {404}
    await late.go(link)
    await expect(late.find("heading", "This link is no longer valid")).to_be_visible()
    await ada.page.reload()
    await expect(ada.page.get_by_text("Invitation (member)")).to_have_count(0)
    await expect(ada.find("rowheader", "ben@example.com")).to_be_visible()


async def test_who_has_forgotten_the_passphrase_gets_a_link_and_is_signed_out_elsewhere(
    site: VisitedGateway, enter: Enter
) -> None:
    ada, eve, elsewhere = await enter("ada"), await enter(), await enter("eve")
    await elsewhere.go("/keys")
    await ada.go("/accounts/acme")
    await ada.press("Edit eve")
    await ada.press("Create reset link", within=ada.page.get_by_role("dialog", name="eve"))
    link = await read_link(ada)
    await eve.go(link)
    await expect(eve.find("heading", "New passphrase")).to_be_visible()
    await expect(eve.page.get_by_label("Name")).to_be_hidden()
    await eve.write("Passphrase", NEW)
    await eve.press("Set passphrase")
    await eve.arrive("/")
    await elsewhere.page.reload()
    await elsewhere.arrive("/sign-in?next=/console/keys")
    await sign_in(elsewhere, "eve", NEW, then="/keys")


async def test_a_second_factor_is_set_up_asked_for_and_taken_away(site: VisitedGateway, enter: Enter) -> None:
    await site.know("finn", "member", "acme")
    finn = await enter("finn")
    page = finn.page
    await finn.go("/account")
    await finn.press("Set up second factor")
    await finn.write("Passphrase", FROGS, within=page.locator("#enrol-passphrase"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_alt_text("QR code for your authenticator")).to_be_visible()
    assert await page.locator("#enrol-qr").evaluate("(one) => one.decode().then(() => one.naturalWidth > 0)")
    await finn.shoot("second-factor")
    factor = pyotp.TOTP(await page.locator("#enrol-secret").inner_text())
    await finn.write("Code from the app", factor.now())
    await page.keyboard.press("Enter")
    codes = page.get_by_role("list").filter(has_text="-").get_by_role("listitem")
    await expect(page.locator("#recovery-codes li")).to_have_count(10)
    code, other = await codes.first.inner_text(), await codes.nth(1).inner_text()
    await finn.shoot("recovery-codes")
    await finn.press("I have saved them", "link")
    await expect(page.get_by_text("You have 10 recovery codes left")).to_be_visible()

    await finn.press("Sign out")
    await finn.arrive("/sign-in")
    finn.watch.refusals = {401}
    await sign_in(finn, "finn", then="")
    await expect(page.get_by_label("Code")).to_be_focused()
    await page.keyboard.insert_text("000000")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("is wrong")
    await finn.shoot("sign-in-second-factor")
    await page.keyboard.insert_text(code)
    await page.keyboard.press("Enter")
    await finn.arrive("/")

    await finn.go("/account")
    await expect(page.get_by_text("You have 9 recovery codes left")).to_be_visible()
    await finn.press("Sign out")
    await finn.arrive("/sign-in")
    await sign_in(finn, "finn", then="")
    await expect(page.get_by_label("Code")).to_be_focused()
    await page.keyboard.insert_text(factor.at(int(time.time()) + STEP_S))  # that of now was used up as it was set up
    await page.keyboard.press("Enter")
    await finn.arrive("/")
    await finn.go("/account")
    await finn.unfold("Remove second factor")
    form = page.locator("#remove-factor")
    await finn.write("Passphrase", FROGS, within=form)
    await finn.write("Code", other, within=form)
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Second factor removed")).to_be_visible()


async def test_a_passkey_is_added_signs_in_alone_and_after_the_passphrase_and_is_removed(
    site: VisitedGateway, enter: Enter
) -> None:
    """With an authenticator of the browser's own, which signs as a device does."""
    await site.know("hana", "member", "acme")
    hana = await enter()
    page = hana.page
    hana.url = hana.watch.origin = hana.url.replace("127.0.0.1", "localhost")  # an address of numbers has no passkeys
    device = await page.context.new_cdp_session(page)
    await device.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    await device.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    await hana.go("/sign-in")
    await sign_in(hana, "hana", then="/")
    await hana.go("/account")
    await hana.unfold("Add passkey")
    form = page.locator("#add-passkey")
    await hana.write("Passkey name", "my laptop", within=form)
    await hana.write("Passphrase", FROGS, within=form)
    await hana.shoot("passkey-form")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Passkey added")).to_be_visible()
    await expect(page.get_by_role("row", name="my laptop")).to_be_visible()
    await hana.shoot("passkeys")

    await hana.press("Sign out")
    await hana.arrive("/sign-in")
    await hana.shoot("sign-in-passkey")
    await hana.press("Sign in with a passkey")
    await hana.arrive("/")

    await hana.press("Sign out")
    await hana.arrive("/sign-in")
    hana.watch.refusals = {401}
    await sign_in(hana, "hana", then="")
    await expect(page.get_by_text("Now use your passkey")).to_be_visible()
    await expect(page.get_by_label("Code")).to_be_hidden()
    await hana.shoot("sign-in-passkey-second")
    await hana.press("Use passkey")
    await hana.arrive("/")

    await hana.go("/account")
    await hana.press("Edit: my laptop")
    dialog = page.get_by_role("dialog", name="my laptop")
    await hana.write("Passkey name", "old laptop", within=dialog)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("row", name="old laptop")).to_be_visible()
    await hana.press("Edit: old laptop")
    dialog = page.get_by_role("dialog", name="old laptop")
    await hana.write("Passphrase", FROGS, within=dialog)
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Passkey removed")).to_be_visible()
    await expect(page.get_by_role("row", name="old laptop")).to_be_hidden()


async def test_a_new_passphrase_ends_every_other_session(site: VisitedGateway, enter: Enter) -> None:
    """What was being written there is not lost: it is sent again after signing in beside it."""
    gus, elsewhere = await enter("gus"), await enter("gus")
    form = gus.page.locator("#change-passphrase")
    await gus.go("/account")
    await elsewhere.go("/account")
    gus.watch.refusals = {401}
    await gus.write("Current passphrase", "not that one at all", within=form)
    await gus.write("New passphrase", NEW, within=form)
    await gus.page.keyboard.press("Enter")
    await expect(gus.page.get_by_role("alert")).to_be_visible()
    await gus.write("Current passphrase", FROGS, within=form)
    await gus.page.keyboard.press("Enter")
    await expect(gus.page.get_by_text("Passphrase changed")).to_be_visible()
    elsewhere.watch.refusals = {401}
    await elsewhere.press("Set up second factor")
    form = elsewhere.page.locator("#enrol-passphrase")
    await elsewhere.write("Passphrase", NEW, within=form)
    await elsewhere.page.keyboard.press("Enter")
    over = elsewhere.page.get_by_role("dialog", name="Your session has expired")
    async with elsewhere.context.expect_page() as opened:
        await elsewhere.press("Sign in", "link", within=over)
    tab = await opened.value
    await sign_in(attrs.evolve(elsewhere, page=tab), "gus", NEW)
    await elsewhere.page.bring_to_front()
    await elsewhere.press("Continue", within=form)
    await expect(elsewhere.page.get_by_alt_text("QR code for your authenticator")).to_be_visible()


async def test_a_form_sent_before_its_script_has_come_is_sent_once_it_has(site: VisitedGateway, enter: Enter) -> None:
    await enter("liv")
    late, scripts_may_come = await enter(), asyncio.Event()

    async def hold(route: Route) -> None:
        await scripts_may_come.wait()
        await route.continue_()

    await late.page.route("**/forms.js", hold)
    await late.page.goto(f"{late.url}/console/sign-in", wait_until="commit")
    await late.write("Name", "liv")
    await late.write("Passphrase", FROGS)
    await late.page.keyboard.press("Enter")
    await late.page.keyboard.press("Enter")
    await expect(late.page.get_by_label("Passphrase", exact=True)).to_have_value(FROGS)
    scripts_may_come.set()
    await late.arrive("/")


async def test_a_session_elsewhere_is_seen_and_ended(site: VisitedGateway, enter: Enter) -> None:
    hal, phone, other = await enter("hal"), await enter("hal"), await enter("hal")
    await phone.go("/keys")
    await hal.go("/account")
    rows = hal.page.get_by_role("row").filter(has_text="203.0.113.9")
    await expect(rows).to_have_count(3)
    ends = hal.page.get_by_role("button", name="Sign out: ")
    await hal.reach(ends.first)
    await hal.page.keyboard.press("Enter")
    await expect(rows).to_have_count(2)
    await hal.press("Sign out other devices")
    await hal.confirm()
    await expect(hal.page.get_by_text("You have been signed out on all other devices.")).to_be_visible()
    await expect(rows).to_have_count(1)
    for gone in (phone, other):
        await gone.page.goto(f"{site.url}/console/keys")
        await gone.arrive("/sign-in?next=/console/keys")


async def test_who_signs_out_is_out_and_no_page_is_left_behind(site: VisitedGateway, enter: Enter) -> None:
    ivy = await enter("ivy")
    await ivy.go("/keys")
    await ivy.go("/requests")
    await ivy.press("Sign out")
    await ivy.arrive("/sign-in")
    await ivy.page.go_back()
    await ivy.arrive("/sign-in?next=/console/requests")
    ivy.watch.refusals = {401}
    await sign_in(ivy, "ivy", "not that one at all", then="")
    await expect(ivy.page.get_by_role("alert")).to_have_text("The name, passphrase or code is wrong")
    await sign_in(ivy, "ivy", then="/requests")


async def test_another_role_is_in_force_at_once(site: VisitedGateway, enter: Enter) -> None:
    ada, jon = await enter("ada"), await enter("jon")
    await jon.go("/keys")
    await expect(jon.find("button", "New key")).to_be_visible()
    await ada.go("/accounts/acme")
    await ada.press("Edit jon")
    dialog = ada.page.get_by_role("dialog", name="jon")
    await ada.choose("Role", "Viewer", within=dialog)
    await ada.press("Save", within=dialog)
    await expect(ada.page.get_by_role("row", name="jon").get_by_role("cell", name="viewer")).to_be_visible()
    await jon.page.reload()
    await jon.arrive("/sign-in?next=/console/keys")
    await sign_in(jon, "jon", then="/keys")
    await expect(jon.find("button", "New key")).to_have_count(0)


async def test_the_theme_is_chosen_and_kept(site: VisitedGateway, enter: Enter) -> None:
    kim = await enter("kim")
    await kim.go("/keys")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = await kim.page.evaluate(paper)
    await kim.press("Theme: system")
    await kim.press("Theme: light")
    await expect(kim.find("button", "Theme: dark")).to_be_visible()
    dark = await kim.page.evaluate(paper)
    assert dark != light
    await kim.go("/connect")
    assert await kim.page.evaluate(paper) == dark


async def test_the_language_is_switched_before_and_after_signing_in(site: VisitedGateway, enter: Enter) -> None:
    """By the keyboard; pages, scripts and dialogs follow, and the choice stays."""
    kim = await enter("kim")
    page = kim.page
    chosen = page.get_by_role("group").get_by_role("button", name="简体中文", exact=True)
    await page.context.clear_cookies()
    await kim.go("/sign-in")
    await kim.send("简体中文")
    await expect(page.get_by_role("heading", name="登录", exact=True)).to_be_visible()
    await expect(chosen).to_have_attribute("aria-pressed", "true")
    kim = await enter("lee")
    page = kim.page
    await kim.go("/keys")
    await kim.send("简体中文")
    assert await page.evaluate("document.documentElement.lang") == "zh-Hans"
    await kim.press("新建密钥")
    dialog = page.get_by_role("dialog", name="新建密钥")
    await expect(dialog).to_be_visible()
    await page.keyboard.press("Escape")
    await kim.go("/connect")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await kim.press("复制\N{FULLWIDTH COLON}Base URL")
    await expect(page.get_by_text("已复制", exact=True)).to_be_visible()
    await kim.send("English")
    await expect(page.get_by_role("heading", name="Connect", exact=True)).to_be_visible()
