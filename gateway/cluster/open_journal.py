"""Opens the journal of a cluster node and the file of its recent changes; starts ending requests of dead nodes."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from gateway.background import JobRunner
from gateway.cluster.journal.kept_journal import KeptJournal
from gateway.cluster.journal.left_notes import EndedNodeNotes, record_journal_location
from gateway.cluster.journal.note_worker import NoteCollector
from gateway.cluster.journal.request_notes import NoteWriter, PostgresNotes, find_own_notes
from gateway.cluster.journal.store_journal import StoreJournal
from gateway.cluster.kept.kept_changes import ChangeFile
from gateway.domain.balance import parse_day
from gateway.domain.ledger import OnCrash, UnfinishedRequest
from gateway.domain.request_log import RequestRecord
from gateway.options import AppOptions
from gateway.storage.data_folder import JOBS, JOURNAL
from gateway.storage.database import Database
from gateway.storage.journal import RequestJournal
from gateway.storage.stored_notes import StoredNotes

if TYPE_CHECKING:
    from gateway.cluster.membership.node import ClusterNode


async def open_journal(
    options: AppOptions, stack: AsyncExitStack, database: Database, node: "ClusterNode"
) -> tuple[RequestJournal, StoredNotes | None]:
    """Open the journal with the requests that an earlier process of this node left in its file and in the database.

    Also return the object that deletes the journal's notes from the database; None if there are none, and the journal
    writes none. From now on ``database`` also keeps its changes in a ``ChangeFile``.
    """
    config = options.config
    own_notes = await find_own_notes(database, node.id)
    await record_journal_location(database, node.id, config.cluster.journal)
    if config.cluster.journal == "store":
        store_journal = StoreJournal(
            options.folder.private_file(JOURNAL), NoteWriter(node.address, lambda: node.process)
        )
        store_journal.run()
        stack.push_async_callback(store_journal.stop)
        journal: RequestJournal = store_journal
    else:
        journal = KeptJournal(options.folder.private_file(JOURNAL))
    path = None if config.cluster.journal == "store" else options.folder.private_file(JOBS)
    changes = ChangeFile(
        path,
        lambda: node.restored_generation,
        lambda: str(node.address.timeline),
        find_restoring=lambda: node.others_restore,
    )
    database.keep_changes(changes)
    stack.callback(changes.close)
    journal.add_leftovers([UnfinishedRequest(row, ended=False) for row in own_notes])
    return journal, PostgresNotes() if own_notes or config.cluster.journal == "store" else None


def collect_notes(
    database: Database,
    node: "ClusterNode",
    on_crash: OnCrash,
    jobs: JobRunner,
    list_charges: Callable[[RequestRecord], str],
) -> None:
    """Start ending the requests of dead nodes, while ``node`` leads.

    ``list_charges``: returns the ``limit_charges`` of an interrupted row.
    """
    ended_notes = EndedNodeNotes(database, lambda: parse_day(node.clock.now()), list_charges)
    collector = NoteCollector(ended_notes, lambda: node.leads, on_crash, node.clock.now, node.times.notes_s)
    jobs.start("collect_notes", collector.run)
