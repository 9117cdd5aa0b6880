"""The records of dead nodes without a disk of their own: notes of requests that have not ended, and leases.

A killed node looks like one that is frozen or cut off, which will post the costs of its requests later. So the credit
that an interrupted request may still spend stays set aside until its node registers again, or until
``cluster.credit.stored_orphans`` ends the leases of a node that does not come back.
"""

from collections.abc import Callable, Sequence
from functools import partial

import attrs
from sqlalchemy import text

from gateway.cluster.credit.rows import build_arrays
from gateway.cluster.credit.store import PostgresCredit
from gateway.cluster.credit.unposted import list_charged_balances
from gateway.cluster.journal.request_notes import parse_note
from gateway.domain.balance import UtcDay
from gateway.domain.request_log import RequestRecord
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository

_LIST_ENDED_NODES = text("""
SELECT n.id FROM nodes n WHERE n.state = 'dead' AND n.journal = 'store'
  OR n.state <> 'live' AND EXISTS (SELECT 1 FROM request_notes r WHERE r.node = n.id)
ORDER BY n.id
""")
# The node cannot register before the commit. Its earlier writes are complete, because each write shares this lock.
_LOCK_ENDED_NODE = text("SELECT journal FROM nodes WHERE id = :node AND state <> 'live' FOR UPDATE")
_DELETE_NOTES = text("DELETE FROM request_notes WHERE node = :node RETURNING note")
_END_LEASES = text("SELECT fold_other_leases(:node, CAST(:owners AS smallint[]), CAST(:ids AS bigint[]))")
_MARK_NODE_GONE = text("UPDATE nodes SET state = 'gone' WHERE id = :node")
_RECORD_JOURNAL = text("UPDATE nodes SET journal = :journal WHERE id = :node AND journal <> :journal")


class EndedNodeNotes:
    """The notes and leases of ended nodes.

    ``today``: returns the current day. ``list_charges``: returns the ``limit_charges`` of an interrupted row.
    """

    def __init__(
        self, database: Database, today: Callable[[], UtcDay], list_charges: Callable[[RequestRecord], str]
    ) -> None:
        self._database = database
        self._today = today
        self._list_charges = list_charges

    async def find_nodes(self) -> Sequence[str]:
        return [row.id for row in await self._database.read(_LIST_ENDED_NODES)]

    async def interrupt_requests(
        self, node: str, interrupt: Callable[[RequestRecord], RequestRecord]
    ) -> Sequence[RequestRecord]:
        """Store the rows of open requests of ``node``, and mark it as gone, in one transaction; return the new rows.

        The leases of the node end, except those from which an interrupted request may still spend: if a request was
        charged less than was reserved, the leases of the request's account, key and limits stay. A node that has
        registered again keeps everything. A node whose journal is on its disk by now keeps its leases, and is not
        marked. ``node`` is an id. ``interrupt`` returns the row of an interrupted request.
        """
        return await self._database.write(partial(self._interrupt_requests, node=node, interrupt=interrupt))

    async def _interrupt_requests(
        self, connection: AsyncConnection, node: str, interrupt: Callable[[RequestRecord], RequestRecord]
    ) -> Sequence[RequestRecord]:
        journal = (await connection.execute(_LOCK_ENDED_NODE, {"node": node})).scalar()
        if journal is None:
            return ()
        note_rows = await connection.execute(_DELETE_NOTES, {"node": node})
        rows = [interrupt(parse_note(bytes(note_row.note))) for note_row in note_rows]
        rows = [attrs.evolve(row, limit_charges=self._list_charges(row)) for row in rows]
        credit = PostgresCredit(self._database, node, self._today)
        stored_rows = await LedgerRepository(self._database).insert_new(connection, rows, credit)
        if journal == "store":
            cheap_rows = (row for row in rows if row.cost_nanos < row.reserved_nanos)
            owners, ids = build_arrays(list({balance for row in cheap_rows for balance in list_charged_balances(row)}))
            await connection.execute(_END_LEASES, {"node": node, "owners": owners, "ids": ids})
            await connection.execute(_MARK_NODE_GONE, {"node": node})
        return stored_rows


async def record_journal_location(database: Database, node: str, journal: str) -> None:
    """Record the location of the journal of ``node``: "disk" or "store"."""
    await database.change(_RECORD_JOURNAL.bindparams(node=node, journal=journal))
