"""Signs requests between nodes of a cluster with a key that each of them derives from the cluster's master key.

HMAC-SHA256 (RFC 2104) covers ``NodeRequest``, the time and a random number. No secret is sent: a listener at a wrong
address in the table of nodes cannot make requests of its own. Times follow the store's clock, which nodes share.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable

from gateway.frozen import quick_frozen

SIGNATURE_HEADER = "X-Gateway-Node-Signature"
WINDOW_S = 30
"""How far the time of a request may differ from the receiver's, because nodes' clocks drift apart while they slew."""
EVERY_NODE = "*"
"""The receiver of messages to all nodes."""
_PURPOSE = b"model gateway, requests between nodes"
_SIGNATURE = re.compile(r"([0-9]{1,15})\.([0-9a-f]{32})\.([0-9a-f]{64})")


@quick_frozen
class NodeRequest:
    """The signed parts of a request, or of a notification.

    ``receiver``: the id of the asked node, so that a request to one node is not valid at another. ``path``: includes
    the query, as in the request line. ``actor``: the user on whose behalf the node asks, as in the header.
    """

    receiver: str
    method: str
    path: str
    actor: str
    body: bytes = b""


class NodeSigner:
    """Signs a node's requests and checks those it receives, by the cluster's ``master_key`` and the store's clock."""

    def __init__(self, master_key: bytes, clock: Callable[[], float]) -> None:
        self._key = hmac.digest(master_key, _PURPOSE, hashlib.sha256)
        self._clock = clock
        self._used_numbers: dict[str, float] = {}

    def sign(self, node_request: NodeRequest) -> str:
        """Return the value of ``SIGNATURE_HEADER``: time in ms, random number and signature."""
        time_ms, number = str(int(self._clock() * 1000)), secrets.token_hex(16)
        return f"{time_ms}.{number}.{self._compute(node_request, time_ms, number)}"

    def check(self, signature: str, node_request: NodeRequest) -> bool:
        """Return whether a node of the cluster signed ``node_request`` within ``WINDOW_S``.

        The same signature is valid once: a second check returns False.
        """
        match = _SIGNATURE.fullmatch(signature)
        if match is None or not hmac.compare_digest(match[3], self._compute(node_request, match[1], match[2])):
            return False
        now_s, sent_s = self._clock(), int(match[1]) / 1000
        self._used_numbers = {number: until_s for number, until_s in self._used_numbers.items() if until_s >= now_s}
        if abs(now_s - sent_s) > WINDOW_S or match[2] in self._used_numbers:
            return False
        self._used_numbers[match[2]] = sent_s + 2 * WINDOW_S  # the clock may be set back by as much as nodes may differ
        return True

    def _compute(self, node_request: NodeRequest, time_ms: str, number: str) -> str:
        body = hashlib.sha256(node_request.body).hexdigest()
        # In JSON no field can run into the next one, and bytes that are not UTF-8 are escaped.
        signed_text = json.dumps(
            [time_ms, number, node_request.receiver, node_request.method, node_request.path, node_request.actor, body]
        )
        return hmac.digest(self._key, signed_text.encode(), hashlib.sha256).hex()
