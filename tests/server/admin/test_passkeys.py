"""Passkeys on the wire: registered, used alone and as second factor; and every way in which that is refused."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import attrs
import pytest

from gateway.domain.member import Member
from gateway.domain.passkey import CHALLENGE_MS, MAX_PASSKEYS
from gateway.domain.passkey_spec import encode
from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from gateway.server.sessions import COOKIE, SECURE_COOKIE
from tests.support.console import FROGS, PAGE, add_member, open_session
from tests.support.gateway import RunningGateway, channel
from tests.support.soft_authenticator import SoftAuthenticator
from tests.support.started_gateways import StartGateway

Json = dict[str, Any]
CONFIG: Json = {"channel": [channel("http://127.0.0.1:9/v1")], "account": [{"name": "acme"}]}
WORDS = {"passphrase": FROGS}
WHOLE = {"name": "ann", **WORDS}
NO_CODE = "wrong_passphrase"


@attrs.define
class Clock:
    """Stands still until it is set."""

    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@attrs.frozen
class Site:
    """A gateway at ``localhost``, and what its pages send."""

    gateway: RunningGateway
    client: aiohttp.ClientSession
    clock: Clock

    @property
    def host(self) -> str:
        return self.gateway.url.removeprefix("http://").replace("127.0.0.1", "localhost")

    def make_device(self, **values: Any) -> SoftAuthenticator:
        return SoftAuthenticator(**{"origin": f"http://{self.host}", **values})

    async def send(
        self, method: str, path: str, body: Any = None, reference: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """What a page of ours asks, at ``localhost`` unless ``headers`` have another ``Host``."""
        cookie = {} if reference is None else {"Cookie": f"{COOKIE}={reference}; {SECURE_COOKIE}={reference}"}
        sent = {"Host": self.host, **PAGE, **cookie, **headers}
        async with self.client.request(method, self.gateway.url + PREFIX + path, json=body, headers=sent) as response:
            return response.status, await response.json()

    async def add(self, name: str = "ann") -> tuple[Member, str]:
        """A member, and a session of theirs."""
        member = await add_member(self.gateway, name)
        return member, await open_session(self.gateway, member)

    async def register(
        self, reference: str, device: SoftAuthenticator | None = None, **changes: Any
    ) -> SoftAuthenticator:
        """A device with a passkey of the signed-in member."""
        device = device or self.make_device()
        status, options = await self.send("POST", "/session/passkeys/options", WORDS, reference)
        assert status == 200, options
        status, body = await self.send("POST", "/session/passkeys", device.create(options, **changes), reference)
        assert status == 201, body
        return device

    async def start(self, body: Any = None) -> Json:
        status, options = await self.send("POST", "/session/passkey/options", body or {})
        assert status == 200, options
        return dict(options)

    async def sign_in(self, answer: Json, **headers: str) -> tuple[int, Any]:
        return await self.send("POST", "/session/passkey", answer, **headers)

    async def list_audit(self, action: str) -> list[Json]:
        """Rows of an action, the newest first."""
        headers = {"Authorization": f"Bearer {self.gateway.admin_token}"}
        _, body = await self.send("GET", f"/audit-trail?action={action}", **headers)
        return list(body["data"])


@pytest.fixture
async def site(gateway_with: StartGateway) -> AsyncIterator[Site]:
    clock = Clock()
    gateway = await gateway_with(CONFIG, clock=clock)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client:
        yield Site(gateway, client, clock)


def assert_refused(answered: tuple[int, Any]) -> None:
    status, body = answered
    assert (status, body["error"]["code"]) == (401, NO_CODE), body


async def test_a_passkey_signs_in_alone(site: Site) -> None:
    _, reference = await site.add()
    device = await site.register(reference)
    options = await site.start()
    assert (options["rpId"], options["allowCredentials"], options["userVerification"]) == ("localhost", [], "required")
    status, body = await site.sign_in(device.get(options))
    assert (status, body["member"]["name"], body["member"]["passkeys"]) == (201, "ann", 1)
    row = (await site.list_audit("member.signed_in"))[0]
    assert (row["actor"], row["detail"]) == ("ann", {"passkey": "Laptop"})
    _, listed = await site.send("GET", "/session/passkeys", reference=reference)
    assert [(one["name"], one["transports"], bool(one["used_at"])) for one in listed["data"]] == [
        ("Laptop", ["internal"], True)
    ]


async def test_a_passkey_is_the_second_factor_after_the_passphrase(site: Site) -> None:
    _, reference = await site.add()
    device = await site.register(reference, site.make_device(verifies=False))
    status, body = await site.send("POST", "/session", WHOLE)
    assert (status, body["error"]["code"], body["error"]["param"]) == (401, "second_factor_needed", "passkey")
    status, body = await site.send("POST", "/session", {**WHOLE, "code": "123456"})
    assert (status, body["error"]["code"]) == (401, "second_factor_needed"), "there is no code to guess"
    options = await site.start(WHOLE)
    assert options["allowCredentials"] == [
        {"type": "public-key", "id": encode(device.credential_id), "transports": ["internal"]}
    ]
    assert options["userVerification"] == "preferred"
    status, body = await site.sign_in(device.get(options))
    assert (status, body["member"]["second_factor"]) == (201, True)


async def test_alone_the_device_must_have_checked_who_uses_it(site: Site) -> None:
    _, reference = await site.add()
    device = await site.register(reference, site.make_device(verifies=False))
    assert_refused(await site.sign_in(device.get(await site.start())))
    device.verifies = True
    assert (await site.sign_in(device.get(await site.start())))[0] == 201


async def test_a_challenge_is_answered_once(site: Site) -> None:
    _, reference = await site.add()
    device = await site.register(reference)
    options = await site.start()
    answer = device.get(options)
    assert (await site.sign_in(answer))[0] == 201
    assert_refused(await site.sign_in(answer))
    assert_refused(await site.sign_in(device.get(options)))
    assert (await site.list_audit("member.passkey_refused"))[0]["detail"]["reason"] == "challenge"


async def test_a_challenge_is_answered_in_time_and_not_made_up(site: Site) -> None:
    _, reference = await site.add()
    device = await site.register(reference)
    options = await site.start()
    assert_refused(await site.sign_in(device.get({**options, "challenge": encode(bytes(56))})))
    assert_refused(await site.sign_in(device.get({**options, "challenge": ""})))
    site.clock.now_s += CHALLENGE_MS / 1000
    assert_refused(await site.sign_in(device.get(options)))


@pytest.mark.parametrize(
    "lie",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://localhost:1"},
        {"rp_id": "evil.example"},
        {"user_handle": bytes(8)},
    ],
)
async def test_another_site_or_owner_is_refused(site: Site, lie: Json) -> None:
    _, reference = await site.add()
    device = await site.register(reference)
    for name, value in lie.items():
        setattr(device, name, value)
    assert_refused(await site.sign_in(device.get(await site.start())))
    (row,) = await site.list_audit("member.passkey_refused")
    assert (row["subject"], row["detail"]["passkey"]) == ("ann", "Laptop")


async def test_the_page_of_another_site_is_refused(site: Site) -> None:
    _, reference = await site.add()
    device = await site.register(reference)
    answer = device.get(await site.start())
    status, body = await site.sign_in(answer, **{"Sec-Fetch-Site": "cross-site"})
    assert (status, body["error"]["code"]) == (403, "forbidden")


async def test_a_signature_of_another_key_or_of_other_bytes_is_refused(site: Site) -> None:
    _, reference = await site.add()
    device = await site.register(reference)
    thief = site.make_device(credential_id=device.credential_id, user_handle=device.user_handle, count=9)
    assert_refused(await site.sign_in(thief.get(await site.start())))
    answer = device.get(await site.start())
    for name in ("signature", "authenticator_data", "client_data"):
        assert_refused(await site.sign_in({**answer, name: "AAAA"}))
    unknown = site.make_device()
    assert_refused(await site.sign_in(unknown.get(await site.start())))


async def test_another_members_passkey_is_no_second_factor(site: Site) -> None:
    _, anns = await site.add()
    _, bobs = await site.add("bob")
    await site.register(anns)
    theirs = await site.register(bobs)
    assert_refused(await site.sign_in(theirs.get(await site.start(WHOLE))))


async def test_a_challenge_after_a_passphrase_is_void_after_another_passphrase(site: Site) -> None:
    _, reference = await site.add()
    device = await site.register(reference)
    options = await site.start(WHOLE)
    change = {"current": FROGS, "passphrase": "nine brown toads hum"}
    assert (await site.send("POST", "/session/passphrase", change, reference))[0] == 200
    assert_refused(await site.sign_in(device.get(options)))


async def test_a_counter_that_goes_back_is_refused_and_audited(site: Site) -> None:
    _, reference = await site.add()
    device = await site.register(reference)
    assert (await site.sign_in(device.get(await site.start())))[0] == 201
    for count in (0, device.count - 1):  # after its next step: back, and where it stood
        device.count = count
        assert_refused(await site.sign_in(device.get(await site.start())))
    rows = await site.list_audit("member.passkey_refused")
    assert [row["detail"] for row in rows] == [{"passkey": "Laptop", "reason": "sign count"}] * 2
    device.count = 100
    assert (await site.sign_in(device.get(await site.start())))[0] == 201


async def test_a_device_without_a_counter_signs_in_again_and_again(site: Site) -> None:
    _, reference = await site.add()
    device = await site.register(reference, site.make_device(step=0))
    for _ in range(2):
        assert (await site.sign_in(device.get(await site.start())))[0] == 201


async def test_who_is_disabled_or_removed_does_not_get_in(site: Site) -> None:
    ann, reference = await site.add()
    device = await site.register(reference)
    operator = {"Authorization": f"Bearer {site.gateway.admin_token}"}
    await site.send("PATCH", f"/members/{ann.id}", {"status": "disabled"}, **operator)
    status, body = await site.sign_in(device.get(await site.start()))
    assert (status, body["error"]["code"]) == (403, "forbidden")
    await site.send("DELETE", f"/members/{ann.id}", **operator)
    assert_refused(await site.sign_in(device.get(await site.start())))


async def test_guessing_is_slowed_down(site: Site) -> None:
    _, reference = await site.add()
    device = await site.register(reference, site.make_device(verifies=False))
    statuses = [(await site.sign_in(device.get(await site.start())))[0] for _ in range(6)]
    assert statuses == [401] * 5 + [429]


async def test_a_right_passphrase_does_not_forgive_wrong_second_factors(site: Site) -> None:
    _, reference = await site.add()
    await site.register(reference)
    statuses = []
    for _ in range(6):
        status, body = await site.send("POST", "/session/passkey/options", WHOLE)
        statuses.append(status)
        await site.send("POST", "/session", {"name": "ann", "passphrase": "wrong"})
    assert statuses == [200] * 5 + [429], body


async def test_a_registration_is_of_its_session_once_and_in_time(site: Site) -> None:
    ann, reference = await site.add()
    other = await open_session(site.gateway, ann)
    device = site.make_device()
    _, options = await site.send("POST", "/session/passkeys/options", WORDS, reference)
    answer = device.create(options)
    for who, expected in ((other, 400), (reference, 201), (reference, 400)):
        assert (await site.send("POST", "/session/passkeys", answer, who))[0] == expected
    _, options = await site.send("POST", "/session/passkeys/options", WORDS, reference)
    assert options["excludeCredentials"][0]["id"] == encode(device.credential_id)
    site.clock.now_s += CHALLENGE_MS / 1000
    assert (await site.send("POST", "/session/passkeys", site.make_device().create(options), reference))[0] == 400


async def test_a_registration_needs_the_passphrase_and_the_right_site(site: Site) -> None:
    _, reference = await site.add()
    status, _ = await site.send("POST", "/session/passkeys/options", {"passphrase": "wrong"}, reference)
    assert status == 401
    for lie in ({"origin": "https://evil.example"}, {"rp_id": "evil.example"}):
        _, options = await site.send("POST", "/session/passkeys/options", WORDS, reference)
        answer = site.make_device(**lie).create(options)
        assert (await site.send("POST", "/session/passkeys", answer, reference))[0] == 400
    _, options = await site.send("POST", "/session/passkeys/options", WORDS, reference)
    answer = site.make_device().create(options, id=encode(b"another"))
    assert (await site.send("POST", "/session/passkeys", answer, reference))[0] == 400
    _, options = await site.send("POST", "/session/passkeys/options", WORDS, reference)
    answer = site.make_device().create(options, attestation_object="AAAA")
    assert (await site.send("POST", "/session/passkeys", answer, reference))[0] == 400


async def test_a_credential_is_registered_once_and_a_member_has_ten(site: Site) -> None:
    _, anns = await site.add()
    _, bobs = await site.add("bob")
    device = await site.register(anns)
    _, options = await site.send("POST", "/session/passkeys/options", WORDS, bobs)
    assert (await site.send("POST", "/session/passkeys", device.create(options), bobs))[0] == 409
    late = [(await site.send("POST", "/session/passkeys/options", WORDS, anns))[1] for _ in range(2)]
    for _ in range(MAX_PASSKEYS - 1):
        await site.register(anns)
    assert (await site.send("POST", "/session/passkeys/options", WORDS, anns))[0] == 409
    assert (await site.send("POST", "/session/passkeys", site.make_device().create(late[0]), anns))[0] == 409


async def test_a_passkey_is_renamed_and_removed_by_its_owner(site: Site) -> None:
    _, anns = await site.add()
    _, bobs = await site.add("bob")
    device = await site.register(anns)
    _, listed = await site.send("GET", "/session/passkeys", reference=anns)
    path = f"/session/passkeys/{listed['data'][0]['id']}"
    assert (await site.send("PATCH", path, {"name": "Mine"}, bobs))[0] == 404
    assert (await site.send("DELETE", path, WORDS, bobs))[0] == 404
    assert (await site.send("PATCH", path, {"name": " "}, anns))[0] == 400
    status, body = await site.send("PATCH", path, {"name": "Phone"}, anns)
    assert (status, body["name"]) == (200, "Phone")
    assert (await site.send("DELETE", path, {"passphrase": "wrong"}, anns))[0] == 401
    assert (await site.send("DELETE", path, WORDS, anns))[0] == 200
    assert_refused(await site.sign_in(device.get(await site.start())))
    assert (await site.send("POST", "/session", WHOLE))[0] == 201, "it was the second factor"
    trail = {
        "added": {"passkey": "Laptop"},
        "renamed": {"passkey": ["Laptop", "Phone"]},
        "removed": {"passkey": "Phone"},
    }
    for action, detail in trail.items():
        (row,) = await site.list_audit(f"member.passkey_{action}")
        assert (row["actor"], row["subject"], row["detail"]) == ("ann", "ann", detail)


@pytest.mark.parametrize("field", ["passkeys", "second_factor"])
async def test_an_administrator_sees_and_removes_them(site: Site, field: str) -> None:
    ann, reference = await site.add()
    device = await site.register(reference)
    operator = {"Authorization": f"Bearer {site.gateway.admin_token}"}
    _, body = await site.send("GET", f"/members/{ann.id}", **operator)
    assert (body["second_factor"], [one["name"] for one in body["passkey_list"]]) == (True, ["Laptop"])
    status, body = await site.send("PATCH", f"/members/{ann.id}", {field: False}, **operator)
    assert (status, body["second_factor"], body["passkeys"]) == (200, False, 0)
    assert (await site.list_audit("member.edited"))[0]["detail"]["passkeys"] == [1, 0]
    assert_refused(await site.sign_in(device.get(await site.start())))


async def test_who_has_both_uses_either(site: Site) -> None:
    ann, reference = await site.add()
    members, factors = (
        site.gateway.app[SERVICES].auth.sessions._members,
        site.gateway.app[SERVICES].auth.sessions._factors,
    )
    after, codes = factors.confirm(ann, "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP", 0)
    await members.put_member(ann, after)
    device = await site.register(reference)
    status, body = await site.send("POST", "/session", WHOLE)
    assert (status, body["error"]["param"]) == (401, "passkey_or_code")
    assert (await site.send("POST", "/session", {**WHOLE, "code": codes[0]}))[0] == 201
    assert (await site.sign_in(device.get(await site.start(WHOLE))))[0] == 201


async def test_without_a_passkey_there_are_no_options(site: Site) -> None:
    await site.add()
    assert (await site.send("POST", "/session/passkey/options", WHOLE))[0] == 409
    assert (await site.send("POST", "/session/passkey/options", {**WHOLE, "passphrase": "wrong"}))[0] == 401
    assert (await site.send("POST", "/session/passkey/options", {"name": "ann"}))[0] == 400


@pytest.mark.parametrize(
    ("server", "headers", "rp_id"),
    [
        ({}, {}, "localhost"),
        ({}, {"Host": "127.0.0.1"}, None),
        ({}, {"Host": "console.localhost:99"}, "console.localhost"),
        ({}, {"Host": "gw.example.org", "X-Forwarded-Proto": "https"}, None),
        (
            {"trusted_proxies": ["127.0.0.1"]},
            {"Host": "gw.example.org", "X-Forwarded-Proto": "https"},
            "gw.example.org",
        ),
        ({"trusted_proxies": ["127.0.0.1"]}, {"Host": "gw.example.org"}, None),
        ({"base_url": "https://gw.example.org/ai"}, {}, "gw.example.org"),
        ({"base_url": "http://gw.example.org"}, {}, None),
        ({"base_url": "https://192.0.2.1"}, {}, None),
        ({"base_url": "http://localhost:8080"}, {"Host": "evil.example"}, "localhost"),
    ],
)
async def test_the_site_is_the_configured_one_or_this_machine(
    gateway_with: StartGateway, server: Json, headers: dict[str, str], rp_id: str | None
) -> None:
    gateway = await gateway_with({**CONFIG, "server": server})
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client:
        status, body = await Site(gateway, client, Clock()).send("POST", "/session/passkey/options", {}, **headers)
    assert (status, body.get("rpId")) == ((409, None) if rp_id is None else (200, rp_id)), body


async def test_a_reset_link_does_not_get_around_a_passkey(site: Site) -> None:
    """The page of the link cannot ask for one: the passphrase stays, and so does the link."""
    ann, reference = await site.add()
    device = await site.register(reference)
    operator = {"Authorization": f"Bearer {site.gateway.admin_token}"}
    _, link = await site.send("POST", f"/members/{ann.id}/reset", {}, **operator)
    new = {"token": link["token"], "passphrase": "seven quiet lanterns drift"}
    status, body = await site.send("POST", "/links/use", new)
    assert (status, "passkey" in body["error"]["message"]) == (409, True)
    assert (await site.sign_in(device.get(await site.start())))[0] == 201
    await site.send("PATCH", f"/members/{ann.id}", {"passkeys": False}, **operator)
    assert (await site.send("POST", "/links/use", new))[0] == 201
