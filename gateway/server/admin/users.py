"""Admin API: forget an end user."""

import secrets

import attrs
import orjson

from gateway.answer_fields import Count
from gateway.billing.forgotten_users import UserRenaming
from gateway.domain.attribution import FORGOTTEN_PREFIX
from gateway.domain.kept_body import BodyFilter
from gateway.frozen import frozen
from gateway.parsing import must, parse_spec
from gateway.server.active_inference import ActiveInference
from gateway.server.admin.answer_cache import forget_streams
from gateway.server.admin.body_deletion import delete_kept, make_audit_builder
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.io import read_fields
from gateway.server.admin.kept_bodies import find_stored_names
from gateway.server.context import Services
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
    """What was renamed: the random ``name`` that stands for the user now, and the number of places.

    ``sums`` are those of days, ``videos`` the receipts of jobs, ``audit`` the rows of changed keys in the audit log.
    ``bodies`` is the number of requests whose kept bodies were deleted, ``answers`` that of deleted cached answers.
    """

    name: str
    requests: Count
    sums: Count
    keys: Count
    videos: Count
    audit: Count
    bodies: Count
    answers: Count


@admin_operation(takes=ForgetUserSpec)
async def forget_user(request: AdminRequest) -> ForgottenUser:
    """Replace the name of an end user by a random one, the same in all requests, sums, API keys and videos.

    Running requests get the random name, too, and so do changes of keys in the audit log. Kept bodies and cached
    answers are deleted. What clients wrote into files, and keys that the configuration file declares, stay as they are.
    In a cluster, requests that other nodes are running are stored with the name: repeat the call when they have ended.
    """
    services, actor = request.services, request.actor
    spec = parse_spec(await read_fields(request), ForgetUserSpec)
    accounts = services.auth.accounts
    account_id = None if spec.account is None else (await accounts.get_stored_account(spec.account, actor)).id
    new_name, names = f"{FORGOTTEN_PREFIX}{secrets.token_hex(8)}", find_stored_names(services, spec.user)
    now_ms = int(services.clock() * 1000)
    is_on_node = services.storage.node is not None
    renaming = UserRenaming(names, new_name, account_id, now_ms, is_on_node=is_on_node)
    if is_on_node:
        renaming.check_jobs(await services.videos.jobs.reservations.store.list_open())
    rename_running(services, renaming)
    repository = ForgottenUserRepository(services.storage.database)
    keys = await accounts.rename_user(names, new_name, account_id)
    requests, sums = await _rename_stored(services, repository, renaming)
    videos = await repository.rename_videos(names, new_name, account_id)
    audit = await repository.rename_audit(names, new_name, account_id)
    build_audit = make_audit_builder(request, "forgotten user", account_id, {})
    body_filter = BodyFilter(end_users=names, account_id=account_id)
    deleted, answers, failure = await delete_kept(services, body_filter, build_audit)
    counts = {"requests": requests, "sums": sums, "keys": keys, "videos": videos, "audit": audit}
    counts["bodies"] = deleted.requests
    counts["answers"] = answers
    detail = orjson.dumps(counts).decode()
    row = actor.build_audit_row("user.forgotten", new_name, now_ms, account_id=account_id, detail=detail)
    await services.admin.audit_log.add_audit(row)
    if failure is not None:
        raise failure
    return ForgottenUser(name=new_name, **counts)


def rename_running(services: Services, renaming: UserRenaming) -> None:
    """Give running requests and open jobs of the user the new name.

    The user's kept streams, and bodies and answers that are not stored yet, are dropped. Raises ``Conflict``, and then
    nothing has changed.
    """
    renaming.rename_balances(services.billing.limits.spending)
    forget_streams(services, renaming.account_id, renaming.names)  # while their requests have the former name
    if (bodies := services.open_bodies.instance) is not None:  # also of settled requests, whose clients still read
        for collector in bodies.open_requests.values():
            collector.drop_bodies_of(renaming.covers)
    for call in services.active_requests.calls.values():
        renaming.rename_request(call.context)
        if isinstance(call, ActiveInference) and call.recorder is not None:
            call.recorder.drop_bodies_of(renaming.new_name)
    services.videos.jobs.reservations.renamings.append(renaming)


async def _rename_stored(
    services: Services, repository: ForgottenUserRepository, renaming: UserRenaming
) -> tuple[int, int]:
    """Rename the user in stored requests, balances and sums of days; return the number of requests and of sums."""
    writing, spending = services.storage.write_queue.writing, services.billing.limits.spending
    new_name, account_id = renaming.new_name, renaming.account_id
    await services.billing.flusher.store_waiting()
    async with writing:  # later rows keep their name, and have sums of their own
        last_sequence = await repository.find_last_row()
        sums = sum([await repository.rename_sums(name, new_name, account_id) for name in renaming.names])
    rows = 0
    for name in renaming.names:
        renamed = -1
        while renamed:
            async with writing:  # no balance of a limit is read meanwhile
                renamed = await repository.rename_rows(name, new_name, account_id, last_sequence)
                renaming.reread_balances(spending)
            rows += max(renamed, 0)
    await repository.rename_balances(renaming.names, new_name, account_id)
    return rows, sums
