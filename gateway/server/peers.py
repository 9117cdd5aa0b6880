"""Ask the other nodes of a cluster for what each knows only of itself: its active requests, its view of channels.

A node is asked over its URL with the admin token, which all nodes share, on behalf of the actor who asked this one.
"""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
import attrs
import orjson
import structlog
from yarl import URL

from gateway.cluster.rings import Rings
from gateway.domain.audit_log import Actor
from gateway.domain.node import Node
from gateway.errors import NotFound, Overloaded
from gateway.server.actor_header import ACTOR_HEADER, format_actor, parse_actor
from gateway.server.admin.operation import PREFIX
from gateway.storage.database import Database
from gateway.storage.nodes import list_nodes

ASK_S = 1.0
"""How long a node may take to answer."""
CANCEL = "request_cancelled"
"""Rings with a request's id and the actor who cancels it: see ``parse_cancel``."""
_ANSWERS = frozenset({200, 404, 409})
"""Every other status counts as no answer."""

log = structlog.stdlib.get_logger(__name__)


@attrs.frozen
class PeerAnswer:
    """What a node answered: the HTTP status and the JSON object."""

    status: int
    body: Mapping[str, Any]

    @property
    def error(self) -> str:
        """The message of an error."""
        error = self.body.get("error")
        return str(error.get("message", "")) if isinstance(error, dict) else ""


@attrs.frozen
class PeerAnswers:
    """What the other live nodes answered, by their ids.

    Attributes:
        unanswered: the ids of those that did not, or whose URL is not known.
    """

    found: Mapping[str, PeerAnswer]
    unanswered: tuple[str, ...] = ()

    def list_items(self) -> list[Any]:
        """Return the items of all lists among the answers."""
        return [item for answer in self.found.values() for item in answer.body.get("data", ())]


class Peers:
    """The other live nodes of this one's cluster.

    Args:
        own_id: the id of this node.
        database: has the nodes.
        token: the admin token.
        rings: reaches nodes whose URL is not known.
    """

    def __init__(self, own_id: str, database: Database, token: str, rings: Rings) -> None:
        self.own_id = own_id
        self._database = database
        self._rings = rings
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"}, timeout=aiohttp.ClientTimeout(total=ASK_S), trust_env=False
        )

    async def close(self) -> None:
        await self._session.close()

    async def ask_all(self, method: str, path: Sequence[str], actor: Actor) -> PeerAnswers:
        """Ask every other live node, at once. Raises ``NotFound`` as ``build_path``, ``StoreUnavailable``.

        Args:
            method: of HTTP.
            path: the segments below the admin API's prefix.
            actor: on whose behalf.
        """
        wanted = build_path(path)
        others = [node for node in await list_nodes(self._database) if node.state == "live" and node.id != self.own_id]
        answers = await asyncio.gather(*(self._ask(node, method, wanted, actor) for node in others))
        found = {node.id: answer for node, answer in zip(others, answers, strict=True) if answer is not None}
        return PeerAnswers(found, tuple(node.id for node in others if node.id not in found))

    async def ask_one(self, node_id: str, path: Sequence[str], actor: Actor) -> PeerAnswer:
        """Get ``path`` from one node. Raises ``NotFound`` if it is not live, ``Overloaded`` if it does not answer."""
        wanted = build_path(path)
        for node in await list_nodes(self._database):
            if node.state == "live" and node.id == node_id:
                answer = await self._ask(node, "GET", wanted, actor)
                if answer is None:
                    raise Overloaded(f"The node {node.id} does not answer", retry_after_s=2)
                return answer
        raise NotFound(f"No live node has the id {node_id[:64]!r}", param="node")

    def notify_cancel(self, request_id: str, actor: Actor) -> None:
        """Have whichever node has it cancel an active request; which one that is, none of them says."""
        self._rings.ring(CANCEL, f"{request_id}:{b64encode(format_actor(actor).encode()).decode()}")

    async def _ask(self, node: Node, method: str, path: str, actor: Actor) -> PeerAnswer | None:
        if not node.url:
            return None
        headers = {ACTOR_HEADER: format_actor(actor)}
        try:
            url = URL(f"{node.url.rstrip('/')}{path}?node=own", encoded=True)
            async with self._session.request(method, url, headers=headers, allow_redirects=False) as response:
                body = orjson.loads(await response.read()) if response.status in _ANSWERS else None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log.info("node_not_asked", node=node.id, error=str(error) or type(error).__name__)
            return None
        return PeerAnswer(response.status, body) if isinstance(body, dict) else None


def build_path(segments: Sequence[str]) -> str:
    """Return the path to ask of a node; each of ``segments`` stays a single segment. Raises ``NotFound``.

    A segment may come from a client, and the node is asked with the admin token.
    """
    if not {"", ".", ".."}.isdisjoint(segments):
        raise NotFound("A name cannot be empty or consist of dots", should_retry=False)
    return "/".join((PREFIX, *(quote(segment, safe="") for segment in segments)))


def parse_cancel(name: str) -> tuple[str, Actor]:
    """Parse what ``notify_cancel`` rings: a request's id, and the actor who cancels it."""
    request_id, _, actor = name.partition(":")
    return request_id, parse_actor(b64decode(actor).decode())
