"""Sign-in through an OpenID Connect provider: from the sign-in page to the session, and the sign-out.

Second factors are up to the provider.
"""

import contextlib
from collections.abc import Mapping, Sequence

import attrs
import orjson
import structlog

from gateway.auth.login_throttle import Throttle
from gateway.auth.oidc_provider import MAX_CODE, REFUSED, OidcProvider, Verified
from gateway.auth.provider_members import BEGIN_AGAIN, ProviderMembers
from gateway.auth.sessions import ClientInfo, CurrentUser, NewSession, SessionService, build_audit
from gateway.auth.sign_in_flow import Flow, FlowSigner
from gateway.auth.sign_in_provider import SignInProvider
from gateway.domain.audit_log import GATEWAY
from gateway.domain.ip_address import find_subnet
from gateway.domain.member import Credential, Forbidden, Member
from gateway.errors import GatewayError, NotFound, StoreUnavailable
from gateway.frozen import frozen
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.encryption import DecryptionFailed, SecretBox
from gateway.storage.identities import IdentityRepository

PURPOSE = "id_token"
"""The purpose for which ID tokens are encrypted."""
_SEALED_ABOUT = "session:"
NO_EMAIL = "Your e-mail address is not verified, or of a domain that may not sign in here. Ask an administrator"
DECLINED = "The sign-in provider did not sign you in"

log = structlog.stdlib.get_logger(__name__)


@frozen
class BegunFlow:
    """The URL that the browser visits, and the cookie that it brings back."""

    url: str
    flow: Flow
    cookie: str = attrs.field(repr=False)


class ProviderSignIn:
    """Signs in members through ``providers``, listed in the order of the settings. ``seal`` encrypts ID tokens."""

    def __init__(
        self,
        providers: Mapping[str, OidcProvider],
        sessions: SessionService,
        *,
        people: ProviderMembers,
        identities: IdentityRepository,
        audit_log: AuditLogRepository,
        throttle: Throttle,
        seal: SecretBox,
        flows: FlowSigner,
    ) -> None:
        self._providers = providers
        self._sessions = sessions
        self._people = people
        self._identities = identities
        self._audit_log = audit_log
        self._throttle = throttle
        self._seal = seal.derive(PURPOSE)
        self._flows = flows

    @property
    def specs(self) -> Sequence[SignInProvider]:
        """The configured providers, in the order of the configuration file."""
        return [provider.spec for provider in self._providers.values()]

    async def begin(self, name: str, redirect_uri: str, after: str, signed: CurrentUser | None = None) -> BegunFlow:
        """Begin a sign-in, or link an identity to the member ``signed`` in. Raises ``NotFound``."""
        provider = self._get(name)
        session = "" if signed is None else signed.session.digest.hex()
        flow, cookie = self._flows.begin(name, redirect_uri, after, session)
        nonce, verifier = self._flows.derive_nonce(flow), self._flows.derive_verifier(flow)
        return BegunFlow(await provider.build_authorization_url(flow, nonce, verifier), flow, cookie)

    async def finish(
        self, name: str, query: Mapping[str, str], cookie: str, visitor: ClientInfo
    ) -> tuple[Flow, NewSession | None]:
        """Handle the authorization response. Return its flow, and the new session; None if it linked a member."""
        provider = self._get(name)
        flow = self._flows.open(cookie)
        is_own = flow is not None and flow.provider == name and query.get("state") == flow.state
        if flow is None or not is_own or not await self._flows.use_up(flow):
            log.warning("sign_in_refused", provider=name, address=visitor.address, reason="state")
            raise Forbidden(BEGIN_AGAIN, should_retry=False)
        # Per address only: the guesses of one client must not block the others.
        async with self._throttle.attempt(f"{name} {find_subnet(visitor.address)}", visitor.address, fails=Forbidden):
            try:
                verified = await self._verify(provider, query, flow)
                if not provider.spec.may_sign_in(verified.claims):
                    raise Forbidden(NO_EMAIL, should_retry=False)
                if flow.session:
                    await self._people.link(verified.claims, flow, visitor)
                    return flow, None
                return flow, await self._sign_in(provider.spec, verified, visitor)
            except GatewayError as error:
                await self._note_refusal(name, error, visitor)
                raise

    async def sign_out(self, signed: CurrentUser, back: str | None) -> str | None:
        """Return the URL at which the provider ends its session, too, and returns to ``back``; None without one."""
        found = await self._identities.find_session(signed.session.digest)
        provider = None if found is None else self._providers.get(found[0])
        if found is None or provider is None:
            return None
        try:
            token = self._seal.open(found[1], about=_SEALED_ABOUT + signed.session.id).decode()
            return await provider.build_sign_out_url(token, back)
        except (DecryptionFailed, GatewayError):  # the gateway's own session must end in any case
            return None

    async def list_identities(self, member: Member) -> list[Mapping[str, str | bool]]:
        issuers = await self._identities.list_issuers(member.id)
        return [
            {"name": spec.name, "title": spec.title, "linked": spec.issuer in issuers}
            for spec in (provider.spec for provider in self._providers.values())
        ]

    async def unlink(self, name: str, signed: CurrentUser, visitor: ClientInfo) -> None:
        issuer, member = self._get(name).spec.issuer, signed.member
        detail = orjson.dumps({"provider": name}).decode()
        audit = build_audit(signed.act(visitor.address), "member.unlinked", member, self._sessions.now_ms, detail)
        if not await self._identities.unlink(issuer, member.id, audit):
            raise NotFound("You have no identity at this sign-in provider")

    def _get(self, name: str) -> OidcProvider:
        provider = self._providers.get(name)
        if provider is None:
            raise NotFound("There is no such sign-in provider")
        return provider

    async def _verify(self, provider: OidcProvider, query: Mapping[str, str], flow: Flow) -> Verified:
        await provider.check_issuer(query.get("iss"))
        if "error" in query:
            raise Forbidden(DECLINED, should_retry=False)
        code = query.get("code", "")
        if not 0 < len(code) <= MAX_CODE:
            raise Forbidden(REFUSED, should_retry=False)
        return await provider.redeem(code, flow, self._flows.derive_nonce(flow), self._flows.derive_verifier(flow))

    async def _sign_in(self, spec: SignInProvider, verified: Verified, visitor: ClientInfo) -> NewSession:
        member = await self._people.admit(spec, verified.claims, visitor)
        proof = Credential(member.passphrase, is_known=True)
        entry = await self._sessions.open(member, proof, visitor, detail=orjson.dumps({"provider": spec.name}).decode())
        session = entry.signed.session
        sealed = self._seal.seal(verified.token.encode(), about=_SEALED_ABOUT + session.id)
        await self._identities.add_session(session.digest, spec.name, sealed)
        return entry

    async def _note_refusal(self, name: str, error: GatewayError, visitor: ClientInfo) -> None:
        detail = orjson.dumps({"reason": error.message}).decode()
        by = attrs.evolve(GATEWAY, address=visitor.address)
        row = by.build_audit_row("session.refused", name, self._sessions.now_ms, detail=detail)
        with contextlib.suppress(StoreUnavailable):  # the answer gives the reason for the failed sign-in
            await self._audit_log.add_audit(row)
