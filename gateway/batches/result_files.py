"""The two files that the results of a running batch are appended to: answers and errors.

Appended results are durable before the batch's row counts their lines.

A cluster node that takes over a batch continues in copies: the previous node may be alive and still writing.
"""

from collections.abc import Callable, Sequence

from gateway.domain.batch import BatchTally, LineResult
from gateway.domain.client_file import find_digits
from gateway.formats.batches.openai import parse_result
from gateway.storage.media_store import FileStore

ParseResult = Callable[[bytes], tuple[str, BatchTally] | None]


class ResultFiles:
    """The files of one batch. Methods block.

    ``moves``: how often another node has taken the batch over; part of the files' names.
    """

    def __init__(self, folder: FileStore, batch_id: str, parse: ParseResult = parse_result, moves: int = 0) -> None:
        self._folder = folder
        self._moves = moves
        self._name = f"batch-{find_digits(batch_id)}"
        self.output = folder.open_lines(self._find_name("output", moves), parse)
        self.errors = folder.open_lines(self._find_name("errors", moves), parse)

    def copy_former(self) -> None:
        """Start from the previous node's files. No-op on the second call."""
        for kind, file in (("output", self.output), ("errors", self.errors)):
            earlier_names = [self._find_name(kind, moves) for moves in range(self._moves - 1, -1, -1)]
            self._folder.copy_lines(earlier_names, file.name)

    def _find_name(self, kind: str, moves: int) -> str:
        return f"{self._name}.{moves}.{kind}" if moves else f"{self._name}.{kind}"

    def recover(self) -> tuple[set[str], BatchTally]:
        """Return the ``custom_id`` of every line with a result, and the tally of these lines.

        Cuts off an incomplete last line, which a crash leaves.
        """
        custom_ids, tally = set[str](), BatchTally()
        for file in (self.output, self.errors):
            for custom_id, line_tally in file.recover():
                custom_ids.add(custom_id)
                tally = tally.add(line_tally)
        return custom_ids, tally

    def append(self, results: Sequence[LineResult]) -> None:
        """Write results durably. After an error the same call can be repeated."""
        self.output.append([result.line for result in results if result.in_output])
        self.errors.append([result.line for result in results if not result.in_output])
        self.output.make_permanent()
        self.errors.make_permanent()

    def remove(self) -> None:
        for file in (self.output, self.errors):
            file.remove()
