"""A signed statement of what is kept of prompts and answers, and of what was deleted, from the audit log.

The signature is Ed25519 (RFC 8032). Its private key is derived from the master key, so it is the same for every
statement of a gateway, and nothing more has to be kept.
"""

import base64
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import attrs
import orjson

from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import AuditFilter, AuditRow
from gateway.frozen import frozen
from gateway.server.admin.body_deletion import TOUCHED_ACCOUNTS, TOUCHED_LEFT_OUT
from gateway.server.context import Services
from gateway.storage.encryption import SecretBox

MAX_DELETIONS = 10_000
"""Maximum number of deletions that a statement lists: the newest ones."""
_PURPOSE = "attestation"
_DELETIONS = ("bodies.deleted", "user.forgotten", "account.deleted")
_PAGE_ROWS = 1_000
_NOT_STATED = (
    "Bodies that expired, or that gave way to newer ones because of bodies.max_gb, are not listed as deletions.",
    "Bytes of expired bodies are removed with others that were written at the same time, up to an hour later.",
    "A forgotten user has two entries: user.forgotten, and bodies.deleted with the number of its requests.",
    "Requests that ended during a deletion of many bodies may be missing in its number.",
)


@frozen
class Attestation:
    """A statement as JSON, its signature in base64, and the public key in PEM."""

    statement: str
    signature: str
    public_key: str


async def attest_bodies(services: Services, account_id: int | None) -> Attestation:
    """Return the signed statement of one account; of all accounts if ``account_id`` is None."""
    stored_bodies = await services.open_bodies().describe(account_id)
    deletions: list[dict[str, Any]] = []
    for action in _DELETIONS:
        rows = _list_rows(services, AuditFilter(action=action))
        deletions += [_describe(row, account_id) async for row in rows if _concerns(row, account_id)]
    deletions.sort(key=lambda deletion: str(deletion["at"]), reverse=True)
    statement = {
        "statement": "kept prompts and answers of a gateway",
        "made_at": build_time(int(services.clock())),
        "account_id": account_id,
        "kept_now": {
            "requests": stored_bodies.requests,
            "oldest_at": None if stored_bodies.oldest_ms is None else build_time(stored_bodies.oldest_ms // 1000),
        },
        "hidden_and_not_erased_yet": stored_bodies.pending,
        "rule": services.live_config.keep_bodies or "none",
        "rules_of_keys": _count_rules(services, account_id),
        "keep_days": services.live_config.config.bodies.keep_days,
        "deletions": deletions[:MAX_DELETIONS],
        "deletions_left_out": max(len(deletions) - MAX_DELETIONS, 0),
        "not_stated": _NOT_STATED,
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


def _count_rules(services: Services, account_id: int | None) -> dict[str, int]:
    """Return how many keys have each rule of their own. A key's own rule precedes the gateway's."""
    callers = services.auth.accounts.directory.list_callers()
    rules = [caller.key.keep_bodies for caller in callers if account_id in {None, caller.account.id}]
    return dict(Counter(rule for rule in rules if rule is not None))


def _concerns(row: AuditRow, account_id: int | None) -> bool:
    """Return whether a deletion may have deleted bodies of the account; True if ``account_id`` is None."""
    if account_id is None or row.account_id == account_id:
        return True
    detail = orjson.loads(row.detail)
    return row.account_id is None and (
        str(account_id) in detail.get(TOUCHED_ACCOUNTS, {}) or bool(detail.get(TOUCHED_LEFT_OUT))
    )


def _describe(row: AuditRow, account_id: int | None) -> dict[str, Any]:
    """Return a deletion as the statement lists it. The audit rows of deletions do not name end users.

    With ``account_id``, ``requests`` counts only those of this account; None if they were not counted for it.
    """
    detail: dict[str, Any] = orjson.loads(row.detail)
    if account_id is not None and TOUCHED_ACCOUNTS in detail:
        detail["requests"] = detail[TOUCHED_ACCOUNTS].get(str(account_id))
        detail = {name: value for name, value in detail.items() if name not in {TOUCHED_ACCOUNTS, TOUCHED_LEFT_OUT}}
    return {
        "at": build_time(row.at_ms // 1000),
        "by": row.actor or row.actor_kind,
        "action": row.action,
        "account_id": row.account_id,
        "detail": detail,
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
