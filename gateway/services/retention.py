"""Opens the worker that deletes old rows, a minute after the start."""

from gateway.billing.retention_worker import RetentionWorker
from gateway.server.context import Services
from gateway.storage.retention import RetentionRepository


def open_retention_worker(services: Services) -> RetentionWorker:
    """Open the worker. Its first deletion is due at once."""
    storage, limits = services.storage, services.billing.limits
    count_lost = None if services.sinks is None else services.sinks.count_lost
    return RetentionWorker(
        RetentionRepository(storage.database, count_lost),
        storage.write_queue,
        services.live_config.find_keep_days,
        storage.retention_clock.now,
        retire_limits=limits.retire,
        retire_sessions=limits.retire_sessions,
    )
