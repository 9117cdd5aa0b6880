"""Open authentication: accounts and API keys, members and their sessions."""

import hmac
import time
from contextlib import AsyncExitStack
from functools import partial

from gateway.auth.accounts import AccountService
from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.auth.challenges import Challenges
from gateway.auth.client_secrets import ClientSecrets
from gateway.auth.declared import declare
from gateway.auth.invitations import Invitations
from gateway.auth.login_throttle import FORGOTTEN_S, LoginThrottle, Throttle
from gateway.auth.members import Members
from gateway.auth.passkeys import PasskeyService
from gateway.auth.passwords import PasswordService
from gateway.auth.sessions import SessionService
from gateway.auth.short_lived import MemoryValues, ShortLived
from gateway.auth.totp import Totp
from gateway.domain.audit_log import GATEWAY
from gateway.server.context import AuthServices, Services
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.members import MemberRepository
from gateway.storage.passkeys import PasskeyRepository

FIRST_ACCOUNT = "local"
FIRST_KEY = "first"


async def open_accounts(services: Services) -> tuple[AccountService, str | None]:
    """Open the accounts and keys; also return the secret of the first key if this is the first start."""
    options, database = services.options, services.storage.database
    accounts, keys = AccountRepository(database), ApiKeyRepository(database)
    api_keys = ApiKeyAuthenticator(
        accounts,
        keys,
        pepper=options.folder.secret("pepper"),
        clock=options.clock,
        note_gone=services.billing.accounting.drop_gone,
    )
    services.billing.quota.refresh = api_keys.refresh
    service = AccountService(accounts, keys, api_keys, services.billing.accounting, clock=options.clock)
    service.webhook_hosts = services.live_config.find_webhook_hosts
    return service, await _declare(service, services)


async def _declare(service: AccountService, services: Services) -> str | None:
    """Store the accounts and keys of the file. If there are none at all, create the first and return its secret."""
    options, node = services.options, services.storage.node
    files = None
    if node is not None:
        from gateway.cluster.declared import NodeFiles  # noqa: PLC0415 - only in a cluster

        files = NodeFiles(services, node)
    if options.declare and (files is None or await files.is_new(options.config)):
        await declare(service, options.config.account, options.config.key)
        if files is not None:
            await files.note(options.config)
    else:
        await service.reload()
    if files is not None:
        await files.warn_if_different()
    if await service.list_accounts():
        return None
    await service.add_account({"name": FIRST_ACCOUNT}, GATEWAY)
    key = await service.add_key({"name": FIRST_KEY, "account": FIRST_ACCOUNT}, GATEWAY)
    return str(key["secret"])


def open_members(services: Services, accounts: AccountService, stack: AsyncExitStack) -> AuthServices:
    """Open members and sessions. Nothing is read from the store until a member signs in."""
    database, clock = services.storage.database, services.clock
    repository = MemberRepository(database)
    hasher = PasswordService()
    stack.callback(hasher.close)
    throttle, values = open_throttle(services), open_values(services)
    factors = Totp(services.routing.secret_box)
    sessions = SessionService(repository, hasher, factors, throttle, values=values, clock=clock)
    sessions.is_local = local = services.options.config.server.local_sign_in
    account_repository = AccountRepository(database)
    members = Members(repository, account_repository, clock=clock)
    accounts.check_account_may_go = members.check_account_may_go
    members.changing = accounts.changing
    members.is_local = local
    accounts.shared = services.storage.node is not None
    accounts.find_groups = partial(_find_groups, services)
    invitations = Invitations(repository, account_repository, sessions, values=values, clock=clock)
    challenges = Challenges(values, clock, key=derive_key(services, "challenges"))
    audit_log = AuditLogRepository(database)
    passkeys = PasskeyService(
        PasskeyRepository(database), repository, sessions, audit_log, throttle, challenges=challenges
    )
    client_secrets = ClientSecrets(accounts.directory, values, clock)
    return AuthServices(accounts, accounts.directory, members, sessions, invitations, passkeys, client_secrets)


def open_values(services: Services) -> ShortLived:
    """Open what keeps short-lived values: memory, or the database that the nodes of a cluster share."""
    if services.storage.node is None:
        return MemoryValues(services.clock)
    from gateway.cluster.state.values import SharedValues  # noqa: PLC0415 - only in a cluster

    return SharedValues(services.storage.database, services.routing.secret_box, services.clock)


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


def _find_groups(services: Services) -> set[str]:
    """Return the groups that have prices, or channels of their own."""
    channels = [group for channel in services.routing.catalog.channels for group in channel.groups]
    return {*channels, *(group.name for group in services.live_config.config.group)}
