"""Open sign-in by OpenID Connect if ``[[sign_in]]`` is configured. Otherwise none of its libraries is imported."""

import time
from typing import TYPE_CHECKING

from gateway.auth.provider_members import ProviderMembers
from gateway.auth.sign_in_flow import FlowSigner
from gateway.config.extras import describe_missing
from gateway.config.loader import ConfigError
from gateway.server.context import Services
from gateway.storage.accounts import AccountRepository
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.identities import IdentityRepository
from gateway.storage.members import MemberRepository

if TYPE_CHECKING:  # it imports Authlib, which is an extra
    from gateway.auth.provider_sign_in import ProviderSignIn


def open_sign_in(services: Services) -> "ProviderSignIn":
    """Open the sign-in providers. Raises ``ConfigError`` if the extra is missing."""
    specs = services.options.config.sign_in
    try:
        from gateway.auth.oidc_provider import OidcProvider  # noqa: PLC0415 - only if a provider is configured
        from gateway.auth.provider_sign_in import ProviderSignIn  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError([describe_missing("sign_in", "sso")]) from error
    database, fetcher = services.storage.database, services.media.fetcher
    providers = (OidcProvider(spec, fetcher, clock=services.clock, monotonic=time.monotonic) for spec in specs)
    identities, clock = IdentityRepository(database), services.clock
    changing, deployment = services.auth.accounts.changing, services.storage.deployment
    values = deployment.open_values(database, services.routing.secret_box, clock)
    people = ProviderMembers(
        MemberRepository(database), identities, AccountRepository(database), clock=clock, changing=changing
    )
    return ProviderSignIn(
        {provider.spec.name: provider for provider in providers},
        services.auth.sessions,
        people=people,
        identities=identities,
        audit_log=AuditLogRepository(database),
        throttle=deployment.open_throttle(database, values, clock, "provider"),
        seal=services.routing.secret_box,
        flows=FlowSigner(values, clock, key=deployment.derive_key(services.options.folder.secret("pepper"), "flows")),
    )
