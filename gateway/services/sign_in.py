"""Opens sign-in by OpenID Connect if ``[[sign_in]]`` is configured. Otherwise none of its libraries is imported."""

import time
from typing import TYPE_CHECKING

from gateway.auth.provider_members import ProviderMembers
from gateway.auth.sign_in_flow import FlowSigner
from gateway.config.extras import describe_missing_extra
from gateway.config.loader import ConfigError
from gateway.server.context import AuthServices
from gateway.services.base import BaseServices
from gateway.storage.accounts import AccountRepository
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.encryption import SecretBox
from gateway.storage.identities import IdentityRepository
from gateway.storage.members import MemberRepository
from gateway.upstream.safe_fetch import SafeFetcher

if TYPE_CHECKING:  # it imports Authlib, which is an extra
    from gateway.auth.provider_sign_in import ProviderSignIn


def open_sign_in(
    base: BaseServices, auth: AuthServices, fetcher: SafeFetcher, secret_box: SecretBox
) -> "ProviderSignIn":
    """Open the sign-in providers. Raises ``ConfigError`` if the extra is missing."""
    options, deployment, database = base.options, base.storage.deployment, base.storage.database
    try:
        from gateway.auth.oidc_provider import OidcProvider  # noqa: PLC0415 - only if a provider is configured
        from gateway.auth.provider_sign_in import ProviderSignIn  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError([describe_missing_extra("sign_in", "sso")]) from error
    specs, clock = options.config.sign_in, options.clock
    providers = (OidcProvider(spec, fetcher, clock=clock, monotonic=time.monotonic) for spec in specs)
    identities, change_lock = IdentityRepository(database), auth.accounts.change_lock
    values = deployment.open_values(database, secret_box)
    provider_members = ProviderMembers(
        MemberRepository(database), identities, AccountRepository(database), clock=clock, change_lock=change_lock
    )
    return ProviderSignIn(
        {provider.spec.name: provider for provider in providers},
        auth.sessions,
        provider_members=provider_members,
        identities=identities,
        audit_log=AuditLogRepository(database),
        throttle=deployment.open_throttle(database, values, "provider"),
        secret_box=secret_box,
        flows=FlowSigner(values, clock, key=deployment.derive_key(options.folder.secret("pepper"), "flows")),
    )
