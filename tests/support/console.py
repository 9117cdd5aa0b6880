"""Members at a gateway under test, and their sessions."""

from gateway.auth.sessions import ClientInfo
from gateway.domain.member import Credential, Member, Role
from gateway.server.context import SERVICES
from gateway.server.sessions import CONSOLE_HEADER
from tests.support.gateway import RunningGateway

FROGS = "four green frogs sing"
KEPT = "$argon2id$v=19$m=8,t=1,p=1$pxOVHPuGeXZXnjsTGsW2PQ$HhuhiDCW/3vZ4BQsx8V8buH5+3pJWlh8aqVqiDa/H/U"
"""Of those frogs, at next to no cost."""
PAGE = {CONSOLE_HEADER: "1", "Sec-Fetch-Site": "same-origin"}
"""What a page of ours sends with a change."""


async def add_member(gateway: RunningGateway, name: str, role: Role = "member", account: str = "acme") -> Member:
    """A new member, whose passphrase are the frogs."""
    home = await gateway.app[SERVICES].auth.accounts.get_stored_account(account)
    found: Member = await gateway.app[SERVICES].auth.sessions._members.add_member(
        Member(0, home.id, name, role, passphrase=KEPT)
    )
    return found


async def open_session(gateway: RunningGateway, member: Member, address: str = "") -> str:
    """A session of theirs; its reference, the cookie's value."""
    proof = Credential(member.passphrase, is_known=True)
    found: str = (await gateway.app[SERVICES].auth.sessions.open(member, proof, ClientInfo(address))).reference
    return found
