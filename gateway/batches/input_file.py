"""Reads the input of a batch in groups of lines, and checks every line before any request is sent."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

from gateway.domain.batch import MAX_ERRORS, MAX_LINES, BatchError, BatchLine
from gateway.errors import GatewayError
from gateway.formats.batches.openai import LineError, parse_line
from gateway.frozen import frozen
from gateway.large_work import run_in_thread
from gateway.memory_budget import Loan, MemoryBudget, estimate_memory

PIECE_LINES = 64
PIECE_BYTES = 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

ParsedLine = tuple[int, BatchLine | LineError]
"""The number of a line, from 1, and its content or its error."""
CheckModel = Callable[[BatchLine], GatewayError | None]
"""Returns the error if the batch's key must not use a line's model; None if it may."""


@frozen
class CheckedInput:
    """The result of checking the input of a batch.

    Attributes:
        total: the number of lines that are not blank, at most ``MAX_LINES`` + 1.
        model: the model of all lines; None if they name several, or none.
    """

    total: int
    model: str | None
    errors: tuple[BatchError, ...]


async def read_lines(
    path: Path, endpoint: str, max_line_bytes: int, memory: MemoryBudget
) -> AsyncGenerator[ParsedLine, None]:
    """Yield the non-blank lines of an input file, or their errors, with their numbers. Raises ``OSError``.

    Lines are read in groups; the memory for each group is borrowed from ``memory``.
    """
    file = await asyncio.to_thread(path.open, "rb")
    number, memory_loan = 0, Loan(memory)
    try:
        while True:
            raw_lines = await asyncio.to_thread(_read_piece, file, max_line_bytes)
            if not raw_lines:
                return
            await memory.take_spare(memory_loan, sum(map(estimate_memory, raw_lines)))
            for line in await run_in_thread(_parse_piece, raw_lines, number, endpoint, max_line_bytes):
                yield line
            memory_loan.close()
            number += len(raw_lines)
    finally:
        memory_loan.close()
        file.close()


def _read_piece(file: BinaryIO, max_line_bytes: int) -> list[bytes]:
    """Read a group of lines; empty at the end. A line that is too long is cut off just beyond the limit."""
    lines: list[bytes] = []
    size = 0
    while len(lines) < PIECE_LINES and size < PIECE_BYTES and (line := file.readline(max_line_bytes + 2)):
        line_rest = line
        while len(line_rest) > max_line_bytes and not line_rest.endswith(b"\n") and line_rest:
            line_rest = file.readline(max_line_bytes + 2)
        lines.append(line)
        size += len(line)
    return lines


def _parse_piece(raw_lines: list[bytes], earlier_lines: int, endpoint: str, max_line_bytes: int) -> list[ParsedLine]:
    parsed_lines: list[ParsedLine] = []
    for number, line in enumerate(raw_lines, earlier_lines + 1):
        text = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).strip()
        if not text:
            continue
        try:
            if len(text) > max_line_bytes:
                limit = f"{max_line_bytes // 1024**2} MB"
                raise LineError("line_too_long", f"This line is longer than {limit}.")  # noqa: TRY301 - as the parser's
            parsed_lines.append((number, parse_line(text, endpoint)))
        except LineError as error:
            parsed_lines.append((number, error))
    return parsed_lines


async def check_input(lines: AsyncIterator[ParsedLine], check_model: CheckModel) -> CheckedInput:
    """Count and check the lines. After ``MAX_ERRORS`` errors lines are only counted, up to ``MAX_LINES`` + 1."""
    total, errors = 0, list[BatchError]()
    custom_ids, models = set[str](), dict[str, GatewayError | None]()
    async for number, line in lines:
        total += 1
        if total > MAX_LINES:
            errors.insert(0, BatchError("too_many_lines", f"The file has more than {MAX_LINES} lines."))
            break
        if len(errors) >= MAX_ERRORS:  # every unknown model costs a search for similar names
            continue
        problem = line if isinstance(line, LineError) else _find_problem(line, custom_ids, models, check_model)
        if problem is not None:
            errors.append(problem.at(number))
    if not total:
        errors.append(BatchError("empty_file", "The input file has no lines."))
    return CheckedInput(total, next(iter(models)) if len(models) == 1 else None, tuple(errors[:MAX_ERRORS]))


def _find_problem(
    line: BatchLine, custom_ids: set[str], models: dict[str, GatewayError | None], check_model: CheckModel
) -> LineError | None:
    if line.custom_id in custom_ids:
        text = f"The custom_id {line.custom_id[:64]!r} is there more than once."
        return LineError("duplicate_custom_id", text, "custom_id")
    custom_ids.add(line.custom_id)
    if line.model not in models:
        models[line.model] = check_model(line)
    error = models[line.model]
    return None if error is None else LineError(error.code, error.message, "body.model")
