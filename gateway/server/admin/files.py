"""Admin API: clients' files. A member sees those of its own account."""

from gateway.answer_fields import Count, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.client_file import BATCH_OUTPUT, PURPOSES, ClientFile, FileFilter, is_client_id
from gateway.errors import InvalidRequest, NotFound
from gateway.frozen import frozen
from gateway.server.admin.answer import Deleted, build_view
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, LIMIT_QUERY, parse_account, parse_limit, parse_search
from gateway.server.openapi import schema as s

_ALL_PURPOSES = (*PURPOSES, BATCH_OUTPUT)
_ID_PREFIX = "file-"


@frozen(kw_only=True)
class FileView:
    """A file that a client sent, or that a batch wrote. The name of a deleted account or key is null.

    ``expires_at`` is null for a file that is kept until it is deleted.
    """

    id: str
    filename: str
    purpose: str
    bytes: Count
    account: str | None
    account_id: int
    key_id: int
    key_name: str | None
    created_at: Moment
    expires_at: Moment | None


@admin_operation(
    query=(
        LIMIT_QUERY,
        Query("after", "Only files after this one (an id)."),
        ACCOUNT_QUERY,
        Query("search", "Only files whose id or name contains this text, in any case."),
        Query("purpose", "Only files for this purpose.", s.one_of(*_ALL_PURPOSES)),
    )
)
async def list_files(request: AdminRequest) -> list[FileView]:
    """List the files that clients sent to `/v1/files` and `/v1/uploads` and that batches wrote, the newest first."""
    query, files = request.query, request.services.files.files
    after_id, purpose = query.get("after"), query.get("purpose")
    if after_id is not None and not is_client_id(after_id, _ID_PREFIX):
        raise InvalidRequest("'after' must be the id of a file", param="after")
    if purpose is not None and purpose not in _ALL_PURPOSES:
        raise InvalidRequest(f"'purpose' must be one of {', '.join(_ALL_PURPOSES)}", param="purpose")
    file_filter = FileFilter(
        await parse_account(request),
        files.now_ms,
        parse_limit(request),
        purpose,
        after_id,
        search=parse_search(request),
    )
    names = await request.services.auth.accounts.name_accounts()
    return [_build_file(request, file, names) for file in await files.list_files(file_filter)]


@admin_operation()
async def delete_file(request: AdminRequest) -> Deleted:
    """Delete a file. A batch that reads it goes on: it has a copy."""
    services, actor = request.services, request.actor
    file = await services.files.files.get(request.match_info["id"], actor.scope)
    now_ms = int(services.clock() * 1000)
    audit = actor.build_audit_row("file.deleted", file.id, now_ms, account_id=file.account_id)
    if not await services.files.files.remove(file, audit):
        raise NotFound(f"There is no file with the id {file.id!r}")
    return Deleted(file.id)


def _build_file(request: AdminRequest, file: ClientFile, names: dict[int, str]) -> FileView:
    caller = request.services.auth.api_keys.find_caller(file.key_id)
    return build_view(
        FileView,
        file,
        account=names.get(file.account_id),
        key_name=None if caller is None else caller.key.name,
        created_at=build_time(file.created_ms // 1000),
        expires_at=None if file.expires_ms is None else build_time(file.expires_ms // 1000),
    )
