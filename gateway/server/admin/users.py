"""Admin API: forget an end user."""

import secrets

import attrs
import orjson

from gateway.answer_fields import Count
from gateway.domain.attribution import build_stored_user
from gateway.errors import Conflict
from gateway.frozen import frozen
from gateway.parsing import must, parse_spec
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.io import read_fields
from gateway.storage.forgotten_users import ForgottenUserRepository

_MAX_CHARS = 1_024


@frozen
class ForgetUserSpec:
    """The end user to forget, as clients name it; of one ``account``, or of all."""

    user: str = attrs.field(
        repr=False, metadata=must("1 to 1,024 characters", lambda value: 0 < len(value.strip()) <= _MAX_CHARS)
    )
    account: str | None = None


@frozen(kw_only=True)
class ForgottenUser:
    """What was renamed: the random ``name`` that stands for the user now, and the number of places."""

    name: str
    requests: Count
    sums: Count
    keys: Count


@admin_operation(takes=ForgetUserSpec)
async def forget_user(request: AdminRequest) -> ForgottenUser:
    """Replace the name of an end user by a random one, the same in all requests, sums and API keys.

    Requests that are running are stored with the name later: repeat the call when they have ended. While the user has
    running requests under a limit, the answer is 409. What clients wrote into files, and keys that the configuration
    file declares, stay as they are. The audit log has the new name alone.
    """
    services, actor = request.services, request.actor
    spec = parse_spec(await read_fields(request), ForgetUserSpec)
    accounts = services.auth.accounts
    account_id = None if spec.account is None else (await accounts.get_stored_account(spec.account, actor)).id
    rules, new_name = services.live_config.attribution, f"forgotten-{secrets.token_hex(8)}"
    names = {build_stored_user(spec.user, attrs.evolve(rules, users=users)) for users in ("text", "hash")}
    if _release_balances(request, names, account_id):
        raise Conflict("Requests of this user are running under a limit: end them, or try again when they have ended")
    repository = ForgottenUserRepository(services.storage.database)
    requests = sums = 0
    for name in names:
        await services.billing.flusher.store_waiting()
        sums += await repository.rename_sums(name, new_name, account_id)
        renamed = -1
        while renamed:
            async with services.storage.write_queue.writing:  # no balance of a limit is read meanwhile
                used_charges = _release_balances(request, {name}, account_id)
                renamed = await repository.rename_rows(name, new_name, account_id, used_charges)
            requests += renamed
    keys = await accounts.rename_user(names, new_name, account_id)
    detail = orjson.dumps({"requests": requests, "sums": sums, "keys": keys}).decode()
    row = actor.build_audit_row(
        "user.forgotten", new_name, int(services.clock() * 1000), account_id=account_id, detail=detail
    )
    await services.admin.audit_log.add_audit(row)
    return ForgottenUser(name=new_name, requests=requests, sums=sums, keys=keys)


def _release_balances(request: AdminRequest, names: set[str], account_id: int | None) -> set[tuple[str, str]]:
    """Drop the balances of these users under limits; return the counter and subject of those in use, which stay."""
    used_charges = set()
    spending = request.services.billing.limits.spending
    for book in () if spending is None else spending.list_books():
        for subject, balance in list(book.balances.items()) if book.limit.kind == "user" else ():
            account, _, user = subject.partition(":")
            if user in names and account_id in {None, int(account)}:
                if balance.users or balance.held_nanos:
                    used_charges.add((book.counter, subject))
                else:
                    del book.balances[subject]
    return used_charges
