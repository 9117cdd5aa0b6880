"""Prints one request: its fields, its attempts, its cost, and its kept bodies."""

import click

from gateway.cli.output import print_fields
from gateway.cli.table import Column, print_table
from gateway.cli.text import ABSENT, Json, clean_lines, format_outcome, format_usd

_HIDDEN_FIELDS = frozenset(
    {
        "sequence", "account_id", "started_ms", "settled_ms", "tried", "cost_nanos", "saved_nanos", "reserved_nanos",
        "overrun_nanos", "attempts_made", "lines", "timing", "attempts", "usage_implausible",
    }
)  # fmt: skip
"""Fields left out because another field or a table below shows their content better."""
_OPTIONAL_FIELDS = frozenset(
    {
        "images", "duration_ms", "characters", "usage_capped", "error", "error_code", "adapted",
        "served_model", "units", "batch_id", "route", "saved_usd", "shadow", "end_user", "session", "tags", "queued_ms",
        "replay_of", "cache", "agreement_ppm", "agreed_on",
    }
)  # fmt: skip
"""Fields left out if they have no value."""


_LOSSES = {
    "memory": "too much waited to be written",
    "size": "a body was too large",
    "disk": "writing to the disk failed",
    "fault": "there is a fault in the gateway, see its log",
}
"""Why nothing of a request was kept."""


def _format_price(line: Json) -> str:
    """Format the price of a cost line: ``$0.25 per 1,000,000``."""
    if line["unit_usd"] is None:
        return ABSENT
    return format_usd(line["unit_usd"]) + (f" per {line['per']:,}" if line["per"] > 1 else "")


ATTEMPTS = (
    Column("ATTEMPT", "number", align_right=True),
    Column("STEP", "step", align_right=True, hidden_value=ABSENT),
    Column("MODEL", "model", hidden_value=ABSENT, shrinks=True, width=10),
    Column("CHANNEL", "channel", shrinks=True, width=10),
    Column("MS", "ms", align_right=True),
    Column("RESULT", lambda attempt: attempt["error_code"] or "ok", shrinks=True, width=20, status=True),
    Column("CAUSE", "cause", hidden_value=ABSENT),
    Column("STATUS", "status", align_right=True, hidden_value=ABSENT, drop=1),
)
COST_LINES = (
    Column("COST OF", "what", shrinks=True, width=16),
    Column("QUANTITY", lambda line: f"{line['quantity']:,}", align_right=True),
    Column("PRICE", _format_price, align_right=True),
    Column("COST", lambda line: format_usd(line["cost_usd"]) + (" ~" if line["estimated"] else ""), align_right=True),
)


def print_request(row: Json) -> None:
    """Print a request with its attempts and the lines of its cost."""
    hidden_fields = _HIDDEN_FIELDS if row["batch_id"] else _HIDDEN_FIELDS | {"batch_multiplier_ppm"}
    print_fields(
        {
            name: value
            for name, value in row.items()
            if name not in hidden_fields and (value or name not in _OPTIONAL_FIELDS)
        }
    )
    if row["attempts_made"]:
        click.echo()
        attempts = [{"number": number, **attempt} for number, attempt in enumerate(row["attempts_made"], 1)]
        print_table(ATTEMPTS, attempts, "")
    if row["lines"]:
        click.echo()
        print_table(COST_LINES, row["lines"], "")
    elif not row["cost_usd"]:
        click.echo(f"\nNothing was charged: {_find_reason(row)}.")


def _find_reason(row: Json) -> str:
    if row["error_code"] or row["outcome"] != "completed":
        return f"the request ended as '{format_outcome(row)}'"
    return f"'{row['model']}' has no price"


def print_bodies(answer: Json) -> None:
    """Print the kept bodies of a request, put together where their form is known."""
    if answer["loss"]:
        click.echo(f"Nothing was kept: {_LOSSES[answer['loss']]}.")
    for body in answer["bodies"]:
        source = f" of {body['channel']}, status {body['status']}" if body["channel"] else ""
        notes = [body["media_type"], f"{body['received_bytes']:,} bytes"]
        notes += [note for name, note in (("redacted", "redacted"), ("cut", "cut")) if body[name]]
        click.echo(f"--- {body['kind'].replace('_', ' ')}{source}: {', '.join(notes)}")
        for line in _list_lines(body) or [body["content"]]:
            click.echo(clean_lines(line))
    click.echo(f"--- kept until {answer['expires_at']}")


def _list_lines(body: Json) -> list[str]:
    """Return the lines that show a body.

    For a stream in an unknown form they are its texts; for another body in such a form there are none.
    """
    lines = [f"{message['role']}: {message['text']}" for message in body["messages"] if message["text"]]
    for item in (*body["messages"], *body["answers"]):
        lines += [f"reasoning: {item['reasoning']}"] if item.get("reasoning") else []
        lines += [item["text"]] if "reasoning" in item and item["text"] else []
        lines += [f"tool call: {call['name']}({call['arguments']})" for call in item["tool_calls"]]
    return lines or [f"{text['place']}: {text['text']}" for text in body["texts"]]
