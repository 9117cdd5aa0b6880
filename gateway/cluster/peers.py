"""Asks the other nodes of a cluster for what only they have: active requests, their view of channels, streams.

Also sends them cancellations of requests, and the newest timeline of the database's server.

A node is asked at its URL on behalf of the actor who asked this one. The request is signed and carries no token,
because the table of nodes may contain any address.
"""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import orjson
import structlog
from aiohttp import web
from yarl import URL

from gateway.cluster.membership.notifications import NodeNotifications
from gateway.cluster.membership.signature import EVERY_NODE, SIGNATURE_HEADER, WINDOW_S, NodeRequest, NodeSigner
from gateway.config.exposure import is_loopback
from gateway.domain.audit_log import Actor
from gateway.domain.node import Node
from gateway.errors import InvalidApiKey, InvalidRequest, NotFound, Overloaded, StoreUnavailable
from gateway.frozen import frozen
from gateway.server.actor_header import ACTOR_HEADER, format_actor, parse_actor
from gateway.server.admin.prefix import PREFIX
from gateway.storage.database import Database
from gateway.storage.nodes import list_nodes

ASK_TIMEOUT_S = 1.0
"""How long a node may take to answer, in seconds."""
READ_TIMEOUT_S = 45.0
"""How long a stream of another node may be silent. It sends a comment after 15 seconds."""
FIND_TIMEOUT_S = 10.0
"""How long nodes may take to answer whether they have an object, in seconds."""
MAX_ANSWER_BYTES = 2 * 1024 * 1024
"""Maximum size of a node's answer. A list of ``active_requests.MAX_LISTED`` requests takes a quarter of it."""
TIMELINE_INTERVAL_S = 3.0
ABSENT_MS = 6_000
"""A node whose last beat is older may use another server than this node: three beats are missing."""
MAX_ASKED_NODES = 16
"""The maximum number of absent nodes that get the newest timeline."""
TIMELINE = "timeline"
"""The query parameter with the newest timeline that the asking node knows."""
CANCEL = "request_cancelled"
"""A notification with a request's id, the cancelling actor, and the node's signature: see ``Peers.parse_cancel``."""
_ITEM_FIELDS = ("id", "started_at")
"""The fields by which active requests of several nodes are sorted."""
_ANSWER_STATUSES = frozenset({200, 404, 409})
"""Responses with any other status count as no answer."""

log = structlog.stdlib.get_logger(__name__)


@frozen
class Timelines:
    """How timelines of the database's server are exchanged with other nodes.

    ``find``: returns the newest timeline known, as text. ``learn``: called with that of another node.
    """

    find: Callable[[], str]
    learn: Callable[[str], None]


@frozen
class PeerAnswer:
    """A node's answer: the HTTP status and the JSON object."""

    status: int
    body: Mapping[str, Any]

    @property
    def error(self) -> str:
        error = self.body.get("error")
        return str(error.get("message", "")) if isinstance(error, dict) else ""


@frozen
class PeerAnswers:
    """The answers of the other live nodes by id. ``unanswered``: ids of those not asked, or without an answer."""

    by_node: Mapping[str, PeerAnswer]
    unanswered: tuple[str, ...] = ()

    def list_items(self) -> list[Any]:
        """Return the items of all lists in the answers. Items without an id or a start time are skipped."""
        lists = (answer.body.get("data") for answer in self.by_node.values())
        items = (item for node_items in lists if isinstance(node_items, list) for item in node_items)
        return [
            item
            for item in items
            if isinstance(item, dict) and all(isinstance(item.get(name), str) for name in _ITEM_FIELDS)
        ]


class Peers:
    """Sends requests to the other nodes, and checks theirs.

    ``notifications`` also reach nodes without a known URL. ``insecure``: plain HTTP to other machines is allowed.
    ``timelines`` are exchanged because a node whose beats do not arrive may use another primary of the database.
    """

    def __init__(
        self,
        own_id: str,
        database: Database,
        signer: NodeSigner,
        notifications: NodeNotifications,
        timelines: Timelines,
        *,
        insecure: bool = False,
    ) -> None:
        self.own_id = own_id
        self._signer = signer
        self._database = database
        self._notifications = notifications
        self._timelines = timelines
        self._insecure = insecure
        self._skipped_urls: dict[str, str] = {}
        # A compressed answer is not parsed as JSON, so it cannot expand here.
        self._session = aiohttp.ClientSession(
            headers={"Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=ASK_TIMEOUT_S),
            auto_decompress=False,
            trust_env=False,
        )

    def is_signed(self, request: web.Request) -> bool:
        return SIGNATURE_HEADER in request.headers

    def check_signature(self, request: web.Request) -> str:
        """Return the actor for whom another node signed ``request``, as its header has it. Raises ``InvalidApiKey``.

        Also learn the timeline in the query, if there is one.
        """
        signatures, actors = request.headers.getall(SIGNATURE_HEADER), request.headers.getall(ACTOR_HEADER, ())
        node_request = NodeRequest(self.own_id, request.method, request.raw_path, "".join(actors))
        if len(signatures) > 1 or len(actors) != 1 or not self._signer.check(signatures[0], node_request):
            raise InvalidApiKey(
                f"{SIGNATURE_HEADER} is not that of a node of this cluster, is older than {WINDOW_S} seconds, or was "
                "used before",
                should_retry=False,
            )
        if timeline := request.query.get(TIMELINE):
            self._timelines.learn(timeline)
        return actors[0]

    async def close(self) -> None:
        await self._session.close()

    async def ask_all(self, method: str, path: Sequence[str], actor: Actor) -> PeerAnswers:
        """Send a request to all other live nodes, and return their answers.

        ``path`` has the segments below the admin API's prefix. Raises ``NotFound`` if one is empty, ``.`` or ``..``.
        """
        admin_path = build_path(path)
        other_nodes = [
            node for node in await list_nodes(self._database) if node.state == "live" and node.id != self.own_id
        ]
        answers = await asyncio.gather(*(self._ask(node, method, admin_path, actor) for node in other_nodes))
        by_node = {node.id: answer for node, answer in zip(other_nodes, answers, strict=True) if answer is not None}
        return PeerAnswers(by_node, tuple(node.id for node in other_nodes if node.id not in by_node))

    async def send_timeline(self) -> None:
        """Send the newest timeline to nodes whose beats do not arrive, because they may use the former primary.

        At most ``MAX_ASKED_NODES`` get it.
        """
        newest_timeline = self._timelines.find()
        absent_nodes = [node for node in await list_nodes(self._database) if node.id != self.own_id and is_absent(node)]
        path = f"{build_path(('running',))}?node=own&{TIMELINE}={newest_timeline}"
        if newest_timeline:
            await asyncio.gather(
                *(self._send(node, "GET", path, Actor("token")) for node in absent_nodes[:MAX_ASKED_NODES])
            )

    async def keep_sending_timeline(self) -> None:
        """Send the newest timeline to absent nodes every ``TIMELINE_INTERVAL_S``, until cancelled."""
        while True:
            await asyncio.sleep(TIMELINE_INTERVAL_S)
            with suppress(StoreUnavailable):
                await self.send_timeline()

    async def ask_running(self, scope: int | None) -> tuple[list[Any], tuple[str, ...]]:
        answers = await self.ask_all("GET", ("running",), Actor("token", scope=scope))
        return answers.list_items(), answers.unanswered

    async def ask_node(self, node_id: str, path: Sequence[str], actor: Actor) -> PeerAnswer:
        """Get ``path`` (see ``ask_all``) from one node.

        Raises ``NotFound`` if the node is not live, and ``Overloaded`` if it does not answer.
        """
        admin_path = build_path(path)
        for node in await list_nodes(self._database):
            if node.state == "live" and node.id == node_id:
                answer = await self._ask(node, "GET", admin_path, actor)
                if answer is None:
                    raise Overloaded(f"The node {node.id} does not answer", retry_after_s=2)
                return answer
        raise NotFound(f"No live node has the id {node_id[:64]!r}", param="node")

    async def open_path(self, node_id: str, method: str, path: str, actor: Actor) -> aiohttp.ClientResponse | None:
        """Send a request for ``path`` with its query to one node; return the response once its headers have come.

        Returns None if the node is not live, cannot be asked or does not answer. The response must be closed. Its body
        may take as long as a stream, with at most ``READ_TIMEOUT_S`` between two pieces.
        """
        node = next((node for node in await list_nodes(self._database) if node.id == node_id), None)
        return None if node is None else await self._open(node, method, path, actor)

    @asynccontextmanager
    async def open_paths(
        self, method: str, path: str, actor: Actor, status: int
    ) -> AsyncIterator[Sequence[aiohttp.ClientResponse]]:
        """Send a request to every other node, as ``open_path`` does; yield the responses that have come.

        Waits for the first one with ``status``, and ``FIND_TIMEOUT_S`` at most. All are closed at the end.
        """
        nodes = [node for node in await list_nodes(self._database) if node.id != self.own_id]
        tasks = [asyncio.create_task(self._open(node, method, path, actor)) for node in nodes]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIND_TIMEOUT_S):
                    for next_answer in asyncio.as_completed(tasks):
                        answer = await next_answer
                        if answer is not None and answer.status == status:
                            break
            yield [answer for task in tasks if task.done() and (answer := task.result()) is not None]
        finally:
            for task in tasks:
                task.cancel()
                task.add_done_callback(_close_answer)

    async def _open(self, node: Node, method: str, path: str, actor: Actor) -> aiohttp.ClientResponse | None:
        if node.state != "live" or not node.url or not self._may_ask(node):
            return None
        timeout = aiohttp.ClientTimeout(connect=ASK_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
        url = URL(f"{node.url.rstrip('/')}{path}", encoded=True)
        headers = self._build_headers(node, method, path, actor)
        try:
            return await self._session.request(method, url, headers=headers, allow_redirects=False, timeout=timeout)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log.info("node_not_asked", node=node.id, error=str(error) or type(error).__name__)
            return None

    def notify_cancel(self, request_id: str, actor: Actor) -> None:
        """Ask all nodes to cancel an active request. The node that runs it sends no confirmation."""
        text = format_actor(actor)
        signature = self._signer.sign(NodeRequest(EVERY_NODE, CANCEL, request_id, text))
        self._notifications.publish(CANCEL, f"{request_id}:{b64encode(text.encode()).decode()}:{signature}")

    def parse_cancel(self, name: str) -> tuple[str, Actor]:
        """Return the request and the actor of a notification of ``notify_cancel``.

        Raises ``InvalidRequest`` if no node has signed it, or it is no such notification.
        """
        try:
            request_id, encoded_actor, signature = name.split(":")
            text = b64decode(encoded_actor).decode()
        except ValueError:
            raise InvalidRequest("This is no message of a node") from None
        if not self._signer.check(signature, NodeRequest(EVERY_NODE, CANCEL, request_id, text)):
            raise InvalidRequest("No node of this cluster has signed this message")
        return request_id, parse_actor(text)

    async def _ask(self, node: Node, method: str, path: str, actor: Actor) -> PeerAnswer | None:
        return await self._send(node, method, f"{path}?node=own", actor)

    async def _send(self, node: Node, method: str, target: str, actor: Actor) -> PeerAnswer | None:
        if not node.url or not self._may_ask(node):
            return None
        headers = self._build_headers(node, method, target, actor)
        try:
            url = URL(f"{node.url.rstrip('/')}{target}", encoded=True)
            async with self._session.request(method, url, headers=headers, allow_redirects=False) as response:
                body = orjson.loads(await _read(response)) if response.status in _ANSWER_STATUSES else None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log.info("node_not_asked", node=node.id, error=str(error) or type(error).__name__)
            return None
        return PeerAnswer(response.status, body) if isinstance(body, dict) else None

    def _build_headers(self, node: Node, method: str, target: str, actor: Actor) -> dict[str, str]:
        text = format_actor(actor)
        return {ACTOR_HEADER: text, SIGNATURE_HEADER: self._signer.sign(NodeRequest(node.id, method, target, text))}

    def _may_ask(self, node: Node) -> bool:
        """Return whether the node may be asked at its URL. Log once per URL why it may not."""
        problem = find_problem(node.url, insecure=self._insecure)
        if problem and self._skipped_urls.get(node.id) != node.url:
            log.warning("node_skipped", node=node.id, reason=problem)
            self._skipped_urls[node.id] = node.url
        return not problem


def _close_answer(task: "asyncio.Task[aiohttp.ClientResponse | None]") -> None:
    if not task.cancelled() and task.exception() is None and (answer := task.result()) is not None:
        answer.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def is_absent(node: Node) -> bool:
    """Return whether a node's beats are missing although it has not signed off."""
    return node.state == "dead" or (node.state == "live" and node.beat_age_ms > ABSENT_MS)


def find_problem(url: str, *, insecure: bool) -> str:
    """Return why nodes at ``url`` may not be asked; empty if they may."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "its url cannot be read"
    if parts.scheme not in {"http", "https"} or not host or parts.username or parts.query or parts.fragment:
        return "its url is no HTTP address"
    if parts.scheme == "http" and not insecure and not is_loopback(host):
        return "its url is plain HTTP to another machine. Set its cluster.url to https://, or cluster.insecure = true"
    return ""


def build_path(segments: Sequence[str]) -> str:
    """Return the path for a request to a node. Raises ``NotFound`` if a segment is empty, ``.`` or ``..``."""
    # Each segment must stay a single one: a client may have chosen it, and the asked node trusts this node.
    if not {"", ".", ".."}.isdisjoint(segments):
        raise NotFound("A name cannot be empty or consist of dots", should_retry=False)
    return "/".join((PREFIX, *(quote(segment, safe="") for segment in segments)))
