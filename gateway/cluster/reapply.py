"""Applies lost changes again, as far as they take rights away. The audit log gets the original actor and time."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import orjson

from gateway.auth.accounts import parse_change
from gateway.auth.last_administrator import check_account_may_go
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.account_spec import AccountSpec, KeySpec, build_account_fields, build_key_fields, build_time
from gateway.domain.audit_log import AuditRow
from gateway.domain.lost_change import LostChange, find_edits, find_restrictions
from gateway.domain.member import Member, includes_rights
from gateway.errors import GatewayError, NotFound, StoreUnavailable
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.database import Database
from gateway.storage.members import MemberRepository
from gateway.storage.passkeys import PasskeyRepository

Fields = dict[str, Any]

OBJECT_MISSING = "what it changed is not in the store"
KIND_NOT_REAPPLIED = "changes of this kind are not applied again"
NOTHING_TO_REAPPLY = "it takes no right away, or is in force already"
OTHER_FIELDS_SKIPPED = "its other fields take no right away"
FORMER_SIGN_IN_VALID = "the former passphrase is valid again: let the member change it"
FORMER_KEY_VALID = "the former secret is valid again: rotate the key"
"""Why a lost change, or a part of it, was not applied again."""
_DELETED_EDIT: Fields = {"deleted": [False, True]}


class Reapplication:
    """Applies lost changes in their order.

    ``find_caller``: returns the key with an id, and its account, as this process knew them before the loss; None for
    an unknown key. ``now_ms``: when the changes are applied again (Unix ms).
    """

    def __init__(self, database: Database, find_caller: Callable[[int], Caller | None], now_ms: int) -> None:
        self._accounts = AccountRepository(database)
        self._keys = ApiKeyRepository(database)
        self._members = MemberRepository(database)
        self._passkeys = PasskeyRepository(database)
        self._find_caller = find_caller
        self._now_ms = now_ms
        self._new_names: dict[tuple[str, int], str] = {}
        """The names that lost changes gave to objects, by noun and id: later changes name the objects so."""
        self._appliers: Mapping[str, Callable[[AuditRow, Fields], Awaitable[Fields]]] = {
            "key.edited": self._edit_key,
            "key.rotated": self._rotate_key,
            "key.deleted": self._delete_key,
            "account.edited": self._edit_account,
            "account.deleted": self._delete_account,
            "member.edited": self._edit_member,
            "member.deleted": self._delete_member,
            "member.signed_out": self._end_sessions,
            "member.passphrase_changed": self._end_sessions,
            "session.ended": self._end_sessions,
            "member.passkey_removed": self._delete_passkey,
            "link.deleted": self._delete_link,
        }

    async def run(self, lost_rows: Sequence[AuditRow]) -> list[LostChange]:
        """Apply the changes, and return what became of each.

        After ``StoreUnavailable`` all changes must be applied again.
        """
        return [
            await self._apply(row, _drop_superseded_fields(row, lost_rows[index + 1 :]))
            for index, row in enumerate(lost_rows)
        ]

    async def _apply(self, row: AuditRow, detail: Fields) -> LostChange:
        apply = self._appliers.get(row.action)
        applied_edits: Fields = {}
        try:
            applied_edits = {} if apply is None else await apply(row, detail)
            reason = KIND_NOT_REAPPLIED if apply is None else _find_reason(row, applied_edits)
        except StoreUnavailable:
            raise
        except NotFound:
            reason = OBJECT_MISSING
        except GatewayError as error:
            reason = error.message
        return LostChange(row, orjson.dumps(applied_edits).decode(), reason, self._now_ms)

    def _audit(self, row: AuditRow, applied_edits: Fields) -> AuditRow:
        """Return the audit row of a change that is applied again: ``row`` with these edits and ``reapplied_at``."""
        detail = applied_edits | {"reapplied_at": [None, build_time(self._now_ms // 1000)]}
        return attrs.evolve(row, sequence=0, detail=orjson.dumps(detail).decode())

    # --- keys

    async def _find_key(self, row: AuditRow) -> tuple[ApiKey, Account]:
        """Return the key that ``row`` names, and its account.

        Raises ``NotFound`` if there is no such key, or it was created after the change.
        """
        account = await self._find_account(row)
        matches = [
            (len(name), key)
            for key in await self._keys.list_keys()
            if key.account_id == account.id and key.created_ms <= row.at_ms
            for name in (self._new_names.get(("key", key.id), key.name),)
            if row.subject.endswith(f"/{name}")
        ]
        if not matches:
            raise NotFound(OBJECT_MISSING)
        return max(matches, key=lambda match: match[0])[1], account

    async def _edit_key(self, row: AuditRow, detail: Fields) -> Fields:
        key, account = await self._find_key(row)
        self._record_new_name("key", key.id, detail)
        stored_fields = build_key_fields(key, account.name)
        restrictions = find_restrictions(stored_fields, detail)
        if not restrictions:
            return {}
        spec = parse_change(
            stored_fields, {name: value for name, value in restrictions.items() if name != "locked"}, KeySpec
        )
        edited_key = attrs.evolve(spec.apply(key), locked=tuple(restrictions.get("locked", key.locked)))
        applied_edits = {name: [stored_fields[name], value] for name, value in restrictions.items()}
        await self._keys.put_key(edited_key, self._audit(row, applied_edits), original=key)
        return applied_edits

    async def _rotate_key(self, row: AuditRow, _: Fields) -> Fields:
        """Give the key the rotated secret, if this process knows it: the former secret must end."""
        key, _account = await self._find_key(row)
        caller = self._find_caller(key.id)
        if caller is None or caller.key.digest == key.digest or caller.key.created_ms != key.created_ms:
            return {}
        names = ("digest", "last4", "former_digest", "former_until_s")
        rotated_key = attrs.evolve(key, **{name: getattr(caller.key, name) for name in names})
        applied_edits = {"secret": "changed"}
        await self._keys.put_key(rotated_key, self._audit(row, applied_edits), original=key)
        return applied_edits

    async def _delete_key(self, row: AuditRow, _: Fields) -> Fields:
        key, _account = await self._find_key(row)
        await self._keys.delete_key(key.id, self._audit(row, _DELETED_EDIT))
        return _DELETED_EDIT

    # --- accounts

    async def _find_account(self, row: AuditRow) -> Account:
        """Return the account of ``row``. Raises ``NotFound`` if there is none, or it was created after the change."""
        accounts = await self._accounts.find_accounts([row.account_id or 0])
        if not accounts or accounts[0].created_ms > row.at_ms:
            raise NotFound(OBJECT_MISSING)
        return accounts[0]

    async def _edit_account(self, row: AuditRow, detail: Fields) -> Fields:
        account = await self._find_account(row)
        stored_fields = build_account_fields(account)
        restrictions = find_restrictions(stored_fields, detail)
        if not restrictions:
            return {}
        if "status" in restrictions:
            await check_account_may_go(self._members, self._accounts, account.id)
        applied_edits = {name: [stored_fields[name], value] for name, value in restrictions.items()}
        edited_account = parse_change(stored_fields, restrictions, AccountSpec).apply(account)
        await self._accounts.put_account(edited_account, self._audit(row, applied_edits), original=account)
        return applied_edits

    async def _delete_account(self, row: AuditRow, _: Fields) -> Fields:
        account = await self._find_account(row)
        await check_account_may_go(self._members, self._accounts, account.id)
        await self._accounts.delete_account(account.id, self._audit(row, _DELETED_EDIT))
        return _DELETED_EDIT

    # --- members

    async def _find_member(self, row: AuditRow) -> Member:
        """Return the member that ``row`` names.

        Raises ``NotFound`` if there is no such member, or it was created after the change.
        """
        for member in await self._members.list_members():
            name = self._new_names.get(("member", member.id), member.name)
            if name == row.subject and member.account_id == row.account_id and member.created_ms <= row.at_ms:
                return member
        raise NotFound(OBJECT_MISSING)

    async def _edit_member(self, row: AuditRow, detail: Fields) -> Fields:
        member, edits = await self._find_member(row), find_edits(detail)
        self._record_new_name("member", member.id, detail)
        restrictions: Fields = {}
        if edits.get("status", ("", ""))[1] == "disabled" != member.status:
            restrictions["status"] = "disabled"
        role = edits.get("role", ("", member.role))[1]
        if role != member.role and includes_rights(member.role, role):
            restrictions["role"] = role
        if member.may_read_bodies and edits.get("may_read_bodies", (False, True))[1] is False:
            restrictions["may_read_bodies"] = False
        if not restrictions:
            return {}
        applied_edits = {name: [getattr(member, name), value] for name, value in restrictions.items()}
        edited_member, audit = attrs.evolve(member, **restrictions), self._audit(row, applied_edits)
        await self._members.put_member(member, edited_member, audit, end_sessions=True)
        return applied_edits

    async def _delete_member(self, row: AuditRow, _: Fields) -> Fields:
        member = await self._find_member(row)
        await self._members.delete_member(member.id, self._audit(row, _DELETED_EDIT))
        return _DELETED_EDIT

    async def _end_sessions(self, row: AuditRow, _: Fields) -> Fields:
        """End all sessions that the member had at the time of ``row``, which does not say which of them ended."""
        member = await self._find_member(row)
        sessions = await self._members.list_sessions(member.id)
        digests = [session.digest for session in sessions if session.created_ms <= row.at_ms]
        applied_edits: Fields = {"sessions": [len(digests), 0]}
        return applied_edits if await self._members.delete_sessions(digests, self._audit(row, applied_edits)) else {}

    async def _delete_passkey(self, row: AuditRow, detail: Fields) -> Fields:
        member = await self._find_member(row)
        for passkey in await self._passkeys.list_passkeys(member.id):
            if passkey.name == detail.get("passkey") and passkey.created_ms <= row.at_ms:
                applied_edits: Fields = {"passkey": [passkey.name, None]}
                await self._passkeys.delete_passkey(passkey, self._audit(row, applied_edits))
                return applied_edits
        raise NotFound(OBJECT_MISSING)

    async def _delete_link(self, row: AuditRow, _: Fields) -> Fields:
        for link in await self._members.list_links():
            if link.id == row.subject and await self._members.delete_link(link.digest, self._audit(row, _DELETED_EDIT)):
                return _DELETED_EDIT
        raise NotFound(OBJECT_MISSING)

    def _record_new_name(self, noun: str, object_id: int, detail: Fields) -> None:
        edit = find_edits(detail).get("name")
        if edit is not None:
            self._new_names[noun, object_id] = edit[1]


def _find_reason(row: AuditRow, applied_edits: Fields) -> str:
    """Return why not all of a change was applied again; empty if all of it was."""
    if row.action == "member.passphrase_changed":
        return FORMER_SIGN_IN_VALID
    if not applied_edits:
        return FORMER_KEY_VALID if row.action == "key.rotated" else NOTHING_TO_REAPPLY
    has_other_fields = row.action.endswith(".edited") and orjson.loads(row.detail).keys() - applied_edits.keys()
    return OTHER_FIELDS_SKIPPED if has_other_fields else ""


def _drop_superseded_fields(row: AuditRow, later_rows: Sequence[AuditRow]) -> Fields:
    """Return the detail of ``row`` without the fields that a later change of the same object has changed again."""
    detail: Fields = orjson.loads(row.detail)
    if not row.action.endswith(".edited"):
        return detail
    subject = _find_new_subject(row)
    for later_row in later_rows:
        if (later_row.action, later_row.account_id, later_row.subject) == (row.action, row.account_id, subject):
            subject = _find_new_subject(later_row)
            detail = {field: value for field, value in detail.items() if field not in orjson.loads(later_row.detail)}
    return detail


def _find_new_subject(row: AuditRow) -> str:
    """Return the subject that the object has after ``row``, which may have renamed it."""
    before, after = find_edits(orjson.loads(row.detail)).get("name", ("", ""))
    return row.subject.removesuffix(before) + str(after)
