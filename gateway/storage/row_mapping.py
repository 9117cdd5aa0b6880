"""Maps domain objects to rows and rows to domain objects.

A ``build_*`` function leaves out columns that the database assigns.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import attrs
import orjson
from sqlalchemy import Row

from gateway.domain.account import Account, ApiKey
from gateway.domain.audit_log import AuditRow
from gateway.domain.balance import Quota
from gateway.domain.idempotency import IdempotencyRecord
from gateway.domain.ledger import LedgerEntry
from gateway.domain.loop_rule import LoopRule
from gateway.domain.member import InviteLink, Member, Session
from gateway.domain.rate_limit import Limits
from gateway.domain.request_log import RequestRecord, StoredRequest, parse_record
from gateway.domain.video import VideoJob
from gateway.domain.webhook import WebhookDelivery
from gateway.domain.zone_periods import ZonePeriods

Values = dict[str, Any]

REQUEST_COLUMNS = tuple(field.name for field in attrs.fields(RequestRecord))
request_values = attrgetter(*REQUEST_COLUMNS)  # takes a third of the time of attrs.asdict
_JOB_FIELDS = tuple(field.name for field in attrs.fields(VideoJob) if field.name not in {"receipt", "prompt"})
_job_values = attrgetter(*_JOB_FIELDS)
VIDEO_COLUMNS = (*_JOB_FIELDS, "receipt")
"""Columns in the order in which ``parse_video`` reads them."""
DELIVERY_COLUMNS = tuple(field.name for field in attrs.fields(WebhookDelivery))
_delivery_values = attrgetter(*DELIVERY_COLUMNS)
MEMBER_COLUMNS = tuple(field.name for field in attrs.fields(Member))
SESSION_COLUMNS = tuple(field.name for field in attrs.fields(Session))
REPLAY_COLUMNS = tuple(field.name for field in attrs.fields(IdempotencyRecord))
_replay_values = attrgetter(*REPLAY_COLUMNS)


def _build_bounds(quota: Quota, limits: Limits) -> Values:
    return {
        "quota_nanos": quota.limit_nanos,
        "quota_period": quota.period,
        "quota_status": quota.status,
        **attrs.asdict(limits),
    }


def _parse_quota(row: Row[Any]) -> Quota:
    return Quota(row.quota_nanos, row.quota_period, row.quota_status)


def _parse_limits(row: Row[Any]) -> Limits:
    return Limits(row.rpm, row.tpm, row.max_concurrency, row.burst)


def build_account_row(account: Account) -> Values:
    """Return the columns of a row of ``accounts`` except the id."""
    return {
        "name": account.name,
        "status": account.status,
        "groups": list(account.groups),
        "declared": account.declared,
        "created_ms": account.created_ms,
        "zones": orjson.dumps(account.zones).decode() if account.zones else None,
        **_build_bounds(account.quota, account.limits),
    }


def parse_account(row: Row[Any]) -> Account:
    """Parse a row of ``accounts``."""
    return Account(
        id=row.id,
        name=row.name,
        status=row.status,
        quota=_parse_quota(row),
        limits=_parse_limits(row),
        groups=tuple(row.groups),
        declared=row.declared,
        created_ms=row.created_ms,
        zones=parse_zones(row.zones),
    )


def parse_zones(text: str | None) -> ZonePeriods:
    """Parse the column ``zones`` of an account."""
    return tuple([(since_s, name) for since_s, name in orjson.loads(text)]) if text else ()


def build_key_row(key: ApiKey) -> Values:
    """Return the columns of a row of ``keys`` except the id."""
    return {
        "account_id": key.account_id,
        "name": key.name,
        "digest": key.digest,
        "last4": key.last4,
        "status": key.status,
        "expires_s": key.expires_s,
        "models": list(key.models),
        "group": key.group,
        "allow_ips": list(key.allow_ips),
        "declared": key.declared,
        "created_ms": key.created_ms,
        "webhook_url": key.webhook_url,
        "former_digest": key.former_digest,
        "former_until_s": key.former_until_s,
        "locked": list(key.locked),
        "end_user": key.user,
        "tags": key.tags,
        "loops": None if key.loops is None else attrs.asdict(key.loops),
        "max_session_nanos": key.max_session_nanos,
        "shows_account": key.shows_account,
        "keep_bodies": key.keep_bodies,
        "resumable": key.resumable,
        "cache_ttl_s": key.cache_ttl_s,
        **_build_bounds(key.quota, key.limits),
    }


def parse_key(row: Row[Any]) -> ApiKey:
    """Parse a row of ``keys``."""
    return ApiKey(
        id=row.id,
        account_id=row.account_id,
        name=row.name,
        digest=row.digest,
        last4=row.last4,
        status=row.status,
        expires_s=row.expires_s,
        quota=_parse_quota(row),
        limits=_parse_limits(row),
        models=tuple(row.models),
        group=row.group,
        allow_ips=tuple(row.allow_ips),
        declared=row.declared,
        created_ms=row.created_ms,
        webhook_url=row.webhook_url,
        former_digest=row.former_digest,
        former_until_s=row.former_until_s,
        locked=tuple(row.locked),
        user=row.end_user,
        tags=row.tags,
        loops=None if row.loops is None else LoopRule(row.loops["same_prompt"], row.loops["window_s"]),
        max_session_nanos=row.max_session_nanos,
        shows_account=row.shows_account,
        keep_bodies=row.keep_bodies,
        resumable=row.resumable,
        cache_ttl_s=row.cache_ttl_s,
    )


def build_request_row(row: RequestRecord) -> Values:
    """Return the columns of a row of ``requests`` except the sequence."""
    return dict(zip(REQUEST_COLUMNS, request_values(row), strict=True))


def parse_request(row: Row[Any]) -> StoredRequest:
    """Parse a row of ``requests``."""
    values = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's documented name for it
    sequence = values.pop("sequence")
    return StoredRequest(sequence, RequestRecord(**values))


def build_entry_row(entry: LedgerEntry) -> Values:
    """Return the columns of a row of ``entries`` except the sequence."""
    values = attrs.asdict(entry)
    del values["sequence"]
    return values


def parse_entry(row: Row[Any]) -> LedgerEntry:
    """Parse a row of ``entries``."""
    return LedgerEntry(**row._mapping)  # noqa: SLF001 - as above


def build_audit_row(row: AuditRow) -> Values:
    """Return the columns of a row of ``audit`` except the sequence."""
    values = attrs.asdict(row)
    del values["sequence"]
    return values


def parse_audit(row: Row[Any]) -> AuditRow:
    """Parse a row of ``audit``."""
    return AuditRow(**row._mapping)  # noqa: SLF001 - as above


def build_member_row(member: Member) -> Values:
    """Return the columns of a row of ``members`` except the id; passkeys have rows of their own."""
    values = attrs.asdict(member)
    del values["id"], values["passkeys"]
    return values | {"recovery": list(member.recovery)}


def parse_member(row: Sequence[Any]) -> Member:
    """Parse ``MEMBER_COLUMNS`` of a row of ``members``."""
    values = dict(zip(MEMBER_COLUMNS, row, strict=True))
    return Member(**{**values, "recovery": tuple(values["recovery"])})


def build_session_row(session: Session) -> Values:
    """Return the columns of a row of ``sessions``."""
    return attrs.asdict(session)


def parse_session(row: Sequence[Any]) -> Session:
    """Parse ``SESSION_COLUMNS`` of a row of ``sessions``."""
    return Session(*row)


def build_link_row(link: InviteLink) -> Values:
    """Return the columns of a row of ``links``."""
    return attrs.asdict(link)


def parse_link(row: Row[Any]) -> InviteLink:
    """Parse a row of ``links``."""
    return InviteLink(**row._mapping)  # noqa: SLF001 - as above


def build_video_row(job: VideoJob) -> Values:
    """Return the columns of a row of ``videos`` except the sequence; the prompt has a row of its own."""
    return {
        **build_progress(job),
        **build_receipt(job),
        "id": job.id,
        "account_id": job.account_id,
        "key_id": job.key_id,
        "request_id": job.receipt.id,
        "model": job.model,
        "created_ms": job.created_ms,
    }


def build_progress(job: VideoJob) -> Values:
    """Return the columns that change while a job runs or when it ends; unchanged indexes need no update."""
    values = dict(zip(_JOB_FIELDS, _job_values(job), strict=True))
    del values["id"]
    values["over_ms"] = job.useless_from_ms
    return values


def build_receipt(job: VideoJob) -> Values:
    """Return the column with the row of the request that created the job, as JSON."""
    return {"receipt": orjson.dumps(build_request_row(job.receipt)).decode()}


def parse_video(row: Sequence[Any], prompt: str = "") -> VideoJob:
    """Parse ``VIDEO_COLUMNS`` of a row of ``videos``. Unknown fields of the receipt are dropped."""
    *values, receipt = row
    return VideoJob(
        receipt=parse_record(orjson.loads(receipt)), prompt=prompt, **dict(zip(_JOB_FIELDS, values, strict=True))
    )


def build_delivery_row(delivery: WebhookDelivery) -> Values:
    """Return the columns of a row of ``deliveries`` except the sequence."""
    return dict(zip(DELIVERY_COLUMNS, _delivery_values(delivery), strict=True))


def parse_delivery(row: Sequence[Any]) -> WebhookDelivery:
    """Parse ``DELIVERY_COLUMNS`` of a row of ``deliveries``."""
    return WebhookDelivery(*row)


def build_replay_row(replay: IdempotencyRecord) -> Values:
    """Return the columns of a row of ``replays``."""
    return dict(zip(REPLAY_COLUMNS, _replay_values(replay), strict=True))


def parse_replay(row: Sequence[Any]) -> IdempotencyRecord:
    """Parse ``REPLAY_COLUMNS`` of a row of ``replays``."""
    return IdempotencyRecord(*row)
