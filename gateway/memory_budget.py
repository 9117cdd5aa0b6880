"""One memory budget for data that the gateway loads for requests: conversations, files, bodies that it unpacks.

A few bytes in a request can refer to a lot of such data. Each request reserves the memory before anything is loaded.
"""

import asyncio
from typing import Any, Protocol

from gateway.errors import Overloaded, RequestTooLarge

RETRY_S = 2
_MIB = 1024 * 1024
_OBJECT_BYTES, _ARRAY_BYTES, _VALUE_BYTES = 232, 88, 64
"""Upper bounds for the bytes that CPython uses for an empty dict with its first keys, an empty list, and a value in
either."""


class Loan:
    """The memory that one request has borrowed. ``close`` returns the memory once; deleting this object does the same.

    ``held_bytes`` are the bytes borrowed now. ``media_by_url`` is the content fetched for the prompt, by URL, kept for
    further attempts of the same request.
    """

    __slots__ = ("_budget", "held_bytes", "media_by_url")

    def __init__(self, budget: "MemoryBudget") -> None:
        self._budget = budget
        self.held_bytes = 0
        self.media_by_url: dict[str, Any] = {}

    @property
    def room(self) -> int:
        return self._budget.max_loan_bytes - self.held_bytes

    def take(self, size: int, description: str, param: str | None = None) -> None:
        """Borrow ``size`` bytes. ``description`` names what needs them, at the beginning of an error's message.

        Raises ``RequestTooLarge`` beyond ``room``, or ``Overloaded`` if other requests have borrowed too much.
        """
        budget = self._budget
        if size > self.room:
            needed_mib, limit_mib = -(-(self.held_bytes + size) // _MIB), budget.max_loan_bytes // _MIB
            message = f"{description} needs {needed_mib} MB of memory, and one request may need {limit_mib} MB"
            raise RequestTooLarge(message, param=param)
        if budget.held_bytes + size > budget.max_bytes:
            message = "Conversations, files and compressed bodies of other requests use the memory: send this later"
            raise Overloaded(message, param=param, retry_after_s=RETRY_S)
        self.held_bytes += size
        budget.held_bytes += size

    def release(self, size: int) -> None:
        size = min(size, self.held_bytes)
        self.held_bytes -= size
        self._budget.held_bytes -= size

    def close(self) -> None:
        self.release(self.held_bytes)

    __del__ = close


class Borrower(Protocol):
    """An object that may own a loan; its ``loan`` is None until it borrows."""

    loan: Loan | None


class MemoryBudget:
    """Counts the memory that requests have borrowed, in bytes. One request may borrow half of ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.max_loan_bytes = max_bytes // 2
        self.held_bytes = 0

    async def take_spare(self, loan: Loan, size: int) -> None:
        """Borrow ``size`` bytes for ``loan``, at most its ``room``.

        First wait until half of the memory stays free for requests, or no memory is borrowed.
        """
        size = min(size, loan.room)
        while self.held_bytes and self.held_bytes + size > self.max_loan_bytes:  # noqa: ASYNC110 - a batch has a day: polling will do
            await asyncio.sleep(RETRY_S)
        loan.take(size, "A line")

    def lend(self, borrower: Borrower) -> Loan:
        if borrower.loan is None:
            borrower.loan = Loan(self)
        return borrower.loan


def close_loan(borrower: Borrower) -> None:
    """Return all memory that ``borrower`` has borrowed."""
    loan, borrower.loan = borrower.loan, None
    if loan is not None:
        loan.close()


def estimate_memory(data: bytes) -> int:
    """Return an upper bound for the bytes of ``data`` parsed as JSON: CPython uses up to 4 per character (PEP 393)."""
    values = data.count(b",") + data.count(b":")
    structure_bytes = data.count(b"{") * _OBJECT_BYTES + data.count(b"[") * _ARRAY_BYTES + values * _VALUE_BYTES
    return len(data) * _find_width(data) + structure_bytes + _OBJECT_BYTES


def _find_width(data: bytes) -> int:
    if data.isascii():
        return 4 if b"\\ud" in data else 2 if b"\\u" in data else 1
    return 4 if any(data.find(first) >= 0 for first in range(0xF0, 0xF5)) else 2
