"""Holds back credit on a server that has replaced another one, until every node has posted what may be missing.

A promoted standby may lack the last seconds of its primary: charges, and credit that nodes have taken and spent. Every
node knows its own part. It stores its last rows again (``journal.repost``), sets its leases anew (``restored_leases``),
and reports that in its next beat. When all live nodes have reported, the first node that needs credit records in the
database that credit is granted on this server. After ``RESTORE_S`` it is granted in any case.
"""

from collections.abc import Collection
from typing import Protocol

import structlog

from gateway.cluster.credit.rows import LIST_RESTORING_NODES, Connection
from gateway.cluster.membership.times import RESTORE_S
from gateway.errors import StoreUnavailable

_NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# The row in ``cluster``: from when credit is granted (Unix milliseconds), a space, and the generation of the server.
_READ_GRANTING = f"""
SELECT value, split_part(convert_from(value, 'UTF8'), ' ', 1)::bigint - {_NOW_MS} AS wait_ms,
  substr(convert_from(value, 'UTF8'), strpos(convert_from(value, 'UTF8'), ' ') + 1) AS generation
FROM cluster WHERE name = 'granting'
"""  # noqa: S608 - our own words
_INSERT_GRANTING = (
    "INSERT INTO cluster (name, value) VALUES ('granting', convert_to('0 ' || $1::text, 'UTF8')) ON CONFLICT DO NOTHING"
)
_UPDATE_GRANTING = f"""
UPDATE cluster SET value = convert_to(({_NOW_MS} + $3::bigint) || ' ' || $1::text, 'UTF8')
WHERE name = 'granting' AND value = $2
"""  # noqa: S608 - our own words

log = structlog.stdlib.get_logger(__name__)


class CreditHeldBack(StoreUnavailable):
    """The server has replaced another one, and may grant too much credit at the moment."""

    def __init__(self) -> None:
        super().__init__("The gateway's store was replaced: its nodes store their last charges again", retry_after_s=2)


class RestoringNode(Protocol):
    """A node that stores its last rows again on a new server.

    Attributes:
        restored_generation: the server on which this node has stored its last rows, see ``read_generation``.
        expected_nodes: the nodes that were live before the server was replaced.
    """

    @property
    def id(self) -> str: ...

    @property
    def restored_generation(self) -> str: ...

    @property
    def expected_nodes(self) -> Collection[str]: ...


class GrantGate:
    """Checks that a database server may grant credit to this node; records in the database when granting resumes."""

    def __init__(self, node: RestoringNode) -> None:
        self._node = node

    def check_restored(self, generation: str) -> None:
        """Raise ``CreditHeldBack`` unless this node has set its leases on the server of this ``generation``."""
        if generation != self._node.restored_generation:
            raise CreditHeldBack

    async def check_granting(self, connection: Connection, generation: str) -> None:
        """Raise ``CreditHeldBack`` unless the database server of ``connection`` grants credit.

        ``generation`` is that server's (``read_generation``). Inserts or updates the row ``granting``, which records
        from when the server grants credit.
        """
        row = await connection.fetchrow(_READ_GRANTING)
        if row is None:
            await connection.execute(_INSERT_GRANTING, generation)
            return
        value = row["value"]
        if row["generation"] != generation:
            if await connection.execute(_UPDATE_GRANTING, generation, value, int(RESTORE_S * 1000)) == "UPDATE 1":
                log.warning("credit_held_back", node=self._node.id)
            raise CreditHeldBack
        if row["wait_ms"] <= 0:
            return
        if await connection.fetch(LIST_RESTORING_NODES, list(self._node.expected_nodes), self._node.id, generation):
            raise CreditHeldBack
        await connection.execute(_UPDATE_GRANTING, generation, value, 0)
        log.info("credit_granted_again", node=self._node.id)
