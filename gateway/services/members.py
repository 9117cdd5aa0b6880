"""Open members and their sessions, when the first member signs in."""

import hmac
import time

from gateway.auth.accounts import AccountService
from gateway.auth.challenges import Challenges
from gateway.auth.invitations import Invitations
from gateway.auth.login_throttle import FORGOTTEN_S, LoginThrottle, Throttle
from gateway.auth.members import Members
from gateway.auth.passkeys import PasskeyService
from gateway.auth.passwords import PasswordService
from gateway.auth.sessions import SessionService
from gateway.auth.short_lived import ShortLived
from gateway.auth.totp import Totp
from gateway.deferred import Once
from gateway.server.context import MemberServices, Services
from gateway.services.auth import open_values
from gateway.storage.accounts import AccountRepository
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.members import MemberRepository
from gateway.storage.passkeys import PasskeyRepository


def open_members(
    services: Services,
    accounts: AccountService,
    repository: MemberRepository,
    values: ShortLived,
    hasher: Once[PasswordService],
) -> MemberServices:
    """Open members and sessions. Nothing is read from the store."""
    database, clock = services.storage.database, services.clock
    throttle, factors = open_throttle(services), Totp(services.routing.secret_box)
    local = services.options.config.server.local_sign_in
    sessions = SessionService(repository, hasher(), factors, throttle, values=values, clock=clock, is_local=local)
    account_repository = AccountRepository(database)
    members = Members(repository, account_repository, clock=clock, changing=accounts.changing, is_local=local)
    invitations = Invitations(repository, account_repository, sessions, values=values, clock=clock)
    challenges = Challenges(values, clock, key=derive_key(services, "challenges"))
    passkeys = PasskeyService(
        PasskeyRepository(database),
        repository,
        sessions,
        AuditLogRepository(database),
        throttle,
        challenges=challenges,
    )
    return MemberServices(members, sessions, invitations, passkeys)


def open_throttle(services: Services, space: str = "") -> Throttle:
    """Open what slows down guessing, at this process or at all nodes of a cluster."""
    if services.storage.node is None:
        return LoginThrottle(time.monotonic)
    from gateway.cluster.state.failed_sign_ins import FailedSignIns  # noqa: PLC0415
    from gateway.cluster.state.sign_in_throttle import SharedThrottle  # noqa: PLC0415 - only in a cluster

    failures = FailedSignIns(services.storage.database, int(FORGOTTEN_S * 1000))
    return SharedThrottle(failures, open_values(services), services.clock, space=space)


def derive_key(services: Services, purpose: str) -> bytes | None:
    """Return a key that every node of a cluster derives; None if there is no other node."""
    if services.storage.node is None:
        return None
    return hmac.digest(services.options.folder.secret("pepper"), f"sign-in, {purpose}".encode(), "sha256")
