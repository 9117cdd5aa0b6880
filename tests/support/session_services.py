"""The console's reception over a store in memory, at a clock that the test sets; hashes cost next to nothing."""

import asyncio
from typing import Any

import attrs
import pyotp

from gateway.auth.invitations import Invitations
from gateway.auth.login_throttle import LoginThrottle
from gateway.auth.members import MemberService
from gateway.auth.passwords import HashCost, PasswordService
from gateway.auth.sessions import ClientInfo, NewSession, SessionService
from gateway.auth.short_lived import MemoryValues
from gateway.auth.totp import STEP_S, Totp
from gateway.domain.account import Account
from gateway.domain.audit_log import AuditFilter, AuditRow
from gateway.domain.member import Member
from gateway.errors import StoreUnavailable
from gateway.storage.encryption import SecretBox
from gateway.storage.members import MemberRepository
from tests.support.repositories import Repositories

CHEAP = HashCost(8, 1, 1)
FROGS = "four green frogs sing"
TOADS = "nine brown toads hum"
HOME = ClientInfo("192.0.2.1", "Browser/1.0")
SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"


class Store(MemberRepository):
    """While it is ``full``, no use of a session is written."""

    full = False

    async def touch_session(self, digest: bytes, seen_ms: int) -> None:
        if self.full:
            raise StoreUnavailable("full")
        await super().touch_session(digest, seen_ms)


class SessionServices:
    """Everything of it; ``now_s`` is its clock."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0
        self.accounts = Repositories()
        self.audit_log = self.accounts.audit_log
        self.store = Store(self.accounts.database)
        self.factors = Totp(SecretBox(bytes(32)))
        self.values = values = MemoryValues(self.clock)
        throttle = LoginThrottle(lambda: self.now_s)
        self.sessions = SessionService(
            self.store, PasswordService(CHEAP), self.factors, throttle, values=values, clock=self.clock, is_local=True
        )
        self.invitations = Invitations(self.store, self.accounts, self.sessions, values=values, clock=self.clock)
        self.members = MemberService(
            self.store, self.accounts, clock=self.clock, change_lock=asyncio.Lock(), is_local=True
        )

    def clock(self) -> float:
        return self.now_s

    @property
    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    async def add_account(self, name: str = "acme", **values: Any) -> Account:
        return await self.accounts.add_account(Account(0, name, **values))

    async def add(self, name: str = "ann", passphrase: str = FROGS, **values: Any) -> Member:
        """A member of ``acme``, which is made where it is not there."""
        accounts = {account.name: account for account in await self.accounts.list_accounts()}
        account = accounts.get("acme") or await self.add_account()
        kept = await self.sessions.hasher.hash(passphrase)
        fresh = Member(0, account.id, name, "member", passphrase=kept, created_ms=self.now_ms)
        return await self.store.add_member(attrs.evolve(fresh, **values))

    async def add_with_second_factor(self, name: str = "ann") -> tuple[Member, list[str]]:
        """A member with an authenticator, and its recovery codes."""
        before = await self.add(name)
        after, codes = self.factors.confirm(before, SECRET, 0)
        await self.store.put_member(before, after)
        return after, codes

    def code(self, later: int = 0, secret: str = SECRET) -> str:
        """What the authenticator shows now, or so many steps later."""
        return pyotp.TOTP(secret).generate_otp(int(self.now_s) // STEP_S + later)

    async def sign_in(
        self, name: str = "ann", passphrase: str = FROGS, code: str | None = None, visitor: ClientInfo = HOME
    ) -> NewSession:
        return await self.sessions.sign_in(name, passphrase, code, visitor)

    async def list_audit_trail(self) -> list[AuditRow]:
        """The audit trail, the oldest first."""
        return list(await self.audit_log.list_audit(AuditFilter(), 100))[::-1]

    async def list_actions(self) -> list[str]:
        return [row.action for row in await self.list_audit_trail()]
