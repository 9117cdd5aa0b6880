"""Open authentication: accounts and API keys, members and their sessions."""

from contextlib import AsyncExitStack
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING

from gateway.auth.accounts import AccountRules, AccountService
from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.auth.client_secrets import ClientSecrets
from gateway.auth.declared import declare
from gateway.auth.last_administrator import check_account_may_go
from gateway.auth.setup_token import find_setup_token
from gateway.billing.accounting import AccountingService
from gateway.config.reload import LiveConfig
from gateway.deferred import Once, late
from gateway.domain.audit_log import GATEWAY
from gateway.options import AppOptions
from gateway.routing.model_catalog import ModelCatalog
from gateway.server.context import AuthServices, MemberServices, Services
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.database import Database
from gateway.storage.members import MemberRepository

if TYPE_CHECKING:  # imported when a member signs in
    from gateway.auth.passwords import PasswordService

FIRST_ACCOUNT = "local"
FIRST_KEY = "first"


def open_api_keys(options: AppOptions, database: Database, accounting: AccountingService) -> ApiKeyAuthenticator:
    """Open the services that identify the caller of a request. They know no keys until accounts and keys are loaded."""
    return ApiKeyAuthenticator(
        AccountRepository(database),
        ApiKeyRepository(database),
        pepper=options.folder.secret("pepper"),
        clock=options.clock,
        note_gone=accounting.drop_gone,
    )


async def open_accounts(
    services: Services, api_keys: ApiKeyAuthenticator, catalog: ModelCatalog
) -> tuple[AccountService, str | None]:
    """Open the accounts and keys; also return the secret of the first key if this is the first start."""
    database = services.storage.database
    accounts = AccountRepository(database)
    service = AccountService(
        accounts,
        ApiKeyRepository(database),
        api_keys,
        services.billing.accounting,
        clock=services.clock,
        rules=AccountRules(
            services.live_config.find_webhook_hosts,
            partial(_find_groups, catalog, services.live_config),
            partial(check_account_may_go, MemberRepository(database), accounts),
            shared=services.storage.node is not None,
        ),
    )
    return service, await _declare(service, services)


async def _declare(service: AccountService, services: Services) -> str | None:
    """Store the accounts and keys of the configuration file. If none exist, create the first and return its secret."""
    options, storage = services.options, services.storage
    files = storage.deployment.open_files(storage.database, options.folder.secret("pepper"))
    if options.declare and await files.is_new(options.config):
        await declare(service, options.config.account, options.config.key)
        await files.note(options.config)
    else:
        await service.reload()
    await files.warn_if_different()
    if await service.list_accounts():
        return None
    await service.add_account({"name": FIRST_ACCOUNT}, GATEWAY)
    key = await service.add_key({"name": FIRST_KEY, "account": FIRST_ACCOUNT}, GATEWAY)
    return str(key["secret"])


def open_auth(services: Services, accounts: AccountService, stack: AsyncExitStack) -> AuthServices:
    """Open accounts and members. Sign-in code is imported at the first sign-in."""
    storage, repository = services.storage, MemberRepository(services.storage.database)
    values = storage.deployment.open_values(storage.database, services.routing.secret_box, services.clock)
    hasher: Once[PasswordService] = Once(late("auth.passwords:PasswordService"))
    stack.callback(hasher.if_made, methodcaller("close"))
    people: Once[MemberServices] = Once(
        partial(late("services.members:open_members"), services, accounts, repository, values, hasher)
    )
    local = services.options.config.server.local_sign_in
    setup_token = partial(find_setup_token, repository, values, is_local=local)
    client_secrets = ClientSecrets(accounts.directory, values, services.clock)
    return AuthServices(accounts, accounts.directory, people, setup_token, client_secrets)


def _find_groups(catalog: ModelCatalog, live_config: LiveConfig) -> set[str]:
    """Return the groups that have their own prices or channels."""
    channels = [group for channel in catalog.channels for group in channel.groups]
    return {*channels, *(group.name for group in live_config.config.group)}
