"""The pages before anybody is signed in."""

import re
from importlib.resources import files

from gateway.server.context import SERVICES
from tests.support.console_people import PASSPHRASE, make_administrator, meet
from tests.support.started_gateways import StartGateway


async def test_the_setup_is_offered_until_it_is_done_and_then_says_so(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    stranger = meet(gateway)
    async with stranger.session:
        status, text = await stranger.open("/setup")
        assert status == 200
        for wanted in (
            'data-call="POST /admin/v1/setup"',
            'data-then="/console/connect"',
            'name="token" value=""',
            ">Create account<",
        ):
            assert wanted in text
        assert "no-token" in text, "what is said where the link was cut"
        assert "make run" in (await stranger.open("/sign-in"))[1]
        token = await gateway.app[SERVICES].auth.invitations.find_setup_token()
        assert token not in text, "only who has the link has what makes it one"

        async with (await make_administrator(gateway)).session:
            status, text = await stranger.open("/setup")
            assert status == 200
            assert "Setup is complete" in text
            assert 'href="/console/sign-in"' in text
            assert "data-call" not in text
            assert "make run" not in (await stranger.open("/sign-in"))[1]


async def test_whoever_was_invited_comes_in_and_a_link_used_up_is_good_for_nobody(gateway_with: StartGateway) -> None:
    """What ``welcome.js`` sends for the page, and what it is told."""
    gateway = await gateway_with({})
    ada, ben, late = await make_administrator(gateway), meet(gateway), meet(gateway)
    async with ada.session, ben.session, late.session:
        status, text = await ben.open("/join")
        assert status == 200
        assert 'data-call="POST /admin/v1/links/use"' in text
        for role in ("viewer", "member", "administrator"):
            assert f'data-role="{role}" hidden' in text
        _, link = await ada.call("POST", "/links", {"account": "acme", "role": "member"})
        assert link["url"].endswith(f"/console/join#{link['token']}")
        status, opened = await ben.call("POST", "/links/open", {"token": link["token"]})
        assert status == 200
        assert (opened["kind"], opened["account"], opened["role"], opened["name"]) == ("invite", "acme", "member", None)
        used = {"token": link["token"], "name": "ben", "passphrase": PASSPHRASE}
        assert (await ben.call("POST", "/links/use", used))[0] == 201
        assert (await ben.open("/connect"))[0] == 200
        assert (await late.call("POST", "/links/open", {"token": link["token"]}))[0] == 404


def test_what_is_typed_before_a_script_has_come_stands_in_no_address() -> None:
    """A form without a method would be sent with ``GET``: a passphrase in the history, and in every proxy's log."""
    pages = [path for path in (files("gateway.server.console") / "templates").iterdir() if path.name.endswith(".html")]
    forms = {path.name: re.findall(r"<form\b[^>]*", path.read_text()) for path in pages}
    assert "data-call" in str(forms["sign_in.html"])
    for name, found in forms.items():
        for form in found:
            assert 'method="post"' in form or ('method="get"' in form and "data-filter" in form), (name, form)
