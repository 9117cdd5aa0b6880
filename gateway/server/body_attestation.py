"""A signed statement of what is kept of prompts and answers, and of what was deleted, from the audit log.

The signature is Ed25519 (RFC 8032). Its private key is derived from the master key, so it is the same for every
statement of a gateway, and nothing more has to be kept.
"""

import base64
from collections.abc import AsyncIterator
from typing import Any

import attrs
import orjson

from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import AuditFilter, AuditRow
from gateway.frozen import frozen
from gateway.server.context import Services
from gateway.storage.encryption import SecretBox

MAX_DELETIONS = 10_000
"""The newest deletions that a statement lists."""
_PURPOSE = "attestation"
_DELETIONS = ("bodies.deleted", "user.forgotten", "account.deleted")
_PAGE_ROWS = 1_000
_NOT_STATED = (
    "Bodies that expired, or that gave way to newer ones because of bodies.max_gb, are not listed as deletions.",
    "Bodies that are hidden, and that other nodes still erase, are not counted as kept.",
    "Rules of single keys, which come before the rule of the gateway, are not listed.",
    "A deletion that was cut off before its entry in the audit log was written is not listed.",
)
_NOT_STATED_OF_ACCOUNT = (
    "Deletions by request, key, end user, session or time alone are in the statement of all accounts."
)


@frozen
class Attestation:
    """A statement as JSON, its signature in base64, and the public key in PEM."""

    statement: str
    signature: str
    public_key: str


async def attest_bodies(services: Services, account_id: int | None) -> Attestation:
    """Return the signed statement, of one account or of all. Raises ``StoreUnavailable``."""
    stored = await services.open_bodies().describe(account_id)
    deletions: list[dict[str, Any]] = []
    for action in _DELETIONS:
        audit_filter = AuditFilter(account_id=account_id, action=action)
        deletions += [_describe(row) async for row in _list_rows(services, audit_filter)]
    deletions.sort(key=lambda deletion: str(deletion["at"]), reverse=True)
    statement = {
        "statement": "kept prompts and answers of a gateway",
        "made_at": build_time(int(services.clock())),
        "account_id": account_id,
        "kept_now": {
            "requests": stored.requests,
            "oldest_at": None if stored.oldest_ms is None else build_time(stored.oldest_ms // 1000),
        },
        "rule": services.live_config.keep_bodies or "none",
        "keep_days": services.live_config.config.bodies.keep_days,
        "deletions": deletions[:MAX_DELETIONS],
        "deletions_left_out": max(len(deletions) - MAX_DELETIONS, 0),
        "not_stated": _NOT_STATED if account_id is None else (*_NOT_STATED, _NOT_STATED_OF_ACCOUNT),
    }
    return sign(orjson.dumps(statement, option=orjson.OPT_SORT_KEYS).decode(), services.routing.secret_box)


async def _list_rows(services: Services, audit_filter: AuditFilter) -> AsyncIterator[AuditRow]:
    while True:
        rows = await services.admin.audit_log.list_audit(audit_filter, _PAGE_ROWS)
        for row in rows:
            yield row
        if len(rows) < _PAGE_ROWS:
            return
        audit_filter = attrs.evolve(audit_filter, before=rows[-1].sequence)


def _describe(row: AuditRow) -> dict[str, Any]:
    """Return a deletion. Names of end users are in no audit row."""
    return {
        "at": build_time(row.at_ms // 1000),
        "by": row.actor or row.actor_kind,
        "action": row.action,
        "account_id": row.account_id,
        "detail": orjson.loads(row.detail),
    }


def sign(statement: str, secret_box: SecretBox) -> Attestation:
    """Return ``statement`` with its signature."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - for statements alone
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    private_key = Ed25519PrivateKey.from_private_bytes(secret_box.derive_key(_PURPOSE))
    public_key = private_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signature = base64.b64encode(private_key.sign(statement.encode())).decode()
    return Attestation(statement, signature, public_key.decode())
