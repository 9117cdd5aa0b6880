"""Opens authentication: accounts and API keys, members and their sessions."""

from contextlib import AsyncExitStack
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
from gateway.deferred import CreatedOnce
from gateway.domain.audit_log import GATEWAY
from gateway.options import AppOptions
from gateway.routing.model_catalog import ModelCatalog
from gateway.server.context import AuthServices, MemberServices, StorageServices
from gateway.services.base import BaseServices
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox
from gateway.storage.members import MemberRepository

if TYPE_CHECKING:  # imported when a member signs in
    from gateway.auth.passwords import PasswordService
    from gateway.auth.short_lived import ShortLived

FIRST_ACCOUNT = "local"
FIRST_KEY = "first"


def open_api_keys(options: AppOptions, database: Database, accounting: AccountingService) -> ApiKeyAuthenticator:
    """Create the authenticator of API keys. It knows no keys until accounts and keys are loaded."""
    return ApiKeyAuthenticator(
        AccountRepository(database),
        ApiKeyRepository(database),
        pepper=options.folder.secret("pepper"),
        clock=options.clock,
        note_gone=accounting.drop_gone,
        note_accounts=accounting.set_zones,
    )


async def open_accounts(
    base: BaseServices, api_keys: ApiKeyAuthenticator, accounting: AccountingService, catalog: ModelCatalog
) -> tuple[AccountService, str | None]:
    """Open the accounts and keys; also return the secret of the first key if it was created now, else None."""
    database = base.storage.database
    accounts, members = AccountRepository(database), MemberRepository(database)
    service = AccountService(
        accounts,
        ApiKeyRepository(database),
        api_keys,
        accounting,
        clock=base.options.clock,
        rules=AccountRules(
            base.live_config.find_webhook_hosts,
            lambda: _find_groups(catalog, base.live_config),
            lambda account_id: check_account_may_go(members, accounts, account_id),
            shared=base.storage.node is not None,
        ),
    )
    return service, await _declare(service, base.options, base.storage)


async def _declare(service: AccountService, options: AppOptions, storage: StorageServices) -> str | None:
    """Load accounts and keys; first store those of the configuration file, unless the cluster knows the file.

    Commands other than ``serve`` store none of them. If no account exists, create the first account and key, and return
    the key's secret; otherwise return None.
    """
    files = storage.deployment.open_files(storage.database, options.folder.secret("pepper"))
    if options.declare and await files.is_new(options.config):
        await declare(service, options.config.account, options.config.key)
        await files.record(options.config)
    else:
        await service.reload()
    await files.warn_if_different()
    if await service.list_accounts():
        return None
    await service.add_account({"name": FIRST_ACCOUNT}, GATEWAY)
    key = await service.add_key({"name": FIRST_KEY, "account": FIRST_ACCOUNT}, GATEWAY)
    return str(key["secret"])


def open_auth(
    base: BaseServices, accounts: AccountService, secret_box: SecretBox, stack: AsyncExitStack
) -> AuthServices:
    """Open accounts and members. Sign-in code is imported at the first sign-in."""
    database, options = base.storage.database, base.options
    values = base.storage.deployment.open_values(database, secret_box)
    hasher = CreatedOnce(_make_hasher)
    stack.callback(hasher.if_made, methodcaller("close"))
    member_services = CreatedOnce(lambda: _make_members(base, accounts, values, hasher, secret_box))
    repository, is_local = MemberRepository(database), options.config.server.local_sign_in
    client_secrets = ClientSecrets(accounts.directory, values, options.clock)
    return AuthServices(
        accounts,
        accounts.directory,
        member_services,
        lambda: find_setup_token(repository, values, is_local=is_local),
        client_secrets,
    )


def _make_hasher() -> "PasswordService":
    from gateway.auth.passwords import PasswordService  # noqa: PLC0415 - with the first sign-in

    return PasswordService()


def _make_members(
    base: BaseServices,
    accounts: AccountService,
    values: "ShortLived",
    hasher: "CreatedOnce[PasswordService]",
    secret_box: SecretBox,
) -> MemberServices:
    from gateway.services.members import open_members  # noqa: PLC0415 - with the first sign-in

    return open_members(base, accounts, values, hasher(), secret_box)


def _find_groups(catalog: ModelCatalog, live_config: LiveConfig) -> set[str]:
    channel_groups = [group for channel in catalog.channels for group in channel.groups]
    return {*channel_groups, *(group.name for group in live_config.config.group)}
