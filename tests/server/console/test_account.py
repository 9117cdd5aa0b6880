"""A member's own account."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.server.console.account import format_device
from tests.support.console_people import PASSPHRASE, make_administrator, meet
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

WEBKIT = "AppleWebKit/537.36 (KHTML, like Gecko)"


@table_rows(
    ("agent", "device"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "Firefox (Linux)"),
        (f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {WEBKIT} Chrome/130.0.0.0 Safari/537.36", "Chrome (Windows)"),
        (f"Mozilla/5.0 (Windows NT 10.0) {WEBKIT} Chrome/130.0.0.0 Safari/537.36 Edg/130.0", "Edge (Windows)"),
        (f"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15) {WEBKIT} Version/17.5 Safari/605.1.15", "Safari (macOS)"),
        (
            f"Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) {WEBKIT} Version/17.5 Safari/604.1",
            "Safari (iPhone)",
        ),
        (f"Mozilla/5.0 (Linux; Android 14; Pixel 8) {WEBKIT} Chrome/130.0 Mobile Safari/537.36", "Chrome (Android)"),
        (f"Mozilla/5.0 (X11; Linux x86_64) {WEBKIT} HeadlessChrome/130.0 Safari/537.36", "Chrome (Linux)"),
        ("curl/8.5.0", "curl"),
        ("", ""),
        ("<script>alert(1)</script>" * 9, ("<script>alert(1)</script>" * 9)[:60]),
    ],
)
def test_a_browser_is_told_in_few_words(agent: str, device: str) -> None:
    assert format_device(agent) == device


@given(st.text())
def test_whatever_a_browser_says_of_itself_is_told_in_a_line(agent: str) -> None:
    assert len(format_device(agent)) <= 60


async def test_the_page_has_every_session_and_ends_only_others(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    ada, again = await make_administrator(gateway), meet(gateway)
    async with ada.session, again.session:
        hostile = '<img src=x onerror="alert(1)">'
        reported = {"name": "ada", "passphrase": PASSPHRASE}
        assert (await again.call("POST", "/session", reported, **{"User-Agent": hostile}))[0] == 201
        sessions = (await ada.call("GET", "/sessions"))[1]["data"]
        _, text = await ada.open("/account")
        assert text.count(">this session<") == 1
        for session in sessions:
            assert (f"DELETE /admin/v1/sessions/{session['id']}" in text) is not session["current"]
        assert hostile not in text
        assert "&lt;img src=x" in text
        assert "Sign out other devices" in text
        assert "Administrators can see and change everything" in text
        assert "Set up second factor" in text
        assert (await ada.call("DELETE", "/sessions"))[0] == 200
        _, text = await ada.open("/account?changed=others-ended")
        assert "You have been signed out on all other devices" in text
        assert "Sign out other devices" not in text
        assert "<script>alert" not in (await ada.open("/account?changed=%3Cscript%3Ealert(1)%3C/script%3E"))[1]
        assert (await again.open("/account"))[0] == 303


async def test_a_second_factor_is_shown_to_be_on_with_what_is_left_of_its_codes(gateway_with: StartGateway) -> None:
    import pyotp  # noqa: PLC0415 - as the gateway imports it

    gateway = await gateway_with({})
    ada = await make_administrator(gateway)
    async with ada.session:
        status, pending = await ada.call("POST", "/session/second-factor", {"passphrase": PASSPHRASE})
        assert status == 200
        assert pending["qr_svg"].startswith("<svg"), "account.js makes an image of it"
        assert pending["uri"].startswith("otpauth://totp/")
        code = pyotp.TOTP(pending["secret"]).now()
        assert (await ada.call("POST", "/session/second-factor/confirm", {"code": code}))[0] == 200
        _, text = await ada.open("/account")
        assert "You have 10 recovery codes left" in text
        assert 'data-call="DELETE /admin/v1/session/second-factor"' in text
        assert "Set up second factor" not in text
