"""Sign-in and sign-out through an OpenID Connect provider, and the linking of its identities to members.

Second factors are up to the provider.
"""

import contextlib
from collections.abc import Mapping, Sequence

import attrs
import orjson
import structlog

from gateway.auth.login_throttle import Throttle
from gateway.auth.oidc_provider import ANSWER_REFUSED, MAX_CODE_CHARS, OidcProvider, VerifiedToken
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
_SEAL_CONTEXT = "session:"
EMAIL_REFUSED = "Your e-mail address is not verified, or of a domain that may not sign in here. Ask an administrator"
SIGN_IN_DECLINED = "The sign-in provider did not sign you in"

log = structlog.stdlib.get_logger(__name__)


@frozen
class BegunFlow:
    """A begun sign-in: the URL that the browser visits, and the cookie that it brings back."""

    url: str
    flow: Flow
    cookie: str = attrs.field(repr=False)


class ProviderSignIn:
    """Signs in members through ``providers``, ordered as in the settings. ``secret_box`` encrypts ID tokens."""

    def __init__(
        self,
        providers: Mapping[str, OidcProvider],
        sessions: SessionService,
        *,
        provider_members: ProviderMembers,
        identities: IdentityRepository,
        audit_log: AuditLogRepository,
        throttle: Throttle,
        secret_box: SecretBox,
        flows: FlowSigner,
    ) -> None:
        self._providers = providers
        self._sessions = sessions
        self._provider_members = provider_members
        self._identities = identities
        self._audit_log = audit_log
        self._throttle = throttle
        self._secret_box = secret_box.derive(PURPOSE)
        self._flows = flows

    @property
    def specs(self) -> Sequence[SignInProvider]:
        """The configured providers, in the order of the configuration file."""
        return [provider.spec for provider in self._providers.values()]

    async def begin(self, name: str, redirect_uri: str, return_path: str, user: CurrentUser | None = None) -> BegunFlow:
        """Begin a sign-in or, with ``user``, the linking of an identity to that member.

        Raises ``NotFound`` for an unknown ``name``, ``ProviderBadResponse``.
        """
        provider = self._get(name)
        session = "" if user is None else user.session.digest.hex()
        flow, cookie = self._flows.begin(name, redirect_uri, return_path, session)
        nonce, verifier = self._flows.derive_nonce(flow), self._flows.derive_verifier(flow)
        return BegunFlow(await provider.build_authorization_url(flow, nonce, verifier), flow, cookie)

    async def finish(
        self, name: str, query: Mapping[str, str], cookie: str, visitor: ClientInfo
    ) -> tuple[Flow, NewSession | None]:
        """Handle the authorization response.

        Return the flow, and the new session; None instead of a session if an identity was linked. Raises ``Forbidden``
        if the provider or the gateway refuses the sign-in, ``RateLimited``, ``ProviderBadResponse``, ``NotFound`` for
        an unknown ``name``, and the errors of ``ProviderMembers.admit``.
        """
        provider = self._get(name)
        flow = self._flows.open(cookie)
        is_own = flow is not None and flow.provider == name and query.get("state") == flow.state
        if flow is None or not is_own or not await self._flows.use_up(flow):
            log.warning("sign_in_refused", provider=name, address=visitor.address, reason="state")
            raise Forbidden(BEGIN_AGAIN, should_retry=False)
        # Per address only: the guesses of one client must not block the others.
        async with self._throttle.attempt(
            f"{name} {find_subnet(visitor.address)}", visitor.address, failure_type=Forbidden
        ):
            try:
                verified_token = await self._verify(provider, query, flow)
                if not provider.spec.may_sign_in(verified_token.claims):
                    raise Forbidden(EMAIL_REFUSED, should_retry=False)
                if flow.session:
                    await self._provider_members.link(verified_token.claims, flow, visitor)
                    return flow, None
                return flow, await self._sign_in(provider.spec, verified_token, visitor)
            except GatewayError as error:
                await self._note_refusal(name, error, visitor)
                raise

    async def sign_out(self, user: CurrentUser, return_url: str | None) -> str | None:
        """Return the URL at which the provider ends its own session; None if there is none, or it is unknown.

        The provider then redirects the browser to ``return_url``, if given.
        """
        provider_session = await self._identities.find_session(user.session.digest)
        provider = None if provider_session is None else self._providers.get(provider_session[0])
        if provider_session is None or provider is None:
            return None
        try:
            token = self._secret_box.open(provider_session[1], context=_SEAL_CONTEXT + user.session.id).decode()
            return await provider.build_sign_out_url(token, return_url)
        except (DecryptionFailed, GatewayError):  # the gateway's own session must end in any case
            return None

    async def list_identities(self, member: Member) -> list[Mapping[str, str | bool]]:
        issuers = await self._identities.list_issuers(member.id)
        return [
            {"name": spec.name, "title": spec.title, "linked": spec.issuer in issuers}
            for spec in (provider.spec for provider in self._providers.values())
        ]

    async def unlink(self, name: str, user: CurrentUser, visitor: ClientInfo) -> None:
        issuer, member = self._get(name).spec.issuer, user.member
        detail = orjson.dumps({"provider": name}).decode()
        audit = build_audit(user.act(visitor.address), "member.unlinked", member, self._sessions.now_ms, detail)
        if not await self._identities.unlink(issuer, member.id, audit):
            raise NotFound("You have no identity at this sign-in provider")

    def _get(self, name: str) -> OidcProvider:
        provider = self._providers.get(name)
        if provider is None:
            raise NotFound("There is no such sign-in provider")
        return provider

    async def _verify(self, provider: OidcProvider, query: Mapping[str, str], flow: Flow) -> VerifiedToken:
        await provider.check_issuer(query.get("iss"))
        if "error" in query:
            raise Forbidden(SIGN_IN_DECLINED, should_retry=False)
        code = query.get("code", "")
        if not 0 < len(code) <= MAX_CODE_CHARS:
            raise Forbidden(ANSWER_REFUSED, should_retry=False)
        return await provider.redeem(code, flow, self._flows.derive_nonce(flow), self._flows.derive_verifier(flow))

    async def _sign_in(self, spec: SignInProvider, verified_token: VerifiedToken, visitor: ClientInfo) -> NewSession:
        member = await self._provider_members.admit(spec, verified_token.claims, visitor)
        proof = Credential(member.passphrase, is_known=True)
        new_session = await self._sessions.open(
            member, proof, visitor, detail=orjson.dumps({"provider": spec.name}).decode()
        )
        session = new_session.user.session
        sealed_token = self._secret_box.seal(verified_token.token.encode(), context=_SEAL_CONTEXT + session.id)
        await self._identities.add_session(session.digest, spec.name, sealed_token)
        return new_session

    async def _note_refusal(self, name: str, error: GatewayError, visitor: ClientInfo) -> None:
        detail = orjson.dumps({"reason": error.message}).decode()
        actor = attrs.evolve(GATEWAY, address=visitor.address)
        row = actor.build_audit_row("session.refused", name, self._sessions.now_ms, detail=detail)
        with contextlib.suppress(StoreUnavailable):  # the answer gives the reason for the failed sign-in
            await self._audit_log.add_audit(row)
