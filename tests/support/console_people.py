"""Members who are signed in to a gateway under test, as their browsers would be."""

from typing import Any

import aiohttp
import attrs
from yarl import URL

from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from gateway.server.sessions import CONSOLE_HEADER
from tests.support.gateway import RunningGateway

PASSPHRASE = "purple hedgehog wagon"
HOME = {CONSOLE_HEADER: "1", "Sec-Fetch-Site": "same-origin"}
"""What a page of ours sends."""


@attrs.define
class Person:
    """Somebody with a browser."""

    gateway: RunningGateway
    session: aiohttp.ClientSession

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """An operation of the admin API, from a page of ours."""
        url = URL(f"{self.gateway.url}{PREFIX}{path}", encoded=True)
        json = {} if body is None and method != "GET" else body
        async with self.session.request(method, url, json=json, headers={**HOME, **headers}) as response:
            if response.content_type != "application/json":
                return response.status, await response.read()
            return response.status, await response.json()

    async def open(self, path: str) -> tuple[int, str]:
        """A page of the console, as a browser goes to it; where it sends elsewhere, the address."""
        url = URL(f"{self.gateway.url}/console{path}", encoded=True)
        headers = {"Sec-Fetch-Site": "none", "Accept": "text/html"}
        async with self.session.get(url, headers=headers, allow_redirects=False) as response:
            return response.status, response.headers.get("Location") or await response.text()


def meet(gateway: RunningGateway) -> Person:
    """Somebody who is not signed in."""
    return Person(gateway, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)))


async def make_administrator(gateway: RunningGateway, name: str = "ada") -> Person:
    """The first member, made by the link that a start prints."""
    person = meet(gateway)
    token = await gateway.app[SERVICES].auth.invitations.find_setup_token()
    status, body = await person.call("POST", "/setup", {"token": token, "name": name, "passphrase": PASSPHRASE})
    assert status == 201, body
    return person


async def invite(administrator: Person, name: str, role: str, account: str) -> Person:
    """A member of an account, by an invitation."""
    status, link = await administrator.call("POST", "/links", {"account": account, "role": role})
    assert status == 201, link
    person = meet(administrator.gateway)
    fields = {"token": link["token"], "name": name, "passphrase": PASSPHRASE}
    status, body = await person.call("POST", "/links/use", fields)
    assert status == 201, body
    return person
