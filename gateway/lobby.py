"""The part of the roof under which members come in: who knows them, lets them in, and looks after them."""

import time
from collections.abc import Callable

import attrs

from gateway.auth.invitations import Invitations
from gateway.auth.login_throttle import Delays
from gateway.auth.members import Members
from gateway.auth.passwords import Passphrases
from gateway.auth.sessions import Reception
from gateway.auth.totp import SecondFactor
from gateway.storage.accounts import SqlAccountStore
from gateway.storage.database import Database
from gateway.storage.encryption import Seal
from gateway.storage.members import SqlMemberStore


@attrs.frozen
class Lobby:
    """What others need of it."""

    reception: Reception
    invitations: Invitations
    members: Members

    def close(self) -> None:
        """End the threads that passphrases are hashed in, where there are any."""
        self.reception.passphrases.close()


def open_lobby(database: Database, seal: Seal, clock: Callable[[], float]) -> Lobby:
    """Build it. Nothing is asked of the store before somebody comes."""
    members, accounts = SqlMemberStore(database), SqlAccountStore(database)
    reception = Reception(members, Passphrases(), SecondFactor(seal), Delays(time.monotonic), clock=clock)
    return Lobby(
        reception,
        Invitations(members, accounts, reception, clock=clock),
        Members(members, accounts, clock=clock),
    )
