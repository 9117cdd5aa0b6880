"""Checks the database for damage soon after each start, and then every day."""

import asyncio

from gateway.storage.integrity_check import find_damage
from gateway.storage.sqlite_database import SqliteDatabase

FIRST_DELAY_S = 20.0
CHECK_INTERVAL_S = 24 * 3_600.0


class IntegrityWorker:
    """Runs the checks. Damage is logged and makes ``/readyz`` fail."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def run(self) -> None:
        await asyncio.sleep(FIRST_DELAY_S)
        while True:
            await self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def check(self) -> None:
        if problems := await find_damage(self._database.path):
            self._database.report_damage("; ".join(problems))
