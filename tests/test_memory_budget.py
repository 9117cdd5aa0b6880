"""The memory that requests borrow: bounded, given back once, and enough for what JSON becomes."""

import tracemalloc
from typing import Any

import attrs
import orjson
import pytest

from gateway.errors import Overloaded, RequestTooLarge
from gateway.memory_budget import Loan, MemoryBudget, close_loan, estimate_memory
from tests.support.table_rows import table_rows

MIB = 1024 * 1024


@attrs.define(eq=False)
class Request:
    loan: Loan | None = None


def test_a_loan_is_bounded_for_one_and_for_all_and_given_back_once() -> None:
    budget = MemoryBudget(8 * MIB)
    first, second, third = Request(), Request(), Request()
    with pytest.raises(RequestTooLarge, match=r"The prompt needs 5 MB of memory, and one request may need 4 MB") as big:
        budget.lend(first).take(4 * MIB + 1, "The prompt", "input")
    assert (big.value.status, big.value.param, budget.held_bytes) == (413, "input", 0)
    for request in (first, second):
        budget.lend(request).take(4 * MIB, "The prompt")
    with pytest.raises(Overloaded, match="of other requests use the memory") as full:
        budget.lend(third).take(1, "The prompt")
    assert (full.value.status, full.value.retry_after_s) == (503, 2)
    loan = budget.lend(second)
    for _ in range(2):
        close_loan(second)
        loan.close()
    assert budget.held_bytes == 4 * MIB
    close_loan(first)
    lost = Loan(budget)
    lost.take(4 * MIB, "The prompt")
    del lost  # without being closed
    assert budget.held_bytes == 0
    budget.lend(third).take(4 * MIB, "The prompt")


@table_rows(
    "value",
    [
        [{}] * 20_000,
        [[]] * 20_000,
        [{"role": "user", "content": ""}] * 5_000,
        [{"type": "message", "content": [{"type": "input_text", "text": "hi"}]}] * 3_000,
        ["a" * 500_000],
        ["a" * 500_000 + "\N{CJK UNIFIED IDEOGRAPH-4E2D}"],
        ["a" * 500_000 + "\N{GRINNING FACE}"],
        [1.5] * 50_000,
        {str(number): number for number in range(20_000)},
    ],
    ids=["objects", "arrays", "messages", "parts", "ascii", "chinese", "emoji", "numbers", "names"],
)
def test_the_estimate_covers_what_the_parsed_value_takes(value: Any) -> None:
    raw = orjson.dumps(value)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        parsed = orjson.loads(raw)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert parsed
    assert taken <= estimate_memory(raw) <= max(8 * taken, 8 * len(raw))
