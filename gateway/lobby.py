"""The part of the roof under which members come in: who knows them, lets them in, and looks after them."""

import time
from collections.abc import Callable

import attrs

from gateway.flow.delays import Delays
from gateway.flow.invitations import Invitations
from gateway.flow.members import Members
from gateway.flow.passphrases import Passphrases
from gateway.flow.reception import Reception
from gateway.flow.second_factor import SecondFactor
from gateway.store.accounts import SqlAccountStore
from gateway.store.engine import Database
from gateway.store.members import SqlMemberStore
from gateway.store.seal import Seal


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
