"""Formats of batch result lines: each batch is answered in the API format that created it."""

from collections.abc import Callable

from gateway.domain.batch import MESSAGES_ENDPOINT, BatchTally, LineResult
from gateway.formats.batches import anthropic, openai
from gateway.formats.errors.body import ErrorFormat
from gateway.formats.wire.request_body import Body
from gateway.frozen import frozen


@frozen
class LineFormat:
    """Functions that build and parse the result lines of a batch; see ``formats/batches/openai.py``."""

    build_answer: Callable[[str, int, str, str, bytes], LineResult]
    build_refused: Callable[[str, int, str, Body], LineResult]
    build_unsent: Callable[[str, int, str, str, str], LineResult]
    parse_result: Callable[[bytes], tuple[str, BatchTally] | None]
    errors: ErrorFormat


OPENAI = LineFormat(
    openai.build_answer_line, openai.build_refused_line, openai.build_unsent_line, openai.parse_result, "openai"
)
ANTHROPIC = LineFormat(
    anthropic.build_answer_line,
    anthropic.build_refused_line,
    anthropic.build_unsent_line,
    anthropic.parse_result,
    "anthropic",
)


def find_line_format(endpoint: str) -> LineFormat:
    """Return the format of the result lines of a batch for ``endpoint``."""
    return ANTHROPIC if endpoint == MESSAGES_ENDPOINT else OPENAI
