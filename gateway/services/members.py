"""Opens members and their sessions at the first sign-in."""

from gateway.auth.accounts import AccountService
from gateway.auth.challenges import Challenges
from gateway.auth.invitations import Invitations
from gateway.auth.members import MemberService
from gateway.auth.passkeys import PasskeyService
from gateway.auth.passwords import PasswordService
from gateway.auth.sessions import SessionService
from gateway.auth.short_lived import ShortLived
from gateway.auth.totp import Totp
from gateway.server.context import MemberServices
from gateway.services.base import BaseServices
from gateway.storage.accounts import AccountRepository
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.encryption import SecretBox
from gateway.storage.members import MemberRepository
from gateway.storage.passkeys import PasskeyRepository


def open_members(
    base: BaseServices, accounts: AccountService, values: ShortLived, hasher: PasswordService, secret_box: SecretBox
) -> MemberServices:
    """Open members, sessions, invitations and passkeys. Reads nothing from the store."""
    options, deployment, database = base.options, base.storage.deployment, base.storage.database
    clock, is_local, repository = options.clock, options.config.server.local_sign_in, MemberRepository(database)
    throttle = deployment.open_throttle(database, values)
    sessions = SessionService(
        repository, hasher, Totp(secret_box), throttle, values=values, clock=clock, is_local=is_local
    )
    account_repository = AccountRepository(database)
    members = MemberService(
        repository, account_repository, clock=clock, change_lock=accounts.change_lock, is_local=is_local
    )
    invitations = Invitations(repository, account_repository, sessions, values=values, clock=clock)
    challenges = Challenges(values, clock, key=deployment.derive_key(options.folder.secret("pepper"), "challenges"))
    passkeys = PasskeyService(
        PasskeyRepository(database), repository, sessions, AuditLogRepository(database), throttle, challenges=challenges
    )
    return MemberServices(members, sessions, invitations, passkeys)
