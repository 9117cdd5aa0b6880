"""A user of a PostgreSQL database that several gateways of one test write to."""

from sqlalchemy import Executable, text


class AnyUser:
    """Takes no lock of the database, and may always write."""

    def lock(self, *, is_exclusive: bool) -> Executable:
        """See ``DatabaseUser``."""
        return text(f"SELECT pg_advisory_xact_lock{'' if is_exclusive else '_shared'}(7130001), 1 AS alive")

    async def acquire(self, wait_s: float = 0.0) -> None: ...

    def lose(self) -> None: ...

    async def close(self) -> None: ...
