"""The part of the roof under which members come in: who knows them, lets them in, and looks after them."""

import time
from collections.abc import Callable

import attrs

from gateway.auth.invitations import Invitations
from gateway.auth.login_throttle import LoginThrottle
from gateway.auth.members import Members
from gateway.auth.passwords import PasswordService
from gateway.auth.sessions import SessionService
from gateway.auth.totp import Totp
from gateway.storage.accounts import AccountRepository
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox
from gateway.storage.members import MemberRepository


@attrs.frozen
class Lobby:
    """What others need of it."""

    sessions: SessionService
    invitations: Invitations
    members: Members

    def close(self) -> None:
        """End the threads that passphrases are hashed in, where there are any."""
        self.sessions.hasher.close()


def open_lobby(database: Database, seal: SecretBox, clock: Callable[[], float]) -> Lobby:
    """Build it. Nothing is asked of the store before somebody comes."""
    members, accounts = MemberRepository(database), AccountRepository(database)
    sessions = SessionService(members, PasswordService(), Totp(seal), LoginThrottle(time.monotonic), clock=clock)
    return Lobby(
        sessions,
        Invitations(members, accounts, sessions, clock=clock),
        Members(members, accounts, clock=clock),
    )
