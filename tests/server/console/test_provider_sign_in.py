"""Sign-in by an OpenID Connect provider, from the sign-in page to the session, against a provider on a real port."""

import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from yarl import URL

from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from tests.support.console_people import PASSPHRASE, Person, invite, make_administrator, meet
from tests.support.gateway import RunningGateway
from tests.support.oidc_provider import CLIENT, Claims, OidcProvider, encode_part, run_provider
from tests.support.started_gateways import StartGateway

START = "/sign-in/corp"
IDENTITY = "/session/identities/corp"
ROLES = {"administrator": ["gw-admins"], "member": ["staff"], "viewer": ["guests"]}


@pytest.fixture
async def provider() -> AsyncIterator[OidcProvider]:
    async with run_provider() as provider:
        yield provider


async def go_to(person: Person, path: str = START) -> str:
    """Begin; return the callback's path and query, with which the provider sends the browser back."""
    status, url = await person.open(path)
    assert status == 303, url
    return await pass_provider(person, url)


async def pass_provider(person: Person, url: str) -> str:
    """The provider's page; it sends the browser back at once."""
    async with person.session.get(URL(url, encoded=True), allow_redirects=False) as response:
        assert response.status == 302
        back = response.headers["Location"]
    assert back.startswith(person.gateway.url)
    return back.removeprefix(f"{person.gateway.url}/console")


async def come_back(person: Person, back: str) -> tuple[int, str]:
    """The callback, as a browser requests it that another site has sent."""
    url = URL(f"{person.gateway.url}/console{back}", encoded=True)
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    async with person.session.get(url, headers=headers, allow_redirects=False) as response:
        return response.status, await response.text()


async def sign_in(person: Person, path: str = START) -> tuple[int, str]:
    return await come_back(person, await go_to(person, path))


async def begin_link(person: Person) -> str:
    """As ``go_to``, for a member who links its identity."""
    status, answer = await person.call("POST", IDENTITY, {"passphrase": PASSPHRASE})
    assert status == 200, answer
    return await pass_provider(person, answer["continue_at"])


async def see_member(person: Person) -> Claims:
    status, body = await person.call("GET", "/session")
    assert status == 200, body
    member: Claims = body["member"]
    return {**member, "account": body["account"]["name"]}


async def list_audit(gateway: RunningGateway, action: str) -> list[Claims]:
    headers = {"Authorization": f"Bearer {gateway.admin_token}"}
    async with gateway.client.get(f"{gateway.url}{PREFIX}/audit-trail?action={action}", headers=headers) as response:
        assert response.status == 200
        rows: list[Claims] = (await response.json())["data"]
        return rows


async def test_a_person_becomes_a_member_with_the_role_of_its_claims(
    gateway_with: StartGateway, provider: OidcProvider
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings(roles=ROLES, label="Corp & Co")]})
    provider.person["groups"] = ["guests", "staff"]
    ann = meet(gateway)
    async with ann.session:
        page = (await ann.open("/sign-in?next=/console/keys"))[1]
        assert 'href="/console/sign-in/corp?next=%2Fconsole%2Fkeys"' in page
        assert "Corp &amp; Co" in page
        status, page = await sign_in(ann, f"{START}?next=/console/keys")
        assert status == 200
        assert 'content="0; url=/console/keys"' in page
        member = await see_member(ann)
        assert (member["name"], member["role"], member["account"]) == ("ann@example.com", "member", "acme")
        assert (await ann.open("/keys"))[0] == 200
        assert not [cookie for cookie in ann.session.cookie_jar if cookie.key.startswith("gateway_sign_in")]
    (created,) = await list_audit(gateway, "member.created")
    assert created["subject"] == "ann@example.com"
    (entered,) = await list_audit(gateway, "member.signed_in")
    assert "corp" in str(entered["detail"])


async def test_the_callback_of_another_site_needs_no_session_and_the_session_it_makes_is_strict(
    gateway_with: StartGateway, provider: OidcProvider
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    ann = meet(gateway)
    async with ann.session:
        status, url = await ann.open(START)
        assert status == 303
        (flow,) = [cookie for cookie in ann.session.cookie_jar if cookie.key.startswith("gateway_sign_in_")]
        assert (flow["samesite"], flow["httponly"], flow["max-age"]) == ("Lax", True, "600")
        query = dict(parse_qsl(urlsplit(url).query))
        assert query["code_challenge_method"] == "S256"
        assert query["redirect_uri"] == f"{gateway.url}/console/sign-in/corp/callback"
        assert query["nonce"] not in flow.value
        assert provider.asked == ["/.well-known/openid-configuration"]


async def test_names_of_members_never_admit_anybody(gateway_with: StartGateway, provider: OidcProvider) -> None:
    """The e-mail address of the provider is the name of a member who has a passphrase."""
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    ada, ann = await make_administrator(gateway, "ann@example.com"), meet(gateway)
    async with ada.session, ann.session:
        assert (await sign_in(ann))[0] == 200
        own, other = await see_member(ada), await see_member(ann)
        assert own["id"] != other["id"]
        assert other["name"].startswith("ann@example.com-")
        assert other["role"] == "viewer", "no roles are mapped"


async def test_role_and_account_follow_the_claims_at_every_sign_in(
    gateway_with: StartGateway, provider: OidcProvider
) -> None:
    settings = provider.settings(roles=ROLES, role_claim="realm_access.roles", account_claim="team")
    accounts = [{"name": "acme"}, {"name": "beta"}]
    gateway = await gateway_with({"sign_in": [settings], "account": accounts})
    provider.person |= {"realm_access": {"roles": ["gw-admins"]}, "team": "acme"}
    async with (await make_administrator(gateway)).session:
        first, second = meet(gateway), meet(gateway)
        async with first.session, second.session:
            assert (await sign_in(first))[0] == 200
            member = await see_member(first)
            assert (member["role"], member["account"]) == ("administrator", "acme")
            provider.person |= {"realm_access": {"roles": ["guests"]}, "team": "beta"}
            assert (await sign_in(second))[0] == 200
            again = await see_member(second)
            assert (again["id"], again["role"], again["account"]) == (member["id"], "viewer", "beta")
            assert (await first.call("GET", "/session"))[0] == 401, "it began with rights that are gone"

            provider.person["realm_access"] = {"roles": ["other"]}
            status, page = await sign_in(meet_again := second)
            assert status == 403
            assert "has given you no role" in page
            assert (await meet_again.call("GET", "/session"))[0] == 401
    (edited,) = await list_audit(gateway, "member.edited")
    assert edited["detail"]["role"] == ["administrator", "viewer"]
    (refused,) = await list_audit(gateway, "session.refused")
    assert refused["subject"] == "corp"


async def test_the_last_administrator_stays_one_whatever_its_claims_say(
    gateway_with: StartGateway, provider: OidcProvider
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings(roles=ROLES)]})
    provider.person["groups"] = "gw-admins"
    ann = meet(gateway)
    async with ann.session:
        assert (await sign_in(ann))[0] == 200
        provider.person["groups"] = "guests"
        assert (await sign_in(ann))[0] == 409
        assert (await see_member(ann))["role"] == "administrator"


@pytest.mark.parametrize("create", [True, False])
async def test_a_removed_member_comes_back_only_as_a_new_one_and_not_unseen(
    gateway_with: StartGateway, provider: OidcProvider, *, create: bool
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings(create=create)]})
    ada, ann = await make_administrator(gateway), meet(gateway)
    async with ada.session, ann.session:
        if not create:
            assert (await sign_in(ann))[0] == 403
            status, page = await come_back(ada, await begin_link(ada))
            assert status == 200, page
            assert 'content="0; url=/console/account"' in page
            assert (await sign_in(ann))[0] == 200
            assert (await see_member(ann))["name"] == "ada"
            return
        assert (await sign_in(ann))[0] == 200
        removed = (await see_member(ann))["id"]
        assert (await ada.call("DELETE", f"/members/{removed}"))[0] == 200
        assert (await ann.call("GET", "/session"))[0] == 401
        assert (await sign_in(ann))[0] == 200
        assert (await see_member(ann))["id"] != removed
    back = (await list_audit(gateway, "member.created"))[0]
    assert back["detail"]["removed_before"] is True


async def test_a_disabled_member_stays_out(gateway_with: StartGateway, provider: OidcProvider) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    ada, ann = await make_administrator(gateway), meet(gateway)
    async with ada.session, ann.session:
        assert (await sign_in(ann))[0] == 200
        number = (await see_member(ann))["id"]
        assert (await ada.call("PATCH", f"/members/{number}", {"status": "disabled"}))[0] == 200
        assert (await sign_in(ann))[0] == 403


async def test_a_member_links_its_identity_with_its_passphrase_and_a_session_that_goes_on(
    gateway_with: StartGateway, provider: OidcProvider
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings(create=False)]})
    ada, stranger = await make_administrator(gateway), meet(gateway)
    async with ada.session, stranger.session:
        assert (await ada.call("POST", IDENTITY, {"passphrase": "of somebody else"}))[0] == 401
        back = await begin_link(ada)
        assert (await ada.call("DELETE", "/session"))[0] == 200
        assert (await come_back(ada, back))[0] == 403, "the session that began it has ended"
        assert (await sign_in(stranger))[0] == 403


async def test_an_identity_has_one_member_until_it_is_unlinked(
    gateway_with: StartGateway, provider: OidcProvider
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings(create=False)]})
    ada = await make_administrator(gateway)
    async with ada.session, (ben := await invite(ada, "ben", "member", "acme")).session:
        assert (await come_back(ada, await begin_link(ada)))[0] == 200
        assert (await come_back(ben, await begin_link(ben)))[0] == 409
        assert (await ben.call("DELETE", IDENTITY, {"passphrase": PASSPHRASE}))[0] == 404
        assert [one["linked"] for one in (await ada.call("GET", "/session/identities"))[1]["data"]] == [True]
        page = (await ada.open("/account"))[1]
        assert 'data-call="DELETE /admin/v1/session/identities/corp"' in page
        assert (await ada.call("DELETE", IDENTITY, {"passphrase": PASSPHRASE}))[0] == 200
        assert (await come_back(ben, await begin_link(ben)))[0] == 200
        assert (await sign_in(ada))[0] == 200
        assert (await see_member(ada))["name"] == "ben"
    assert [row["subject"] for row in await list_audit(gateway, "member.linked")] == ["ben", "ada"]
    assert len(await list_audit(gateway, "member.unlinked")) == 1


async def test_signing_out_ends_the_session_of_the_provider_too(
    gateway_with: StartGateway, provider: OidcProvider
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    ada, ann = await make_administrator(gateway), meet(gateway)
    async with ada.session, ann.session:
        assert (await sign_in(ann))[0] == 200
        status, body = await ann.call("DELETE", "/session")
        assert status == 200
        async with ann.session.get(URL(body["continue_at"], encoded=True), allow_redirects=False) as response:
            assert response.headers["Location"] == f"{gateway.url}/console/sign-in"
        assert provider.ended[0]["id_token_hint"] == provider.last_token
        assert (await ada.call("DELETE", "/session"))[1] == {"signed_out": True, "continue_at": None}


async def test_a_new_key_of_the_provider_is_found_at_once_but_unknown_ones_are_not_asked_for_again_and_again(
    gateway_with: StartGateway, provider: OidcProvider
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    ann = meet(gateway)
    async with ann.session:
        assert (await sign_in(ann))[0] == 200
        service = gateway.app[SERVICES].sign_in
        keys, _ = service._providers["corp"]._keys
        service._providers["corp"]._keys = keys, -1e9  # as if it was long ago
        provider.rotate("second")
        assert (await sign_in(ann))[0] == 200
        assert provider.asked.count("/keys") == 2
        provider.rotate("third")
        assert (await sign_in(ann))[0] == 403, "too soon after the last time"
        assert provider.asked.count("/keys") == 2


def forge_none(_: OidcProvider, claims: Claims) -> str:
    return f"{encode_part({'alg': 'none', 'typ': 'JWT'})}.{encode_part(claims)}."


def forge_hmac(provider: OidcProvider, claims: Claims) -> str:
    """Signed with the provider's public key, as if it was a shared secret."""
    key = provider.keys[0]
    head = f"{encode_part({'alg': 'HS256', 'kid': key.kid})}.{encode_part(claims)}"
    mac = hmac.new(key.as_pem(private=False), head.encode(), hashlib.sha256).digest()
    return f"{head}.{encode_part(mac)}"


def forge_foreign(provider: OidcProvider, claims: Claims) -> str:
    """Signed with another key under the name of the provider's."""
    return jwt.encode({"alg": "RS256", "kid": provider.keys[0].kid}, claims, RSAKey.generate_key(2048))


def forge_unknown(_: OidcProvider, claims: Claims) -> str:
    key = RSAKey.generate_key(2048, {"kid": "unknown"})
    return jwt.encode({"alg": "RS256", "kid": "unknown"}, claims, key)


def forge_embedded(_: OidcProvider, claims: Claims) -> str:
    """The token brings its own key."""
    key = RSAKey.generate_key(2048)
    return jwt.encode({"alg": "RS256", "jwk": key.as_dict(private=False)}, claims, key)


@pytest.mark.parametrize(
    "forge", [forge_none, forge_hmac, forge_foreign, forge_unknown, forge_embedded, lambda *_: "a.b.c", lambda *_: ""]
)
async def test_a_forged_token_admits_nobody(
    gateway_with: StartGateway, provider: OidcProvider, forge: Callable[[OidcProvider, Claims], str]
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    provider.misdeeds.sign = forge
    await refuse(gateway)


@pytest.mark.parametrize(
    "changed",
    [
        {"iss": "https://id.example.com"},
        {"aud": "another-client"},
        {"aud": ["another-client"]},
        {"aud": [CLIENT, "another-client"]},
        {"aud": [CLIENT, "another-client"], "azp": "another-client"},
        {"azp": "another-client"},
        {"nonce": "of another flow"},
        {"nonce": None},
        {"exp": 1_000_000_000},
        {"iat": 1_000_000_000},
        {"iat": 9_000_000_000, "exp": 9_000_000_300},
        {"exp": "tomorrow"},
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 256},
        {"nbf": 9_000_000_000},
    ],
)
async def test_a_token_with_a_wrong_claim_admits_nobody(
    gateway_with: StartGateway, provider: OidcProvider, changed: Claims
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    provider.misdeeds.change = lambda claims: {
        name: value for name, value in {**claims, **changed}.items() if value is not None
    }
    await refuse(gateway)


@pytest.mark.parametrize(
    ("email", "verified", "status"),
    [
        ("ann@example.com", True, 200),
        ("ANN@Example.COM", True, 200),
        ("ann@example.com", False, 403),
        ("ann@example.com", "true", 403),
        ("ann@example.com", None, 403),
        ("ann@example.com.evil.test", True, 403),
        ("ann@evil.test@example.com", True, 403),
        ("@example.com", True, 403),
        (None, True, 403),
    ],
)
async def test_a_domain_needs_a_verified_address(
    gateway_with: StartGateway, provider: OidcProvider, email: str | None, verified: Any, status: int
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings(domains=["example.com"])]})
    provider.person |= {"email": email, "email_verified": verified}
    ann = meet(gateway)
    async with ann.session:
        assert (await sign_in(ann))[0] == status


async def refuse(gateway: RunningGateway) -> None:
    """A sign-in is refused, and leaves neither a session nor a member."""
    ann = meet(gateway)
    async with ann.session:
        status, page = await sign_in(ann)
        assert status == 403, page
        assert "was not accepted" in page
        assert (await ann.call("GET", "/session"))[0] == 401
    assert await list_audit(gateway, "member.created") == []
    (refused,) = await list_audit(gateway, "session.refused")
    assert refused["subject"] == "corp"


async def test_a_state_is_good_once_for_its_browser_and_its_provider(
    gateway_with: StartGateway, provider: OidcProvider
) -> None:
    settings = provider.settings()
    gateway = await gateway_with({"sign_in": [settings, {**settings, "name": "other"}]})
    ann, eve = meet(gateway), meet(gateway)
    async with ann.session, eve.session:
        back = await go_to(eve)
        assert (await come_back(ann, back))[0] == 403, "the code of another browser"
        await go_to(ann)
        assert (await come_back(ann, back))[0] == 403, "also if this one has begun, too"
        assert (await ann.call("GET", "/session"))[0] == 401

        back = await go_to(ann)
        code = parse_qs(urlsplit(back).query)["code"][0]
        for query in ({"code": code}, {"code": code, "state": ""}, {"code": code, "state": "x" * 43}):
            assert (await come_back(ann, f"{START}/callback?{urlencode(query)}"))[0] == 403
        assert (await come_back(ann, back.replace("/corp/", "/other/")))[0] == 403, "of another provider"
        assert code in provider.codes, "none of these was redeemed"


async def test_a_code_is_redeemed_once(gateway_with: StartGateway, provider: OidcProvider) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    ann = meet(gateway)
    async with ann.session:
        back = await go_to(ann)
        (flow,) = [cookie for cookie in ann.session.cookie_jar if cookie.key.startswith("gateway_sign_in_")]
        assert (await come_back(ann, back))[0] == 200
        ann.session.cookie_jar.update_cookies({flow.key: flow.value}, URL(gateway.url))
        tokens = provider.asked.count("/token")
        assert (await come_back(ann, back))[0] == 403
        assert provider.asked.count("/token") == tokens
        # The code of one flow in another: its PKCE verifier is not that of the code.
        given = dict(parse_qsl(urlsplit(await go_to(ann)).query))
        other = dict(parse_qsl(urlsplit(await go_to(ann)).query))
        mixed = urlencode({"code": given["code"], "state": other["state"]})
        assert (await come_back(ann, f"{START}/callback?{mixed}"))[0] == 403


async def test_a_response_of_another_issuer_is_refused_before_the_code_is_sent_anywhere(
    gateway_with: StartGateway, provider: OidcProvider
) -> None:
    """A mix-up: the code of an honest provider must not go to the attacker's, nor the reverse (RFC 9207)."""
    provider.sends_issuer = True
    async with run_provider() as attacker:
        gateway = await gateway_with({"sign_in": [provider.settings(), attacker.settings(name="evil")]})
        ann = meet(gateway)
        async with ann.session:
            back = await go_to(ann)
            wrong = back.replace(f"&iss={provider.issuer}", f"&iss={attacker.issuer}")
            assert wrong != back
            assert (await come_back(ann, wrong))[0] == 403
            back = await go_to(ann)
            assert (await come_back(ann, back.replace(f"&iss={provider.issuer}", "")))[0] == 403
            # The attacker sends the browser on to the honest provider, with its own state.
            status, url = await ann.open("/sign-in/evil")
            assert status == 303
            back = await go_to(ann)
            stolen = {**dict(parse_qsl(urlsplit(back).query)), "state": parse_qs(urlsplit(url).query)["state"][0]}
            assert (await come_back(ann, f"/sign-in/evil/callback?{urlencode(stolen)}"))[0] == 403
        assert "/token" not in [*provider.asked, *attacker.asked]


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.test/",
        "//evil.test/",
        "/\\evil.test",
        "/docs.evil.test",
        "javascript:alert(1)",
        "/console/" + "x" * 2000,
    ],
)
async def test_nobody_is_sent_to_another_site(gateway_with: StartGateway, provider: OidcProvider, wanted: str) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    ann = meet(gateway)
    async with ann.session:
        page = (await sign_in(ann, f"{START}?{urlencode({'next': wanted})}"))[1]
        assert 'content="0; url=/console/"' in page


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://id.example.com"},
        {"token_endpoint": "http://192.0.2.1/token"},
        {"token_endpoint": None},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"id_token_signing_alg_values_supported": ["HS256", "none"]},
    ],
)
async def test_metadata_that_cannot_be_trusted_ends_the_sign_in_before_it_begins(
    gateway_with: StartGateway, provider: OidcProvider, metadata: Claims
) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    provider.metadata = metadata
    ann = meet(gateway)
    async with ann.session:
        status, page = await ann.open(START)
        assert status == 502
        assert "did not answer as it should" in page
        provider.metadata = {}
        assert (await sign_in(ann))[0] == 200, "it is asked again"


async def test_an_endpoint_in_a_private_network_is_never_called(
    gateway_with: StartGateway, provider: OidcProvider
) -> None:
    """Only the issuer itself, which the operator chose, may be on this machine."""
    async with run_provider() as inside:
        gateway = await gateway_with({"sign_in": [provider.settings()]})
        port = urlsplit(inside.issuer).port
        provider.metadata = {"jwks_uri": f"https://127.0.0.1:{port}/keys"}
        ann = meet(gateway)
        async with ann.session:
            assert (await sign_in(ann))[0] == 502
        assert inside.asked == []


async def test_failed_callbacks_are_slowed_down(gateway_with: StartGateway, provider: OidcProvider) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    provider.misdeeds.sign = forge_none
    ann = meet(gateway)
    async with ann.session:
        statuses = [(await sign_in(ann))[0] for _ in range(6)]
    assert statuses == [403] * 5 + [429]


async def test_passphrases_can_be_switched_off(gateway_with: StartGateway, provider: OidcProvider) -> None:
    settings = provider.settings(roles=ROLES)
    gateway = await gateway_with({"sign_in": [settings], "server": {"local_sign_in": False}})
    provider.person["groups"] = ["gw-admins"]
    ann = meet(gateway)
    async with ann.session:
        page = (await ann.open("/sign-in"))[1]
        assert 'name="passphrase"' not in page
        assert "make run" not in page
        typed = {"name": "ann", "passphrase": "purple hedgehog wagon"}
        assert (await ann.call("POST", "/session", typed))[0] == 403
        assert await gateway.app[SERVICES].auth.invitations.find_setup_token() is None
        assert (await sign_in(ann))[0] == 200
        assert (await see_member(ann))["role"] == "administrator"
        assert (await ann.call("POST", "/links", {"account": "acme", "role": "member"}))[0] == 409


async def test_another_host_is_no_redirect_uri(gateway_with: StartGateway, provider: OidcProvider) -> None:
    gateway = await gateway_with({"sign_in": [provider.settings()]})
    ann = meet(gateway)
    async with (
        ann.session,
        ann.session.get(
            f"{gateway.url}/console{START}", headers={"Host": "evil.test"}, allow_redirects=False
        ) as response,
    ):
        assert response.status == 400
        assert "base_url" in await response.text()


async def test_there_is_no_provider_that_is_not_configured(gateway_with: StartGateway, provider: OidcProvider) -> None:
    gateway = await gateway_with({})
    ann = meet(gateway)
    async with ann.session:
        assert (await ann.open(START))[0] == 404
        assert (await ann.open(f"{START}/callback"))[0] == 404
