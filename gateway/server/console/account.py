"""The page of a member's own account: passphrase, second factor, passkeys and sessions."""

import re

from aiohttp import web

from gateway.domain.member import MAX_PASSPHRASE, MIN_PASSPHRASE
from gateway.domain.passkey import MAX_PASSKEYS
from gateway.installation import format_install_command
from gateway.server.admin.answer import write_answer
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.context import SERVICES
from gateway.server.sessions import find_site

_BROWSERS = (
    ("Edge", re.compile(r"\bEdgA?/|\bEdgiOS/")),
    ("Opera", re.compile(r"\bOPR/")),
    ("Samsung Internet", re.compile(r"\bSamsungBrowser/")),
    ("Firefox", re.compile(r"\bFirefox/|\bFxiOS/")),
    ("Chrome", re.compile(r"\b(?:Headless)?Chrome/|\bCriOS/|\bChromium/")),
    ("Safari", re.compile(r"\bSafari/")),
    ("curl", re.compile(r"\bcurl/")),
)
_SYSTEMS = (
    ("iPhone", re.compile(r"\biPhone\b")),
    ("iPad", re.compile(r"\biPad\b")),
    ("Android", re.compile(r"\bAndroid\b")),
    ("Windows", re.compile(r"\bWindows\b")),
    ("macOS", re.compile(r"\bMac OS X\b|\bMacintosh\b")),
    ("ChromeOS", re.compile(r"\bCrOS\b")),
    ("Linux", re.compile(r"\bLinux\b")),
)
"""Names to look for in user agents. The first match counts, because most browsers also name others."""
_MAX_AGENT_CHARS = 60
CHANGES = ("passphrase", "second-factor-off", "others-ended", "passkey-added", "passkey-removed")
"""Codes of completed actions, which the page reports after a reload."""


async def load_account(request: web.Request) -> Data:
    """Load the member with its sessions, passkeys and identities, and the keys that have their own rule for bodies."""
    account_session = await ask_admin_api(request, "/session")
    sessions = await ask_admin_api(request, "/sessions")
    keys = await ask_admin_api(request, "/keys", account=account_session.account.name)
    changed_item = request.query.get("changed")
    return {
        "own": account_session,
        "keys_with_rule": [key for key in keys if key.keep_bodies is not None],
        "passkeys": await ask_admin_api(request, "/session/passkeys"),
        "install": format_install_command("sso"),
        "obstacle": request.app[SERVICES].auth.passkeys.find_obstacle(find_site(request)),
        "most": MAX_PASSKEYS,
        "providers": await ask_admin_api(request, "/session/identities"),
        "sessions": [{**write_answer(session), "device": format_device(session.agent)} for session in sessions],
        "others": sum(not session.current for session in sessions),
        "changed": changed_item if changed_item in CHANGES else None,
        "shortest": MIN_PASSPHRASE,
        "longest": MAX_PASSPHRASE,
    }


def format_device(agent: str) -> str:
    """Shorten a user agent to a few words, such as ``Firefox (Linux)``; empty if there is none."""
    browser = next((name for name, pattern in _BROWSERS if pattern.search(agent)), None)
    system = next((name for name, pattern in _SYSTEMS if pattern.search(agent)), None)
    if browser is None:
        return agent[:_MAX_AGENT_CHARS].strip()
    return f"{browser} ({system})" if system else browser
