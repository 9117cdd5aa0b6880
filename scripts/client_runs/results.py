"""What the steps of clients came to, and the table of that."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from scripts.client_runs.clients import Client

FORMATS = {"over-openai": "OpenAI", "over-anthropic": "Anthropic", "over-gemini": "Gemini"}


@attrs.frozen
class Result:
    """What became of one step.

    Attributes:
        state: "passed", "failed", "skipped", or "known": a failure that the list of clients explains.
    """

    client: str
    model: str
    step: str
    state: str
    reason: str = ""


def read_results(client: Client, output: str, *, ended: str) -> list[Result]:
    """Return the steps that a program has printed; one that ended early has a failed step for each model left.

    Args:
        client: whose output it is.
        output: the program's standard output.
        ended: why the program ended before its time; empty if it did not.
    """
    found = []
    for line in output.splitlines():
        value = _parse(line)
        if value is not None:
            found.append(_judge(client, Result(client.name, **value)))
    missing = [model for model in FORMATS if not any(one.model == model for one in found)]
    if ended and not missing:
        missing = [found[-1].model]
    return [*found, *(Result(client.name, model, "run", "failed", ended or "no output") for model in missing)]


def _parse(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and value.keys() == {"model", "step", "state", "reason"} else None


def _judge(client: Client, result: Result) -> Result:
    known = client.known.get(f"{result.model}: {result.step}")
    if known is None:
        return result
    if result.state == "passed":
        return attrs.evolve(result, state="failed", reason=f"passes now; remove it from the known failures: {known}")
    return attrs.evolve(result, state="known", reason=known) if result.state == "failed" else result


def write_table(results: Sequence[Result], names: Iterable[str]) -> str:
    """Return a Markdown table of clients and provider formats, and below it the reason of all that did not pass."""
    head = ["Client", *FORMATS.values()]
    rows = [[name, *(_write_cell([one for one in results if (one.client, one.model) == (name, model)])
                     for model in FORMATS)] for name in names]  # fmt: skip
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [head, ["-" * width for width in widths], *rows]
    ]
    reasons = [
        f"- {one.state}: {one.client}, {FORMATS[one.model]}, {one.step}: {' '.join(one.reason.split())[:600]}"
        for one in results
        if one.state != "passed"
    ]
    return "\n".join([*lines, "", *reasons])


def _write_cell(results: Sequence[Result]) -> str:
    counts = {state: sum(one.state == state for one in results) for state in ("passed", "failed", "known", "skipped")}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "-"
