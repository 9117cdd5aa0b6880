"""Open authentication: accounts and API keys, members and their sessions."""

import time
from contextlib import AsyncExitStack
from functools import partial

from gateway.auth.accounts import AccountService
from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.auth.client_secrets import ClientSecrets
from gateway.auth.declared import declare
from gateway.auth.invitations import Invitations
from gateway.auth.login_throttle import LoginThrottle
from gateway.auth.members import Members
from gateway.auth.passkeys import PasskeyService
from gateway.auth.passwords import PasswordService
from gateway.auth.sessions import SessionService
from gateway.auth.totp import Totp
from gateway.domain.audit_log import GATEWAY
from gateway.options import AppOptions
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
    api_keys = ApiKeyAuthenticator(accounts, keys, pepper=options.folder.secret("pepper"), clock=options.clock)
    service = AccountService(accounts, keys, api_keys, services.billing.accounting, clock=options.clock)
    service.webhook_hosts = services.live_config.find_webhook_hosts
    return service, await _declare(service, options)


async def _declare(service: AccountService, options: AppOptions) -> str | None:
    """Store the accounts and keys of the file. If there are none at all, create the first and return its secret."""
    if options.declare:
        await declare(service, options.config.account, options.config.key)
    else:
        await service.reload()
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
    throttle = LoginThrottle(time.monotonic)
    sessions = SessionService(repository, hasher, Totp(services.routing.secret_box), throttle, clock=clock)
    sessions.is_local = local = services.options.config.server.local_sign_in
    account_repository = AccountRepository(database)
    members = Members(repository, account_repository, clock=clock)
    accounts.check_account_may_go = members.check_account_may_go
    members.changing = accounts.changing
    members.is_local = local
    accounts.find_groups = partial(_find_groups, services)
    invitations = Invitations(repository, account_repository, sessions, clock=clock)
    passkeys = PasskeyService(
        PasskeyRepository(database), repository, sessions, AuditLogRepository(database), throttle, clock=clock
    )
    client_secrets = ClientSecrets(accounts.directory, clock)
    return AuthServices(accounts, accounts.directory, members, sessions, invitations, passkeys, client_secrets)


def _find_groups(services: Services) -> set[str]:
    """Return the groups that have prices, or channels of their own."""
    channels = [group for channel in services.routing.catalog.channels for group in channel.groups]
    return {*channels, *(group.name for group in services.live_config.config.group)}
