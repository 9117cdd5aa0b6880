"""Opens the cache of answers: at the first request that uses it, or if an earlier process has stored some."""

from gateway.background import JobRunner
from gateway.proxy.answer_flights import CachedAnswers
from gateway.services.base import BaseServices
from gateway.storage.answer_cache import AnswerCache
from gateway.storage.encryption import SecretBox

FOLDER = "cache"
_DELETED = "answers_deleted"
"""The cluster notification to delete the answers of an account or a user."""


def open_answers(base: BaseServices, secret_box: SecretBox, jobs: JobRunner) -> CachedAnswers:
    """Open the cache. With ``gateway serve``, also start the job that removes expired answers.

    A node of a cluster begins with an empty cache: while the node was down, it may have missed deletions.
    """
    node = base.storage.node
    store = AnswerCache(
        base.options.folder.path / FOLDER,
        secret_box,
        find_max_bytes=base.live_config.find_cache_max_bytes,
        clock=base.options.clock,
        keeps_stored=node is None,
    )
    answers = CachedAnswers(store, None if node is None else lambda name: node.notifications.publish(_DELETED, name))
    if node is not None:
        node.notifications.subscribe(_DELETED, answers.delete_here)
    if base.options.declare:
        jobs.start("sweep_cache", store.run)
    return answers
